package transporttest

import (
	"testing"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// memHarness is the reference link, which the suite is tested with.
func memHarness() Harness {
	return Harness{Name: "mem", Links: func(_ testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
		l := mem.New(mem.Options{Session: b})
		return l.With(mem.Options{Session: a}), l, ""
	}}
}
