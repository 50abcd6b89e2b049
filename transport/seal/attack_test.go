package seal_test

import (
	"bytes"
	"errors"
	"testing"

	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// refuse checks that s is not opened, and that nothing is after it.
func (p pair) refuse(name string, s sealed, after ...sealed) {
	p.tb.Helper()
	for i, s := range append([]sealed{s}, after...) {
		f, err := p.open(s, 0)
		if !errors.Is(err, seal.ErrForged) || !errors.Is(err, transport.ErrProtocol) {
			p.tb.Errorf("%s: frame %d: %v", name, i, err)
		}
		if f.header != nil || f.payload != nil {
			p.tb.Errorf("%s: frame %d gave bytes", name, i)
		}
	}
}

// TestEveryBit flips every bit of a head and many of a body.
func TestEveryBit(t *testing.T) {
	const r = seal.MinRecord
	f := makeFrame(t, r+100, 3, 0)
	s := newPair(t, seal.Options{Record: r}).seal(f)
	opener := func() pair { return pair{tb: t, o: newOpener(t, testSecret(), 0, 0, seal.Options{})} }
	if got, err := opener().open(s, 0); err != nil || !got.equal(f) {
		t.Fatal(err)
	}
	for bit := range 8 * len(s.head) {
		bad := s.clone()
		bad.head[bit/8] ^= 1 << (bit % 8)
		opener().refuse("bit of the head", bad, s)
	}
	for bit := 0; bit < 8*len(s.body); bit += 8*len(s.body)/200 + 1 {
		bad := s.clone()
		bad.body[bit/8] ^= 1 << (bit % 8)
		opener().refuse("bit of the body", bad, s)
	}
	for _, at := range []int{0, r - 1, r, r + 99} {
		bad := s.clone()
		bad.body[at] ^= 1
		opener().refuse("edge of a record", bad)
	}
}

// TestForgedRecordIsZeroed: of a record that is not authentic nothing can be read.
func TestForgedRecordIsZeroed(t *testing.T) {
	const r = seal.MinRecord
	for _, at := range []int{r + 3, 2*r + 3} {
		f := makeFrame(t, 2*r+100, 1, 0)
		p := newPair(t, seal.Options{Record: r})
		s := p.seal(f)
		s.body[at] ^= 1
		var header [wire.MaxHeader]byte
		p.o.OpenHead(header[:], s.head[:seal.HeadSize])
		p.o.OpenRest(header[:], s.head[seal.HeadSize:])
		n, err := p.o.OpenPayload(s.body, len(s.body))
		begin := at / r * r
		end := min(begin+r, len(s.body))
		if n != begin || !errors.Is(err, seal.ErrForged) || !bytes.Equal(s.body[:begin], f.payload[:begin]) {
			t.Errorf("bit at %d: %d bytes open, %v", at, n, err)
		}
		if !bytes.Equal(s.body[begin:end], make([]byte, end-begin)) {
			t.Errorf("bit at %d: the record can be read", at)
		}
	}
}

func TestCutAndMoved(t *testing.T) {
	const r = seal.MinRecord
	o := seal.Options{Record: r}
	f := makeFrame(t, 3*r, 2, 0)
	p := newPair(t, o)
	s0, s1 := p.seal(f), p.seal(f)
	fresh := func() pair { return pair{tb: t, o: newOpener(t, testSecret(), 0, 0, o)} }
	tagAt := len(s0.head) - 3*16
	swap := func(a, b []byte) {
		c := bytes.Clone(a)
		copy(a, b)
		copy(b, c)
	}
	change := func(f func(s *sealed)) sealed {
		s := s0.clone()
		f(&s)
		return s
	}
	for name, s := range map[string]sealed{
		"body cut":        change(func(s *sealed) { s.body = s.body[:3*r-1] }),
		"no last record":  change(func(s *sealed) { s.body = s.body[:2*r] }),
		"head cut":        change(func(s *sealed) { s.head = s.head[:len(s.head)-1] }),
		"no piece list":   change(func(s *sealed) { s.head = s.head[:seal.HeadSize] }),
		"records swapped": change(func(s *sealed) { swap(s.body[:r], s.body[r:2*r]) }),
		"records and tags swapped": change(func(s *sealed) {
			swap(s.body[:r], s.body[r:2*r])
			swap(s.head[tagAt:][:16], s.head[tagAt+16:][:16])
		}),
		"tags swapped":           change(func(s *sealed) { swap(s.head[tagAt:][:16], s.head[tagAt+16:][:16]) }),
		"body of another frame":  change(func(s *sealed) { s.body = s1.body }),
		"rest of another frame":  change(func(s *sealed) { copy(s.head[seal.HeadSize:], s1.head[seal.HeadSize:]) }),
		"body and tags of other": change(func(s *sealed) { copy(s.head[tagAt:], s1.head[tagAt:]); s.body = s1.body }),
		"frame in clear":         {append(bytes.Clone(f.header), f.payload[:seal.HeadSize]...), f.payload},
		"nothing":                {make([]byte, len(s0.head)), make([]byte, len(s0.body))},
		"second frame first":     s1,
		"number forged":          change(func(s *sealed) { copy(s.head, s1.head[:16]) }),
		"number of first on it":  {append(bytes.Clone(s0.head[:16]), s1.head[16:]...), s1.body},
		"larger records claimed": change(func(s *sealed) { s.head[5]++ }),
	} {
		fresh().refuse(name, s, s0)
	}
	q := fresh()
	if _, err := q.open(s0, 0); err != nil {
		t.Fatal(err)
	}
	q.refuse("replayed", s0, s1)
	q = fresh()
	if _, err := q.open(s0, 0); err != nil {
		t.Fatal(err)
	}
	q.refuse("left out", newPair(t, o).sealThird(f), s1)
}

// sealThird seals three frames and returns the last.
func (p pair) sealThird(f frame) sealed {
	p.seal(f)
	p.seal(f)
	return p.seal(f)
}

// TestSplice: a frame opens on its own lane, direction, connection and suite only.
func TestSplice(t *testing.T) {
	f := makeFrame(t, 1000, 2, 0)
	s := newPair(t, seal.Options{}).seal(f)
	for name, o := range map[string]*seal.Opener{
		"other lane":       newOpener(t, testSecret(), 1, seal.ToServer, seal.Options{}),
		"reflected":        newOpener(t, testSecret(), 0, seal.ToClient, seal.Options{}),
		"other connection": newOpener(t, secretOf([32]byte{9}), 0, seal.ToServer, seal.Options{}),
		"other suite":      newOpener(t, testSecret(), 0, seal.ToServer, seal.Options{Suite: seal.AES256GCM}),
	} {
		pair{tb: t, o: o}.refuse(name, s)
	}
	if got, err := (pair{tb: t, o: newOpener(t, testSecret(), 0, seal.ToServer, seal.Options{})}).open(s, 0); err != nil || !got.equal(f) {
		t.Errorf("where it belongs: %v", err)
	}
}

// TestPeerSealsNonsense: what an authentic peer seals is checked like what it
// says in clear.
func TestPeerSealsNonsense(t *testing.T) {
	f := makeFrame(t, 1000, 2, 0)
	s := newPair(t, seal.Options{}).seal(f)
	o := newOpener(t, testSecret(), 0, seal.ToServer, seal.Options{MaxPayload: 999})
	var header [wire.MaxHeader]byte
	for range 2 {
		_, _, err := o.OpenHead(header[:], s.head[:seal.HeadSize])
		if !errors.Is(err, transport.ErrProtocol) || errors.Is(err, seal.ErrForged) {
			t.Errorf("payload above the agreed limit: %v", err)
		}
	}
	if header != [wire.MaxHeader]byte{} {
		t.Error("a header was given out")
	}
}

// TestPeerSealsWrongLengths: a header that does not fit what was sealed with it is
// seen by the receiver, and nothing of the frame is given out.
func TestPeerSealsWrongLengths(t *testing.T) {
	f := makeFrame(t, 1000, 2, 0)
	damaged := bytes.Clone(f.header)
	damaged[24]++ // the payload's length; its checksum is wrong then
	for name, tt := range map[string]struct {
		f    frame
		want error
	}{
		"damaged header":         {frame{damaged, f.payload}, transport.ErrProtocol},
		"payload cut":            {frame{f.header, f.payload[:999]}, seal.ErrForged},
		"payload longer":         {frame{f.header, pattern(1001, 0)}, seal.ErrForged},
		"list shorter than said": {frame{f.header[:wire.FixedHeader+wire.PieceSize], f.payload}, seal.ErrForged},
	} {
		p := newPair(t, seal.Options{})
		got, err := p.open(p.seal(tt.f), 0)
		if !errors.Is(err, tt.want) || got.header != nil || got.payload != nil {
			t.Errorf("%s: %v, %d bytes given out, want %v", name, err, len(got.payload), tt.want)
		}
	}
}

// FuzzOpen feeds an opener with anything. What it opens must be the frame that
// was sealed.
func FuzzOpen(f *testing.F) {
	good := makeFrame(f, 300, 3, 0)
	s := newPair(f, seal.Options{}).seal(good)
	f.Add(s.head, s.body, 0)
	f.Add(s.head[:seal.HeadSize], s.body, 7)
	f.Add(s.head, []byte{}, 1)
	f.Add(good.header, good.payload, 0)
	f.Add(bytes.Repeat([]byte("PDLS\x01\x11\x00\x00"), 40), []byte{1}, 0)
	f.Fuzz(func(t *testing.T, head, body []byte, step int) {
		p := pair{tb: t, o: newOpener(t, testSecret(), 0, seal.ToServer, seal.Options{MaxPayload: 1 << 12})}
		got, err := p.open(sealed{head, body}, step)
		if err == nil && !got.equal(good) {
			t.Fatalf("opened %x", head)
		}
		if err != nil && !errors.Is(err, seal.ErrForged) {
			t.Fatalf("error %v", err)
		}
	})
}

// FuzzDamage seals a frame of any shape, changes one byte of it anywhere, or cuts
// or moves it, and expects a refusal; unchanged it must open.
func FuzzDamage(f *testing.F) {
	f.Add(uint32(1), uint8(0), uint32(0), uint8(0), uint16(0))
	f.Add(uint32(70000), uint8(5), uint32(3), uint8(1), uint16(100))
	f.Add(uint32(65536), uint8(125), uint32(5000), uint8(0x80), uint16(1))
	f.Add(uint32(131073), uint8(1), uint32(131000), uint8(0xff), uint16(65535))
	f.Fuzz(func(t *testing.T, size uint32, pieces uint8, at uint32, with uint8, step uint16) {
		n := int(size%(3*seal.MinRecord)) + 1
		want := makeFrame(t, n, min(n, int(pieces)%transport.MaxPieces+1), 1)
		p := newPair(t, seal.Options{Record: seal.MinRecord, MaxPayload: 3 * seal.MinRecord})
		s := p.seal(want)
		if i := int(at) % (len(s.head) + len(s.body)); i < len(s.head) {
			s.head[i] ^= with
		} else {
			s.body[i-len(s.head)] ^= with
		}
		got, err := p.open(s, int(step))
		switch {
		case with == 0 && (err != nil || !got.equal(want)):
			t.Fatalf("unchanged: %v", err)
		case with != 0 && !errors.Is(err, seal.ErrForged):
			t.Fatalf("byte %d changed by %#x: %v", at, with, err)
		}
	})
}
