package tcp

import (
	"testing"

	"pdlink/transport"
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

func TestSuite(t *testing.T) { transporttest.Run(t, harness()) }

func BenchmarkSuite(b *testing.B) { transporttest.Bench(b, harness()) }
