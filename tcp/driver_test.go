package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
	"pdlink/transport/wire"
)

const testPayload = 1 << 20

// socketPair returns two ends of a loopback socket.
func socketPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	nl, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	c, err := net.Dial("tcp", nl.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := nl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// driverPair returns the drivers of two connected ends, with the sockets of b
// for tests that write raw bytes.
func driverPair(t testing.TB, lanes int) (a, b *driver) {
	t.Helper()
	ca, cb := socketPair(t)
	var la, lb []socket
	for range lanes {
		x, y := socketPair(t)
		la, lb = append(la, x), append(lb, y)
	}
	a, b = newTestDriver(t, ca, la, lowWater), newTestDriver(t, cb, lb, lowWater)
	t.Cleanup(func() { shut(a, b) })
	return a, b
}

func newTestDriver(t testing.TB, ctl *net.TCPConn, lanes []socket, lowWater int) *driver {
	t.Helper()
	d, err := newDriver(newControl(ctl, wire.MaxControl), lanes, testPayload, lowWater)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// shut closes both ends at once, as two processes do.
func shut(a, b *driver) {
	done := make(chan struct{})
	go func() { a.Close(); close(done) }()
	b.Close()
	<-done
}

// frame returns an encoded header and a payload cut into pieces.
func frame(t testing.TB, seed uint64, payload, pieces int) (header, body []byte) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	body = make([]byte, payload)
	for i := range body {
		body[i] = byte(rnd.Uint32())
	}
	h := wire.FrameHeader{Handle: 1, Epoch: 2, Seq: seed, Payload: uint32(payload)}
	left := payload
	for i := range pieces {
		n := left / (pieces - i)
		h.Pieces = append(h.Pieces, transport.Piece{Block: uint32(i), Length: uint32(n)})
		left -= n
	}
	header, err := wire.AppendFrame(nil, &h)
	if err != nil {
		t.Fatal(err)
	}
	return header, body
}

func TestFramesArriveAsSent(t *testing.T) {
	const lanes = 2
	a, b := driverPair(t, lanes)
	sizes := []struct{ payload, pieces int }{
		{1, 1}, {2, 2}, {4095, 1}, {4096, 126}, {100_000, 7}, {testPayload - 1, 3}, {testPayload, 126},
	}
	if a.Lanes() != lanes || b.Lanes() != lanes {
		t.Fatalf("lanes %d and %d", a.Lanes(), b.Lanes())
	}
	for lane := range lanes {
		go func() {
			for i, s := range sizes {
				h, p := frame(t, uint64(i), s.payload, s.pieces)
				if err := a.WriteFrame(lane, h, p); err != nil {
					t.Errorf("lane %d: frame %d: %v", lane, i, err)
				}
			}
		}()
		got := make([]byte, testPayload)
		room := make([]byte, transport.HeaderRoom)
		for i, s := range sizes {
			wantHeader, want := frame(t, uint64(i), s.payload, s.pieces)
			var placed []byte
			n, err := b.ReadFrame(lane, room, func(h []byte) ([]byte, error) {
				placed = bytes.Clone(h)
				return got[:s.payload], nil
			})
			if err != nil || !bytes.Equal(room[:n], wantHeader) || !bytes.Equal(placed, wantHeader) {
				t.Fatalf("lane %d: frame %d: header differs, error %v", lane, i, err)
			}
			if !bytes.Equal(got[:s.payload], want) {
				t.Fatalf("lane %d: frame %d: payload differs", lane, i)
			}
		}
	}
}

func TestReadFrameRefusesBeforePlacing(t *testing.T) {
	good, _ := frame(t, 1, 100, 1)
	spoil := func(at int, b byte) []byte {
		h := bytes.Clone(good)
		h[at] = b
		return h
	}
	large := bytes.Clone(good)
	binary.LittleEndian.PutUint32(large[24:], testPayload+1)
	tests := map[string]struct {
		sent []byte
		want error
	}{
		"magic":            {spoil(0, 'x'), transport.ErrProtocol},
		"version":          {spoil(4, 9), transport.ErrProtocol},
		"no piece":         {spoil(28, 0), transport.ErrProtocol},
		"too many pieces":  {spoil(28, 127), transport.ErrProtocol},
		"reserved bits":    {spoil(40, 1), transport.ErrProtocol},
		"payload":          {large, transport.ErrProtocol},
		"cut in header":    {good[:63], io.ErrUnexpectedEOF},
		"cut in list":      {good[:80], io.ErrUnexpectedEOF},
		"ended in order":   {nil, io.EOF},
		"cut after header": {good, io.ErrUnexpectedEOF},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := driverPair(t, 1)
			raw := a.lanes[0].conn
			if _, err := raw.Write(tt.sent); err != nil {
				t.Fatal(err)
			}
			raw.CloseWrite()
			placed := false
			_, err := b.ReadFrame(0, make([]byte, transport.HeaderRoom), func([]byte) ([]byte, error) {
				placed = true
				return make([]byte, 100), nil
			})
			if !errors.Is(err, tt.want) || errors.Is(err, io.EOF) != errors.Is(tt.want, io.EOF) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if placed != (name == "cut after header") {
				t.Errorf("placed: %v", placed)
			}
		})
	}
}

func TestReadFramePlacerErrorsEndTheLane(t *testing.T) {
	a, b := driverPair(t, 1)
	h, p := frame(t, 1, 100, 1)
	sentinel := errors.New("no room")
	if err := a.WriteFrame(0, h, p); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ReadFrame(0, make([]byte, transport.HeaderRoom), func([]byte) ([]byte, error) {
		return nil, sentinel
	}); !errors.Is(err, sentinel) {
		t.Errorf("error %v, want the placer's", err)
	}
	a, b = driverPair(t, 1)
	if err := a.WriteFrame(0, h, p); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ReadFrame(0, make([]byte, transport.HeaderRoom), func([]byte) ([]byte, error) {
		return make([]byte, 99), nil
	}); err == nil {
		t.Error("a placer that returns too little was not noticed")
	}
}

// message returns a control message with a body of n bytes that starts with b,
// and with the checksums that belong to it.
func message(kind wire.Type, n int, b byte) []byte {
	msg := make([]byte, wire.ControlPrefix+n)
	msg[4] = byte(kind)
	for i := range n {
		msg[wire.ControlPrefix+i] = b + byte(i)
	}
	return resum(msg, n)
}

// resum makes the prefix of a message say that its body has n bytes, and carry
// the checksums that belong to that.
func resum(msg []byte, n int) []byte {
	le := binary.LittleEndian
	le.PutUint32(msg, uint32(n))
	le.PutUint32(msg[8:], uint32(xxh3.Hash(msg[wire.ControlPrefix:])))
	le.PutUint32(msg[12:], uint32(xxh3.Hash(msg[:12])))
	return msg
}

func TestControlMessagesArriveAsSent(t *testing.T) {
	a, b := driverPair(t, 1)
	var sent [][]byte
	for i, n := range []int{0, 1, 100, 4096} {
		sent = append(sent, message(wire.TypeOpen, n, byte(i)))
	}
	for i, n := range []int{controlStep - 1, controlStep, controlStep + 1, 3*controlStep + 5, 16 << 20} {
		sent = append(sent, message(wire.TypeOpen, n, byte(i)), message(wire.TypeGrant, 16, byte(i)))
	}
	go func() {
		for _, m := range sent {
			if err := a.WriteControl(m); err != nil {
				t.Error(err)
			}
		}
	}()
	for i, want := range sent {
		got, err := b.ReadControl()
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("message %d of %d bytes: error %v, equal %v", i, len(want), err, bytes.Equal(got, want))
		}
	}
	if n := cap(b.ctl.msg); n > 1<<20 {
		t.Errorf("%d bytes kept after the last small message", n)
	}
}

func TestControlRefusesAndEnds(t *testing.T) {
	tests := map[string]struct {
		sent []byte
		want error
	}{
		"above the agreed limit": {message(wire.TypeOpen, 300_000, 0), transport.ErrProtocol},
		"above the type's limit": {message(wire.TypeGrant, 5000, 0), transport.ErrProtocol},
		"unknown":                {message(250, 0, 0), transport.ErrProtocol},
		"damaged length":         {damaged(message(wire.TypeOpen, 500, 0), 1), transport.ErrProtocol},
		"damaged type":           {damaged(message(wire.TypeOpen, 500, 0), 4), transport.ErrProtocol},
		"cut in prefix":          {message(wire.TypeGrant, 16, 0)[:wire.ControlPrefix-1], io.ErrUnexpectedEOF},
		"cut before body":        {message(wire.TypeGrant, 16, 0)[:wire.ControlPrefix], io.ErrUnexpectedEOF},
		"cut in body":            {message(wire.TypeOpen, 100_000, 0)[:70_000], io.ErrUnexpectedEOF},
		"ended in order":         {nil, io.EOF},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := driverPair(t, 1)
			b.ctl.agreed(1000)
			raw := a.ctl.sock
			if _, err := raw.Write(tt.sent); err != nil {
				t.Fatal(err)
			}
			raw.CloseWrite()
			_, err := b.ReadControl()
			if !errors.Is(err, tt.want) || errors.Is(err, io.EOF) != errors.Is(tt.want, io.EOF) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// damaged flips a bit of byte at of a message.
func damaged(msg []byte, at int) []byte {
	msg[at] ^= 1
	return msg
}

// TestDamagedLengthIsNotWaitedFor leaves the socket open after a message whose
// length says that more will come.
func TestDamagedLengthIsNotWaitedFor(t *testing.T) {
	a, b := driverPair(t, 1)
	if _, err := a.ctl.sock.Write(damaged(message(wire.TypeOpen, 500, 0), 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.ctl.sock.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ReadControl(); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("error %v, want %v", err, transport.ErrProtocol)
	}
}

func TestControlMemoryFollowsWhatArrived(t *testing.T) {
	a, b := driverPair(t, 1)
	claim := message(wire.TypeOpen, 16<<20, 0)[:wire.ControlPrefix+1000]
	if _, err := a.ctl.sock.Write(claim); err != nil {
		t.Fatal(err)
	}
	a.ctl.sock.CloseWrite()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := b.ReadControl()
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("error %v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 4*controlStep {
		t.Errorf("%d bytes allocated for 1000 that arrived", n)
	}
}

func TestCloseUnblocksEveryCall(t *testing.T) {
	a, b := driverPair(t, 1)
	h, p := frame(t, 1, testPayload, 1)
	big := message(wire.TypeOpen, 16<<20, 0)
	results := make(chan error, 4)
	go func() { _, err := a.ReadControl(); results <- err }()
	go func() {
		_, err := a.ReadFrame(0, make([]byte, transport.HeaderRoom), func([]byte) ([]byte, error) { return nil, nil })
		results <- err
	}()
	go func() { // nobody reads, so this blocks when the socket is full
		var err error
		for err == nil {
			err = a.WriteFrame(0, h, p)
		}
		results <- err
	}()
	go func() {
		var err error
		for err == nil {
			err = a.WriteControl(big)
		}
		results <- err
	}()
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 3*lingerTime {
		t.Errorf("close took %v", took)
	}
	for range 4 {
		if err := <-results; !errors.Is(err, net.ErrClosed) {
			t.Errorf("a call ended with %v", err)
		}
	}
	if err := a.WriteControl(h); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if _, err := a.ReadControl(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	if err := a.WriteFrame(0, h, p); !errors.Is(err, net.ErrClosed) {
		t.Errorf("frame after close: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	_ = b
}

// A last message must arrive although its sender closed with unread bytes in
// its socket, which without lingering answers with a reset.
func TestCloseDoesNotLoseTheLastMessage(t *testing.T) {
	for range 20 {
		a, b := driverPair(t, 1)
		last := message(wire.TypeResult, 1<<20, 3)
		grant := message(wire.TypeGrant, 16, 0)
		for range 100 {
			if err := b.WriteControl(grant); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan error, 1)
		go func() {
			time.Sleep(5 * time.Millisecond)
			msg, err := b.ReadControl()
			if err == nil && !bytes.Equal(msg, last) {
				err = errors.New("message differs")
			}
			if err == nil {
				if _, err = b.ReadControl(); errors.Is(err, io.EOF) {
					err = nil
				}
			}
			b.Close()
			got <- err
		}()
		if err := a.WriteControl(last); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatalf("the peer got %v", err)
		}
	}
}

func TestCloseIsQuickWhenThePeerAnswers(t *testing.T) {
	closesQuickly(t, func() *driver {
		a, b := driverPair(t, 3)
		go func() {
			for {
				if _, err := b.ReadControl(); err != nil {
					b.Close()
					return
				}
			}
		}()
		return a
	})
}

func TestDriverClosesItsSockets(t *testing.T) {
	a, b := driverPair(t, 2)
	shut(a, b)
	for _, d := range []*driver{a, b} {
		for i := range d.lanes {
			if err := d.lanes[i].conn.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("lane %d is open: %v", i, err)
			}
		}
		if err := d.ctl.sock.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("control is open: %v", err)
		}
	}
}

func TestPeerGoneEndsCalls(t *testing.T) {
	closesQuickly(t, func() *driver { return peerGone(t) })
}

// peerGone is a driver that saw its peer go.
func peerGone(t *testing.T) *driver {
	t.Helper()
	a, b := driverPair(t, 1)
	b.lanes[0].conn.(*net.TCPConn).SetLinger(0) // a reset, as from a host that restarted
	b.ctl.sock.(*net.TCPConn).SetLinger(0)
	b.lanes[0].conn.Close()
	b.ctl.sock.Close()
	if _, err := a.ReadControl(); err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read control: %v", err)
	}
	h, p := frame(t, 1, testPayload, 1)
	var err error
	for range 1000 {
		if err = a.WriteFrame(0, h, p); err != nil {
			break
		}
	}
	if err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("write frame: %v", err)
	}
	return a
}

func TestFramesCostNoAllocation(t *testing.T) {
	a, b := driverPair(t, 1)
	h, p := frame(t, 1, 64<<10, 4)
	room, got := make([]byte, transport.HeaderRoom), make([]byte, len(p))
	place := func([]byte) ([]byte, error) { return got, nil }
	n := testing.AllocsPerRun(200, func() {
		if err := a.WriteFrame(0, h, p); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ReadFrame(0, room, place); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per frame", n)
	}
}
