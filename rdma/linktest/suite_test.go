package linktest

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"pdlink/rdma"
	"pdlink/rdma/internal/fakeverbs"
	"pdlink/tcp"
	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// personality is a device at each end.
type personality struct {
	name  string
	a, b  func() fakeverbs.Personality
	lanes int
	mode  string // that the ends have to agree on
	o     rdma.Options
	suite bool // has the whole suite run on it
}

// personalities are all kinds of ends. The suite runs on each provider and each mode;
// the others differ from those in what they agree on only.
func personalities() []personality {
	return []personality{
		{"mlx5", fakeverbs.MLX5, fakeverbs.MLX5, 4, "write+immediate", rdma.Options{}, true},
		{"mlx5 without immediates", fakeverbs.MLX5, fakeverbs.MLX5, 4, "write+send", rdma.Options{NoImmediate: true}, false},
		{"mlx5 by reading", fakeverbs.MLX5, fakeverbs.MLX5, 4, "read", rdma.Options{NoRemoteWrite: true}, true},
		{"mcdma", fakeverbs.MCDMA, fakeverbs.MCDMA, 4, "write+send", rdma.Options{}, true},
		{"mcdma by reading", fakeverbs.MCDMA, fakeverbs.MCDMA, 4, "read", rdma.Options{NoRemoteWrite: true}, false},
		{"mlx5 to mcdma", fakeverbs.MLX5, fakeverbs.MCDMA, 4, "write+send", rdma.Options{}, false},
		{"melondma", fakeverbs.MelonDMA, fakeverbs.MelonDMA, 4, "write+immediate", rdma.Options{}, true},
		{"mlx5 to melondma", fakeverbs.MLX5, fakeverbs.MelonDMA, 4, "write+immediate", rdma.Options{}, false},
		{"apple", fakeverbs.Apple, fakeverbs.Apple, 2, "send", rdma.Options{}, true},
	}
}

// hosts is the two ends of a network.
type hosts struct {
	net  fakeverbs.Net
	a, b *fakeverbs.Host
}

func newHosts(p personality) *hosts {
	h := &hosts{}
	h.a = h.net.Host("a", p.a(), netip.MustParseAddr("10.0.0.1"), 0)
	h.b = h.net.Host("b", p.b(), netip.MustParseAddr("10.0.0.2"), 0)
	return h
}

// none checks that nothing is left of either host's objects.
func (h *hosts) none(tb testing.TB) {
	tb.Helper()
	for _, v := range []*fakeverbs.Host{h.a, h.b} {
		c := v.Counts()
		c.Writes, c.Sends, c.Reads, c.Immediates = 0, 0, 0, 0
		if c != (fakeverbs.Counts{}) {
			tb.Errorf("objects are left: %+v", c)
		}
	}
}

// options is the tcp options of one end.
func options(s session.Options, h *fakeverbs.Host, o rdma.Options) tcp.Options {
	if s.Sums == nil {
		s.Sums = session.Options{}.WithDefaults().Sums
	}
	return tcp.Options{Session: s, Carrier: rdma.NewOver(h, o)}
}

func harness(p personality) transporttest.Harness {
	return transporttest.Harness{
		Name: rdma.Scheme, Sockets: true, ControlOnly: true, Lanes: p.lanes, Tries: 40,
		Links: func(tb testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
			h := newHosts(p)
			tb.Cleanup(func() { h.none(tb) })
			return tcp.New(options(a, h.a, p.o)), tcp.New(options(b, h.b, p.o)), "127.0.0.1:0"
		},
	}
}

func TestSuite(t *testing.T) {
	for _, p := range personalities() {
		if p.suite {
			t.Run(p.name, func(t *testing.T) { transporttest.Run(t, harness(p)) })
		}
	}
}
