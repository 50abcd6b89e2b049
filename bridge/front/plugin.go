package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"pdlink/bridge/omlx"
	"pdlink/bridge/omlx/plugin"
)

// KindOMLX names transfers whose Meta is an omlx.Plan in its binary form.
const KindOMLX = "omlx"

// Limits of the conversation with the plug-in.
const (
	// maxPluginAnswer bounds an answer: the ids of sixteen million tokens as base64
	// are 90 MB, and no answer has more than ids and hashes.
	maxPluginAnswer = 96 << 20
	// pluginAnswer is how much of an answer is made room for at once: a plan of
	// 300,000 tokens.
	pluginAnswer = 2 << 20
	// maxLayouts bounds the layouts that are remembered: a decoder has one for each
	// model, and a new one after an update.
	maxLayouts = 64
)

// PluginOptions of a Plugin. Decoder is required.
type PluginOptions struct {
	// Decoder is the base URL of the decoder's own API; the plug-in answers there.
	Decoder *url.URL

	// Tail has the tokens behind a prompt's last whole block planned too, where the
	// decoder can be given them.
	Tail bool

	// Key is the decoder's API key, for what is asked without a request. "": none.
	Key string

	// Transport is cloned for the way to the decoder. Nil means
	// http.DefaultTransport's settings.
	Transport *http.Transport
}

// Plugin asks the plug-in in the decoder's process; it is a Planner. The calls
// carry the API key of the request that they are for, so a client without the
// decoder's key learns nothing. It may be used concurrently.
type Plugin struct {
	base   *url.URL
	client *http.Client
	tail   bool
	key    string

	mu      sync.Mutex
	layouts map[string]omlx.Spec // proved, by the plug-in's name for them; guarded by mu
	models  map[string]told      // what the decoder says of those that it has loaded; guarded by mu
	store   string               // of the decoder, absolute; "": not known yet; guarded by mu

	listing sync.Mutex // guards the rest, and is held while it is asked for
	loaded  []string   // models that the decoder lists as loaded
	listed  time.Time
}

// NewPlugin returns a Plugin. Nothing is asked yet. The error Is ErrOptions.
func NewPlugin(o PluginOptions) (*Plugin, error) {
	if o.Decoder == nil || o.Decoder.Host == "" || (o.Decoder.Scheme != "http" && o.Decoder.Scheme != "https") {
		return nil, fmt.Errorf("%w: the decoder's URL %v: want http://host:port", ErrOptions, o.Decoder)
	}
	t := o.Transport
	if t == nil {
		t = &http.Transport{}
		if d, ok := http.DefaultTransport.(*http.Transport); ok {
			t = d
		}
	}
	return &Plugin{
		base:    o.Decoder.JoinPath("pdlink", "v1"),
		client:  &http.Client{Transport: newTransport(t)},
		tail:    o.Tail,
		layouts: make(map[string]omlx.Spec),
		models:  make(map[string]told),
		key:     o.Key,
	}, nil
}

// Close gives idle connections back. It is idempotent.
func (p *Plugin) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// Plan implements Planner. What the decoder's blocks look like is proved once for
// each layout (plugin.Native.Spec), and the hashes are computed again, wherever blocks
// are missing: a plan without any has neither Meta nor Key.
func (p *Plugin) Plan(ctx context.Context, r Ask) (Plan, error) {
	u := p.base.JoinPath("plan")
	query := url.Values{"path": {r.Path}}
	if p.tail {
		query.Set("tail", "1")
	}
	u.RawQuery = query.Encode()
	data, err := p.call(ctx, http.MethodPost, u, r.Header, r.Body)
	if err != nil {
		return Plan{}, err
	}
	answer, err := plugin.ParsePlan(data)
	if err != nil {
		return Plan{}, err
	}
	out := Plan{
		Model: answer.Model, Tokens: answer.Tokens, Block: answer.BlockTokens,
		Present: answer.Present, Blocks: answer.Blocks, IDs: answer.Signed(), Kind: KindOMLX,
	}
	if answer.Present == answer.Blocks { // nothing will be written
		return out, nil
	}
	spec, err := p.layout(ctx, r.Header, answer)
	if err != nil {
		return Plan{}, err
	}
	transfer, err := answer.Transfer(spec)
	if err != nil {
		return Plan{}, err
	}
	if out.Meta, err = transfer.MarshalBinary(); err != nil {
		return Plan{}, err
	}
	if answer.Tail != nil {
		out.Tail = answer.Tail.Tokens
	}
	out.Key = transfer.Hashes[len(transfer.Hashes)-1].String()
	return out, nil
}

// layout returns the proved layout that a plan names, and has it proved when it is new.
func (p *Plugin) layout(ctx context.Context, h http.Header, answer *plugin.Plan) (omlx.Spec, error) {
	p.mu.Lock()
	spec, ok := p.layouts[answer.Layout]
	ok = ok && p.models[answer.Model].name == answer.Facts
	p.mu.Unlock()
	if ok {
		return spec, nil
	}
	u := p.base.JoinPath("info")
	u.RawQuery = url.Values{"model": {answer.Model}}.Encode()
	data, err := p.call(ctx, http.MethodGet, u, h, nil)
	if err != nil {
		return spec, err
	}
	info, err := plugin.ParseInfo(data)
	if err != nil {
		return spec, err
	}
	if info.Model.Layout != answer.Layout {
		return spec, fmt.Errorf("%w: the layout of %s changed between two calls", plugin.ErrAnswer, answer.Model)
	}
	if spec, err = info.Model.Native.Spec(); err != nil {
		return spec, fmt.Errorf("model %s: %w", answer.Model, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.layouts) >= maxLayouts {
		clear(p.layouts)
	}
	p.layouts[answer.Layout] = spec
	p.learned(answer.Model, told{answer.Facts, info.Model.Told()})
	if dir := storeOf(data); dir != "" {
		p.store = dir
	}
	return spec, nil
}

// Store is the directory of the decoder's block store, as the plug-in said when the
// last new layout was proved; "" before the first plan of a prompt that lacks blocks.
func (p *Plugin) Store() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.store
}

// storeOf is the store's directory in an answer to an info call; "" for none, and for
// one that is not absolute.
func storeOf(data []byte) string {
	var v struct {
		Model struct {
			Store struct {
				Path string `json:"path"`
			} `json:"store"`
		} `json:"model"`
	}
	if json.Unmarshal(data, &v) != nil || !filepath.IsAbs(v.Model.Store.Path) {
		return ""
	}
	return v.Model.Store.Path
}

// Probe asks whether a plug-in answers, without a key. It returns nil for one that
// wants a key too. Its error says what to do.
func (p *Plugin) Probe(ctx context.Context) error {
	_, err := p.call(ctx, http.MethodGet, p.base.JoinPath("info"), nil, nil)
	if errors.Is(err, ErrUnplannable) {
		return nil
	}
	return err
}

// Adopt implements Planner.
func (p *Plugin) Adopt(ctx context.Context, h http.Header, plan Plan, from, to int) (Adoption, error) {
	var transfer omlx.Plan
	if err := transfer.UnmarshalBinary(plan.Meta); err != nil {
		return Adoption{}, err
	}
	if from < 0 || from > to || to > len(transfer.Hashes) || plan.All() != len(transfer.Hashes) {
		return Adoption{}, fmt.Errorf("adopt blocks %d to %d of a plan of %d", from, to, len(transfer.Hashes))
	}
	call := plugin.AdoptCall{Model: plan.Model, First: min(from, plan.Blocks), Hashes: transfer.Hashes[min(from, plan.Blocks):min(to, plan.Blocks)]}
	if to > plan.Blocks {
		call.Tail = &transfer.Hashes[plan.Blocks]
	}
	body, err := json.Marshal(call)
	if err != nil {
		return Adoption{}, err
	}
	data, err := p.call(ctx, http.MethodPost, p.base.JoinPath("adopt"), h, body)
	if err != nil {
		return Adoption{}, err
	}
	answer, err := plugin.ParseAdoption(data, call)
	if err != nil {
		return Adoption{}, err
	}
	blocks := answer.Blocks
	if answer.Tail > 0 && answer.Tail == plan.Tail {
		blocks++
	}
	if answer.Blocks < min(to, plan.Blocks) { // the store may be another one now: ask again
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.layouts)
	}
	return Adoption{Blocks: blocks, Reason: answer.Reason}, nil
}

// errNoPlugin is for people: the answer is not the plug-in's.
var errNoPlugin = errors.New("the decoder has no plug-in: install pdlink-omlx into its environment and start it again")

// call makes one call with the key of a request, and returns the body of a success.
func (p *Plugin) call(ctx context.Context, method string, u *url.URL, from http.Header, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"Authorization", "X-Api-Key"} {
		for _, v := range from.Values(key) {
			req.Header.Add(key, v)
		}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the plug-in: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // the answer has been read, or its error is returned
	var data bytes.Buffer
	data.Grow(int(min(max(resp.ContentLength, 0), pluginAnswer)) + bytes.MinRead)
	_, err = data.ReadFrom(io.LimitReader(resp.Body, maxPluginAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask the plug-in: %w", err)
	case data.Len() > maxPluginAnswer:
		return nil, fmt.Errorf("%w: more than %d bytes", plugin.ErrAnswer, maxPluginAnswer)
	case resp.StatusCode == http.StatusOK:
		return data.Bytes(), nil
	}
	return nil, refused(resp.StatusCode, data.Bytes())
}

// refused turns an answer that is no success into an error.
func refused(status int, data []byte) error {
	r, ours := plugin.ParseRefusal(data)
	switch {
	case ours && r.Code == "unplannable", ours && r.Code == "too-large":
		return fmt.Errorf("%w: %s", ErrUnplannable, r.Message)
	case ours:
		return fmt.Errorf("the plug-in refuses (%s): %s", r.Code, r.Message)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("%w: the decoder refuses its API key", ErrUnplannable)
	case status == http.StatusNotFound:
		return errNoPlugin
	}
	return fmt.Errorf("ask the plug-in: status %d", status)
}
