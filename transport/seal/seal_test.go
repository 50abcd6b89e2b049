package seal_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

func TestRoundTrip(t *testing.T) {
	const r = seal.MinRecord
	sizes := []int{1, 15, 16, 17, r - 1, r, r + 1, r + 15, r + 16, r + 17, 2 * r, 2*r + 15, 3*r + r/2, 16 * r, 16*r + 1}
	for _, suite := range []seal.Suite{seal.AES128GCM, seal.AES256GCM} {
		p := newPair(t, seal.Options{Suite: suite, Record: r})
		for i, n := range sizes {
			for _, pieces := range []int{1, min(n, transport.MaxPieces)} {
				f := makeFrame(t, n, pieces, uint64(i))
				got, err := p.open(p.seal(f), []int{0, 1000, r, r + 8}[i%4])
				if err != nil || !got.equal(f) {
					t.Fatalf("%v: payload of %d bytes in %d pieces: %v", suite, n, pieces, err)
				}
			}
		}
	}
}

// TestRecords: an opener takes records of every size, whatever it uses itself.
func TestRecords(t *testing.T) {
	const n = wire.MaxPayload
	f := makeFrame(t, n, 126, 0)
	for _, record := range []int{0, seal.MinRecord, seal.DefaultRecord, seal.MaxRecord} {
		p := pair{t, newSealer(t, testSecret(), 7, seal.ToClient, seal.Options{Record: record}),
			newOpener(t, testSecret(), 7, seal.ToClient, seal.Options{Record: seal.MinRecord})}
		s := p.seal(f)
		if record == 0 {
			record = seal.DefaultRecord
		}
		want := 16 + 64 + 16 + 126*32 + 16 + (n+record-1)/record*16
		if len(s.head) != want || len(s.head) > seal.MaxHead {
			t.Errorf("records of %d: head of %d bytes, want %d, at most %d", record, len(s.head), want, seal.MaxHead)
		}
		if got, err := p.open(s, 0); err != nil || !got.equal(f) {
			t.Errorf("records of %d: %v", record, err)
		}
	}
}

// TestInPlace seals a payload where it is and opens a frame that lies in a slot,
// whose header is opened over the sealed head.
func TestInPlace(t *testing.T) {
	for _, n := range []int{1, 100, 3 * seal.MinRecord, 3*seal.MinRecord + 5} {
		apart, place := newPair(t, seal.Options{Record: seal.MinRecord}), newPair(t, seal.Options{Record: seal.MinRecord})
		f := makeFrame(t, n, 1, 1)
		want := apart.seal(f)

		ring, err := transport.NewRing(2, transport.HeaderRoom+4*seal.MinRecord)
		if err != nil {
			t.Fatal(err)
		}
		slot, err := ring.Take(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		next, err := ring.Take(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range [][]byte{slot.Header(), slot.Payload(), next.Header(), next.Payload()} {
			copy(s, bytes.Repeat([]byte{0xa5}, len(s)))
		}
		body := slot.Payload()[:n:n]
		copy(body, f.payload)
		if _, err := place.s.Seal(slot.Header(), body, f.header, body); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(slot.Header()[:len(want.head)], want.head) || !bytes.Equal(body, want.body) {
			t.Errorf("%d bytes: sealed in place differs", n)
		}
		h := slot.Header()
		headerLen, _, err := place.o.OpenHead(h, h[:seal.HeadSize])
		if err == nil {
			err = place.o.OpenRest(h, h[seal.HeadSize:][:place.o.RestLen()])
		}
		if err == nil {
			_, err = place.o.OpenPayload(body, n)
		}
		if got := (frame{h[:headerLen], body}); err != nil || !got.equal(f) {
			t.Errorf("%d bytes: opened in place: %v", n, err)
		}
		for _, s := range [][]byte{slot.Payload()[n:], next.Header(), next.Payload()} {
			if len(s) != bytes.Count(s, []byte{0xa5}) {
				t.Errorf("%d bytes: memory behind the payload was changed", n)
			}
		}
		slot.Put()
		next.Put()
		if err := ring.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAsBytesArrive: nothing behind what has arrived is changed, and records
// open one by one.
func TestAsBytesArrive(t *testing.T) {
	const r = seal.MinRecord
	p := newPair(t, seal.Options{Record: r})
	f := makeFrame(t, 2*r+10, 1, 0)
	s := p.seal(f)
	var header [wire.MaxHeader]byte
	if _, _, err := p.o.OpenHead(header[:], s.head[:seal.HeadSize]); err != nil {
		t.Fatal(err)
	}
	if err := p.o.OpenRest(header[:], s.head[seal.HeadSize:]); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ have, opened int }{
		{0, 0}, {1, 0}, {r - 1, 0}, {r, r}, {r, r}, {r + 20, r}, {2*r + 9, 2 * r}, {2*r + 10, 2*r + 10},
	} {
		got, err := p.o.OpenPayload(s.body, step.have)
		if err != nil || got != step.opened {
			t.Fatalf("with %d bytes: %d open, %v, want %d", step.have, got, err, step.opened)
		}
		if !bytes.Equal(s.body[:got], f.payload[:got]) {
			t.Fatalf("with %d bytes: wrong bytes", step.have)
		}
	}
	again := newPair(t, seal.Options{Record: r}).seal(f)
	p = newPair(t, seal.Options{Record: r})
	copy(s.body, again.body)
	p.o.OpenHead(header[:], again.head[:seal.HeadSize])
	p.o.OpenRest(header[:], again.head[seal.HeadSize:])
	if _, err := p.o.OpenPayload(s.body, r); err != nil || !bytes.Equal(s.body[r:], again.body[r:]) {
		t.Errorf("bytes that have not arrived were changed: %v", err)
	}
}

// TestKeyChange: each key seals its number of frames, and the next has the next ones.
func TestKeyChange(t *testing.T) {
	f := makeFrame(t, 5, 1, 0)
	p := newPair(t, seal.Options{})
	var frames []sealed
	var want reference
	for i := range 2*keyFrames + 2 {
		if i%keyFrames == 0 {
			want = newReference(t, i/keyFrames)
		}
		s := p.seal(f)
		if w := want.seal(uint64(i), f); !bytes.Equal(s.head, w.head) || !bytes.Equal(s.body, w.body) {
			t.Fatalf("frame %d is not sealed by key %d", i, i/keyFrames)
		}
		if i%(keyFrames/2) == 0 {
			frames = append(frames, s)
		}
		if got, err := p.open(s, 0); err != nil || !got.equal(f) {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	// The sealed bytes of equal frames have nothing in common.
	for i, a := range frames {
		for _, b := range frames[:i] {
			if bytes.Equal(a.body, b.body) || bytes.Equal(a.head[16:], b.head[16:]) {
				t.Error("two frames were sealed alike")
			}
		}
	}
}

// TestKeyChangeIsKept: a frame sealed under the key before does not open at the
// number that needs the next one, nor one under the next key before.
func TestKeyChangeIsKept(t *testing.T) {
	f := makeFrame(t, 5, 1, 0)
	for _, tt := range []struct {
		frames, key int
		err         error
	}{{keyFrames, 0, seal.ErrForged}, {keyFrames, 1, nil}, {keyFrames, 2, seal.ErrForged}, {keyFrames - 1, 1, seal.ErrForged}, {keyFrames - 1, 0, nil}} {
		p := newPair(t, seal.Options{})
		for range tt.frames {
			if _, err := p.open(p.seal(f), 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.open(newReference(t, tt.key).seal(uint64(tt.frames), f), 0); !errors.Is(err, tt.err) {
			t.Errorf("frame %d under key %d: %v", tt.frames, tt.key, err)
		}
	}
}

func TestExhausted(t *testing.T) {
	f := makeFrame(t, 5, 1, 0)
	p := newPair(t, seal.Options{})
	p.s.AtFrame(maxFrames - 1)
	p.o.AtFrame(maxFrames - 1)
	if _, err := p.open(p.seal(f), 0); err != nil {
		t.Fatalf("last frame: %v", err)
	}
	head, body := make([]byte, seal.MaxHead), make([]byte, 5)
	for range 2 {
		if _, err := p.s.Seal(head, body, f.header, f.payload); !errors.Is(err, seal.ErrExhausted) {
			t.Errorf("one frame more: %v", err)
		}
	}
	if !bytes.Equal(body, make([]byte, 5)) || !bytes.Equal(head, make([]byte, seal.MaxHead)) {
		t.Error("a frame that was refused left something")
	}
}

func TestSealRefuses(t *testing.T) {
	f := makeFrame(t, 100, 2, 0)
	head, body := make([]byte, seal.MaxHead), make([]byte, 100)
	tests := []struct {
		name                        string
		head, body, header, payload []byte
	}{
		{"no header", head, body, nil, f.payload},
		{"half a header", head, body, f.header[:80], f.payload},
		{"long header", head, body, append(bytes.Clone(f.header), 0), f.payload},
		{"no piece", head, body, f.header[:wire.FixedHeader], f.payload},
		{"more pieces than a frame has", head, body, make([]byte, wire.MaxHeader+wire.PieceSize), f.payload},
		{"no payload", head, nil, f.header, nil},
		{"short body", head, body[:99], f.header, f.payload},
		{"long body", head, make([]byte, 101), f.header, f.payload},
		{"short head", head[:len(f.header)+16+16+16+15], body, f.header, f.payload},
	}
	p := newPair(t, seal.Options{MaxPayload: 100})
	for _, tt := range tests {
		if _, err := p.s.Seal(tt.head, tt.body, tt.header, tt.payload); !errors.Is(err, seal.ErrInvalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	large := makeFrame(t, 101, 1, 0)
	if _, err := p.s.Seal(head, make([]byte, 101), large.header, large.payload); !errors.Is(err, seal.ErrInvalid) {
		t.Errorf("payload above the limit: %v", err)
	}
	// No number was used up.
	if got, err := p.open(p.seal(f), 0); err != nil || !got.equal(f) {
		t.Errorf("after refusals: %v", err)
	}
}

func TestOpenOutOfTurn(t *testing.T) {
	p := newPair(t, seal.Options{})
	f := makeFrame(t, 100, 2, 0)
	s := p.seal(f)
	header := make([]byte, wire.MaxHeader)
	head := func() error { _, _, err := p.o.OpenHead(header, s.head[:seal.HeadSize]); return err }
	rest := func() error { return p.o.OpenRest(header, s.head[seal.HeadSize:]) }
	payload := func() error { _, err := p.o.OpenPayload(s.body, 100); return err }
	short := []func() error{
		func() error { _, _, err := p.o.OpenHead(header[:63], s.head[:seal.HeadSize]); return err },
		func() error { _, _, err := p.o.OpenHead(header, s.head[:seal.HeadSize-1]); return err },
		func() error { return p.o.OpenRest(header[:127], s.head[seal.HeadSize:]) },
		func() error { return p.o.OpenRest(header, s.head[seal.HeadSize:len(s.head)-1]) },
		func() error { _, err := p.o.OpenPayload(s.body[:99], 99); return err },
		func() error { _, err := p.o.OpenPayload(s.body, 101); return err },
		func() error { _, err := p.o.OpenPayload(s.body, -1); return err },
	}
	wrong := func(calls ...func() error) {
		t.Helper()
		for i, call := range append(calls, short...) {
			if err := call(); !errors.Is(err, seal.ErrInvalid) {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
	right := func(call func() error) {
		t.Helper()
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	wrong(rest, payload)
	right(head)
	wrong(head, payload)
	right(rest)
	wrong(head, rest)
	right(payload)
	wrong(rest, payload)
	if !bytes.Equal(s.body, f.payload) {
		t.Error("wrong bytes")
	}
}

func TestOptions(t *testing.T) {
	for _, record := range []int{-1, 1, seal.MinRecord / 2, seal.MinRecord + 1, 3 * seal.MinRecord, 2 * seal.MaxRecord} {
		if _, err := testSecret().Sealer(0, seal.ToServer, seal.Options{Record: record}); !errors.Is(err, seal.ErrInvalid) {
			t.Errorf("records of %d bytes: %v", record, err)
		}
		if _, err := testSecret().Opener(0, seal.ToServer, seal.Options{Record: record}); !errors.Is(err, seal.ErrInvalid) {
			t.Errorf("records of %d bytes: %v", record, err)
		}
	}
	for _, tt := range []struct {
		suite seal.Suite
		lane  int
		d     seal.Direction
	}{{seal.Clear, 0, 0}, {seal.Clear + 1, 0, 0}, {0, -1, 0}, {0, wire.MaxLanes, 0}, {0, 0, 2}} {
		if _, err := testSecret().Sealer(tt.lane, tt.d, seal.Options{Suite: tt.suite}); !errors.Is(err, seal.ErrInvalid) {
			t.Errorf("sealer of %+v: %v", tt, err)
		}
		if _, err := testSecret().Opener(tt.lane, tt.d, seal.Options{Suite: tt.suite}); !errors.Is(err, seal.ErrInvalid) {
			t.Errorf("opener of %+v: %v", tt, err)
		}
		if _, err := testSecret().Proof(tt.suite, tt.lane, tt.d); tt.suite != seal.Clear && !errors.Is(err, seal.ErrInvalid) {
			t.Errorf("proof of %+v: %v", tt, err)
		}
	}
}

// TestNamed tells ends with keys from others, also those of a later version.
func TestNamed(t *testing.T) {
	for _, tt := range []struct {
		features []string
		want     bool
	}{{nil, false}, {[]string{"ping", "sealed"}, false}, {[]string{"ping", "seal/aes-128-gcm"}, true}, {[]string{"seal/of-tomorrow"}, true}} {
		if got := seal.Named(tt.features); got != tt.want {
			t.Errorf("%q: %v", tt.features, got)
		}
	}
}

func TestAgree(t *testing.T) {
	const short, long, plain = "seal/aes-128-gcm", "seal/aes-256-gcm", "seal/clear"
	for _, tt := range []struct {
		common []string
		want   seal.Suite
		err    error
	}{
		{[]string{short}, seal.AES128GCM, nil},
		{[]string{long}, seal.AES256GCM, nil},
		{[]string{"tunnel", long, short}, seal.AES128GCM, nil},
		{[]string{short, long, plain}, seal.Clear, nil},
		{[]string{plain}, seal.Clear, nil},
		{nil, 0, transport.ErrIncompatible},
		{[]string{"aes-128-gcm", "clear", "seal/none"}, 0, transport.ErrIncompatible},
	} {
		if got, err := seal.Agree(tt.common); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%v: %v, %v, want %v", tt.common, got, err, tt.want)
		}
	}
}

func TestProofs(t *testing.T) {
	proof, err := testSecret().Proof(seal.AES128GCM, 3, seal.ToServer)
	if err != nil {
		t.Fatal(err)
	}
	if err := testSecret().CheckProof(proof[:], seal.AES128GCM, 3, seal.ToServer); err != nil {
		t.Errorf("right proof: %v", err)
	}
	other := secretOf([32]byte{1})
	flipped := proof
	flipped[31] ^= 0x80
	for name, err := range map[string]error{
		"empty":           testSecret().CheckProof(nil, seal.AES128GCM, 3, seal.ToServer),
		"short":           testSecret().CheckProof(proof[:31], seal.AES128GCM, 3, seal.ToServer),
		"long":            testSecret().CheckProof(append(proof[:], 0), seal.AES128GCM, 3, seal.ToServer),
		"flipped":         testSecret().CheckProof(flipped[:], seal.AES128GCM, 3, seal.ToServer),
		"other lane":      testSecret().CheckProof(proof[:], seal.AES128GCM, 4, seal.ToServer),
		"echoed":          testSecret().CheckProof(proof[:], seal.AES128GCM, 3, seal.ToClient),
		"downgrade":       testSecret().CheckProof(proof[:], seal.Clear, 3, seal.ToServer),
		"other suite":     testSecret().CheckProof(proof[:], seal.AES256GCM, 3, seal.ToServer),
		"other secret":    other.CheckProof(proof[:], seal.AES128GCM, 3, seal.ToServer),
		"other direction": testSecret().CheckProof(proof[:], seal.AES128GCM, 3, seal.ToClient),
	} {
		if !errors.Is(err, seal.ErrForged) || !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := testSecret().CheckProof(proof[:], seal.AES128GCM, 64, seal.ToServer); !errors.Is(err, seal.ErrInvalid) {
		t.Errorf("lane out of range: %v", err)
	}
}

func TestExport(t *testing.T) {
	token := [16]byte{1, 2, 3}
	var label string
	s, err := seal.Export(func(l string, context []byte, n int) ([]byte, error) {
		if label = l; !bytes.Equal(context, token[:]) || n != 32 {
			t.Errorf("context %x, %d bytes", context, n)
		}
		return pattern(n, 0), nil
	}, token)
	if err != nil || label != "EXPERIMENTAL pdlink/1 lanes" {
		t.Fatalf("label %q: %v", label, err)
	}
	got, err := s.Proof(0, 0, 0)
	want, _ := secretOf([32]byte(pattern(32, 0))).Proof(0, 0, 0)
	if err != nil || got != want {
		t.Errorf("proof %x, want %x, %v", got, want, err)
	}
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s", s, s, s, s)} {
		if strings.Contains(text, "7") {
			t.Errorf("the secret prints as %s", text)
		}
	}
	s.Erase()
	if got, _ := s.Proof(0, 0, 0); got == want {
		t.Error("erased secret still works")
	}
	broken := errors.New("no session")
	if _, err := seal.Export(func(string, []byte, int) ([]byte, error) { return nil, broken }, token); !errors.Is(err, broken) {
		t.Errorf("failing exporter: %v", err)
	}
	short := func(string, []byte, int) ([]byte, error) { return make([]byte, 31), nil }
	if _, err := seal.Export(short, token); !errors.Is(err, seal.ErrInvalid) {
		t.Errorf("short export: %v", err)
	}
}

func TestSlotPieces(t *testing.T) {
	for _, tt := range []struct{ payload, record, want int }{
		{1 << 20, seal.DefaultRecord, 120}, {wire.MaxPayload, seal.DefaultRecord, 108}, {wire.MaxPayload, seal.MinRecord, 92}, {1, seal.MaxRecord, 124},
	} {
		got := seal.SlotPieces(tt.payload, tt.record)
		x := newSealer(t, testSecret(), 0, 0, seal.Options{Record: tt.record})
		header := func(pieces int) int { return wire.FixedHeader + pieces*wire.PieceSize }
		if got != tt.want || x.HeadLen(header(got), tt.payload) > transport.HeaderRoom || x.HeadLen(header(got+1), tt.payload) <= transport.HeaderRoom {
			t.Errorf("%d bytes in records of %d: %d pieces, want %d", tt.payload, tt.record, got, tt.want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	p := newPair(t, seal.Options{Record: seal.MinRecord})
	f := makeFrame(t, 2*seal.MinRecord+100, 126, 0)
	head, body := make([]byte, seal.MaxHead), make([]byte, len(f.payload))
	header := make([]byte, wire.MaxHeader)
	run := func() {
		n, _ := p.s.Seal(head, body, f.header, f.payload)
		p.o.OpenHead(header, head[:seal.HeadSize])
		p.o.OpenRest(header, head[seal.HeadSize:n])
		if got, err := p.o.OpenPayload(body, len(body)); err != nil || got != len(body) {
			t.Fatal(got, err)
		}
	}
	run()
	if n := testing.AllocsPerRun(50, run); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}
