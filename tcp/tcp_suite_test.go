package tcp

import (
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// sessionOptions is what a test of the suite wants, as the session knows it.
func sessionOptions(o transporttest.Options) session.Options {
	return session.Options{
		SendRing: o.SendRing, RecvRing: o.RecvRing, Window: o.Window, Lanes: o.Lanes,
		Sums: o.Sums, MaxMeta: o.MaxMeta, Intercept: o.Intercept,
	}
}

func harness() transporttest.Harness {
	return transporttest.Harness{
		Name:    "tcp",
		Sockets: true,
		Links: func(_ testing.TB, a, b transporttest.Options) (dial, listen transport.Link, addr string) {
			return New(Options{Session: sessionOptions(a)}), New(Options{Session: sessionOptions(b)}), "127.0.0.1:0"
		},
	}
}

func TestSuite(t *testing.T) { transporttest.Run(t, harness()) }

func BenchmarkSuite(b *testing.B) { transporttest.Bench(b, harness()) }
