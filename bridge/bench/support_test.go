package bench

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/bridge/omlx"
)

// fakeBlock is the decoder's block in tokens.
const fakeBlock = 16

// fault is what a request meets, by its number from 0 on; nil: nothing.
type fault func(w http.ResponseWriter, r *http.Request) bool

// decoder is an endpoint that speaks the OpenAI API, with a cache of whole prompts. Its
// tokens are words.
type decoder struct {
	model  string
	key    string
	plugin bool
	dumb   bool          // it never finds a marker
	mute   bool          // it says nothing of tokens
	pause  time.Duration // before each token

	mu     sync.Mutex // guards the rest
	cached map[string]int
	faults []fault // of the next requests for text
	asked  []map[string]any
	seen   []http.Header
}

// idsOfText are made-up ids of a text's words, with a template's around them.
func idsOfText(text string) []int32 {
	ids := []int32{1, 2, 3}
	for _, w := range strings.Fields(text) {
		h := fnv.New32a()
		io.WriteString(h, w)
		ids = append(ids, int32(h.Sum32()%100_000)+10)
	}
	return append(ids, 4, 5)
}

// promptOf is the text of a request, and its ids.
func promptOf(body map[string]any) (string, []int32) {
	if list, ok := body["messages"].([]any); ok {
		text, _ := list[0].(map[string]any)["content"].(string)
		return text, idsOfText(text)
	}
	if list, ok := body["prompt"].([]any); ok {
		var ids []int32
		for _, x := range list {
			f, _ := x.(float64)
			ids = append(ids, int32(f))
		}
		return "", ids
	}
	text, _ := body["prompt"].(string)
	return text, idsOfText(text)
}

// streams reports that a request asks for a stream.
func streams(body map[string]any) bool {
	on, ok := body["stream"].(bool)
	return ok && on
}

// covered is how many of so many tokens lie in whole blocks that leave one.
func covered(tokens int) int { return (tokens - 1) / fakeBlock * fakeBlock }

func (d *decoder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.seen = append(d.seen, r.Header)
	d.mu.Unlock()
	if d.key != "" && r.Header.Get("Authorization") != "Bearer "+d.key {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"error":{"message":"wrong key"}}`)
		return
	}
	var body map[string]any
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprintf(w, `{"data":[{"id":%q}]}`, d.model)
	case "/pdlink/v1/plan":
		if d.plugin {
			d.plan(w, body)
			return
		}
		http.NotFound(w, r)
	case "/tokenize":
		_, ids := promptOf(body)
		json.NewEncoder(w).Encode(map[string]any{"tokens": ids})
	case "/v1/chat/completions", "/v1/completions":
		d.text(w, r, body)
	default:
		http.NotFound(w, r)
	}
}

// plan answers as the plug-in does.
func (d *decoder) plan(w http.ResponseWriter, body map[string]any) {
	_, ids := promptOf(body)
	whole := ids[:covered(len(ids))]
	unsigned := make([]uint32, len(whole))
	var raw []byte
	for i, id := range whole {
		unsigned[i] = uint32(id)
		raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
	}
	json.NewEncoder(w).Encode(map[string]any{
		"model": d.model, "hash_model": d.model, "layout": "x", "facts": "y", "tokens": len(ids), "block_tokens": fakeBlock,
		"blocks": len(whole) / fakeBlock, "present": 0, "bytes": 1, "hashes": omlx.Chain(d.model, fakeBlock, unsigned, nil),
		"ids": base64.StdEncoding.EncodeToString(raw),
	})
}

// text answers with a text.
func (d *decoder) text(w http.ResponseWriter, r *http.Request, body map[string]any) {
	d.mu.Lock()
	d.asked = append(d.asked, body)
	var f fault
	if len(d.faults) > 0 {
		f, d.faults = d.faults[0], d.faults[1:]
	}
	text, ids := promptOf(body)
	key := fmt.Sprint(ids)
	held := d.cached[key]
	if d.cached == nil {
		d.cached = map[string]int{}
	}
	d.cached[key] = covered(len(ids))
	d.mu.Unlock()
	if f != nil && f(w, r) {
		return
	}
	said := []string{"I", " do", " not", " know", "."}
	if m := regexp.MustCompile(`access code of this document is (\d+)`).FindStringSubmatch(text); m != nil && !d.dumb {
		said = []string{"It", " is ", m[1][:3], m[1][3:], "."}
	}
	most, _ := body["max_tokens"].(float64)
	for len(said) < int(most) {
		said = append(said, " word")
	}
	said = said[:max(1, int(most))]
	usage := map[string]any{
		"prompt_tokens": len(ids), "completion_tokens": len(said), "prompt_tokens_details": map[string]any{"cached_tokens": held},
	}
	if d.mute {
		usage = nil
	}
	if !streams(body) {
		choice := map[string]any{"text": strings.Join(said, ""), "finish_reason": "length"}
		json.NewEncoder(w).Encode(map[string]any{"choices": []any{choice}, "usage": usage})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	io.WriteString(w, ": keep-alive\n\n")
	for i, s := range said {
		time.Sleep(d.pause)
		finish := any(nil)
		if i == len(said)-1 {
			finish = "length"
		}
		event(w, map[string]any{"choices": []any{map[string]any{"delta": map[string]any{"content": s}, "text": "", "finish_reason": finish}}, "usage": nil})
	}
	event(w, map[string]any{"choices": []any{}, "usage": usage})
	io.WriteString(w, "data: [DONE]\n\n")
}

func event(w http.ResponseWriter, v any) {
	b, _ := json.Marshal(v)
	fmt.Fprintf(w, "data: %s\r\n\r\n", b)
	w.(http.Flusher).Flush()
}

// front is a front door before a decoder, which has what was bridged in its cache.
type front struct {
	*decoder
	verdict func(promised, tokens int) string // nil: complete

	mu      sync.Mutex // guards records
	records map[string]map[string]any
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id, ok := strings.CutPrefix(r.URL.Path, "/pdlink/transfers/"); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.records[id] == nil {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(f.records[id])
		return
	}
	if !strings.HasSuffix(r.URL.Path, "completions") {
		f.decoder.ServeHTTP(w, r)
		return
	}
	raw, _ := io.ReadAll(r.Body)
	var body map[string]any
	json.Unmarshal(raw, &body)
	_, ids := promptOf(body)
	key := fmt.Sprint(ids)
	promised := covered(len(ids))
	f.mu.Lock()
	id := fmt.Sprintf("r%d", len(f.records))
	if f.records == nil {
		f.records = map[string]map[string]any{}
	}
	f.decoder.mu.Lock()
	warm := f.cached[key] > 0
	if f.cached == nil {
		f.cached = map[string]int{}
	}
	f.cached[key] = promised
	f.decoder.mu.Unlock()
	verdict := fmt.Sprintf("complete %d/%d tokens", promised, len(ids))
	switch {
	case warm:
		verdict = fmt.Sprintf("bypass %d/%d tokens; it is warm", promised, len(ids))
	case f.verdict != nil:
		verdict = f.verdict(promised, len(ids))
	}
	f.records[id] = map[string]any{
		"tokens": len(ids), "promised": promised, "bytes": 100 * promised, "sealed": true,
		"plan_seconds": 0.001, "bridge_seconds": 0.002, "adopt_seconds": 0.0005,
	}
	f.mu.Unlock()
	w.Header().Set("X-PDLink", verdict+"; id="+id)
	r.Body = io.NopCloser(strings.NewReader(string(raw)))
	f.decoder.ServeHTTP(w, r)
}

// serve starts a server for a test.
func serve(t *testing.T, h http.Handler) *url.URL {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// armsOf are the arms of rows that count, in order.
func armsOf(rows []Row) (arms []Arm) {
	for i := range rows {
		if rows[i].Counted {
			arms = append(arms, rows[i].Arm)
		}
	}
	return arms
}

// check is a report's check by its name.
func check(r *Report, name string) Check {
	if i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Check == name }); i >= 0 {
		return r.Checks[i]
	}
	return Check{}
}
