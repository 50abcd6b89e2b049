package tcp

import (
	"testing"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// options is the link's options for a test of the suite, which knows the order of
// the checksums beforehand: nothing is measured.
func options(o session.Options) Options {
	if o.Sums == nil {
		o.Sums = session.Options{}.WithDefaults().Sums
	}
	return Options{Session: o}
}

func harness() transporttest.Harness {
	return transporttest.Harness{
		Name:    "tcp",
		Sockets: true,
		Links: func(_ testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
			return New(options(a)), New(options(b)), "127.0.0.1:0"
		},
	}
}

// secureHarness is of a link with keys. The stores are tb's, so that no check
// takes their goroutines for its own.
func secureHarness(tb testing.TB, suite seal.Suite) transporttest.Harness {
	tb.Helper()
	h := harness()
	h.Tries = secureTries
	server, client := twoHosts(tb)
	h.Links = func(_ testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
		d, l := options(a), options(b)
		d.Keys, d.Peer, d.Encrypt = client, "server", suite
		l.Keys, l.Encrypt = server, suite
		return New(d), New(l), "127.0.0.1:0"
	}
	return h
}

// secureTries is how many connections are cut at random bytes with keys: what the
// session does with a cut was tried without them; here the handshake and the
// sealed frames count.
const secureTries = 60

// packedHarness is of a link that codes every payload which gets smaller by it.
func packedHarness(tb testing.TB, suite seal.Suite) transporttest.Harness {
	tb.Helper()
	h := harness()
	if suite != seal.Clear {
		h = secureHarness(tb, suite)
	}
	h.Tries = secureTries
	links := h.Links
	h.Links = func(tb testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
		dial, listen, addr = links(tb, a, b)
		return recompress(tb, dial), recompress(tb, listen), addr
	}
	return h
}

// recompress is a link with the options of another, but with compression forced on.
func recompress(tb testing.TB, l transport.Link) transport.Link {
	tb.Helper()
	t, ok := l.(*Link)
	if !ok {
		tb.Fatalf("a %T is no link of this package", l)
	}
	o := t.o
	o.Compress = codec.OnlyBF16
	return New(o)
}

func TestSuite(t *testing.T) { transporttest.Run(t, harness()) }

func TestSuiteSealed(t *testing.T) { transporttest.Run(t, secureHarness(t, seal.AES128GCM)) }

func TestSuiteClearWithKeys(t *testing.T) { transporttest.Run(t, secureHarness(t, seal.Clear)) }

func TestSuitePacked(t *testing.T) { transporttest.Run(t, packedHarness(t, seal.Clear)) }

func TestSuitePackedSealed(t *testing.T) {
	transporttest.Run(t, packedHarness(t, seal.AES128GCM))
}

func BenchmarkSuite(b *testing.B) { transporttest.Bench(b, harness()) }

func BenchmarkSuiteSealed(b *testing.B) { transporttest.Bench(b, secureHarness(b, seal.AES128GCM)) }
