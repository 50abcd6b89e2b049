//go:build unix

package session_test

import (
	"runtime/debug"
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
)

// mapped reports whether memory can be touched.
func mapped(p []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	p[0]++
	return true
}

// TestLastSlotUnmaps unmaps a ring of the session's own when the last slot of it
// comes back after Close, whichever way that is.
func TestLastSlotUnmaps(t *testing.T) {
	for name, end := range map[string]func(transport.Outgoing, *transport.Lease){
		"released": func(_ transport.Outgoing, l *transport.Lease) { l.Release() },
		"sent":     func(out transport.Outgoing, l *transport.Lease) { is(t, out.Send(t.Context(), l), transport.ErrClosed) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(o *session.Options) { o.SendRing = nil })
			out, _ := b.outgoing(transport.Request{})
			l, err := out.Lease(t.Context())
			must(t, err)
			mem, err := l.Reserve(0, 0, 1)
			must(t, err)
			must(t, b.c.Close())
			if !mapped(mem) {
				t.Fatal("the slot of a lease is not mapped")
			}
			end(out, l)
			if mapped(mem) {
				t.Error("the ring is mapped although its last slot came back")
			}
		})
	}
}
