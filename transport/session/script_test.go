package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// soon bounds what has to happen at once.
	soon = 10 * time.Second

	testEpoch   = 7
	testWindow  = 4
	testFirst   = 2 // of which are granted at first
	testPayload = 2 * transport.HeaderRoom
	testMeta    = 64 << 10
)

// frame is a frame as a driver sees it.
type frame struct {
	header, payload []byte
}

// script is a driver whose other end is the test: it says and hears raw
// messages and frames.
type script struct {
	tb      testing.TB
	said    chan []byte       // to the session
	heard   chan wire.Message // from the session, in memory of its own
	frames  chan frame        // to the session; any lane takes them
	written chan frame        // from the session, copied
	lanes   int

	once    sync.Once
	closed  chan struct{}
	laneEnd chan struct{} // closed: lanes end in order
}

func newScript(tb testing.TB) *script {
	return &script{
		tb: tb, lanes: 2,
		said: make(chan []byte, 8192), heard: make(chan wire.Message, 8192),
		frames: make(chan frame, 8192), written: make(chan frame, 8192),
		closed: make(chan struct{}), laneEnd: make(chan struct{}),
	}
}

func (s *script) WriteControl(msg []byte) error {
	m, err := wire.Decode(slices.Clone(msg))
	if err != nil {
		s.tb.Errorf("session said what cannot be decoded: %v", err)
	}
	select {
	case s.heard <- m:
		return nil
	case <-s.closed:
		return net.ErrClosed
	}
}

func (s *script) ReadControl() ([]byte, error) {
	select {
	case m, ok := <-s.said:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *script) Lanes() int { return s.lanes }

func (s *script) WriteFrame(_ int, header, payload []byte) error {
	select {
	case s.written <- frame{slices.Clone(header), slices.Clone(payload)}:
		return nil
	case <-s.closed:
		return net.ErrClosed
	}
}

func (s *script) ReadFrame(_ int, header []byte, place session.Placer) (int, error) {
	select {
	case f := <-s.frames:
		n := copy(header, f.header)
		if _, _, err := wire.FrameLength(header[:n], testPayload); err != nil {
			return 0, err
		}
		p, err := place(header[:n])
		if err != nil {
			return 0, err
		}
		copy(p, f.payload)
		return n, nil
	case <-s.laneEnd:
		return 0, io.EOF
	case <-s.closed:
		return 0, net.ErrClosed
	}
}

func (s *script) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// say sends a message to the session.
func (s *script) say(m wire.Message) {
	s.tb.Helper()
	b, err := wire.Append(nil, m)
	if err != nil {
		s.tb.Fatalf("encode %v: %v", m.Type(), err)
	}
	s.said <- b
}

// raw sends a message of any type (PROTOCOL.md, section 2.3).
func (s *script) raw(t wire.Type, flags byte, body ...byte) {
	le := binary.LittleEndian
	msg := make([]byte, wire.ControlPrefix, wire.ControlPrefix+len(body))
	le.PutUint32(msg, uint32(len(body)))
	msg[4], msg[5] = byte(t), flags
	le.PutUint32(msg[8:], uint32(xxh3.Hash(body)))
	le.PutUint32(msg[12:], uint32(xxh3.Hash(msg[:12])))
	s.said <- append(msg, body...)
}

// next is the next message of the session.
func (s *script) next() wire.Message {
	s.tb.Helper()
	select {
	case m := <-s.heard:
		return m
	case <-time.After(soon):
		s.tb.Fatal("the session says nothing")
		return nil
	}
}

// hear is the next message, which has to be a T; grants may come before it.
func hear[T wire.Message](s *script) T {
	s.tb.Helper()
	for {
		m := s.next()
		if t, ok := m.(T); ok {
			return t
		}
		if m.Type() != wire.TypeGrant {
			s.tb.Fatalf("the session said %v: %+v", m.Type(), m)
		}
	}
}

// silent checks that the session has nothing to say.
func (s *script) silent() {
	s.tb.Helper()
	select {
	case m := <-s.heard:
		s.tb.Fatalf("the session said %v: %+v", m.Type(), m)
	case <-time.After(20 * time.Millisecond):
	}
}

// frame sends a frame with a piece of one byte for each block named. damage
// lists the indices of pieces whose bytes arrive wrong.
func (s *script) frame(h wire.FrameHeader, blocks []uint32, damage ...int) {
	s.tb.Helper()
	s.frames <- s.encode(h, blocks, damage...)
}

// encode is what frame sends.
func (s *script) encode(h wire.FrameHeader, blocks []uint32, damage ...int) frame {
	s.tb.Helper()
	sum, err := transport.SumByName("xxh3-64")
	if err != nil {
		s.tb.Fatal(err)
	}
	var payload []byte
	for i, b := range blocks {
		at := []byte{byte(b)}
		h.Pieces = append(h.Pieces, transport.Piece{Block: b, Length: 1, Sum: sum(at)})
		if slices.Contains(damage, i) {
			at[0]++
		}
		payload = append(payload, at...)
	}
	h.Payload = uint32(len(payload))
	header, err := wire.AppendFrame(nil, &h)
	if err != nil {
		s.tb.Fatal(err)
	}
	return frame{header, payload}
}

// sent is the next frame that the session wrote.
func (s *script) sent() wire.FrameHeader {
	s.tb.Helper()
	select {
	case f := <-s.written:
		h, err := wire.DecodeFrame(f.header, testPayload, nil)
		if err != nil {
			s.tb.Fatal(err)
		}
		return h
	case <-time.After(soon):
		s.tb.Fatal("the session writes no frame")
		return wire.FrameHeader{}
	}
}

// bench is a session with a scripted peer, and rings whose slots must all be
// back when the test ends.
type bench struct {
	*script
	c          transport.Conn
	send, recv *transport.Ring
}

// start has the peer agree to features.
func start(tb testing.TB, change func(*session.Options), features ...string) *bench {
	tb.Helper()
	b := &bench{script: newScript(tb), send: ring(tb), recv: ring(tb)}
	o := session.Options{SendRing: b.send, RecvRing: b.recv, Window: testWindow}
	if change != nil {
		change(&o)
	}
	b.c = session.New(b.script, session.Agreement{
		Terms: wire.Terms{
			Epoch: testEpoch, MaxPayload: testPayload, MaxMeta: testMeta, Lanes: 2, Sum: "xxh3-64",
			Features: features,
		},
		Peer: "script",
	}, o, transport.Facts{Link: "script", Remote: "nowhere"})
	tb.Cleanup(func() {
		if err := b.c.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
		idle(tb, b.send)
		idle(tb, b.recv)
	})
	return b
}

func ring(tb testing.TB) *transport.Ring {
	tb.Helper()
	r, err := transport.NewRing(8, testPayload+transport.HeaderRoom)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// idle checks that nothing of a ring is in use and unmaps it.
func idle(tb testing.TB, r *transport.Ring) {
	tb.Helper()
	if n := r.InUse(); n != 0 {
		tb.Errorf("%d slots in use at the end", n)
	}
	if n := r.Promise(r.Slots()); n != r.Slots() {
		tb.Errorf("%d of %d slots promised at the end", r.Slots()-n, r.Slots())
	}
	if err := r.Close(); err != nil {
		tb.Error(err)
	}
}

// offer lets the peer offer a transfer and returns it unanswered.
func (b *bench) offer(handle uint32) transport.Offer {
	b.tb.Helper()
	b.say(&wire.Open{Handle: handle, ID: transport.NewID(), Parts: 1})
	o, err := b.c.Accept(b.tb.Context())
	if err != nil {
		b.tb.Fatal(err)
	}
	return o
}

// incoming lets the peer open a transfer.
func (b *bench) incoming(handle uint32) transport.Incoming {
	b.tb.Helper()
	in, err := b.offer(handle).Admit(nil)
	if err != nil {
		b.tb.Fatal(err)
	}
	if m := hear[*wire.Admit](b.script); m.Handle != handle || m.Window != testFirst {
		b.tb.Fatalf("admit %+v", m)
	}
	return in
}

// opening starts to open a transfer and returns its handle.
func (b *bench) opening(r transport.Request) (uint32, <-chan result[transport.Outgoing]) {
	b.tb.Helper()
	opened := async(func() (transport.Outgoing, error) { return b.c.Open(b.tb.Context(), r) })
	return hear[*wire.Open](b.script).Handle, opened
}

// outgoing opens a transfer that the peer admits.
func (b *bench) outgoing(r transport.Request) (transport.Outgoing, uint32) {
	b.tb.Helper()
	handle, opened := b.opening(r)
	b.say(&wire.Admit{Handle: handle, Window: testWindow})
	out, err := wait(b.tb, opened)
	if err != nil {
		b.tb.Fatal(err)
	}
	return out, handle
}

// put sends a frame with a piece of one byte for each block.
func put(ctx context.Context, out transport.Outgoing, blocks ...uint32) error {
	l, err := out.Lease(ctx)
	if err != nil {
		return err
	}
	for _, b := range blocks {
		l.Append(b, 0, []byte{byte(b)})
	}
	return out.Send(ctx, l)
}

// result is what a call returned.
type result[T any] struct {
	v   T
	err error
}

// async runs a call on its own goroutine.
func async[T any](f func() (T, error)) <-chan result[T] {
	c := make(chan result[T], 1)
	go func() {
		v, err := f()
		c <- result[T]{v, err}
	}()
	return c
}

// asyncErr is async for calls that return only an error.
func asyncErr(f func() error) <-chan result[struct{}] {
	return async(func() (struct{}, error) { return struct{}{}, f() })
}

// wait is what an async call returned.
func wait[T any](tb testing.TB, c <-chan result[T]) (T, error) {
	tb.Helper()
	select {
	case r := <-c:
		return r.v, r.err
	case <-time.After(soon):
		tb.Fatal("a call does not return")
		panic("not reached")
	}
}

// eventually waits for f to become true.
func eventually(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for end := time.Now().Add(soon); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal("never happened: " + what)
		}
	}
}

// must fails the test on an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// mustPanic fails the test unless f panics.
func mustPanic(tb testing.TB, what string, f func()) {
	tb.Helper()
	defer func() {
		if recover() == nil {
			tb.Errorf("%s: no panic", what)
		}
	}()
	f()
}

// is checks an error.
func is(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("error %v, want one that is %v", err, want)
	}
}
