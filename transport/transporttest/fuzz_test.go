package transporttest

import (
	"errors"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// FuzzPeer lets a peer say anything between what its session says: control
// messages with a right prefix, right checksums and any body, and frames with a right checksum
// and any fields. Nothing panics or hangs, and no wrong byte is delivered.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{})
	for t := wire.TypeHello; t <= wire.TypeCancel; t++ {
		f.Add([]byte{byte(t), 8, 1, 0, 0, 0, 1, 0, 0, 0})
		f.Add([]byte{byte(t), 24, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0})
	}
	f.Add([]byte{0, 3, 1, 1, 0, byte(wire.TypeFinish), 12, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 3, 1, 0, 0, 0, 3, 1, 0, 0, 0, 3, 2, 0, 0, 0, 3, 1, 200, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		guard(t, 20*time.Second, func(tb testing.TB) {
			e := newEnv(tb, memHarness(), 1)
			s := e.spied(session.Options{})
			_, in := s.open(e)
			back, backIn := e.open(s.B, s.A, transport.Request{})
			receiving := call(func() error { return e.sink(in).run(e.ctx) })
			flushing := call(func() error { return back.Flush(e.ctx) })
			other := call(func() error { return e.sink(backIn).run(e.ctx) })
			play(e, s, script)
			s.Close()
			for what, w := range map[string]<-chan outcome[struct{}]{"receive": receiving, "flush": flushing, "other": other} {
				select {
				case <-w:
				case <-time.After(soon):
					e.Errorf("%s hangs", what)
				}
			}
		})
	})
}

// play sends what a script says: a type and a length of a control message with
// its body, or type 0 and a frame's handle, number and length.
func play(e *env, s *spy, script []byte) {
	take := func(n int) []byte {
		n = min(n, len(script))
		b := script[:n]
		script = script[n:]
		return b
	}
	for range 100 {
		head := take(2)
		if len(head) < 2 {
			return
		}
		body := take(int(head[1]))
		if head[0] != 0 {
			if s.SendControl(raw(wire.Type(head[0]), 0, body...)) != nil {
				return
			}
			continue
		}
		if len(body) < 3 {
			continue
		}
		header, payload := s.frame(e, e.data, func(h *wire.FrameHeader) {
			h.Handle, h.Seq = uint32(body[0]), uint64(body[1])
			if body[2] != 0 {
				h.Pieces[0].Sum ^= 1
			}
		})
		if err := s.SendFrame(header, payload); err != nil {
			if errors.Is(err, transport.ErrInvalid) {
				e.Errorf("frame of the script: %v", err)
			}
			return
		}
	}
}
