package mem_test

import (
	"testing"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

func harness() transporttest.Harness {
	return transporttest.Harness{Name: "mem", Links: links}
}

// links makes two links in a namespace of their own.
func links(_ testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
	l := mem.New(mem.Options{Session: b})
	return l.With(mem.Options{Session: a}), l, ""
}

func TestSuite(t *testing.T) { transporttest.Run(t, harness()) }

func BenchmarkLink(b *testing.B) { transporttest.Bench(b, harness()) }
