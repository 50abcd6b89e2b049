package prefill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/facts"
	"pdlink/kernels"
	"pdlink/transport"
	"pdlink/transport/session"
)

// engineFacts is what a real engine's worker told, with a change.
func engineFacts(tb testing.TB, change func(*facts.Facts)) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("..", "facts", "testdata", "tiny-qwen3", "vllm-0.32.0.json"))
	must(tb, err)
	f, err := facts.Parse(b)
	must(tb, err)
	change(f)
	b, err = f.Encode()
	must(tb, err)
	return b
}

// attached is a file with a worker's words.
func attached(tb testing.TB, data []byte) *os.File {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "facts"))
	must(tb, err)
	tb.Cleanup(func() { f.Close() })
	_, err = f.Write(data)
	must(tb, err)
	return f
}

// tell says what the worker has loaded.
func (c *client) tell(data []byte) {
	c.tb.Helper()
	m := pack(typeFacts, 0, 0, &factsBody{uint32(len(data)), factsForm, sha256.Sum256(data)})
	must(c.tb, send(c.conn, m.appendTo(nil), attached(c.tb, data)))
}

// lastReady is the newest readiness.
func (p *pair) lastReady() Readiness {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return Readiness{}
	}
	return p.ready[len(p.ready)-1]
}

// saysFacts waits for an announcement whose facts have a property.
func (p *pair) saysFacts(what string, ok func(*facts.Facts) bool) {
	p.t.Helper()
	eventually(p.t, what, func() bool {
		r := p.lastReady()
		f, err := facts.Parse(r.Facts)
		return r.Ready && err == nil && ok(f)
	})
}

// TestFactsAreAnnounced: what workers tell, together, and again when it changes.
func TestFactsAreAnnounced(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	stage := func(layer string) func(*facts.Facts) {
		return func(f *facts.Facts) { f.Rope = map[string]facts.Rope{layer: f.Rope[layer]} }
	}
	a := connect(t, p.socket, helloOf(0, 2, 2))
	a.tell(engineFacts(t, stage("0")))
	b := connect(t, p.socket, helloOf(1, 2, 2))
	b.tell(engineFacts(t, stage("2")))
	p.saysFacts("both are announced as one", func(f *facts.Facts) bool { return len(f.Rope) == 2 && f.KVHeads == 2 })
	if r := p.lastReady(); len(r.Facts) > facts.MaxSize || !json.Valid(r.Facts) {
		t.Errorf("%d bytes", len(r.Facts))
	}
	b.tell(engineFacts(t, func(f *facts.Facts) { f.DType = "F16" }))
	p.saysFacts("that they differ is announced", func(f *facts.Facts) bool {
		return f.Kind == "" && strings.Contains(f.Unknown[""], "dtype is BF16 at one and F16 at another") ||
			strings.Contains(f.Unknown[""], "dtype is F16 at one and BF16 at another")
	})
}

// TestWorkersThatDoNotTell: those of an earlier release, and documents of a later one.
func TestWorkersThatDoNotTell(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	c := connect(t, p.socket, helloOf(0, 1, 1))
	if m := p.server; m.o.waits.facts <= 0 {
		t.Fatal("a worker is not waited for")
	}
	p.saysFacts("it is announced all the same", func(f *facts.Facts) bool { return strings.Contains(f.Unknown[""], "update pdlink-vllm") })
	c.tell([]byte(`{"version": 2}`))
	p.saysFacts("another version", func(f *facts.Facts) bool { return strings.Contains(f.Unknown[""], "version 2, this program knows 1") })
	data := []byte("CBOR")
	m := pack(typeFacts, 0, 0, &factsBody{uint32(len(data)), 7, sha256.Sum256(data)})
	must(t, send(c.conn, m.appendTo(nil), attached(t, data)))
	p.saysFacts("another form", func(f *facts.Facts) bool { return strings.Contains(f.Unknown[""], "in form 7, this sidecar knows 1") })
	c.tell(engineFacts(t, func(*facts.Facts) {}))
	p.saysFacts("and at last what it is", func(f *facts.Facts) bool { return f.Kind == facts.KindKV && len(f.Unknown) == 0 })
}

// TestSettles: a worker that has come is waited for until it has said what it has loaded,
// and no longer than its time.
func TestSettles(t *testing.T) {
	for _, limit := range []time.Duration{time.Hour, time.Millisecond} {
		h := newHost(t, newDecoder(t), Options{waits: waits{facts: limit}})
		if doc, settled := h.Loaded(); doc != nil || !settled || h.settles() != 0 {
			t.Errorf("nobody is there: %+v, %t", doc, settled)
		}
		c := connect(t, h.socket, helloOf(0, 1, 1))
		if limit == time.Hour {
			if _, settled := h.Loaded(); settled {
				t.Error("it may say something yet")
			}
			if left := h.settles(); left <= limit-time.Minute || left > limit {
				t.Errorf("%v are left of %v", left, limit)
			}
			c.tell(engineFacts(t, func(*facts.Facts) {}))
		}
		eventually(t, "it has said so, or had its time", func() bool { _, settled := h.Loaded(); return settled && h.settles() == 0 })
		doc, _ := h.Loaded()
		if known := doc.Kind != ""; known != (limit == time.Hour) {
			t.Errorf("after %v: %+v", limit, doc)
		}
	}
}

// TestOneServiceWatchesAServer: a second one is refused, and takes nothing from the first;
// one that is closed leaves the server to the next.
func TestOneServiceWatchesAServer(t *testing.T) {
	h := newHost(t, newDecoder(t), Options{waits: waits{facts: time.Hour}})
	open := func(context.Context, transport.Request, bridge.Shape) (Carrier, int, error) { return nil, 0, nil }
	start := func() (*Service, chan Readiness, error) {
		told := make(chan Readiness, 16)
		s, err := NewService(ServiceOptions{
			Server: h.Server, Engine: &script{models: []string{"m"}}, Open: open, OnReady: func(r Readiness) { told <- r }, probe: time.Hour,
		})
		return s, told, err
	}
	// hears waits for what only a worker's word can bring, since nothing is looked at otherwise.
	hears := func(told chan Readiness) {
		t.Helper()
		c := connect(t, h.socket, helloOf(0, 1, 1))
		c.tell(engineFacts(t, func(*facts.Facts) {}))
		late := time.After(30 * time.Second)
		for ready := false; !ready; {
			select {
			case r := <-told:
				ready = r.Ready
			case <-late:
				t.Fatal("the service does not hear of the worker")
			}
		}
		c.close()
		eventually(t, "the worker is gone", func() bool { n, _ := h.Present(); return n == 0 })
	}
	first, told, err := start()
	must(t, err)
	defer first.Close()
	if second, _, err := start(); !errors.Is(err, ErrJob) {
		t.Fatalf("a second service: %v, %v", second, err)
	}
	hears(told)
	must(t, first.Close())
	second, told, err := start()
	must(t, err)
	defer second.Close()
	must(t, first.Close()) // again: it ends nothing of the second one's
	hears(told)
	must(t, second.Close())
	must(t, h.conn.Close())
	must(t, h.Close())
	if s, _, err := start(); !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed server: %v, %v", s, err)
	}
}

// TestFactsBreaches: what ends the connection.
func TestFactsBreaches(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	data := engineFacts(t, func(*facts.Facts) {})
	good := factsBody{uint32(len(data)), factsForm, sha256.Sum256(data)}
	pipe, _, err := os.Pipe()
	must(t, err)
	defer pipe.Close()
	for name, x := range map[string]struct {
		said factsBody
		file *os.File
		want string
	}{
		"no file":      {good, nil, "without a file"},
		"another sum":  {factsBody{good.Size, factsForm, sha256.Sum256(nil)}, attached(t, data), "another sum"},
		"short file":   {good, attached(t, data[1:]), "in a file of"},
		"long file":    {good, attached(t, append(data, ' ')), "in a file of"},
		"a huge size":  {factsBody{1 << 31, factsForm, good.Sum}, attached(t, data), "facts of 2147483648 bytes"},
		"no such file": {factsBody{0, factsForm, sha256.Sum256(nil)}, pipe, "facts of 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, p.socket, helloOf(0, 1, 1))
			m := pack(typeFacts, 0, 0, &x.said)
			must(t, send(c.conn, m.appendTo(nil), x.file))
			refused := c.hear(typeRefuse)
			var got text
			if got.get(&refused.body); refused.code != codeInvalid || !strings.Contains(string(got), x.want) {
				t.Errorf("refused with %v: %s, want %q", refused.code, got, x.want)
			}
		})
	}
}

// TestLayerHash: the number is the one that the decoder's plug-in computes of the same
// tensors (test_projection_hash in bridge/omlx/plugin/tests/unit).
func TestLayerHash(t *testing.T) {
	weight := func(n int) []uint16 {
		out := make([]uint16, n)
		for i := range out {
			out[i] = kernels.BF16(float32(i%7-3) / 4)
		}
		return out
	}
	pool := func(width, out int) kernels.PoolWeights {
		ape := make([]float32, 4*out)
		for i := range ape {
			ape[i] = float32(i) / 8
		}
		return kernels.PoolWeights{KV: weight(6 * out), Gate: weight(6 * out), APE: ape, Norm: weight(width)}
	}
	g := kernels.Geometry{Hidden: 6, HeadDim: 3, IndexDim: 2, Ratios: []int{4}}
	l := kernels.LayerWeights{KV: weight(18), Norm: weight(3), Comp: pool(3, 6), Index: pool(2, 4)}
	if got := layerHash(g, 0, l); got != "ac9af2d4f3336ef5" {
		t.Errorf("%s, the plug-in computes ac9af2d4f3336ef5", got)
	}
	l.Index.APE[3]++
	if layerHash(g, 0, l) == "ac9af2d4f3336ef5" {
		t.Error("other weights have the same hash")
	}
}

// TestLongTensors: they are hashed as they stand, chunk by chunk, and not copied whole.
func TestLongTensors(t *testing.T) {
	const n = 3*hashChunk + 5 // elements, of two bytes or four: the last chunk is short
	halves, floats := make([]uint16, n), make([]float32, n)
	whole := []byte("x BF16 3,65537\n")
	for i := range halves {
		halves[i], floats[i] = uint16(i*7919), float32(i)/3
		whole = binary.LittleEndian.AppendUint16(whole, halves[i])
	}
	whole = append(whole, "y F32 196613\n"...)
	for _, v := range floats {
		whole = binary.LittleEndian.AppendUint32(whole, math.Float32bits(v))
	}
	h := tensorHash{sum: sha256.New(), buf: make([]byte, 0, hashChunk)}
	h.sum.Write([]byte("x"))
	bf16Tensor(halves, 3, 65537)(&h)
	h.sum.Write([]byte("y"))
	f32Tensor(floats, n)(&h)
	if want := sha256.Sum256(whole); !bytes.Equal(h.sum.Sum(nil), want[:]) {
		t.Error("another hash than of the whole")
	}
	var before, after runtime.MemStats
	long := make([]uint16, 8<<20)
	runtime.ReadMemStats(&before)
	bf16Tensor(long, len(long))(&h)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes are allocated to hash %d", got, 2*len(long))
	}
}

// TestTokens: what an engine says of a text, and how long prompts may be.
func TestTokens(t *testing.T) {
	answer := `{"count":3,"max_model_len":8192,"tokens":[5,6,7]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Model, Prompt string }
		if json.NewDecoder(r.Body).Decode(&asked) != nil || r.URL.Path != "/tokenize" || asked.Model != "m" || asked.Prompt == "" {
			t.Errorf("asked %s for %+v", r.URL, asked)
		}
		io.WriteString(w, answer)
	}))
	defer srv.Close()
	u, err := url.Parse(srv.URL)
	must(t, err)
	v := NewVLLM(u, "")
	defer v.Close()
	ids, err := v.Tokens(t.Context(), "m", facts.ProbeText())
	if n, err2 := v.MaxModelLen(t.Context(), "m"); errors.Join(err, err2) != nil || len(ids) != 3 || n != 8192 {
		t.Errorf("%v, %d, %v, %v", ids, n, err, err2)
	}
	for _, answer = range []string{"{}", "[", `{"tokens":[]}`} {
		if _, err := v.Tokens(t.Context(), "m", "a"); err == nil {
			t.Errorf("%s is taken for an answer", answer)
		}
	}
}

// speaker is an engine that has a tokenizer.
type speaker struct {
	Engine
	asked int
	down  error
}

func (s *speaker) Tokens(_ context.Context, _, _ string) ([]int32, error) {
	s.asked++
	return []int32{1, 2}, s.down
}

// TestProbeText: the engine's tokenizer is asked once for a model, and again where it did
// not answer.
func TestProbeText(t *testing.T) {
	e := &speaker{}
	s := &Service{o: ServiceOptions{Engine: e}}
	for _, model := range []string{"a", "a", "b"} {
		if text := s.probeText(t.Context(), []string{model}); text == nil || text.Count != 2 {
			t.Errorf("%+v", text)
		}
	}
	if e.asked != 2 || s.probeText(t.Context(), nil) != nil {
		t.Errorf("asked %d times", e.asked)
	}
	e.down = errors.New("no such route")
	for range 2 {
		if text := s.probeText(t.Context(), []string{"c"}); text != nil {
			t.Errorf("of another model: %+v", text)
		}
	}
	if e.asked != 4 {
		t.Errorf("asked %d times", e.asked)
	}
	if text := ProbeText(t.Context(), &script{}, []string{"a"}); text != nil {
		t.Errorf("an engine without a tokenizer: %+v", text)
	}
}

// TestKernelsRotateAsTheDecoder: the rotation of the kernels is what a real decoder and a
// real engine do with the same configuration, and another configuration is noticed.
func TestKernelsRotateAsTheDecoder(t *testing.T) {
	const config = `{"hidden_size": 128, "num_hidden_layers": 4, "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128,
		"sliding_window": 128, "max_position_embeddings": 16384, "rms_norm_eps": 1e-06, "rope_theta": 10000, "compress_rope_theta": 160000,
		"compress_ratios": [0, 4, 128, 4], "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1024}}`
	read := func(name string) *facts.Facts {
		b, err := os.ReadFile(filepath.Join("..", "facts", "testdata", "tiny-dsv4", name))
		must(t, err)
		f, err := facts.Parse(b)
		must(t, err)
		return f
	}
	for text, want := range map[string]string{
		config: "",
		strings.Replace(config, `"factor": 16`, `"factor": 32`, 1):        "projection's rope of layer 1: ",
		strings.Replace(config, `"rope_scaling"`, `"rope_parameters"`, 1): "projection's rope of layer 1: ",
		strings.Replace(config, "160000", "10000", 1):                     "projection's rope of layer 1: ",
		strings.Replace(config, "10000,", "20000,", 1):                    "projection's rope of layer 0: ",
	} {
		g, err := kernels.ParseGeometry([]byte(text))
		must(t, err)
		e := read("vllm-0.32.0.json")
		e.Projection = &facts.Projection{Rope: ropesOf(g)}
		got := facts.Refusal(facts.Compare(read("omlx-0.5.3.json"), e), false)
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
