package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"pdlink/bridge/omlx"
	"pdlink/bridge/omlx/plugin"
)

// maxLayouts bounds the layouts that are remembered: a decoder has one for each model, and
// a new one after an update.
const maxLayouts = 64

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
	api    *plugin.Client
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
	way := newTransport(t)
	(&lines{}).over(way)
	client := &http.Client{Transport: way}
	return &Plugin{
		api:     plugin.NewClient(o.Decoder, client),
		client:  client,
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
	answer, err := p.api.Plan(ctx, r.Header, r.Path, r.Body, p.tail)
	if err != nil {
		return Plan{}, unplannable(err)
	}
	out := Plan{
		Model: answer.Model, Tokens: answer.Tokens, Block: answer.BlockTokens,
		Present: answer.Present, Blocks: answer.Blocks, IDs: answer.Signed(), Kind: omlx.Kind,
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
	info, err := p.api.Info(ctx, h, answer.Model)
	if err != nil {
		return spec, unplannable(err)
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
	if dir := info.Model.Store.Dir(); dir != "" {
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

// Probe asks whether a plug-in answers, without a key. It returns nil for one that
// wants a key too. Its error says what to do.
func (p *Plugin) Probe(ctx context.Context) error {
	_, err := p.api.Status(ctx, nil)
	if errors.Is(err, plugin.ErrUnauthorized) {
		return nil
	}
	return unplannable(err)
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
	answer, err := p.api.Adopt(ctx, h, call)
	if err != nil {
		return Adoption{}, unplannable(err)
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

// unplannable makes an error of the plug-in's the front's: ErrUnplannable where the request
// is none that can be planned.
func unplannable(err error) error {
	var r *plugin.RefusedError
	switch {
	case errors.As(err, &r) && (r.Code == "unplannable" || r.Code == "too-large"), errors.Is(err, plugin.ErrUnauthorized):
		return fmt.Errorf("%w: %w", ErrUnplannable, err)
	case r != nil:
		return fmt.Errorf("the plug-in refuses (%s): %w", r.Code, err)
	}
	return err
}
