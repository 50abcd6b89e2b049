package tcp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// guards are what the two ends of a connection have that agreed on suite.
func guards(suite seal.Suite) (client, server *guard) {
	session := func(_ string, _ []byte, n int) ([]byte, error) { return bytes.Repeat([]byte{7}, n), nil }
	one := func(out, in seal.Direction) *guard {
		secret, err := seal.Export(session, [16]byte{})
		if err != nil {
			panic(err)
		}
		return &guard{suite: suite, secret: secret, out: out, in: in,
			peer: keys.Admission{Peer: keys.Peer{Name: "peer"}, Revoked: make(chan struct{})}}
	}
	return one(seal.ToServer, seal.ToClient), one(seal.ToClient, seal.ToServer)
}

// sealedPair is driverPair with keys; a is the client.
func sealedPair(t testing.TB, lanes int, suite seal.Suite) (a, b *driver) {
	t.Helper()
	a, b = driverPair(t, lanes)
	client, server := guards(suite)
	if err := errors.Join(a.protect(client), b.protect(server)); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// sealedBytes is what the frames of a sealed lane look like on the wire.
func sealedBytes(t testing.TB, lane int, frames ...[2][]byte) []byte {
	t.Helper()
	client, _ := guards(seal.AES128GCM)
	c, err := newCrypt(client, lane, testPayload, false)
	if err != nil {
		t.Fatal(err)
	}
	var stream []byte
	for _, f := range frames {
		head, body, err := c.seal(f[0], f[1])
		if err != nil {
			t.Fatal(err)
		}
		stream = append(append(stream, head...), body...)
	}
	return stream
}

func TestSealedFramesArriveAsSent(t *testing.T) {
	for _, suite := range []seal.Suite{seal.AES128GCM, seal.AES256GCM, seal.Clear} {
		t.Run(suite.String(), func(t *testing.T) {
			a, b := sealedPair(t, 2, suite)
			sizes := []struct{ payload, pieces int }{
				{1, 1}, {2, 2}, {4095, 1}, {4096, 126}, {openStep - 1, 7}, {openStep, 1}, {openStep + 1, 2}, {testPayload - 1, 3}, {testPayload, 126},
			}
			for _, ends := range [][2]*driver{{a, b}, {b, a}} {
				for lane := range 2 {
					go func() {
						for i, s := range sizes {
							h, p := frame(t, uint64(i), s.payload, s.pieces)
							kept := bytes.Clone(p)
							if err := ends[0].WriteFrame(lane, h, p); err != nil {
								t.Errorf("frame %d: %v", i, err)
							}
							if !bytes.Equal(p, kept) {
								t.Errorf("frame %d: the payload was changed: it may have to be sent again", i)
							}
						}
					}()
					got, room := make([]byte, testPayload), make([]byte, transport.HeaderRoom)
					for i, s := range sizes {
						wantHeader, want := frame(t, uint64(i), s.payload, s.pieces)
						n, err := ends[1].ReadFrame(lane, room, func([]byte) ([]byte, error) { return got[:s.payload], nil })
						if err != nil || !bytes.Equal(room[:n], wantHeader) || !bytes.Equal(got[:s.payload], want) {
							t.Fatalf("lane %d: frame %d differs, error %v", lane, i, err)
						}
					}
				}
			}
		})
	}
}

// However the stream of a sealed lane is cut, the same frames come out, and its
// end between two frames is seen as one in order.
func TestAnyCutOfASealedStream(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 3))
	for round := range 10 {
		raw, d := lanePair(t, 1+rnd.IntN(100_000))
		_, server := guards(seal.AES128GCM)
		if err := d.protect(server); err != nil {
			t.Fatal(err)
		}
		var frames [][2][]byte
		for i := range 20 {
			size := 1 + rnd.IntN([]int{3, 100, 5000, 70_000, 700_000}[rnd.IntN(5)])
			h, p := frame(t, uint64(i), size, 1+rnd.IntN(min(size, transport.MaxPieces)))
			frames = append(frames, [2][]byte{h, p})
		}
		stream := sealedBytes(t, 0, frames...)
		cut := rand.New(rand.NewPCG(seed, uint64(100+round)))
		go func() {
			for len(stream) > 0 {
				n := min(len(stream), 1+cut.IntN([]int{10, 5000, 200_000}[cut.IntN(3)]))
				if _, err := raw.Write(stream[:n]); err != nil {
					t.Error(err)
					return
				}
				stream = stream[n:]
			}
			raw.CloseWrite()
		}()
		room, got := make([]byte, transport.HeaderRoom), make([]byte, testPayload)
		for i, f := range frames {
			await(t, readOne(d, room, got))
			if !bytes.Equal(got[:len(f[1])], f[1]) {
				t.Fatalf("seed %d, round %d: frame %d differs", seed, round, i)
			}
		}
		if err := <-readOne(d, room, got); !errors.Is(err, io.EOF) {
			t.Fatalf("seed %d, round %d: after the last frame: %v", seed, round, err)
		}
	}
}

// What is not what the peer sealed is refused, and nobody is asked for memory
// before the header is authentic.
func TestForgedFramesAreRefused(t *testing.T) {
	h, p := frame(t, 1, 300_000, 2)
	good := sealedBytes(t, 0, [2][]byte{h, p}, [2][]byte{h, p})
	one := len(good) / 2
	headLen := one - len(p)
	flip := func(at int) []byte { b := bytes.Clone(good); b[at] ^= 1; return b }
	tests := map[string]struct {
		stream []byte
		placed int // frames for which memory was asked
		want   error
	}{
		"prelude":            {flip(0), 0, seal.ErrForged},
		"record size":        {flip(5), 0, seal.ErrForged},
		"frame number":       {flip(8), 0, seal.ErrForged},
		"fixed part":         {flip(20), 0, seal.ErrForged},
		"its tag":            {flip(90), 0, seal.ErrForged},
		"piece list":         {flip(100), 0, seal.ErrForged},
		"tag of the list":    {flip(seal.HeadSize + len(h) - wire.FixedHeader), 0, seal.ErrForged},
		"tag of a record":    {flip(headLen - 1), 1, seal.ErrForged},
		"first byte":         {flip(headLen), 1, seal.ErrForged},
		"last byte":          {flip(one - 1), 1, seal.ErrForged},
		"second frame":       {flip(one + 30), 1, seal.ErrForged},
		"replayed":           {append(bytes.Clone(good[:one]), good[:one]...), 1, seal.ErrForged},
		"left out":           {good[one:], 0, seal.ErrForged},
		"from another lane":  {sealedBytes(t, 1, [2][]byte{h, p}), 0, seal.ErrForged},
		"in clear":           {append(append(bytes.Clone(h), p...), make([]byte, 100)...), 0, seal.ErrForged},
		"zeros":              {make([]byte, 200), 0, seal.ErrForged},
		"cut in the head":    {good[:headLen-3], 0, io.ErrUnexpectedEOF},
		"cut in the prelude": {good[:7], 0, io.ErrUnexpectedEOF},
		"cut in the body":    {good[:one-1], 1, io.ErrUnexpectedEOF},
		"cut at a part":      {good[:headLen+openStep], 1, io.ErrUnexpectedEOF},
		"cut between frames": {good[:one], 1, io.EOF},
		"nothing":            {nil, 0, io.EOF},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			raw, d := lanePair(t, lowWater)
			_, server := guards(seal.AES128GCM)
			if err := d.protect(server); err != nil {
				t.Fatal(err)
			}
			go func() { raw.Write(tt.stream); raw.CloseWrite() }()
			room, placed := make([]byte, transport.HeaderRoom), 0
			var err error
			for err == nil {
				got := make([]byte, len(p))
				_, err = d.ReadFrame(0, room, func(header []byte) ([]byte, error) {
					placed++
					if !bytes.Equal(header, h) {
						t.Errorf("memory asked for another header: %x", header)
					}
					return got, nil
				})
				if err == nil && !bytes.Equal(got, p) {
					t.Error("payload differs")
				}
			}
			if !errors.Is(err, tt.want) || errors.Is(err, io.EOF) != errors.Is(tt.want, io.EOF) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if placed != tt.placed {
				t.Errorf("memory asked for %d frames, want %d", placed, tt.placed)
			}
			if errors.Is(err, seal.ErrForged) {
				if _, again := d.ReadFrame(0, room, nil); !errors.Is(again, seal.ErrForged) && !errors.Is(again, io.EOF) {
					t.Errorf("after a forgery: %v", again)
				}
			}
		})
	}
}

// A frame of a peer that is authentic but breaks the rules is a breach too.
func TestSealedNonsenseIsRefused(t *testing.T) {
	h, p := frame(t, 1, 1000, 1)
	raw, d := lanePair(t, lowWater)
	_, server := guards(seal.AES128GCM)
	d.maxPayload = 999
	if err := d.protect(server); err != nil {
		t.Fatal(err)
	}
	raw.Write(sealedBytes(t, 0, [2][]byte{h, p}))
	_, err := d.ReadFrame(0, make([]byte, transport.HeaderRoom), func([]byte) ([]byte, error) {
		t.Error("memory asked for a payload above the agreed limit")
		return nil, nil
	})
	if !errors.Is(err, transport.ErrProtocol) || errors.Is(err, seal.ErrForged) {
		t.Errorf("error %v", err)
	}
}

func TestSealedFramesCostNoAllocation(t *testing.T) {
	a, b := sealedPair(t, 1, seal.AES128GCM)
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

// The end of a peer's right interrupts every call with the cause.
func TestRevocationEndsCalls(t *testing.T) {
	a, b := driverPair(t, 1)
	client, _ := guards(seal.AES128GCM)
	revoked := make(chan struct{})
	client.peer.Revoked = revoked
	if err := a.protect(client); err != nil {
		t.Fatal(err)
	}
	a.watch(client)
	calls := []func() error{
		func() error { _, err := a.ReadControl(); return err },
		func() error { _, err := a.ReadFrame(0, make([]byte, transport.HeaderRoom), nil); return err },
		func() error { // a peer that does not read
			h, p := frame(t, 1, testPayload, 1)
			for {
				if err := a.WriteFrame(0, h, p); err != nil {
					return err
				}
			}
		},
	}
	done := make(chan error, len(calls))
	for _, call := range calls {
		go func() { done <- call() }()
	}
	close(revoked)
	for range calls {
		if err := <-done; !errors.Is(err, keys.ErrUnknownPeer) {
			t.Errorf("error %v", err)
		}
	}
	if err := a.WriteControl(make([]byte, 100)); !errors.Is(err, keys.ErrUnknownPeer) {
		t.Errorf("write control: %v", err)
	}
	closed := make(chan struct{})
	go func() { a.Close(); close(closed) }()
	msg, err := b.ReadControl()
	if err != nil {
		t.Fatal(err)
	}
	if m, err := wire.Decode(msg); err != nil || !strings.HasPrefix(m.(*wire.Bye).Reason, "revoked: ") {
		t.Errorf("the peer hears %v, %v", m, err)
	}
	if _, err := b.ReadControl(); !errors.Is(err, io.EOF) {
		t.Errorf("the peer reads %v", err)
	}
	b.Close()
	<-closed
	if _, err := a.ReadControl(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read control after close: %v", err)
	}
}
