package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"golang.org/x/sync/semaphore"

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

	// MaxBodies is the memory for bodies of all requests that are planned, in bytes, with
	// that for sending them on; what does not fit is forwarded as it comes. Buffers that
	// nobody uses are kept besides, until the second garbage collection after. 0 means
	// DefaultMaxBodies; it is at least one MaxBody.
	MaxBodies int64

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

	// ErrorLog hears of answers that break off. Nil means the log package's own logger.
	ErrorLog *log.Logger

	waits waits
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
	o.MaxBodies = max(orDefault(o.MaxBodies, DefaultMaxBodies), o.MaxBody+firstBody)
	o.waits = o.waits.withDefaults()
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
	rt      *way
	engines *engines
	flights flights
	records *records
	room    *semaphore.Weighted // the memory for bodies of all requests, in bytes
	spare   spare

	landings context.Context // ends the adoptions
	ground   context.CancelCauseFunc
}

// New returns a front. The caller closes it. The error Is ErrOptions.
func New(o Options) (*Front, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	room := semaphore.NewWeighted(o.MaxBodies)
	rt := newWay(o.Transport, room, o.waits.cross)
	landings, ground := context.WithCancelCause(context.Background())
	return &Front{
		room: room, landings: landings, ground: ground,
		o: o, rt: rt, proxy: newProxy(o.Decoder, rt, o.ErrorLog), engines: newEngines(o.Engines, o.PerEngine),
		flights: flights{byKey: make(map[string]*flight), byID: make(map[transport.ID]*flight)}, records: newRecords(o.Keep),
	}, nil
}

// Add takes an engine on, and returns how it is left out again, which does not end
// what it does.
func (f *Front) Add(e Engine) (remove func()) { return f.engines.add(e) }

// Waits notes a prefill host that is connected and takes no calls yet, with why, for people,
// and returns how it is forgotten.
func (f *Front) Waits(name, why string) (remove func()) { return f.engines.halt(&halted{name, why}) }

// Close ends the transfers that run and waits for them; requests go on to the
// decoder. What has come is adopted where the decoder does it soon. It is idempotent.
func (f *Front) Close() error {
	f.flights.mu.Lock()
	f.flights.closed = true
	for _, fl := range f.flights.byKey {
		fl.cancel(ErrClosed)
	}
	f.flights.mu.Unlock()
	late := time.AfterFunc(f.o.waits.closing, func() { f.ground(ErrClosed) })
	defer late.Stop()
	f.flights.wg.Wait()
	f.ground(ErrClosed)
	f.rt.CloseIdleConnections()
	return nil
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &Record{ID: transport.NewID().String(), Time: time.Now(), Path: r.URL.Path, Outcome: Bypassed}
	u := f.upload(w, r)
	defer u.stop()
	if !plannable(r) {
		f.pass(w, r, u, rec)
		return
	}
	body, why, err := f.read(r, u)
	defer func() { _ = body.Close() }() // it is memory, and there whatever the error
	rec.Time = time.Now()
	f.records.begin()
	status, cached, cut := 0, (*int)(nil), error(nil)
	defer func() { // the proxy panics, as handlers may, when an answer breaks off
		rec.ended(u.failed(), cut)
		rec.settle(status, cached, cut == nil, time.Since(rec.Time))
		f.records.end(*rec)
		f.o.OnRecord(*rec)
	}()
	if err != nil {
		rec.blame(err)
		var text map[string]any
		status, text = refusal(err)
		w.Header().Set("Connection", "close")
		say(w.Header(), rec.String())
		answerJSON(w, status, text)
		return
	}
	answer := &alive{w: w, path: r.URL.Path}
	var rest io.ReadCloser = body
	if why == "" {
		if !f.consider(answer, r, rec, body.data) {
			status, cut = statusLeft, errLeft
			panic(http.ErrAbortHandler) // as unreachable does
		}
	} else {
		rec.Reason = why
		rest = io.NopCloser(io.MultiReader(body, u))
	}
	if answer.begun { // the headers are gone that would tell of an encoding
		r.Header.Del("Accept-Encoding")
	}
	x := &watch{
		header: rec.String(), upload: u,
		first: func() { rec.FirstSeconds = time.Since(rec.Time).Seconds() },
		ended: func(s int, c *int, why error) { status, cached, cut = s, c, why },
	}
	x.again = func() {
		rec.repeated()
		x.header = rec.String()
	}
	if why == "" {
		x.body = body
	}
	r = withWatch(r, x)
	r.Body = rest
	f.proxy.ServeHTTP(answer, r)
	answer.end()
}

// pass forwards a request that is none for a prompt. Nothing is recorded of it, unless
// its client broke off.
func (f *Front) pass(w http.ResponseWriter, r *http.Request, u *upload, rec *Record) {
	rec.Reason = "no request for a prompt"
	x := &watch{header: rec.String(), upload: u}
	r = withWatch(r, x)
	if u != nil {
		r.Body = u
	}
	defer func() {
		if why := u.failed(); why != nil {
			rec.blame(why)
			rec.Status, _ = refusal(why)
			rec.Seconds = time.Since(rec.Time).Seconds()
			f.records.begin()
			f.records.end(*rec)
			f.o.OnRecord(*rec)
		}
	}()
	f.proxy.ServeHTTP(w, r)
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

// consider plans a request and has its prompt read where that is worth it. It
// fills the record in, and returns false when the client went away meanwhile.
func (f *Front) consider(a *alive, r *http.Request, rec *Record, body []byte) bool {
	if rec.Reason = f.engines.absent(); rec.Reason != "" {
		return true
	}
	if len(body) < f.o.Cold.MinTokens { // a token is a byte or more
		rec.Reason = fmt.Sprintf("short: %d bytes cannot be %d tokens", len(body), f.o.Cold.MinTokens)
		return true
	}
	p, err := f.plan(a, r, body)
	rec.PlanSeconds = time.Since(rec.Time).Seconds()
	switch {
	case r.Context().Err() != nil:
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

// streams reports whether a request wants its answer as a stream.
func streams(body []byte) bool {
	var v map[string]json.RawMessage // a struct's fields would take names in other cases too
	return json.Unmarshal(body, &v) == nil && string(v["stream"]) == "true"
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
