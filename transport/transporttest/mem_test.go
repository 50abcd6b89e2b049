package transporttest

import (
	"testing"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// memHarness is the reference link, which the suite is tested with.
func memHarness() Harness {
	return Harness{Name: "mem", Links: func(_ testing.TB, a, b Options) (dial, listen transport.Link, addr string) {
		l := mem.New(mem.Options{Session: sessionOptions(b)})
		return l.With(mem.Options{Session: sessionOptions(a)}), l, ""
	}}
}

func sessionOptions(o Options) session.Options {
	return session.Options{
		SendRing: o.SendRing, RecvRing: o.RecvRing, Window: o.Window, Lanes: o.Lanes,
		Sums: o.Sums, MaxMeta: o.MaxMeta, Intercept: o.Intercept,
	}
}
