package tcp

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
)

// fastLink tells a governor of a lane that writes so many bytes a second, for a second.
func fastLink(g *codec.Governor, rate float64) {
	const size = 1 << 20
	each := time.Duration(size / rate * float64(time.Second))
	now := time.Now().Add(-time.Second)
	for end := now.Add(time.Second); now.Before(end) && !g.Resting(); {
		now = now.Add(each)
		g.Wrote(size, size, 0, each, now)
	}
}

// autoPacker is a lane's, of a connection whose governor decides.
func autoPacker() *packer {
	return &packer{packing: &packing{governor: codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4}), takes: codec.All()}}
}

// send is what a lane does for a frame, but for the write.
func (p *packer) send(header, payload []byte) {
	if p.rests() {
		return
	}
	begin := time.Now()
	p.pack(header, payload)
	p.wrote(begin)
}

// TestRestIsFree: once a link has turned out to be fast, a frame costs no memory, and
// nobody is told of it.
func TestRestIsFree(t *testing.T) {
	p := autoPacker()
	fastLink(p.governor, 1e9)
	if !p.governor.Resting() {
		t.Fatal("at 8 Gbit/s the governor does not rest")
	}
	payload := kv(256 << 10)
	header := frameOf(t, payload)
	if n := testing.AllocsPerRun(100, func() { p.send(header, payload) }); n > 0 {
		t.Errorf("%v allocations a frame", n)
	}
	if p.payload != nil || p.raw != 0 {
		t.Errorf("frames were looked at: memory of %d bytes, the last frame of %d", len(p.payload), p.raw)
	}
	if p.governor.Rest(time.Now().Add(time.Hour)) || p.rests() {
		t.Error("the rest has no end")
	}
}

// BenchmarkRest is what codecs cost a frame that goes as it is, because the link is fast.
func BenchmarkRest(b *testing.B) {
	p := autoPacker()
	p.every = restFrames
	fastLink(p.governor, 1e9)
	payload := kv(256 << 10)
	header := frameOf(b, payload)
	b.ReportAllocs()
	for b.Loop() {
		p.send(header, payload)
	}
}

// TestPackMemory: a lane that codes has at most a frame's payload for it, and nothing
// once it does not code any more; so has one that decodes.
func TestPackMemory(t *testing.T) {
	const size = transport.MaxSlot
	p := autoPacker()
	p.governor = codec.NewGovernor(codec.OnlyBF16, codec.All(), codec.Place{Lanes: 1, Cores: 4})
	numbers := kv(size)
	header := frameOf(t, numbers[:size/2])
	for _, n := range []int{1000, size / 2, 100, size} {
		p.pack(header, numbers[:n])
	}
	if got := cap(p.payload); got == 0 || got > size {
		t.Errorf("memory of %d bytes for frames of %d", got, size)
	}
	p.last.set(codec.BF16, 100, 50)
	p.governor = codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4})
	fastLink(p.governor, 1e9)
	p.send(header, numbers[:size/2])
	if saved, name := p.last.get(); p.payload != nil || saved != 0 || name != "" {
		t.Errorf("at rest: memory of %d bytes, %d saved by %q", cap(p.payload), saved, name)
	}

	u := &unpacker{packing: p.packing}
	plain := frameOf(t, numbers[:size/2])
	header, body := (&packer{packing: &packing{
		governor: codec.NewGovernor(codec.OnlyBF16, codec.All(), codec.Place{}),
	}}).pack(frameOf(t, numbers[:size/2]), numbers[:size/2])
	for round := range 2 {
		h := bytes.Clone(header)
		if id, err := u.plain(h, len(body)); err != nil || id != codec.BF16 {
			t.Fatal(id, err)
		}
		got := make([]byte, size/2)
		if err := u.unpack(got, append(u.room(len(body))[:0], body...)); err != nil || !bytes.Equal(got, numbers[:size/2]) {
			t.Fatalf("round %d: %v", round, err)
		}
		if got := cap(u.payload); got != len(body) {
			t.Errorf("round %d: memory of %d bytes for a packed frame of %d", round, got, len(body))
		}
		for i := range plainFrames {
			if u.payload == nil {
				t.Fatalf("round %d: nothing left after %d plain frames", round, i)
			}
			if _, err := u.plain(plain, size/2); err != nil {
				t.Fatal(err)
			}
		}
		if u.payload != nil {
			t.Errorf("round %d: %d plain frames later: memory of %d bytes", round, plainFrames, cap(u.payload))
		}
	}
}

// TestDelivered: the kernel counts what has left a lane's buffer, on systems that this
// package can ask.
func TestDelivered(t *testing.T) {
	_, s, _ := listen(t, Options{})
	a, b := connect(t, New(Options{Session: smallRings(t), Lanes: 2}), s)
	d := a.(*conn).d
	before, ok := d.delivered()
	if !ok {
		if len(a.(SocketReporter).Sockets()) > 0 {
			t.Fatal("nobody counts")
		}
		return
	}
	mustCarry(t, a, b)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		after, ok := d.delivered()
		sent := after - before
		if ok && sent >= 20*1000 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of 20 frames were delivered, counted %v", sent, ok)
		}
	}
	closeBoth(a, b)
	if _, ok := d.delivered(); ok {
		t.Error("closed sockets are counted")
	}
}

// TestPackedNoise: what no codec makes smaller goes as it is, byte for byte.
func TestPackedNoise(t *testing.T) {
	p := autoPacker()
	p.governor = codec.NewGovernor(codec.OnlyLZ4, codec.All(), codec.Place{})
	payload := make([]byte, 100000)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(payload)
	header := frameOf(t, payload)
	h, b := p.pack(header, payload)
	if &h[0] != &header[0] || &b[0] != &payload[0] {
		t.Error("the frame was copied")
	}
}
