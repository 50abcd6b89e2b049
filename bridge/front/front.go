package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"pdlink/transport"
)

// The headers that carry the verdict; the second is what readers of the system
// before this one look for.
const (
	headerVerdict = "X-PDLink"
	headerAlias   = "X-PD-Bridge"
)

// Options of a Front. Decoder and Planner are required; the zero value of the rest
// works.
type Options struct {
	// Decoder is the base URL of the decoder's own API.
	Decoder *url.URL

	// Planner is the decoder's plug-in.
	Planner Planner

	// Engines have prompts read; Add takes further ones on. While there are none
	// everything is forwarded.
	Engines []Engine

	// Cold says which requests are bridged.
	Cold Cold

	// MaxBody is the longest body that is planned, in bytes; longer ones are
	// forwarded as they come. 0 means DefaultMaxBody.
	MaxBody int64

	// PerEngine is how many prompts an engine reads at a time. 0 means
	// DefaultPerEngine.
	PerEngine int

	// QueueWait is how long a request waits for an engine. 0 means
	// DefaultQueueWait.
	QueueWait time.Duration

	// Slowest is the slowest prefill that is waited for while an engine was not
	// measured, in tokens a second. 0 means DefaultSlowest.
	Slowest float64

	// KeepAlive, when above 0, is how often a streaming client hears a comment
	// while its prompt is read. Its answer then begins, with status 200, before
	// the verdict is known.
	KeepAlive time.Duration

	// Keep is how many records are listed. 0 means DefaultKept.
	Keep int

	// OnRecord, when set, is told what became of each request that the front
	// looked at, when its answer has ended, from the request's goroutine.
	OnRecord func(Record)

	// Transport is cloned for the way to the decoder. Nil means
	// http.DefaultTransport's settings.
	Transport *http.Transport
}

func (o Options) withDefaults() (Options, error) {
	if o.Decoder == nil || o.Decoder.Host == "" || (o.Decoder.Scheme != "http" && o.Decoder.Scheme != "https") {
		return o, fmt.Errorf("%w: the decoder's URL %v: want http://host:port", ErrOptions, o.Decoder)
	}
	if o.Planner == nil {
		return o, fmt.Errorf("%w: no planner", ErrOptions)
	}
	o.Cold = o.Cold.withDefaults()
	o.MaxBody = orDefault(o.MaxBody, DefaultMaxBody)
	o.PerEngine = orDefault(o.PerEngine, DefaultPerEngine)
	o.QueueWait = orDefault(o.QueueWait, DefaultQueueWait)
	o.Slowest = orDefault(o.Slowest, DefaultSlowest)
	o.Keep = orDefault(o.Keep, DefaultKept)
	if o.OnRecord == nil {
		o.OnRecord = func(Record) {}
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{}
		if t, ok := http.DefaultTransport.(*http.Transport); ok {
			o.Transport = t
		}
	}
	return o, nil
}

// orDefault is v, or d where v is not above 0.
func orDefault[T int | int64 | float64 | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Front is the front door, an http.Handler. It may be used concurrently.
type Front struct {
	o       Options
	proxy   *httputil.ReverseProxy
	rt      *http.Transport
	engines *engines
	flights flights
	records *records
}

// New returns a front. The caller closes it. The error Is ErrOptions.
func New(o Options) (*Front, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	rt := newTransport(o.Transport)
	return &Front{
		o: o, rt: rt, proxy: newProxy(o.Decoder, rt), engines: newEngines(o.Engines, o.PerEngine),
		flights: flights{byKey: make(map[string]*flight), byID: make(map[transport.ID]*flight)}, records: newRecords(o.Keep),
	}, nil
}

// Add takes an engine on, and returns how it is left out again, which does not end
// what it does.
func (f *Front) Add(e Engine) (remove func()) { return f.engines.add(e) }

// Close ends the transfers that run and waits for them; requests go on to the
// decoder. It is idempotent.
func (f *Front) Close() error {
	f.flights.mu.Lock()
	f.flights.closed = true
	for _, fl := range f.flights.byKey {
		fl.cancel(ErrClosed)
	}
	f.flights.mu.Unlock()
	f.flights.wg.Wait()
	f.rt.CloseIdleConnections()
	return nil
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !plannable(r) {
		f.proxy.ServeHTTP(w, r)
		return
	}
	slow := http.NewResponseController(w)
	slow.SetReadDeadline(time.Now().Add(bodyTime)) //nolint:errcheck // a writer without deadlines has none
	body, rest, err := f.read(r)
	if err != nil {
		w.Header().Set("Connection", "close")
		answerJSON(w, http.StatusBadRequest, apiError("invalid_request_error", "unreadable_body", fmt.Sprintf("pdlink: the request's body: %v", err)))
		return
	}
	slow.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	began := time.Now()
	f.records.begin()
	rec := &Record{ID: transport.NewID().String(), Time: began, Path: r.URL.Path}
	status, cached := 0, (*int)(nil)
	defer func() { // the proxy panics, as handlers may, when an answer breaks off
		rec.settle(status, cached, time.Since(began))
		f.records.end(*rec)
		f.o.OnRecord(*rec)
	}()
	answer := &alive{w: w, path: r.URL.Path}
	if rest == nil {
		if !f.consider(answer, r, rec, body) {
			return
		}
		rest = io.NopCloser(bytes.NewReader(body))
	} else {
		rec.Outcome, rec.Reason = Bypassed, fmt.Sprintf("the body has more than %d bytes", f.o.MaxBody)
	}
	if answer.begun { // the headers are gone that would tell of an encoding
		r.Header.Del("Accept-Encoding")
	}
	r = withWatch(r, &watch{rec.String(), func(s int, c *int) { status, cached = s, c }})
	r.Body = rest
	f.proxy.ServeHTTP(answer, r)
	answer.end()
}

// plannable reports whether a request may be one for a prompt.
func plannable(r *http.Request) bool {
	if r.Method != http.MethodPost || r.Header.Get("Content-Encoding") != "" {
		return false
	}
	switch r.URL.Path {
	case "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses":
		return true
	}
	return false
}

// read returns a request's body, and where it is longer than MaxBody the whole of
// it as a reader.
func (f *Front) read(r *http.Request) (body []byte, rest io.ReadCloser, err error) {
	if r.ContentLength > f.o.MaxBody {
		return nil, r.Body, nil
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(min(r.ContentLength, firstBody)) + bytes.MinRead)
	}
	n, err := io.Copy(&b, io.LimitReader(r.Body, f.o.MaxBody+1))
	if err != nil {
		return nil, nil, err
	}
	if n > f.o.MaxBody {
		return nil, struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&b, r.Body), r.Body}, nil
	}
	return b.Bytes(), nil, nil
}

// consider plans a request and has its prompt read where that is worth it. It
// fills the record in, and returns false when the client went away meanwhile.
func (f *Front) consider(a *alive, r *http.Request, rec *Record, body []byte) bool {
	rec.Outcome = Bypassed
	if f.engines.none() {
		rec.Reason = "no prefill host is connected"
		return true
	}
	if len(body) < f.o.Cold.MinTokens { // a token is a byte or more
		rec.Reason = fmt.Sprintf("short: %d bytes cannot be %d tokens", len(body), f.o.Cold.MinTokens)
		return true
	}
	p, err := f.plan(r, body)
	rec.PlanSeconds = time.Since(rec.Time).Seconds()
	switch {
	case r.Context().Err() != nil:
		rec.Reason = "the client went away"
		return false
	case errors.Is(err, ErrUnplannable):
		rec.Reason = err.Error()
		return true
	case err != nil:
		rec.Outcome, rec.Reason = Declined, err.Error()
		return true
	}
	rec.Model, rec.Tokens, rec.Present, rec.Promised = p.Model, p.Tokens, p.Covered(p.Present), p.Covered(p.Present)
	if why := f.o.Cold.refuse(p, f.engines.rate(p.Model)); why != "" {
		rec.Reason = why
		return true
	}
	return f.bridge(a, r, rec, p, streams(body))
}

// plan asks the planner, within its time, and holds its answer against itself.
func (f *Front) plan(r *http.Request, body []byte) (Plan, error) {
	limit := planTimeout + time.Duration(len(body)>>20)*time.Second
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	p, err := f.o.Planner.Plan(ctx, Ask{Path: r.URL.Path, Header: r.Header, Body: body})
	if err != nil {
		return p, fmt.Errorf("plan: %w", err)
	}
	if p.Block < 1 || p.Present < 0 || p.Blocks < p.Present || p.Blocks > p.Tokens/p.Block ||
		p.Tail < 0 || p.Tail >= p.Block || (p.Blocks > 0 && p.Covered(p.All()) >= p.Tokens) ||
		p.Present < p.Blocks && len(p.IDs) != p.Covered(p.All()) {
		return p, fmt.Errorf("plan: the plug-in contradicts itself: %d tokens, blocks of %d, %d of %d present, %d ids",
			p.Tokens, p.Block, p.Present, p.Blocks, len(p.IDs))
	}
	return p, nil
}

// streams reports whether a request wants its answer as a stream.
func streams(body []byte) bool {
	var v struct {
		Stream bool `json:"stream"`
	}
	return json.Unmarshal(body, &v) == nil && v.Stream
}

// bridge has a plan's blocks put into the decoder's store. It fills the record in,
// and returns false when the client went away meanwhile.
func (f *Front) bridge(a *alive, r *http.Request, rec *Record, p Plan, stream bool) bool {
	began := time.Now()
	fl, shared, err := f.join(p, r.Header.Clone())
	if err != nil {
		rec.Outcome, rec.Reason = Declined, err.Error()
		return true
	}
	rec.Transfer, rec.Shared = fl.id.String(), shared
	here := f.wait(a, r, fl, p, stream)
	f.leave(fl, p)
	rec.BridgeSeconds = time.Since(began).Seconds()
	if !here {
		rec.Outcome, rec.Reason = Declined, "the client went away"
		return false
	}
	rec.Engine, rec.Bytes, rec.Sealed, rec.Hosts = fl.engine, fl.result.Bytes, fl.result.Sealed, fl.result.Hosts
	rec.AdoptSeconds = fl.adopting.Seconds()
	n := max(fl.adoption.Blocks, p.Present)
	rec.Promised = p.Covered(n)
	switch {
	case n == p.All():
		rec.Outcome = Bridged
	case n > p.Present:
		rec.Outcome, rec.Reason = Part, fl.why()
	default:
		rec.Outcome, rec.Reason = Declined, fl.why()
	}
	return true
}

// why says why not all of a flight's blocks are of use.
func (fl *flight) why() string {
	switch {
	case fl.err != nil:
		return fl.err.Error()
	case fl.adoption.Reason != "":
		return fl.adoption.Reason
	case fl.result.Reason != "":
		return fl.result.Reason
	}
	return fmt.Sprintf("%d blocks came", fl.result.Blocks)
}
