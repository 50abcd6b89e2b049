package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/bridge/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// busy are metrics of a Watch in which everything happened.
func busy(t *testing.T) *Metrics {
	t.Helper()
	m := New("v1")
	w := watch.New(watch.Options{
		Sink: m, Store: func() *watch.Store { return &watch.Store{Dir: "d", Free: 3, Size: 9} }, Running: func() int { return 2 },
	})
	m.Observe(w, func() bool { return true })
	for _, state := range append(watch.States(), "never heard of") {
		for _, link := range append(watch.Links(), "never heard of") {
			w.Ended(watch.Transfer{State: state, Blocks: 5, Present: 1, Total: 5, Tokens: 1000, Bytes: 5 << 20, Seconds: .5, Engine: .25,
				Links: []watch.LinkBytes{{Link: link, Bytes: 5 << 20}}})
			w.Dial(link, watch.Connected)
		}
	}
	for _, phase := range append(watch.Phases(), "never heard of") {
		m.Phase(phase, time.Millisecond)
	}
	for _, outcome := range append(watch.Outcomes(), "never heard of") {
		w.Answered(watch.Request{Outcome: outcome, Plan: .001, Bridge: 1, Adopt: .1, First: 1.5, Seconds: 2, Less: true, Client: true})
	}
	w.Ring("receive", slots{})
	return m
}

type slots struct{}

func (slots) Slots() int { return 63 }
func (slots) InUse() int { return 7 }

// scrape is what Prometheus reads.
func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	r := httptest.NewRecorder()
	m.Handler().ServeHTTP(r, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	b, err := io.ReadAll(r.Body)
	if err != nil || r.Code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", r.Code, err, b)
	}
	return string(b)
}

// family is one figure: its type and labels.
type family struct {
	kind   string
	labels []string
	says   string // what README.md says it is
}

// documented are the figures of README.md.
func documented(t *testing.T) map[string]family {
	t.Helper()
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]family{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(pdlink_[a-z_]+)` \\| ([a-z]+) \\| ([^|]*)\\| ([^|]*) \\|").FindAllStringSubmatch(string(b), -1) {
		f := family{kind: m[2], says: m[4]}
		for _, l := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(m[3], -1) {
			f.labels = append(f.labels, l[1])
		}
		all[m[1]] = f
	}
	return all
}

// registered are the figures of the code.
func registered() map[string]family {
	all := map[string]family{}
	for _, f := range figures() {
		all[prefix+f[0]] = family{labels: f[2:]}
	}
	for name, label := range map[string]string{
		"transfer_seconds": "state", "transfer_bytes": "link", "transfer_tokens": "link", "transfer_goodput_bytes_per_second": "link",
		"transfer_phase_seconds": "phase", "request_seconds": "outcome", "request_first_byte_seconds": "outcome", "request_phase_seconds": "phase",
	} {
		all[prefix+name] = family{labels: []string{label}}
	}
	return all
}

// TestReadmeListsEveryFigure: with its type and labels, and no other.
func TestReadmeListsEveryFigure(t *testing.T) {
	said, is := documented(t), registered()
	text := scrape(t, busy(t))
	kinds := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (pdlink_\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		kinds[m[1]] = m[2]
		if _, ok := is[m[1]]; !ok {
			t.Errorf("%s is scraped, and nothing registers it", m[1])
		}
	}
	if len(is) < 25 {
		t.Errorf("%d figures", len(is))
	}
	for name, f := range is {
		s, ok := said[name]
		if !ok || !slices.Equal(s.labels, f.labels) {
			t.Errorf("%s has labels %q, README.md says %q", name, f.labels, s.labels)
		}
		if kind, there := kinds[name]; there && kind != s.kind {
			t.Errorf("%s is a %s, README.md says %s", name, kind, s.kind)
		} else if !there && !needsConnections(name) {
			t.Errorf("%s is not scraped", name)
		}
		if strings.HasSuffix(name, "_total") != (s.kind == "counter") {
			t.Errorf("%s is a %s by its type", name, s.kind)
		}
	}
	for name := range said {
		if _, ok := is[name]; !ok {
			t.Errorf("README.md has %s, which is none", name)
		}
	}
}

// needsConnections are the figures that only real connections make.
func needsConnections(name string) bool {
	return slices.Contains([]string{
		"pdlink_received_bytes_total", "pdlink_sent_bytes_total", "pdlink_resent_bytes_total", "pdlink_saved_bytes_total", "pdlink_damaged_pieces_total",
		"pdlink_connections", "pdlink_connections_total",
	}, name)
}

// TestDashboardKnowsTheFigures: every name and label in it, and every figure is in it.
func TestDashboardKnowsTheFigures(t *testing.T) {
	b, err := os.ReadFile("../grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &board); err != nil {
		t.Fatal(err)
	}
	is, used, ids := registered(), map[string]bool{}, map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || len(p.Targets) == 0 || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: %+v", p.Title, p)
		}
		ids[p.ID] = true
		for _, x := range p.Targets {
			labels := []string{"instance", "le"}
			for _, name := range regexp.MustCompile(`pdlink_[a-z_]+`).FindAllString(x.Expr, -1) {
				whole := name
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					if _, ok := is[name]; !ok {
						whole = strings.TrimSuffix(whole, suffix)
					}
				}
				f, ok := is[whole]
				if !ok {
					t.Errorf("panel %q asks for %s", p.Title, name)
				}
				used[whole] = true
				labels = append(labels, f.labels...)
			}
			for _, m := range regexp.MustCompile(`by \(([^)]*)\)|(\w+)\s*(?:=~|!~|!=|=)`).FindAllStringSubmatch(x.Expr, -1) {
				for _, l := range strings.FieldsFunc(m[1]+m[2], func(r rune) bool { return r == ',' || r == ' ' }) {
					if !slices.Contains(labels, l) {
						t.Errorf("panel %q: no figure of %s has the label %s", p.Title, x.Expr, l)
					}
				}
			}
		}
	}
	for name := range is {
		if !used[name] {
			t.Errorf("no panel has %s", name)
		}
	}
}

// TestLabelsAreFew: whatever is told, and whoever connects.
func TestLabelsAreFew(t *testing.T) {
	m := busy(t)
	text := scrape(t, m)
	if strings.Contains(text, "never heard of") {
		t.Error("a text of somebody else is a label")
	}
	if n := strings.Count(text, "\npdlink_"); n > 1500 {
		t.Errorf("%d series", n)
	}
	var p peers
	seen := map[string]bool{}
	for i := range 1000 {
		seen[p.label(watch.Peer{Name: fmt.Sprint("spark", i), Proven: true})] = true
		if l := p.label(watch.Peer{Name: fmt.Sprint("stranger", i)}); l != otherPeer {
			t.Fatalf("a name that no key proves is a label: %s", l)
		}
	}
	if len(seen) != maxPeers+1 || !seen[otherPeer] || p.label(watch.Peer{Name: "spark0", Proven: true}) != "spark0" {
		t.Errorf("%d labels", len(seen))
	}
}

// TestFigures: a few of them by value.
func TestFigures(t *testing.T) {
	text := scrape(t, busy(t))
	for _, line := range []string{
		`pdlink_build_info{go="go`, "pdlink_ready 1\n", "pdlink_store_free_bytes 3\n", "pdlink_store_size_bytes 9\n",
		"pdlink_ring_slots{ring=\"receive\"} 63\n", "pdlink_ring_slots_used{ring=\"receive\"} 7\n", "pdlink_requests_running 2\n",
		"pdlink_cached_less_total 6\n", "pdlink_client_errors_total 6\n", "pdlink_transfers_total{state=\"other\"} 12\n",
		"pdlink_transfers_total{state=\"complete\"} 6\n", "pdlink_blocks_total 168\n", "pdlink_tokens_total{link=\"tcp\"} 7000\n",
		"pdlink_dials_total{link=\"tcp\",result=\"connected\"} 7\n", "pdlink_transfer_goodput_bytes_per_second_sum{link=\"rdma\"} 7.340032e+07\n",
		"pdlink_request_phase_seconds_count{phase=\"plan\"} 6\n", "pdlink_transfer_phase_seconds_count{phase=\"engine\"} 43\n", "go_goroutines ",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s", line)
		}
	}
	alone := scrape(t, New("v2"))
	if !strings.Contains(alone, `version="v2"} 1`) || strings.Contains(alone, "pdlink_ready") {
		t.Error("figures of no Watch")
	}
}

// TestNothingIsNoSample: what took no time is counted, and is in no histogram.
func TestNothingIsNoSample(t *testing.T) {
	m := New("v1")
	w := watch.New(watch.Options{Sink: m})
	m.Observe(w, func() bool { return true })
	w.Refused(watch.Transfer{State: "declined", Reason: "no room"})
	w.Ended(watch.Transfer{State: "skipped"})
	w.Ended(watch.Transfer{State: "complete", Seconds: .2})
	text := scrape(t, m)
	for _, line := range []string{"pdlink_transfers_total{state=\"declined\"} 1\n", "pdlink_transfers_total{state=\"skipped\"} 1\n", "pdlink_transfer_seconds_count{state=\"complete\"} 1\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s", line)
		}
	}
	for _, part := range []string{"_count{state=\"declined\"", "_count{state=\"skipped\"", "pdlink_transfer_bytes_count", "pdlink_transfer_phase_seconds_count"} {
		if strings.Contains(text, part) {
			t.Errorf("a sample: %s", part)
		}
	}
}

// TestFiguresSayTheirUnit: in their names, as Prometheus wants it, and what README.md says
// of a duration or a size has one.
func TestFiguresSayTheirUnit(t *testing.T) {
	for name, f := range documented(t) {
		base := strings.TrimSuffix(name, "_total")
		unit := base[strings.LastIndex(base, "_")+1:]
		switch {
		case f.kind == "histogram" && !slices.Contains([]string{"seconds", "bytes", "tokens", "second"}, unit):
			t.Errorf("%s is a histogram of %s", name, unit)
		case strings.Contains(name, "milli") || strings.Contains(name, "_mb") || strings.HasSuffix(name, "_ms"):
			t.Errorf("%s is in no base unit", name)
		case f.says == "":
			t.Errorf("README.md does not say what %s is", name)
		}
	}
}

// TestBucketsAreInOrder, and a link that is full is not in the bucket of one that is not.
func TestBucketsAreInOrder(t *testing.T) {
	for name, list := range map[string][]float64{
		"seconds": secondsBuckets(), "goodput": goodputBuckets(), "bytes": bytesBuckets(), "tokens": tokensBuckets(),
	} {
		for i := 1; i < len(list); i++ {
			if list[i] <= list[i-1] || list[i] > 5*list[i-1] {
				t.Errorf("%s: %v after %v", name, list[i], list[i-1])
			}
		}
		if len(list) > 22 {
			t.Errorf("%s: %d buckets", name, len(list))
		}
	}
	bucket := func(x float64) int { n, _ := slices.BinarySearch(goodputBuckets(), x); return n }
	if bucket(1.17e9) == bucket(1.0e9) {
		t.Error("10GbE that is full looks like 8 Gbit/s")
	}
}
