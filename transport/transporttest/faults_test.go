package transporttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// loop is a driver that gives back what was written to it.
type loop struct {
	control chan []byte
	frames  chan []byte
	closed  chan struct{}
	closes  int
}

func newLoop() *loop {
	return &loop{control: make(chan []byte, 16), frames: make(chan []byte, 16), closed: make(chan struct{})}
}

func (l *loop) Lanes() int                    { return 1 }
func (l *loop) WriteControl(msg []byte) error { l.control <- bytes.Clone(msg); return nil }

func (l *loop) ReadControl() ([]byte, error) {
	select {
	case msg := <-l.control:
		return msg, nil
	case <-l.closed:
		return nil, io.ErrClosedPipe
	}
}

func (l *loop) WriteFrame(_ int, header, payload []byte) error {
	l.frames <- append(bytes.Clone(header), payload...)
	return nil
}

func (l *loop) ReadFrame(_ int, header []byte, place session.Placer) (int, error) {
	select {
	case f := <-l.frames:
		n := copy(header, f[:wire.FixedHeader+wire.PieceSize])
		mem, err := place(header[:n])
		if err != nil {
			return 0, err
		}
		if copy(mem, f[n:]) < len(mem) {
			return 0, io.ErrUnexpectedEOF
		}
		return n, nil
	case <-l.closed:
		return 0, io.ErrClosedPipe
	}
}

func (l *loop) Close() error {
	l.closes++
	close(l.closed)
	return nil
}

// looped is a loop with faults in front, and one frame.
func looped(t *testing.T) (*Faults, session.Driver, *loop, []byte, []byte) {
	t.Helper()
	payload := bytes.Repeat([]byte{0x11}, 500)
	header, err := wire.AppendFrame(nil, &wire.FrameHeader{
		Handle: 1, Epoch: 1, Payload: 500, Pieces: []transport.Piece{{Length: 500}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f, l := NewFaults(1), newLoop()
	return f, f.Intercept(l), l, header, payload
}

// readFrame reads a frame into memory of its own.
func readFrame(d session.Driver) (header, payload []byte, err error) {
	header = make([]byte, wire.MaxHeader)
	n, err := d.ReadFrame(0, header, func([]byte) ([]byte, error) {
		payload = make([]byte, 500)
		return payload, nil
	})
	return header[:n], payload, err
}

// flipped counts the bits in which two messages differ.
func flipped(a, b []byte) (bits, at int) {
	for i := range a {
		for x := a[i] ^ b[i]; x != 0; x &= x - 1 {
			bits, at = bits+1, i
		}
	}
	return bits, at
}

func TestFaultsPassAll(t *testing.T) {
	_, d, l, header, payload := looped(t)
	msg := []byte{0, 0, 0, 0, 16, 0, 0, 0}
	if err := errors.Join(d.WriteControl(msg), d.WriteFrame(0, header, payload)); err != nil {
		t.Fatal(err)
	}
	got, err := d.ReadControl()
	if err != nil || !bytes.Equal(got, msg) {
		t.Errorf("message arrived as %v, %v", got, err)
	}
	h, p, err := readFrame(d)
	if err != nil || !bytes.Equal(h, header) || !bytes.Equal(p, payload) {
		t.Errorf("frame differs, error %v", err)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil || l.closes != 1 {
		t.Errorf("closed %d times, error %v", l.closes, err)
	}
}

func TestFaultsCorrupt(t *testing.T) {
	f, d, _, header, payload := looped(t)
	wantH, wantP := bytes.Clone(header), bytes.Clone(payload)
	f.Corrupt(SentHeader, 1, 10)
	f.Corrupt(SentPayload, 2, 499)
	for i, want := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {0, 0}} {
		if err := d.WriteFrame(0, header, payload); err != nil {
			t.Fatal(err)
		}
		h, p, err := readFrame(d)
		if err != nil {
			t.Fatal(err)
		}
		hb, hAt := flipped(h, header)
		pb, pAt := flipped(p, payload)
		if hb != want[0] || pb != want[1] || hb == 1 && hAt != 10 || pb == 1 && pAt != 499 {
			t.Errorf("frame %d: %d bits of the header (at %d) and %d of the payload (at %d) flipped, want %v", i, hb, hAt, pb, pAt, want)
		}
	}
	if n := f.Corrupted(); n != 2 {
		t.Errorf("%d corruptions counted, want 2", n)
	}
	if !bytes.Equal(header, wantH) || !bytes.Equal(payload, wantP) {
		t.Error("the sender's own memory was damaged")
	}
	for _, site := range []Site{SentControl, TakenControl} {
		f.Corrupt(site, 0, -1)
		msg := make([]byte, 40)
		if err := d.WriteControl(msg); err != nil {
			t.Fatal(err)
		}
		got, err := d.ReadControl()
		if n, _ := flipped(msg, got); n != 1 || err != nil {
			t.Errorf("site %d: %d bits flipped, error %v", site, n, err)
		}
	}
}

func TestFaultsCut(t *testing.T) {
	for _, after := range []int{0, 20, 96, 97, 300, 595, 596, 700} {
		f, d, l, header, payload := looped(t)
		if err := d.WriteFrame(0, header, payload); err != nil {
			t.Fatal(err)
		}
		f.CutAfter(after)
		h, p, err := readFrame(d)
		if after >= 596 {
			if err != nil || !bytes.Equal(h, header) || !bytes.Equal(p, payload) {
				t.Errorf("cut after %d: error %v", after, err)
			}
			continue
		}
		if !errors.Is(err, ErrInjected) || l.closes != 1 {
			t.Errorf("cut after %d: error %v, closed %d times", after, err, l.closes)
		}
		if after < 96 {
			if p != nil {
				t.Errorf("cut after %d: memory for a payload was asked for", after)
			}
			continue
		}
		if n := after - 96; !bytes.Equal(p[:n], payload[:n]) || p[n] == payload[n] {
			t.Errorf("cut after %d: not exactly %d bytes of the payload arrived", after, n)
		}
	}
	f, d, _, header, payload := looped(t)
	f.CutAfter(4)
	if err := d.WriteControl(make([]byte, 8)); !errors.Is(err, ErrInjected) {
		t.Errorf("write over a cut: %v", err)
	}
	if err := d.WriteFrame(0, header, payload); !errors.Is(err, ErrInjected) {
		t.Errorf("write after a cut: %v", err)
	}
}

func TestFaultsSilence(t *testing.T) {
	f, d, l, header, payload := looped(t)
	f.Deafen()
	if err := errors.Join(d.WriteControl(make([]byte, 8)), d.WriteFrame(0, header, payload)); err != nil {
		t.Fatal(err)
	}
	if len(l.control) != 0 || len(l.frames) != 0 {
		t.Error("something passed a deaf end")
	}
	f.BlackHole()
	l.control <- make([]byte, 8)
	l.frames <- append(bytes.Clone(header), payload...)
	control := start(d.ReadControl)
	frames := call(func() error { _, _, err := readFrame(d); return err })
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	select {
	case r := <-control:
		t.Errorf("a message came out of a black hole: %v, %v", r.v, r.err)
	case r := <-frames:
		t.Errorf("a frame came out of a black hole: %v", r.err)
	case <-ctx.Done():
	}
	d.Close()
	if r := <-control; !errors.Is(r.err, io.ErrClosedPipe) {
		t.Errorf("read after close: %v", r.err)
	}
	if r := <-frames; !errors.Is(r.err, io.ErrClosedPipe) {
		t.Errorf("read after close: %v", r.err)
	}
}

func TestFaultsTruncateAndHalfClose(t *testing.T) {
	f, d, l, header, payload := looped(t)
	f.Truncate()
	if err := d.WriteFrame(0, header, payload); !errors.Is(err, ErrInjected) {
		t.Errorf("truncated write: %v", err)
	}
	if got := <-l.frames; len(got) < len(header) || len(got) >= len(header)+len(payload) || l.closes != 1 {
		t.Errorf("%d bytes passed of a truncated frame, closed %d times", len(got), l.closes)
	}

	f, d, _, header, payload = looped(t)
	f.HalfClose()
	if err := errors.Join(d.WriteControl(make([]byte, 8)), d.WriteFrame(0, header, payload)); err != nil {
		t.Errorf("write on a half-closed end: %v", err)
	}
	if _, err := d.ReadControl(); !errors.Is(err, io.EOF) {
		t.Errorf("read on a half-closed end: %v", err)
	}
	if _, _, err := readFrame(d); !errors.Is(err, io.EOF) {
		t.Errorf("read a frame on a half-closed end: %v", err)
	}
}

func TestFaultsRaw(t *testing.T) {
	f := NewFaults(1)
	if f.SendControl(nil) == nil || f.SendFrame(nil, nil) == nil {
		t.Error("raw messages went out without a connection")
	}
	f.Cut() // nothing to cut yet
	l := newLoop()
	f.Intercept(l)
	f.Delay(time.Microsecond)
	f.Hook(Hooks{SendControl: func([]byte) []byte { return nil }})
	if err := f.SendControl([]byte{1}); err != nil || !bytes.Equal(<-l.control, []byte{1}) {
		t.Errorf("a raw message did not pass: %v", err)
	}
	if err := f.SendFrame([]byte{1}, []byte{2}); err != nil || !bytes.Equal(<-l.frames, []byte{1, 2}) {
		t.Errorf("a raw frame did not pass: %v", err)
	}
}
