package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"pdlink/bridge/watch"
)

// gauges are the figures that are read when somebody asks. It implements
// prometheus.Collector.
type gauges struct {
	version string
	source  atomicSource
	peers   peers
	desc    map[string]*prometheus.Desc // by name without prefix
}

// figures are the gauges and counters: name, help, labels.
func figures() [][]string {
	return [][]string{
		{"build_info", "1, with the program's version and Go's.", "version", "go"},
		{"ready", "1 when the process can do its work, as /readyz says."},
		{"transfers_open", "Transfers that are open."},
		{"transfers_total", "Transfers that ended, by state.", "state"},
		{"blocks_total", "Blocks that transfers made visible."},
		{"tokens_total", "Tokens of those blocks, by the link that carried most of their transfer.", "link"},
		{"received_bytes_total", "Payload that arrived, of open transfers too, by link.", "link", "sealed"},
		{"sent_bytes_total", "Payload that was sent, of open transfers too, by link.", "link", "sealed"},
		{"resent_bytes_total", "Of that, what the link sent again by itself.", "link", "sealed"},
		{"saved_bytes_total", "Of what arrived and was sent, what a codec kept off the wire, by link.", "link", "sealed"},
		{"damaged_pieces_total", "Pieces whose checksum did not match, by link.", "link", "sealed"},
		{"connections", "Connections that are open, by link and, where a key proves its name, peer.", "link", "sealed", "peer"},
		{"connections_total", "Connections so far, by link.", "link", "sealed"},
		{"dials_total", "Attempts to connect, by link and result: connected, failed.", "link", "result"},
		{"connections_lost_total", "Connections that were lost, by link.", "link"},
		{"ring_slots", "Slots of memory for frames, by ring.", "ring"},
		{"ring_slots_used", "Of them, those with a frame in them.", "ring"},
		{"store_free_bytes", "What can still be written to the store's file system."},
		{"store_size_bytes", "Size of the store's file system."},
		{"requests_total", "Requests that the front looked at, by outcome.", "outcome"},
		{"requests_running", "Requests for prompts whose answer has not ended."},
		{"cached_less_total", "Answers with fewer cached tokens than promised."},
		{"client_errors_total", "Requests whose client broke off or was too slow."},
	}
}

func newGauges(version string) *gauges {
	g := &gauges{version: version, desc: make(map[string]*prometheus.Desc)}
	for _, f := range figures() {
		g.desc[f[0]] = prometheus.NewDesc(prefix+f[0], f[1], f[2:], nil)
	}
	return g
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(to chan<- *prometheus.Desc) {
	for _, d := range g.desc {
		to <- d
	}
}

// reading is one scrape.
type reading struct {
	*gauges
	to chan<- prometheus.Metric
}

func (r reading) put(kind prometheus.ValueType, name string, value float64, labels ...string) {
	r.to <- prometheus.MustNewConstMetric(r.desc[name], kind, value, labels...) // it panics where labels do not fit the list above
}

func (r reading) gauge(name string, value float64, labels ...string) {
	r.put(prometheus.GaugeValue, name, value, labels...)
}

func (r reading) count(name string, value uint64, labels ...string) {
	r.put(prometheus.CounterValue, name, float64(value), labels...)
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	r := reading{g, to}
	r.gauge("build_info", 1, g.version, runtime.Version())
	src := g.source.Load()
	if src == nil {
		return
	}
	r.gauge("ready", truth(src.ready()))
	s, t := src.w.State(), src.w.Tally()
	r.transfers(s, t)
	r.links(s)
	r.front(s, t)
	for _, x := range s.Rings {
		r.gauge("ring_slots", float64(x.Slots), x.Ring)
		r.gauge("ring_slots_used", float64(x.Used), x.Ring)
	}
	if s.Store != nil && s.Store.Error == "" {
		r.gauge("store_free_bytes", float64(s.Store.Free))
		r.gauge("store_size_bytes", float64(s.Store.Size))
	}
}

func (r reading) transfers(s *watch.State, t watch.Tally) {
	r.gauge("transfers_open", float64(s.Open))
	for _, state := range watch.States() {
		r.count("transfers_total", t.Ended[state], state)
	}
	r.count("blocks_total", t.Blocks)
	for _, link := range watch.Links() {
		if n := t.Tokens[link]; n > 0 {
			r.count("tokens_total", n, link)
		}
	}
}

func (r reading) links(s *watch.State) {
	for _, l := range s.Links {
		sealed := word(l.Sealed)
		r.count("received_bytes_total", l.Received, l.Link, sealed)
		r.count("sent_bytes_total", l.Sent, l.Link, sealed)
		r.count("resent_bytes_total", l.Resent, l.Link, sealed)
		r.count("saved_bytes_total", l.Saved, l.Link, sealed)
		r.count("damaged_pieces_total", l.Damaged, l.Link, sealed)
		r.count("connections_total", l.Opened, l.Link, sealed)
	}
	for _, d := range s.Dials {
		r.count("dials_total", d.Connected, d.Link, "connected")
		r.count("dials_total", d.Failed, d.Link, "failed")
		r.count("connections_lost_total", d.Lost, d.Link)
	}
	conns := map[[3]string]int{}
	for _, p := range s.Peers {
		conns[[3]string{p.Link, word(p.Sealed), r.peers.label(p)}]++
	}
	for k, n := range conns {
		r.gauge("connections", float64(n), k[0], k[1], k[2])
	}
}

func (r reading) front(s *watch.State, t watch.Tally) {
	if !s.Front {
		return
	}
	for _, outcome := range watch.Outcomes() {
		r.count("requests_total", t.Requests[outcome], outcome)
	}
	r.gauge("requests_running", float64(s.Running))
	r.count("cached_less_total", t.Less)
	r.count("client_errors_total", t.Clients)
}

func word(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
