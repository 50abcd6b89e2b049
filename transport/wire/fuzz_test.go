package wire_test

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// allocated is how many bytes f allocated.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// spare is what a decode may allocate whatever the input: errors, the decoder's
// own messages, and what the runtime does meanwhile.
const spare = 256 << 10

// FuzzFrame: any header is refused as a violation, or is exactly what encoding
// it again gives. With fix the checksum is made right first, or else nothing
// gets past it.
func FuzzFrame(f *testing.F) {
	for _, h := range sampleFrames() {
		f.Add(encodeFrame(f, h), uint32(wire.MaxPayload), false)
		f.Add(encodeFrame(f, h), uint32(8), true)
	}
	f.Add([]byte{}, uint32(0), true)
	f.Fuzz(func(t *testing.T, b []byte, limit uint32, fix bool) {
		if fix {
			b = resum(bytes.Clone(b))
		}
		maxPayload := int(limit >> 1)
		var h wire.FrameHeader
		var err error
		if n := allocated(func() { h, err = wire.DecodeFrame(b, maxPayload, nil) }); n > spare {
			t.Errorf("%d bytes allocated for a header of %d", n, len(b))
		}
		n, payload, shape := wire.FrameLength(b, maxPayload)
		checked, refused := wire.DecodeChecked(b[:min(max(n, 0), len(b))], nil)
		if shape == nil && len(b) >= n && ((refused == nil) != (err == nil) || !reflect.DeepEqual(checked, h)) {
			t.Errorf("DecodeChecked = %+v, %v, DecodeFrame %+v, %v", checked, refused, h, err)
		}
		if _, refused = wire.DecodeChecked(b, nil); refused != nil && !errors.Is(refused, transport.ErrProtocol) {
			t.Errorf("error %v is no protocol violation", refused)
		}
		if err != nil {
			if !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("error %v is no protocol violation", err)
			}
			return
		}
		if shape != nil || payload != int(h.Payload) || payload > maxPayload || n > wire.MaxHeader {
			t.Fatalf("FrameLength = %d, %d, %v for %+v, limit %d", n, payload, shape, h, maxPayload)
		}
		if again := encodeFrame(t, h); !bytes.Equal(again, b[:n]) {
			t.Errorf("encoded again\n%x\nfrom\n%x", again, b[:n])
		}
	})
}

// FuzzControl: any message is refused as a violation, or its known fields are
// exactly what encoding it again gives; a reused decoder agrees with a fresh one.
// With fix 1 the checksums are made right first, with 2 the length too, or else
// nothing gets past them.
func FuzzControl(f *testing.F) {
	var seeds [][]byte
	for _, m := range sampleMessages() {
		seeds = append(seeds, encode(f, m))
	}
	for _, b := range seeds {
		f.Add(b, uint8(0))
		f.Add(append(bytes.Clone(b), 0), uint8(1))
		f.Add(append(bytes.Clone(b), 0), uint8(2))
		f.Add(b[:len(b)-1], uint8(2))
	}
	f.Add(raw(99, wire.FlagOptional), uint8(0))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(0))
	var used wire.Decoder
	f.Fuzz(func(t *testing.T, b []byte, fix uint8) {
		switch b = bytes.Clone(b); {
		case len(b) < wire.ControlPrefix:
		case fix%3 == 1:
			b = seal(b)
		case fix%3 == 2:
			b = relen(b)
		}
		var m wire.Message
		var err error
		if n := allocated(func() { m, err = wire.Decode(b) }); n > spare+8*uint64(len(b)) {
			t.Errorf("%d bytes allocated for a message of %d", n, len(b))
		}
		m2, err2 := used.Decode(b)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("fresh decoder: %v, used decoder: %v", err, err2)
		}
		if err != nil {
			if !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("error %v is no protocol violation", err)
			}
			return
		}
		if !reflect.DeepEqual(normal(m), normal(m2)) {
			t.Errorf("fresh decoder: %+v, used decoder: %+v", m, m2)
		}
		switch m := m.(type) {
		case *wire.Unknown:
			return // has no encoding
		case *wire.Hello:
			if m.Major != wire.Major {
				return // only its beginning was read
			}
		case *wire.Refuse:
			b = put(b, 20, byte(m.Code)) // unknown codes read as another
		}
		again := encode(t, m)
		if !bytes.HasPrefix(b[wire.ControlPrefix:], again[wire.ControlPrefix:]) {
			t.Errorf("encoded again\n%x\nfrom\n%x", again, b)
		}
	})
}

// FuzzHello: whatever two ends say of themselves, they agree on something that
// both can do, or on nothing.
func FuzzHello(f *testing.F) {
	a, b := encode(f, sampleMessages()["hello"]), encode(f, sampleMessages()["hello_least"])
	for _, pair := range [][2][]byte{{a, a}, {a, b}, {b, a}, {b, b}, {a, put(a, 20, 2)}} {
		f.Add(pair[0][wire.ControlPrefix:], pair[1][wire.ControlPrefix:])
	}
	hello := func(body []byte) *wire.Hello {
		m, err := wire.Decode(raw(wire.TypeHello, 0, body...))
		if err != nil {
			return nil
		}
		return m.(*wire.Hello)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		client, server := hello(a), hello(b)
		if client == nil || server == nil {
			return
		}
		terms, err := wire.Negotiate(client, server)
		if err != nil {
			if !errors.Is(err, transport.ErrIncompatible) && !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("error %v has no kind", err)
			}
			return
		}
		for _, h := range []*wire.Hello{client, server} {
			if uint64(terms.MaxPayload) > uint64(h.MaxPayload) ||
				uint64(terms.MaxMeta) > uint64(h.MaxMeta) || terms.Lanes > int(h.Lanes) || !slices.Contains(h.Sums, terms.Sum) {
				t.Errorf("terms %+v exceed %+v", terms, h)
			}
			for _, s := range terms.Features {
				if !slices.Contains(h.Features, s) {
					t.Errorf("feature %q is not in %q", s, h.Features)
				}
			}
			if terms.Sum == transport.SumNone && h.Sums[0] != transport.SumNone {
				t.Errorf("one end alone switched checking off: %q, %q", client.Sums, server.Sums)
			}
		}
		if terms.MaxPayload < wire.MinPayload || terms.MaxPayload > wire.MaxPayload || terms.MaxMeta > transport.MaxMeta ||
			terms.Lanes < 1 || terms.Lanes > wire.MaxLanes || terms.Token != server.Token || terms.Epoch != server.Epoch {
			t.Errorf("terms %+v are out of bounds", terms)
		}
	})
}
