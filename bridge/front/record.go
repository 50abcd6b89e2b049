package front

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Outcome is the first word of a record.
type Outcome string

// The outcomes of a request.
const (
	Bypassed Outcome = "bypass"   // not worth a transfer, or not to be planned
	Bridged  Outcome = "complete" // every wanted block was adopted
	Part     Outcome = "partial"  // a prefix of them was
	Declined Outcome = "declined" // none was: something failed
)

// Check compares what a record promised with what the decoder said.
type Check string

// The results of a check.
const (
	CheckPending Check = ""        // the answer has not ended
	CheckEqual   Check = "equal"   // as many tokens as promised, or more
	CheckLess    Check = "less"    // fewer: an error
	CheckUnknown Check = "unknown" // the decoder did not say, or its answer is not whole
)

// Record is what became of a request that the front looked at.
type Record struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Path     string    `json:"path"`
	Model    string    `json:"model,omitempty"`
	Outcome  Outcome   `json:"outcome"`
	Reason   string    `json:"reason,omitempty"`
	Engine   string    `json:"engine,omitempty"`
	Transfer string    `json:"transfer,omitempty"`
	Shared   bool      `json:"shared,omitempty"` // another request began the transfer

	Tokens   int    `json:"tokens,omitempty"`   // of the prompt
	Present  int    `json:"present,omitempty"`  // tokens that the decoder held before
	Promised int    `json:"promised,omitempty"` // tokens that it should find now
	Bytes    uint64 `json:"bytes,omitempty"`
	Hosts    []Sent `json:"hosts,omitempty"` // that sent them
	Sealed   bool   `json:"sealed,omitempty"`

	// Client says that the client's own request broke off, or came too slowly, or that it
	// went away before it had its answer: nothing is to be mended at this end.
	Client bool `json:"client,omitempty"`

	PlanSeconds   float64 `json:"plan_seconds,omitempty"`
	BridgeSeconds float64 `json:"bridge_seconds,omitempty"` // queue, prefill, adoption
	AdoptSeconds  float64 `json:"adopt_seconds,omitempty"`  // of that, from the last block in the store to its adoption

	// FirstSeconds is from the request to the first byte of the decoder's answer: with
	// streaming about the time to the first token. 0: none came.
	FirstSeconds float64 `json:"first_seconds,omitempty"`

	// Known when the answer has ended.
	Status  int     `json:"status,omitempty"` // of the decoder's answer; 499: the client left before it
	Cached  *int    `json:"cached_tokens"`    // what the decoder said; null: nothing
	Check   Check   `json:"check,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // from the request to the end of the answer
}

// String is the record as the header carries it: one line of ASCII, short enough for
// clients that bound headers.
func (r *Record) String() string {
	var b strings.Builder
	b.WriteString(string(r.Outcome))
	if r.Promised > 0 {
		fmt.Fprintf(&b, " %d/%d tokens", r.Promised, r.Tokens)
	}
	if r.Reason != "" {
		b.WriteString("; ")
		b.WriteString(r.Reason)
	}
	if len(r.Hosts) > 1 {
		b.WriteString("; hosts=")
		for i, h := range r.Hosts {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%s:%d", h.Name, h.Bytes)
		}
	}
	text := strings.ReplaceAll(b.String(), "\n", "; ") // errors that were joined are one a line
	if len(text) > maxVerdict {
		text = text[:maxVerdict] + "..."
	}
	text += "; id=" + r.ID
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text)
}

// blame notes that the client's request broke off.
func (r *Record) blame(why error) {
	r.Client = true
	if r.Outcome == Bypassed {
		r.Reason = "the client's body: " + why.Error()
	}
}

// ended notes why the body did not come whole, or why the answer is not. nil: it did, it is.
func (r *Record) ended(failed, cut error) {
	switch {
	case failed != nil:
		if !r.Client {
			r.blame(failed)
		}
	case cut != nil:
		if r.Reason != "" {
			r.Reason += "; "
		}
		r.Reason += cut.Error()
		r.Client = errors.Is(cut, errLeft)
	}
}

// repeated notes that the request is sent to the decoder a second time.
func (r *Record) repeated() {
	if r.Reason != "" {
		r.Reason += "; "
	}
	r.Reason += "sent to the decoder again, whose system had refused it over a connection that was kept"
}

// settle takes the decoder's word. cached is nil when it gave none; what was said in an
// answer that is not whole is no word.
func (r *Record) settle(status int, cached *int, whole bool, took time.Duration) {
	r.Status, r.Cached, r.Seconds = status, cached, took.Seconds()
	switch {
	case cached == nil || !whole || status != http.StatusOK:
		r.Check = CheckUnknown
	case *cached >= r.Promised:
		r.Check = CheckEqual
	default:
		r.Check = CheckLess
	}
}

// records keeps the last ones and counts all. It may be used concurrently.
type records struct {
	mu      sync.Mutex
	ring    []Record // the next one goes to at
	at, n   int
	counts  map[Outcome]uint64
	less    uint64 // checks that found less than promised
	clients uint64 // requests that broke off
	running int
}

func newRecords(keep int) *records {
	return &records{ring: make([]Record, keep), counts: make(map[Outcome]uint64)}
}

func (s *records) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

func (s *records) end(r Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.counts[r.Outcome]++
	if r.Client {
		s.clients++
	}
	if r.Check == CheckLess {
		s.less++
	}
	s.ring[s.at] = r
	s.at = (s.at + 1) % len(s.ring)
	s.n = min(s.n+1, len(s.ring))
}

// list returns the records, the newest first.
func (s *records) list() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Record, 0, s.n)
	for i := range s.n {
		out = append(out, s.ring[(s.at-1-i+2*len(s.ring))%len(s.ring)])
	}
	return out
}

// Transfers serves what became of requests: GET on the path itself lists the last
// ones, the newest first, as {"transfers": […]}; with "/ID" behind it, one. It
// tells sizes and times, nothing of what prompts say.
func (f *Front) Transfers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pdlink/transfers", func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, http.StatusOK, map[string]any{"transfers": f.records.list()})
	})
	mux.HandleFunc("GET /pdlink/transfers/{id}", func(w http.ResponseWriter, r *http.Request) {
		for _, x := range f.records.list() {
			if id := r.PathValue("id"); x.ID == id || x.Transfer == id {
				answerJSON(w, http.StatusOK, x)
				return
			}
		}
		answerJSON(w, http.StatusNotFound, map[string]string{"error": "no such transfer among the last ones"})
	})
	mux.HandleFunc("GET /pdlink/metrics", f.metrics)
	return mux
}

// metrics speaks the text format that Prometheus reads.
func (f *Front) metrics(w http.ResponseWriter, _ *http.Request) {
	s := f.records
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprintln(w, "# HELP pdlink_requests_total Requests that the front looked at, by outcome.\n# TYPE pdlink_requests_total counter")
	for _, o := range []Outcome{Bypassed, Bridged, Part, Declined} {
		fmt.Fprintf(w, "pdlink_requests_total{outcome=%q} %d\n", o, s.counts[o])
	}
	fmt.Fprintln(w, "# HELP pdlink_cached_less_total Answers with fewer cached tokens than promised.\n# TYPE pdlink_cached_less_total counter")
	fmt.Fprintf(w, "pdlink_cached_less_total %d\n", s.less)
	fmt.Fprintln(w, "# HELP pdlink_client_errors_total Requests whose client broke off or was too slow.\n# TYPE pdlink_client_errors_total counter")
	fmt.Fprintf(w, "pdlink_client_errors_total %d\n", s.clients)
	fmt.Fprintln(w, "# HELP pdlink_requests_running Requests for prompts whose answer has not ended.\n# TYPE pdlink_requests_running gauge")
	fmt.Fprintf(w, "pdlink_requests_running %d\n", s.running)
}

// answerJSON writes an answer of the front's own.
func answerJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // no type here can fail
		status, b = http.StatusInternalServerError, []byte(`{"error":"cannot be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n')) //nolint:errcheck // a client that is gone needs no answer
}
