package front

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/bridge/omlx"
)

// benchBlock is the tokens of a block in the benchmarks.
const benchBlock = 256

// benchHouse is a plain HTTP decoder with a plug-in that finds everything warm, and a
// front before it.
type benchHouse struct {
	up, front *httptest.Server
	body      []byte        // of a request
	events    int           // of a streamed answer
	pause     time.Duration // before each of them
	plans     *timed
}

// timed is a planner that says how long its calls took.
type timed struct {
	Planner
	last atomic.Int64 // nanoseconds
}

// Plan implements Planner.
func (t *timed) Plan(ctx context.Context, a Ask) (Plan, error) {
	began := time.Now()
	p, err := t.Planner.Plan(ctx, a)
	t.last.Store(int64(time.Since(began)))
	return p, err
}

func newBenchHouse(b *testing.B, tokens, events int, pause time.Duration) *benchHouse {
	b.Helper()
	h := &benchHouse{events: events, pause: pause}
	var err error
	if h.body, err = json.Marshal(map[string]any{"model": "m", "stream": events > 0, "prompt": strings.Repeat("word ", tokens)}); err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	plan := warmAnswer(b, tokens)
	mux.HandleFunc("/pdlink/v1/plan", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Write(plan)
	})
	mux.HandleFunc("/v1/completions", h.answer)
	h.up = httptest.NewServer(mux)
	b.Cleanup(h.up.Close)
	u, err := url.Parse(h.up.URL)
	if err != nil {
		b.Fatal(err)
	}
	planner, err := NewPlugin(PluginOptions{Decoder: u})
	if err != nil {
		b.Fatal(err)
	}
	h.plans = &timed{Planner: planner}
	f, err := New(Options{Decoder: u, Planner: h.plans, Engines: []Engine{quick("a")}})
	if err != nil {
		b.Fatal(err)
	}
	h.front = httptest.NewServer(f)
	b.Cleanup(func() {
		h.front.Close()
		f.Close()
		planner.Close()
	})
	return h
}

// warmAnswer is a plug-in's answer to a plan of which everything is there.
func warmAnswer(b *testing.B, tokens int) []byte {
	b.Helper()
	blocks := (tokens - 1) / benchBlock
	ids := make([]uint32, blocks*benchBlock)
	for i := range ids {
		ids[i] = uint32(i*37+11) % 150_000
	}
	data, err := json.Marshal(map[string]any{
		"model": "m", "hash_model": "m", "layout": "x", "tokens": tokens, "block_tokens": benchBlock, "blocks": blocks,
		"present": blocks, "bytes": 0, "hashes": omlx.Chain("m", benchBlock, ids, nil), "ids": "",
	})
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// answer is the decoder's.
func (h *benchHouse) answer(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	const usage = `{"usage":{"prompt_tokens_details":{"cached_tokens":16384}}}`
	if h.events == 0 {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range h.events {
		time.Sleep(h.pause)
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\n\n")
		http.NewResponseController(w).Flush()
	}
	fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", usage)
}

// ask makes a request of a server and reads its answer.
func (h *benchHouse) ask(b *testing.B, c *http.Client, s *httptest.Server) time.Duration {
	began := time.Now()
	r, err := c.Post(s.URL+"/v1/completions", "application/json", bytes.NewReader(h.body))
	if err != nil {
		b.Error(err)
		return 0
	}
	defer r.Body.Close()
	if n, err := io.Copy(io.Discard, r.Body); err != nil || n == 0 || r.StatusCode != http.StatusOK {
		b.Errorf("status %d, %d bytes, %v", r.StatusCode, n, err)
	}
	return time.Since(began)
}

// at is a quantile of what was measured, in milliseconds.
func at(d []time.Duration, q float64) float64 {
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))].Seconds() * 1e3
}

// A warm request by way of the front and straight to the decoder, in turn. Beyond the
// plan: what the front adds to the decoder's own median, but for the planner's call;
// alone: how far the decoder's own answers lie above their median, on this machine.
func BenchmarkFrontWarm(b *testing.B) {
	for _, tokens := range []int{8 << 10, 32 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			h := newBenchHouse(b, tokens, 0, 0)
			c := h.front.Client()
			for range 20 {
				h.ask(b, c, h.up)
				h.ask(b, c, h.front)
			}
			var alone, through, plans []time.Duration
			for b.Loop() {
				alone = append(alone, h.ask(b, c, h.up))
				took := h.ask(b, c, h.front)
				plan := time.Duration(h.plans.last.Load())
				through, plans = append(through, took-plan), append(plans, plan)
			}
			own := at(alone, 0.5)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(at(through, 0.5)-own, "beyond-p50-ms")
			b.ReportMetric(at(through, 0.99)-own, "beyond-p99-ms")
			b.ReportMetric(at(plans, 0.5), "plan-p50-ms")
			b.ReportMetric(at(alone, 0.99)-own, "alone-p99-ms")
		})
	}
}

// 64 streaming clients straight at the decoder and by way of the front, in turn; an
// iteration is a pair. Paced: 40 events a second on each stream, 2,560 in all, which is
// more than decoders make; unpaced: as fast as it goes, which says what an event costs
// where client, front and decoder share the cores.
func BenchmarkFrontStreams(b *testing.B) {
	for _, c := range []struct {
		name   string
		events int
		pause  time.Duration
	}{{"paced", 40, 25 * time.Millisecond}, {"unpaced", 100, 0}} {
		b.Run(c.name, func(b *testing.B) {
			h := newBenchHouse(b, 8<<10, c.events, c.pause)
			client := h.front.Client()
			if t, ok := client.Transport.(*http.Transport); ok {
				t.MaxIdleConnsPerHost = 2 * benchStreams
			}
			h.streams(b, client, h.up, 1)
			h.streams(b, client, h.front, 1)
			var ratios []float64
			for i := 0; b.Loop(); i++ {
				var own, through float64
				if i%2 == 0 {
					own = h.streams(b, client, h.up, benchRound)
				}
				through = h.streams(b, client, h.front, benchRound)
				if i%2 == 1 {
					own = h.streams(b, client, h.up, benchRound)
				}
				ratios = append(ratios, through/own)
			}
			slices.Sort(ratios)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratios[len(ratios)/2], "ratio-p50")
			b.ReportMetric(ratios[0], "ratio-min")
			b.ReportMetric(ratios[len(ratios)-1], "ratio-max")
		})
	}
}

const (
	benchStreams = 64
	benchRound   = 4 // requests of each stream
)

// streams is requests a second of so many clients that ask without a pause. They begin
// one after the other, as people do.
func (h *benchHouse) streams(b *testing.B, c *http.Client, s *httptest.Server, requests int) float64 {
	var busy atomic.Int64
	var wg sync.WaitGroup
	for i := range benchStreams {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * h.pause * time.Duration(h.events) / benchStreams)
			for range requests {
				busy.Add(int64(h.ask(b, c, s)))
			}
		})
	}
	wg.Wait()
	return benchStreams / (time.Duration(busy.Load()).Seconds() / float64(benchStreams*requests))
}
