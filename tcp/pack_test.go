package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// kv is n bytes of bf16 numbers of a normal distribution.
func kv(n int) []byte {
	r := rand.New(rand.NewPCG(5, 6))
	b := make([]byte, 0, n+2)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
	}
	return b[:n]
}

// packed makes a pair of drivers whose lanes code everything with a codec, sealed or not.
func packed(t testing.TB, m codec.Mode, suite seal.Suite, checked bool) (a, b *driver) {
	t.Helper()
	a, b = driverPair(t, 1)
	for _, d := range []*driver{a, b} {
		d.compress(&packing{governor: codec.NewGovernor(m, codec.All(), codec.Place{Lanes: 1, Cores: 2}), takes: codec.All(), checked: checked})
	}
	if suite != seal.Clear {
		client, server := guards(suite)
		if err := errors.Join(a.protect(client), b.protect(server)); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// frameOf is an encoded header for a payload of one piece.
func frameOf(t testing.TB, payload []byte) []byte {
	t.Helper()
	h, err := wire.AppendFrame(nil, &wire.FrameHeader{
		Handle: 1, Epoch: 2, Seq: 3, Payload: uint32(len(payload)), Repeat: true,
		Pieces: []transport.Piece{{Block: 4, Length: uint32(len(payload)), Offset: 8, Sum: 5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestPackedFrames: whatever the codec and the suite, the other end places the header
// and the payload of the plain frame; the slot's own bytes stay as they are.
func TestPackedFrames(t *testing.T) {
	noise := make([]byte, 40000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for _, suite := range []seal.Suite{seal.Clear, seal.AES128GCM} {
		for _, m := range []codec.Mode{codec.OnlyBF16, codec.OnlyLZ4} {
			a, b := packed(t, m, suite, true)
			for _, tt := range []struct {
				name    string
				payload []byte
				codes   bool
			}{
				{"numbers", kv(60000), m == codec.OnlyBF16},
				{"zeros", make([]byte, 60000), true},
				{"noise", noise, false},
				{"a byte", []byte{9}, false},
			} {
				header := frameOf(t, tt.payload)
				mine, theirs := bytes.Clone(header), bytes.Clone(tt.payload)
				sent := make(chan error, 1)
				go func() { sent <- a.WriteFrame(0, mine, theirs) }()
				got := make([]byte, len(tt.payload))
				room := make([]byte, transport.HeaderRoom)
				n, err := b.ReadFrame(0, room, func(h []byte) ([]byte, error) {
					if _, err := wire.DecodeFrame(h, testPayload, nil); err != nil {
						t.Errorf("%v %v: %v", m, tt.name, err)
					}
					return got, nil
				})
				if e := <-sent; e != nil || err != nil {
					t.Fatalf("%v %v: write %v, read %v", m, tt.name, e, err)
				}
				if !bytes.Equal(room[:n], header) || !bytes.Equal(got, tt.payload) {
					t.Errorf("%v %v: another frame arrived", m, tt.name)
				}
				if !bytes.Equal(mine, header) || !bytes.Equal(theirs, tt.payload) {
					t.Errorf("%v %v: the sender's bytes changed", m, tt.name)
				}
				saved, name := a.LastSent(0)
				if received, its := b.LastReceived(0); received != saved || its != name || (saved > 0) != tt.codes || (name != "") != tt.codes {
					t.Errorf("%v %v: sent %d less by %q, received %d by %q", m, tt.name, saved, name, received, its)
				}
			}
		}
	}
}

// TestPackedFramesDoNotAllocate holds the hot path to it.
func TestPackedFramesDoNotAllocate(t *testing.T) {
	a, b := packed(t, codec.OnlyBF16, seal.AES128GCM, true)
	payload := kv(60000)
	header, room, got := frameOf(t, payload), make([]byte, transport.HeaderRoom), make([]byte, len(payload))
	place := session.Placer(func([]byte) ([]byte, error) { return got, nil })
	next, sent := make(chan struct{}), make(chan error)
	go func() {
		for range next {
			sent <- a.WriteFrame(0, header, payload)
		}
	}()
	defer close(next)
	n := testing.AllocsPerRun(50, func() {
		next <- struct{}{}
		if _, err := b.ReadFrame(0, room, place); err != nil {
			t.Error(err)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

// TestPackedRefusals: what no end may send.
func TestPackedRefusals(t *testing.T) {
	payload := kv(60000)
	pack := func(id codec.ID, n int) []byte {
		h := frameOf(t, payload)
		if err := wire.Pack(h, uint8(id), n); err != nil {
			t.Fatal(err)
		}
		return append(h, make([]byte, n)...)
	}
	for name, tt := range map[string]struct {
		stream  []byte
		checked bool
		agreed  []codec.ID // nil: none
		refused bool
	}{
		"nothing was agreed":                 {pack(codec.BF16, 100), true, nil, true},
		"another codec was agreed":           {pack(codec.BF16, 100), true, []codec.ID{codec.LZ4}, true},
		"a codec that nobody knows":          {pack(200, 100), true, codec.All(), true},
		"bytes that are no code":             {pack(codec.BF16, 100), false, codec.All(), true},
		"the same, to be told by their sums": {pack(codec.BF16, 100), true, codec.All(), false},
	} {
		a, b := driverPair(t, 1)
		if tt.agreed != nil {
			b.compress(&packing{governor: codec.NewGovernor(codec.Off, nil, codec.Place{}), takes: tt.agreed, checked: tt.checked})
		}
		go a.lanes[0].conn.Write(tt.stream)
		_, err := b.ReadFrame(0, make([]byte, transport.HeaderRoom), func([]byte) ([]byte, error) { return make([]byte, len(payload)), nil })
		if errors.Is(err, transport.ErrProtocol) != tt.refused || !tt.refused && err != nil {
			t.Errorf("%s: %v, want a violation: %v", name, err, tt.refused)
		}
	}
}

// TestCodecsAreAgreed: each end's wish counts, and an older one has none.
func TestCodecsAreAgreed(t *testing.T) {
	for _, tt := range []struct {
		dial, listen codec.Mode
		codecs       string
		codes        [2]bool // the dialler's frames, the listener's
	}{
		{codec.Auto, codec.Auto, "bf16,lz4", [2]bool{}}, // there is no wire
		{codec.OnlyBF16, codec.Auto, "bf16,lz4", [2]bool{true, false}},
		{codec.OnlyBF16, codec.OnlyLZ4, "bf16,lz4", [2]bool{true, false}}, // numbers give lz4 nothing
		{codec.OnlyBF16, codec.Off, "", [2]bool{}},
		{codec.Off, codec.OnlyBF16, "", [2]bool{}},
	} {
		_, l, _ := listen(t, Options{Session: smallRings(t), Compress: tt.listen})
		a, b := connect(t, New(Options{Session: smallRings(t), Compress: tt.dial}), l)
		for i, c := range []transport.Conn{a, b} {
			if f := c.Facts(); f.Codecs != tt.codecs || f.ZeroCopy != (tt.codecs == "") {
				t.Errorf("%v to %v: end %d has codecs %q, want %q; zero copy %v", tt.dial, tt.listen, i, f.Codecs, tt.codecs, f.ZeroCopy)
			}
		}
		for i, ends := range [][2]transport.Conn{{a, b}, {b, a}} {
			s := carryKV(t, ends[0], ends[1])
			if (s.Saved > 0) != tt.codes[i] || (s.Codec != "") != tt.codes[i] || s.Saved >= s.Bytes {
				t.Errorf("%v to %v: direction %d: %+v", tt.dial, tt.listen, i, s)
			}
		}
	}
}

// carryKV sends a frame of numbers and returns what the receiver counted.
func carryKV(t *testing.T, from, to transport.Conn) transport.Stats {
	t.Helper()
	done := make(chan transport.Stats, 1)
	go func() {
		defer close(done)
		o, err := to.Accept(t.Context())
		if err != nil {
			return
		}
		in, err := o.Admit(nil)
		if err != nil {
			return
		}
		for {
			d, err := in.Recv(t.Context())
			switch {
			case errors.Is(err, io.EOF):
				s := in.Stats()
				in.Finish(nil)
				done <- s
				return
			case err != nil:
				return
			case d.Mark():
				d.Flushed(nil)
			default:
				in.Ack(0)
				d.Release()
			}
		}
	}()
	out, err := from.Open(t.Context(), transport.Request{Kind: "kv"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := out.Lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Reserve(0, 0, min(l.Room(), 40000))
	if err != nil {
		t.Fatal(err)
	}
	copy(b, kv(len(b)))
	if err := out.Send(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, ok := <-done
	if !ok {
		t.Fatal("the receiver gave up")
	}
	return s
}

// TestWithin: where there is no wire.
func TestWithin(t *testing.T) {
	for remote, want := range map[string]bool{"10.0.0.1:5": true, "10.0.0.2:5": false, "[::ffff:10.0.0.1]:9": true, "[fe80::1%eth0]:9": false} {
		if got := within(ends{"10.0.0.1:7", remote}); got != want {
			t.Errorf("to %s: %v", remote, got)
		}
	}
	if !within(ends{"@", ""}) {
		t.Error("a Unix socket is a wire")
	}
}

// ends are the addresses of a socket.
type ends [2]string

func (e ends) LocalAddr() net.Addr  { return address(e[0]) }
func (e ends) RemoteAddr() net.Addr { return address(e[1]) }

// address is one.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// TestAutoCodec lets a lane that waits for its link find its codec.
func TestAutoCodec(t *testing.T) {
	p := &packer{packing: &packing{governor: codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4}), takes: codec.All()}}
	payload := kv(256 << 10)
	header := frameOf(t, payload)
	// The governor is told of a link of 100 kB/s; frames are coded for real.
	now := time.Now()
	coded := 0
	for range 200 { // a busy host may look slow to the first tries
		p.governor.Rest(now)
		_, body := p.pack(header, payload)
		took := time.Duration(float64(len(body)) / 1e5 * float64(time.Second))
		now = now.Add(took)
		p.governor.Wrote(p.raw, p.stored, 0, took, now)
		if p.coded == codec.LZ4 {
			t.Fatal("LZ4 makes nothing of numbers")
		}
		if p.coded == codec.BF16 {
			coded++
		}
		if coded == 8 {
			return
		}
	}
	t.Errorf("%d frames were coded", coded)
}
