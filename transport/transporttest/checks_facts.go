package transporttest

import (
	"bytes"
	"errors"

	"pdlink/transport"
	"pdlink/transport/session"
)

func factChecks() []check {
	return []check{
		{name: "facts/stable", run: factsStable},
		{name: "facts/largest frame", run: factsLargestFrame},
		{name: "facts/unequal rings", run: factsUnequalRings},
		{name: "facts/largest meta", run: factsLargestMeta},
		{name: "facts/checksum", run: factsSum},
		{name: "facts/no common checksum", run: factsNoSum},
		{name: "facts/lanes", run: factsLanes},
	}
}

// factsStable: facts agree between the ends and never change.
func factsStable(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	a, b := p.A.Facts(), p.B.Facts()
	if a.Link != e.h.Name || b.Link != e.h.Name {
		e.Errorf("link is named %q and %q, want %q", a.Link, b.Link, e.h.Name)
	}
	if a.Local == "" || a.Remote == "" || b.Local == "" || b.Remote == "" {
		e.Errorf("an address is empty: %+v, %+v", a, b)
	}
	if a.PeerBoot == (transport.ID{}) || b.PeerBoot == (transport.ID{}) {
		e.Errorf("a boot id is zero: %+v, %+v", a, b)
	}
	if a.Proven != b.Proven || a.Proven && (a.Peer == "" || b.Peer == "") {
		e.Errorf("who is who is proven at one end, or of nobody: %+v, %+v", a, b)
	}
	if a.MaxPayload != b.MaxPayload || a.MaxMeta != b.MaxMeta || a.Lanes != b.Lanes || a.Sum != b.Sum || a.Sealed != b.Sealed {
		e.Errorf("the ends disagree: %+v, %+v", a, b)
	}
	e.usable(p.A, p.B)
	if now := p.A.Facts(); now != a {
		e.Errorf("facts changed in use: %+v, then %+v", a, now)
	}
	p.Close()
	if now := p.B.Facts(); now != b {
		e.Errorf("facts changed by close: %+v, then %+v", b, now)
	}
}

// factsLargestFrame: a frame of MaxPayload bytes passes in both directions, as
// one piece and as MaxPieces of them; one byte or one piece more does not.
func factsLargestFrame(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	size := p.A.Facts().MaxPayload
	if size != testPayload {
		e.Errorf("largest frame %d bytes, the rings take %d", size, testPayload)
	}
	for _, ends := range [][2]transport.Conn{{p.A, p.B}, {p.B, p.A}} {
		out, in := e.open(ends[0], ends[1], transport.Request{Replayable: true})
		l, err := out.Lease(e.ctx)
		e.must(err, "lease")
		_, err = l.Reserve(0, 0, size+1)
		e.is(err, transport.ErrTooLarge, "piece above the largest frame")
		l.Release()
		e.must(e.send(out, piece{0, 0, size}), "largest frame")
		d := e.frame(in)
		if got := d.Pieces(); len(got) != 1 || int(got[0].Length) != size {
			e.Errorf("largest frame arrived as %v", got)
		}
		d.Release()
		e.must(e.send(out, manyPieces(size)...), "frame of the most pieces")
		d = e.frame(in)
		if got := len(d.Pieces()); got != transport.MaxPieces {
			e.Errorf("frame of %d pieces arrived with %d", transport.MaxPieces, got)
		}
		d.Release()
		e.is(e.send(out, append(manyPieces(size-200), piece{9, 0, 1})...), transport.ErrTooLarge, "one piece too many")
		out.Cancel("checked")
	}
}

// manyPieces is MaxPieces pieces of different blocks that have size bytes
// together.
func manyPieces(size int) []piece {
	ps := make([]piece, 0, transport.MaxPieces+1)
	for i := range transport.MaxPieces {
		n := size / (transport.MaxPieces - i)
		ps = append(ps, piece{uint32(i), uint64(i) << 40, n})
		size -= n
	}
	return ps
}

// factsUnequalRings: the smallest slot of either end bounds a frame.
func factsUnequalRings(e *env) {
	small := testPayload - 3*transport.HeaderRoom
	p := e.pair(session.Options{}, session.Options{RecvRing: e.ring(testSlots, small)})
	if a, b := p.A.Facts().MaxPayload, p.B.Facts().MaxPayload; a != b || a != small {
		e.Errorf("largest frame %d and %d bytes, want %d: the smallest slot", a, b, small)
	}
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	l, err := out.Lease(e.ctx)
	e.must(err, "lease")
	if l.Room() != small {
		e.Errorf("lease has room for %d bytes, the peer takes %d", l.Room(), small)
	}
	l.Release()
	e.must(e.send(out, piece{0, 0, small}), "largest frame")
	e.frame(in).Release()
}

// factsLargestMeta: MaxMeta is the smaller wish, and Meta, answer and result of
// 0, 1 and MaxMeta bytes pass unchanged, as does every byte of a kind.
func factsLargestMeta(e *env) {
	const limit = 300_000
	p := e.pair(session.Options{MaxMeta: limit}, session.Options{MaxMeta: limit + 1000})
	if a, b := p.A.Facts().MaxMeta, p.B.Facts().MaxMeta; a != limit || b != limit {
		e.Fatalf("largest meta %d and %d, want %d", a, b, limit)
	}
	for _, n := range []int{0, 1, limit} {
		r := transport.Request{
			ID: transport.NewID(), Kind: string(bytes.Repeat([]byte("k"), transport.MaxKind)),
			Part: 1, Parts: 3, Replayable: true, Meta: e.bytes(n, 1),
		}
		opened := start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, r) })
		offer, err := p.B.Accept(e.ctx)
		e.must(err, "accept an offer")
		sameRequest(e, offer.Request(), r)
		in, err := offer.Admit(e.bytes(n, 2))
		e.must(err, "admit")
		o := <-opened
		e.must(o.err, "open")
		if !bytes.Equal(o.v.Answer(), e.bytes(n, 2)) {
			e.Errorf("answer of %d bytes differs", n)
		}
		s := e.sink(in)
		s.result = e.bytes(n, 3)
		done := call(func() error { return s.run(e.ctx) })
		if got := e.finish(o.v); !bytes.Equal(got.Result, s.result) {
			e.Errorf("result of %d bytes differs", n)
		}
		e.ends(done, nil, "receive")
		sameRequest(e, in.Request(), r)
	}
}

func sameRequest(e *env, got, want transport.Request) {
	e.Helper()
	if got.ID != want.ID || got.Kind != want.Kind || got.Part != want.Part || got.Parts != want.Parts ||
		got.Replayable != want.Replayable || !bytes.Equal(got.Meta, want.Meta) {
		e.Errorf("request of %d bytes of meta differs: %v %q %d/%d, want %v %q %d/%d",
			len(want.Meta), got.ID, got.Kind, got.Part, got.Parts, want.ID, want.Kind, want.Part, want.Parts)
	}
}

// bytes is n bytes that depend on the seed and salt.
func (e *env) bytes(n int, salt uint32) []byte {
	p := make([]byte, n)
	e.data.fill(p, salt, 1<<50)
	return p
}

// factsSum: the first algorithm of the dialler's list that both ends have is
// used, and pieces pass with it.
func factsSum(e *env) {
	for _, c := range []struct {
		a, b []string
		want string
	}{
		{nil, nil, transport.Sums()[0]},
		{[]string{"crc32c"}, nil, "crc32c"},
		{[]string{"crc32c", "xxh3-64"}, []string{"xxh3-64", "crc32c"}, "crc32c"},
		{[]string{"unheard-of", "xxh3-64"}, nil, "xxh3-64"},
		{[]string{"none"}, []string{"none"}, "none"},
	} {
		p := e.pair(session.Options{Sums: c.a}, session.Options{Sums: c.b})
		if a, b := p.A.Facts().Sum, p.B.Facts().Sum; a != c.want || b != c.want {
			e.Errorf("%v with %v: checksum %q and %q, want %q", c.a, c.b, a, b, c.want)
		}
		e.usable(p.A, p.B)
		p.Close()
	}
}

// factsNoSum: ends without a common checksum do not connect, "none" is never
// fallen back to, and the listener goes on.
func factsNoSum(e *env) {
	for _, c := range [][2][]string{
		{{"crc32c"}, {"xxh3-64"}},
		{{"none"}, {"xxh3-64"}},
		{{"xxh3-64"}, {"none"}},
	} {
		dial, listen, addr := e.h.Links(e, e.fill(session.Options{Sums: c[0]}), e.fill(session.Options{Sums: c[1]}))
		l, err := listen.Listen(e.ctx, addr)
		e.must(err, "listen")
		accepted := call(func() error {
			conn, err := l.Accept(e.ctx)
			if err == nil {
				err = errors.Join(errors.New("accepted an incompatible peer"), conn.Close())
			}
			return err
		})
		conn, err := dial.Dial(e.ctx, l.Addr())
		if err == nil {
			conn.Close() //nolint:errcheck // must not exist
		}
		e.is(err, transport.ErrIncompatible, "dial without a common checksum")
		e.blocks(accepted, "accept of an incompatible peer")
		e.must(l.Close(), "close listener")
		e.ends(accepted, transport.ErrClosed, "accept")
	}
}

// factsLanes: the number of lanes is the same at both ends, and one and many
// carry a transfer.
func factsLanes(e *env) {
	for _, n := range []int{1, e.h.lanes()} {
		p := e.pair(session.Options{Lanes: n}, session.Options{Lanes: n})
		if a, b := p.A.Facts().Lanes, p.B.Facts().Lanes; a != n || b != n {
			e.Errorf("%d and %d lanes, want %d", a, b, n)
		}
		e.transfer(p.A, p.B, 3, 200_000)
		p.Close()
	}
}
