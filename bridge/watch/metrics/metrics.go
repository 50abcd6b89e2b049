package metrics

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pdlink/bridge/watch"
)

// prefix of all names.
const prefix = "pdlink_"

// Metrics are the figures of one process. It is the watch.Sink of the Watch whose figures
// it has. It may be used concurrently.
type Metrics struct {
	registry *prometheus.Registry
	gauges   *gauges

	seconds      *prometheus.HistogramVec // by state
	bytes        *prometheus.HistogramVec // by link
	tokens       *prometheus.HistogramVec // by link
	goodput      *prometheus.HistogramVec // by link
	phase        *prometheus.HistogramVec // by phase
	request      *prometheus.HistogramVec // by outcome
	first        *prometheus.HistogramVec // by outcome
	requestPhase *prometheus.HistogramVec // by phase
}

// New returns metrics without a Watch: figures that have to be asked for are missing
// until Observe. version is the program's.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), gauges: newGauges(version),
		seconds:      histogram("transfer_seconds", "From the first open to the last visible block, by state.", secondsBuckets(), "state"),
		bytes:        histogram("transfer_bytes", "Payload of a transfer, by the link that carried most of it.", bytesBuckets(), "link"),
		tokens:       histogram("transfer_tokens", "Tokens of the blocks that a transfer made visible, by the link that carried most of it.", tokensBuckets(), "link"),
		goodput:      histogram("transfer_goodput_bytes_per_second", "Payload over seconds of transfers of 1 MiB and more, by the link that carried most of it.", goodputBuckets(), "link"),
		phase:        histogram("transfer_phase_seconds", "What one phase of a transfer took, summed over its blocks, by phase.", secondsBuckets(), "phase"),
		request:      histogram("request_seconds", "From a request to the end of its answer, by outcome.", secondsBuckets(), "outcome"),
		first:        histogram("request_first_byte_seconds", "From a request to the first byte of its answer, with streaming about the first token, by outcome.", secondsBuckets(), "outcome"),
		requestPhase: histogram("request_phase_seconds", "What one phase of a request took before it was forwarded, by phase.", secondsBuckets(), "phase"),
	}
	for _, c := range []prometheus.Collector{
		m.seconds, m.bytes, m.tokens, m.goodput, m.phase, m.request, m.first, m.requestPhase, m.gauges,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		m.registry.MustRegister(c) // it panics on two of one name only, which the test would show
	}
	return m
}

func histogram(name, help string, buckets []float64, label string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, []string{label})
}

// Observe has the figures of w be read. ready tells whether the process can do its work
// now; it is asked for each scrape.
func (m *Metrics) Observe(w *watch.Watch, ready func() bool) {
	m.gauges.source.Store(&source{w, ready})
}

// Handler serves the metrics, in the formats that Prometheus asks for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTime})
}

const (
	// maxScrapes bounds those that are answered at a time: a Prometheus or two.
	maxScrapes = 4

	// scrapeTime bounds one: Prometheus itself gives up after ten seconds by default.
	scrapeTime = 8 * time.Second
)

// Transfer implements watch.Sink.
func (m *Metrics) Transfer(t watch.Transfer) {
	if t.Seconds > 0 { // an offer that was refused, and a prompt without blocks, took none
		m.seconds.WithLabelValues(known(t.State, watch.States())).Observe(t.Seconds)
	}
	if t.Engine > 0 {
		m.Phase(watch.PhaseEngine, time.Duration(t.Engine*float64(time.Second)))
	}
	link := t.Main()
	if link == "" {
		return
	}
	m.bytes.WithLabelValues(link).Observe(float64(t.Bytes))
	if t.Tokens > 0 {
		m.tokens.WithLabelValues(link).Observe(float64(t.Tokens))
	}
	if t.Bytes >= leastBytes && t.Seconds > 0 {
		m.goodput.WithLabelValues(link).Observe(float64(t.Bytes) / t.Seconds)
	}
}

// Phase implements watch.Sink.
func (m *Metrics) Phase(name string, took time.Duration) {
	m.phase.WithLabelValues(known(name, watch.Phases())).Observe(took.Seconds())
}

// RequestPhases are the values of the label phase of requests.
func RequestPhases() []string { return []string{"plan", "bridge", "adopt"} }

// Request implements watch.Sink.
func (m *Metrics) Request(r watch.Request) {
	if r.Seconds > 0 {
		m.request.WithLabelValues(known(r.Outcome, watch.Outcomes())).Observe(r.Seconds)
	}
	if r.First > 0 {
		m.first.WithLabelValues(known(r.Outcome, watch.Outcomes())).Observe(r.First)
	}
	for i, seconds := range []float64{r.Plan, r.Bridge, r.Adopt} {
		if seconds > 0 {
			m.requestPhase.WithLabelValues(RequestPhases()[i]).Observe(seconds)
		}
	}
}

// known is a value of a closed list, "other" where it is not in it.
func known(value string, list []string) string {
	for _, x := range list {
		if x == value {
			return value
		}
	}
	return "other"
}

// peers are the values of the label peer so far. The zero value is ready.
type peers struct {
	mu   sync.Mutex // guards seen
	seen map[string]bool
}

// label is the label of a peer.
func (p *peers) label(x watch.Peer) string {
	if !x.Proven {
		return otherPeer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.seen[x.Name] {
		if len(p.seen) >= maxPeers {
			return otherPeer
		}
		if p.seen == nil {
			p.seen = make(map[string]bool)
		}
		p.seen[x.Name] = true
	}
	return x.Name
}

// source is where figures are read.
type source struct {
	w     *watch.Watch
	ready func() bool
}

// atomicSource is a source that may not be there yet.
type atomicSource = atomic.Pointer[source]
