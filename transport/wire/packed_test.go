package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// TestPack: a packed header is what the specification says, and unpacks to the plain one.
func TestPack(t *testing.T) {
	plain := encodeFrame(t, sampleFrames()["frame"])
	b := bytes.Clone(plain)
	if err := wire.Pack(b, 2, 5); err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(plain)
	want[6] |= 2
	want[24], want[30], want[32] = 5, 2, 8
	if b, want := b, resum(want); !bytes.Equal(b, want) {
		t.Errorf("packed header\n%s, want\n%s", hex.Dump(b), hex.Dump(want))
	}
	if n, stored, err := wire.PackedLength(b, 8); n != len(b) || stored != 5 || err != nil {
		t.Errorf("PackedLength = %d, %d, %v", n, stored, err)
	}
	// Who agreed on no codec refuses it.
	if _, _, err := wire.FrameLength(b, 8); !errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), "frame flags") {
		t.Errorf("FrameLength: %v", err)
	}
	if codec, raw := wire.Unpack(b); codec != 2 || raw != 8 || !bytes.Equal(b, plain) {
		t.Errorf("Unpack = %d, %d and\n%s, want the plain header", codec, raw, hex.Dump(b))
	}
	if codec, raw := wire.Unpack(b); codec != 0 || raw != 8 || !bytes.Equal(b, plain) {
		t.Errorf("Unpack of a plain header = %d, %d", codec, raw)
	}
	if n, stored, err := wire.PackedLength(b, 8); n != len(b) || stored != 8 || err != nil {
		t.Errorf("PackedLength of a plain header = %d, %d, %v", n, stored, err)
	}
}

// TestPackRefuses: what cannot be said.
func TestPackRefuses(t *testing.T) {
	plain := encodeFrame(t, sampleFrames()["frame"])
	twice := bytes.Clone(plain)
	if err := wire.Pack(twice, 1, 7); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		header []byte
		codec  uint8
		stored int
	}{
		"no codec": {plain, 0, 5}, "nothing stored": {plain, 1, 0}, "less than nothing": {plain, 1, -1}, "no gain": {plain, 1, 8},
		"more than it was": {plain, 1, 1 << 33}, "packed already": {twice, 1, 5}, "no header": {plain[:63], 1, 5},
	} {
		b := bytes.Clone(tt.header)
		if err := wire.Pack(b, tt.codec, tt.stored); !errors.Is(err, transport.ErrInvalid) || !bytes.Equal(b, tt.header) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusePackedFrames: what an end that agreed on a codec does not take.
func TestRefusePackedFrames(t *testing.T) {
	le := binary.LittleEndian
	for name, tt := range map[string]struct {
		why    string
		change func(b []byte)
	}{
		"codec 0":         {"frame packed by codec 0 to 5 bytes from 8", func(b []byte) { b[30] = 0 }},
		"nothing stored":  {"frame packed by codec 2 to 0 bytes from 8", func(b []byte) { le.PutUint32(b[24:], 0) }},
		"no gain":         {"frame packed by codec 2 to 8 bytes from 8", func(b []byte) { le.PutUint32(b[24:], 8) }},
		"more than raw":   {"frame packed by codec 2 to 4294967295 bytes from 8", func(b []byte) { le.PutUint32(b[24:], 1<<32-1) }},
		"above the limit": {"frame payload of 65537 bytes, agreed limit 65536", func(b []byte) { le.PutUint32(b[32:], 1<<16+1) }},
		"all that fits":   {"frame payload of 4294967295 bytes", func(b []byte) { le.PutUint32(b[32:], 1<<32-1) }},
		"another flag":    {"frame flags 0x0004", func(b []byte) { b[6] |= 4 }},
		"reserved 31":     {"reserved bytes", func(b []byte) { b[31] = 1 }},
		"reserved 36":     {"reserved bytes", func(b []byte) { b[36] = 1 }},
		"reserved 47":     {"reserved bytes", func(b []byte) { b[47] = 1 }},
		"magic":           {"frame magic", func(b []byte) { b[0] ^= 1 }},
		"version":         {"frame version", func(b []byte) { b[4] = 2 }},
		"no piece":        {"frame of 0 pieces", func(b []byte) { le.PutUint16(b[28:], 0) }},
	} {
		b := encodeFrame(t, sampleFrames()["frame"])
		if err := wire.Pack(b, 2, 5); err != nil {
			t.Fatal(err)
		}
		tt.change(b)
		le.PutUint64(b[56:], xxh3.Hash(b[:56]))
		_, _, err := wire.PackedLength(b, 1<<16)
		if checkRefusal(t, err, tt.why); t.Failed() {
			t.Fatal(name)
		}
	}
	b := encodeFrame(t, sampleFrames()["frame"])
	if err := wire.Pack(b, 2, 5); err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * wire.FixedHeader {
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := wire.PackedLength(b, 1<<16); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("bit %d flipped: %v", bit, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// FuzzPacked: any fixed part is refused as a violation, or unpacks to one that
// FrameLength takes, and packs to the same again.
func FuzzPacked(f *testing.F) {
	for _, h := range sampleFrames() {
		b := encodeFrame(f, h)
		f.Add(b, uint32(wire.MaxPayload), false)
		if wire.Pack(b, 1, 1) == nil {
			f.Add(b, uint32(wire.MaxPayload), false)
			f.Add(b, uint32(8), true)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, limit uint32, fix bool) {
		b = bytes.Clone(b)
		if fix && len(b) >= wire.FixedHeader {
			binary.LittleEndian.PutUint64(b[56:], xxh3.Hash(b[:56]))
		}
		maxPayload := int(limit >> 1)
		n, stored, err := wire.PackedLength(b, maxPayload)
		if err != nil {
			if !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("error %v is no protocol violation", err)
			}
			return
		}
		whole := bytes.Clone(b)
		codec, raw := wire.Unpack(b)
		if n2, payload, err := wire.FrameLength(b, maxPayload); err != nil || n2 != n || payload != raw || raw > maxPayload || stored > raw {
			t.Fatalf("stored %d, raw %d; FrameLength = %d, %d, %v", stored, raw, n2, payload, err)
		}
		if codec == 0 {
			if stored != raw || !bytes.Equal(b, whole) {
				t.Errorf("a plain frame of %d bytes was changed, or stored %d", raw, stored)
			}
			return
		}
		if err := wire.Pack(b, codec, stored); err != nil || !bytes.Equal(b, whole) {
			t.Errorf("packed again: %v\n%x\nfrom\n%x", err, b, whole)
		}
	})
}
