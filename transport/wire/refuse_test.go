package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// resum makes a changed frame header carry the checksums that belong to it, of
// as much of its list as is there.
func resum(b []byte) []byte {
	if len(b) >= wire.FixedHeader {
		le := binary.LittleEndian
		n := wire.FixedHeader + wire.PieceSize*int(le.Uint16(b[28:]))
		le.PutUint64(b[48:], xxh3.Hash(b[wire.FixedHeader:min(n, len(b))]))
		le.PutUint64(b[56:], xxh3.Hash(b[:56]))
	}
	return b
}

func encodeFrame(t testing.TB, h wire.FrameHeader) []byte {
	t.Helper()
	b, err := wire.AppendFrame(nil, &h)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encode(t testing.TB, m wire.Message) []byte {
	t.Helper()
	b, err := wire.Append(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkRefusal wants a protocol violation for the reason that is meant.
func checkRefusal(t *testing.T, err error, why string) {
	t.Helper()
	if !errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), why) {
		t.Errorf("error %v, want a protocol violation: %s", err, why)
	}
}

func TestRefuseFrames(t *testing.T) {
	le := binary.LittleEndian
	tests := []struct {
		name   string
		why    string
		change func(b []byte) []byte
		shape  bool // FrameLength sees it too
	}{
		{"magic", "frame magic 0x464c4451", func(b []byte) []byte { b[0] ^= 1; return b }, true},
		{"version", "frame version 2 type 1, this end speaks version 1 type 1", func(b []byte) []byte { b[4] = 2; return b }, true},
		{"type", "frame version 1 type 2, this end speaks version 1 type 1", func(b []byte) []byte { b[5] = 2; return b }, true},
		{"unknown flag", "frame flags 0x0002", func(b []byte) []byte { b[6] |= 2; return b }, true},
		{"unknown high flag", "frame flags 0x8000", func(b []byte) []byte { b[7] |= 0x80; return b }, true},
		{"reserved 30", "reserved bytes of the frame header are not zero", func(b []byte) []byte { b[30] = 1; return b }, true},
		{"reserved 32", "reserved bytes of the frame header are not zero", func(b []byte) []byte { b[32] = 1; return b }, true},
		{"reserved 47", "reserved bytes of the frame header are not zero", func(b []byte) []byte { b[47] = 1; return b }, true},
		{"no piece", "frame of 0 pieces, limit 126", func(b []byte) []byte { le.PutUint16(b[28:], 0); return b }, true},
		{"127 pieces", "frame of 127 pieces, limit 126", func(b []byte) []byte { le.PutUint16(b[28:], 127); return append(b, make([]byte, 8192)...) }, true},
		{"65535 pieces", "frame of 65535 pieces, limit 126", func(b []byte) []byte { le.PutUint16(b[28:], 65535); return b }, true},
		{"no payload", "frame payload of 0 bytes, agreed limit 65536", func(b []byte) []byte { le.PutUint32(b[24:], 0); return b }, true},
		{"payload above the agreed limit", "frame payload of 65537 bytes, agreed limit 65536", func(b []byte) []byte { le.PutUint32(b[24:], 1<<16+1); return b }, true},
		{"payload 2^32-1", "frame payload of 4294967295 bytes, agreed limit 65536", func(b []byte) []byte { le.PutUint32(b[24:], 1<<32-1); return b }, true},
		{"short fixed part", "frame header of 63 bytes, want at least 64", func(b []byte) []byte { return b[:wire.FixedHeader-1] }, true},
		{"empty", "frame header of 0 bytes, want at least 64", func([]byte) []byte { return nil }, true},
		{"short list", "frame header of 127 bytes, want 128", func(b []byte) []byte { return b[:len(b)-1] }, false},
		{"list missing", "frame header of 64 bytes, want 128", func(b []byte) []byte { return b[:wire.FixedHeader] }, false},
		{"payload one more than pieces", "pieces of 8 bytes in a payload of 9", func(b []byte) []byte { le.PutUint32(b[24:], 9); return b }, false},
		{"payload one less than pieces", "pieces of 8 bytes in a payload of 7", func(b []byte) []byte { le.PutUint32(b[24:], 7); return b }, false},
		{"empty piece", "piece 0 of block 7 is empty", func(b []byte) []byte { le.PutUint32(b[68:], 0); le.PutUint32(b[24:], 5); return b }, false},
		{"lengths that add up only in 32 bits", "pieces of 4294967304 bytes in a payload of 8", func(b []byte) []byte {
			le.PutUint32(b[68:], 1<<32-1)
			le.PutUint32(b[100:], 9)
			return b
		}, false},
		{"piece ends past 2^64", "piece 0 of block 7 ends past 2^64", func(b []byte) []byte { le.PutUint64(b[72:], 1<<64-3); return b }, false},
		{"reserved of a piece", "frame 1234605616436508552: reserved bytes of a piece are not zero", func(b []byte) []byte { b[88] = 1; return b }, false},
		{"reserved of the last piece", "frame 1234605616436508552: reserved bytes of a piece are not zero", func(b []byte) []byte { b[len(b)-1] = 1; return b }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := resum(tt.change(encodeFrame(t, sampleFrames()["frame"])))
			_, err := wire.DecodeFrame(b, 1<<16, nil)
			checkRefusal(t, err, tt.why)
			_, _, err = wire.FrameLength(b, 1<<16)
			if errors.Is(err, transport.ErrProtocol) != tt.shape {
				t.Errorf("FrameLength: %v, want a refusal: %v", err, tt.shape)
			}
		})
	}
}

// TestFrameChecksum flips every bit of a header that has its right checksums.
// Damage to the fixed part is seen before anything else is read.
func TestFrameChecksum(t *testing.T) {
	b := encodeFrame(t, sampleFrames()["frame"])
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := wire.DecodeFrame(b, wire.MaxPayload, nil); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("bit %d flipped: %v, want a protocol violation", bit, err)
		}
		_, _, err := wire.FrameLength(b[:wire.FixedHeader], wire.MaxPayload)
		if fixed := bit < 8*wire.FixedHeader; errors.Is(err, transport.ErrProtocol) != fixed {
			t.Errorf("bit %d flipped: FrameLength says %v, want a refusal: %v", bit, err, fixed)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if _, err := wire.DecodeFrame(b, wire.MaxPayload, nil); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

func TestFramePayloadLimits(t *testing.T) {
	b := encodeFrame(t, wire.FrameHeader{Payload: wire.MaxPayload, Pieces: []transport.Piece{{Length: wire.MaxPayload}}})
	for _, tt := range []struct {
		agreed int
		ok     bool
	}{{wire.MaxPayload, true}, {1 << 30, true}, {wire.MaxPayload - 1, false}, {0, false}, {-1, false}} {
		_, _, err := wire.FrameLength(b, tt.agreed)
		if (err == nil) != tt.ok {
			t.Errorf("agreed limit %d: %v, want ok %v", tt.agreed, err, tt.ok)
		}
	}
	// No agreement makes a payload legal that no slot can hold.
	binary.LittleEndian.PutUint32(b[24:], wire.MaxPayload+1)
	if _, _, err := wire.FrameLength(resum(b), 1<<30); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("payload above MaxPayload: %v", err)
	}
}

func TestUnencodableFrames(t *testing.T) {
	one := []transport.Piece{{Length: 1}}
	tests := []struct {
		name string
		h    wire.FrameHeader
		want error
	}{
		{"no piece", wire.FrameHeader{}, transport.ErrInvalid},
		{"127 pieces", wire.FrameHeader{Payload: 127, Pieces: bytesOf(127, transport.Piece{Length: 1})}, transport.ErrTooLarge},
		{"large payload", wire.FrameHeader{Payload: wire.MaxPayload + 1, Pieces: []transport.Piece{{Length: wire.MaxPayload + 1}}}, transport.ErrTooLarge},
		{"wrong sum of lengths", wire.FrameHeader{Payload: 2, Pieces: one}, transport.ErrInvalid},
		{"empty piece", wire.FrameHeader{Payload: 1, Pieces: []transport.Piece{{Length: 1}, {}}}, transport.ErrInvalid},
		{"offset overflow", wire.FrameHeader{Payload: 2, Pieces: []transport.Piece{{Length: 2, Offset: 1<<64 - 2}}}, transport.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := wire.AppendFrame([]byte("x"), &tt.h)
			if !errors.Is(err, tt.want) || string(b) != "x" {
				t.Errorf("AppendFrame = %q, %v, want %v", b, err, tt.want)
			}
		})
	}
}

func bytesOf[T any](n int, v T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// put returns a copy of b with v at offset at.
func put(b []byte, at int, v ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], v)
	return b
}

// seal makes a changed control message carry the checksums that belong to it,
// whatever its length field says.
func seal(b []byte) []byte {
	if len(b) >= wire.ControlPrefix {
		le := binary.LittleEndian
		le.PutUint32(b[8:], uint32(xxh3.Hash(b[wire.ControlPrefix:])))
		le.PutUint32(b[12:], uint32(xxh3.Hash(b[:12])))
	}
	return b
}

// relen makes the prefix of b say the length that b has, and seals it.
func relen(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-wire.ControlPrefix))
	return seal(b)
}

// raw is a sealed message of any type, flags and body.
func raw(typ wire.Type, flags byte, body ...byte) []byte {
	b := make([]byte, wire.ControlPrefix, wire.ControlPrefix+len(body))
	b[4], b[5] = byte(typ), flags
	return relen(append(b, body...))
}

func TestRefuseMessages(t *testing.T) {
	s := sampleMessages()
	enc := func(name string) []byte { return encode(t, s[name]) }
	hello, open, ack, cancel := enc("hello"), enc("open"), enc("ack"), enc("cancel")
	tests := []struct {
		name string
		why  string
		msg  []byte
	}{
		{"empty", "message of 0 bytes, want at least 16", nil},
		{"short prefix", "message of 15 bytes, want at least 16", make([]byte, wire.ControlPrefix-1)},
		{"unknown type, not optional", "message of unknown type 99", raw(99, 0)},
		{"type 0", "message of unknown type 0", raw(0, 0)},
		{"unknown flag", "grant message: reserved bits of the prefix are not zero", put(enc("grant"), 5, 2)},
		{"unknown flag of an optional type", "type 99 message: reserved bits of the prefix are not zero", raw(99, 3)},
		{"reserved 6", "grant message: reserved bits of the prefix are not zero", put(enc("grant"), 6, 1)},
		{"reserved 7", "grant message: reserved bits of the prefix are not zero", put(enc("grant"), 7, 1)},
		{"prefix says more", "grant message of 32 bytes, its prefix says 33", put(enc("grant"), 0, 17)},
		{"prefix says less", "grant message of 32 bytes, its prefix says 31", put(enc("grant"), 0, 15)},
		{"hello magic", "magic number is not pdlink's", put(hello, 16, 'X')},
		{"hello boot zero", "boot id is zero", put(hello, 24, make([]byte, 16)...)},
		{"hello payload too small", "largest payload of 4095 bytes, want at least 4096", put(hello, 44, 0xff, 0x0f, 0, 0)},
		{"hello without lanes", "no lane", put(hello, 52, 0, 0)},
		{"hello name not UTF-8", "text is not printable UTF-8", put(hello, 71, 0xff)},
		{"hello name with newline", "text is not printable UTF-8", put(hello, 71, '\n')},
		{"hello sum with space", "name \" xh3-64\" among the checksums has other than printable ASCII", put(hello, 83, ' ')},
		{"hello sum with high bit", "name \"üh3-64\" among the checksums has other than printable ASCII", put(hello, 83, 0xc3, 0xbc)},
		{"hello no sums", "no checksum", relen(append(bytes.Clone(hello[:81]), 0, 0))},
		{"hello 33 sums", "33 names, limit 32", relen(append(append(bytes.Clone(hello[:81]), 33), bytesOf(400, byte(1))...))},
		{"hello 33 features", "33 names, limit 32", relen(append(append(bytes.Clone(hello[:97]), 33), bytesOf(400, byte(1))...))},
		{"hello empty feature", "name of 0 bytes among the features, want 1 to 48", relen(append(bytes.Clone(hello[:97]), 1, 0))},
		{"hello feature of 49 bytes", "name of 49 bytes among the features, want 1 to 48", relen(append(append(bytes.Clone(hello[:97]), 1, 49), strings.Repeat("f", 49)...))},
		{"hello too long", "hello message with a body of 4185 bytes, limit 4080", relen(append(bytes.Clone(hello), make([]byte, wire.MaxHello)...))},
		{"lane hello magic", "magic number is not pdlink's", put(enc("lane_hello"), 16, 0)},
		{"lane hello token zero", "token is zero", put(enc("lane_hello"), 20, make([]byte, 16)...)},
		{"lane hello lane 64", "lane 64 of at most 64", put(enc("lane_hello"), 36, 64, 0)},
		{"lane ok magic", "magic number is not pdlink's", put(enc("lane_ok"), 16, 0)},
		{"lane ok lane 64", "lane 64 of at most 64", put(enc("lane_ok"), 20, 64, 0)},
		{"bye not printable", "text is not printable UTF-8", put(enc("bye"), 18, 0x1b)},
		{"ping token zero", "ping: token is zero", put(enc("ping"), 16, make([]byte, 8)...)},
		{"ping of 7 bytes", "ping: ends inside a field", relen(bytes.Clone(enc("ping")[:23]))},
		{"ping too long", "ping message with a body of 241 bytes, limit 240", relen(append(bytes.Clone(enc("ping")), make([]byte, 233)...))},
		{"pong token zero", "pong: token is zero", put(enc("pong"), 16, make([]byte, 8)...)},
		{"pong of 7 bytes", "pong: ends inside a field", relen(bytes.Clone(enc("pong")[:23]))},
		{"pong too long", "pong message with a body of 241 bytes, limit 240", relen(append(bytes.Clone(enc("pong")), make([]byte, 233)...))},
		{"open id zero", "transfer id is zero", put(open, 20, make([]byte, 16)...)},
		{"open part 2 of 2", "part 2 of 2", put(open, 36, 2)},
		{"open parts 0", "part 0 of 0", put(open, 36, 0, 0, 0, 0)},
		{"open parts 65", "65 parts, limit 64", put(open, 38, 65)},
		{"open unknown flag", "reserved bits of the flags are not zero", put(open, 40, 2)},
		{"open kind of 65 bytes", "65 bytes of kind, limit 64", relen(append(append(append(bytes.Clone(open[:41]), 65), strings.Repeat("k", 65)...), 0, 0, 0, 0))},
		{"open kind not printable", "text is not printable UTF-8", put(open, 42, 0x7f)},
		{"open meta longer than the message", "ends inside a field", put(open, 51, 7)},
		{"open meta of 2^32-1", "meta exceeds its limit", put(open, 51, 0xff, 0xff, 0xff, 0xff)},
		{"open meta above the limit", "meta exceeds its limit", put(open, 51, 1, 0, 0, 1)},
		{"admit window 0", "window of 0 frames, want 1 to 65536", put(enc("admit"), 20, 0)},
		{"admit window 65537", "window of 65537 frames, want 1 to 65536", put(enc("admit"), 20, 1, 0, 1)},
		{"admit meta longer than the message", "ends inside a field", put(enc("admit"), 24, 4)},
		{"refuse reason above the limit", "1025 bytes of text, limit 1024", relen(append(put(enc("refuse"), 21, 1, 4)[:23], bytesOf(1025, byte('r'))...))},
		{"refuse reason not UTF-8", "text is not printable UTF-8", put(enc("refuse"), 23, 0x80)},
		{"ack without ranges", "no range", put(ack, 20, 0, 0)},
		{"ack with more ranges than bytes", "ends inside a field", put(ack, 20, 3, 0)},
		{"ack with 4097 ranges", "4097 ranges, limit 4096", relen(append(put(ack, 20, 1, 0x10)[:22], bytesOf(4097*8, byte(1))...))},
		{"ack of no block", "range of 0 blocks from 0", put(ack, 26, 0)},
		{"ack past 2^32", "range of 2 blocks from 4294967295", put(ack, 34, 2)},
		{"nack without pieces", "no piece", put(enc("nack"), 28, 0)},
		{"nack with more pieces than bytes", "ends inside a field", put(enc("nack"), 28, 3)},
		{"nack of 127 pieces", "127 pieces, limit 126", relen(append(put(enc("nack"), 28, 127)[:30], bytesOf(127*32, byte(0))...))},
		{"nack of an empty piece", "piece 0 of block 7 is empty", put(enc("nack"), 34, 0)},
		{"nack reserved", "reserved bytes of a piece are not zero", put(enc("nack"), 54, 1)},
		{"flushed unknown flag", "reserved bits of the flags are not zero", put(enc("flushed"), 28, 2)},
		{"flushed with more pieces than bytes", "ends inside a field", put(enc("flushed"), 29, 3)},
		{"flushed of 4097 pieces", "4097 pieces, limit 4096", put(enc("flushed"), 29, 1, 0x10)},
		{"flushed of an empty piece", "piece 0 of block 7 is empty", put(enc("flushed"), 35, 0)},
		{"result meta longer than the message", "ends inside a field", put(enc("result"), 20, 9)},
		{"cancel unknown flag", "reserved bits of the flags are not zero", put(cancel, 20, 4)},
		{"cancel reason with direction mark", "text is not printable UTF-8", relen(append(put(cancel, 21, 3, 0)[:23], "\u202e"...))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := wire.Decode(seal(tt.msg))
			checkRefusal(t, err, tt.why)
		})
	}
}

// TestControlChecksum flips every bit of every message. Damage to the prefix is
// seen before its length is believed, damage to the body before any field of it.
func TestControlChecksum(t *testing.T) {
	messages := map[string][]byte{
		"unknown": raw(99, wire.FlagOptional, 1, 2, 3),
		"empty":   raw(99, wire.FlagOptional),
	}
	for name, m := range sampleMessages() {
		messages[name] = encode(t, m)
	}
	var d wire.Decoder
	for name, b := range messages {
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			prefix := bit < 8*wire.ControlPrefix
			why := "checksum of the body of the "
			if prefix {
				why = "checksum of a message's prefix: "
			}
			for _, decode := range []func([]byte) (wire.Message, error){wire.Decode, d.Decode} {
				if m, err := decode(b); m != nil || !errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), why) {
					t.Errorf("%s, bit %d flipped: decoded %+v, %v, want nothing and %q", name, bit, m, err, why)
				}
			}
			if _, _, err := wire.ControlLength(b[:wire.ControlPrefix]); errors.Is(err, transport.ErrProtocol) != prefix {
				t.Errorf("%s, bit %d flipped: ControlLength says %v, want a refusal: %v", name, bit, err, prefix)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		if _, err := d.Decode(b); err != nil {
			t.Errorf("%s, unchanged: %v", name, err)
		}
	}
}

// TestStrangers has what speaks another protocol refused by the first bytes.
func TestStrangers(t *testing.T) {
	for name, b := range map[string][]byte{
		"HTTP":  []byte("GET / HTTP/1.1\r\n\r\n"),
		"SSH":   []byte("SSH-2.0-OpenSSH_9.2p1\r\n"),
		"TLS":   {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 1, 2, 3, 4, 5, 6, 7, 8},
		"zeros": make([]byte, 64),
		"ones":  bytesOf(64, byte(0xff)),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := wire.ControlLength(b)
			checkRefusal(t, err, "damaged, or not pdlink")
			_, err = wire.Decode(b)
			checkRefusal(t, err, "damaged, or not pdlink")
		})
	}
}

// TestTruncatedMessages cuts every message after each byte of its body.
func TestTruncatedMessages(t *testing.T) {
	for name, m := range sampleMessages() {
		b := encode(t, m)
		for n := wire.ControlPrefix; n < len(b); n++ {
			got, err := wire.Decode(relen(bytes.Clone(b[:n])))
			if without := withoutProof(m); without != nil && n >= len(b)-wire.ProofSize {
				// Half a proof is none; whoever wants one refuses it.
				if err != nil || !reflect.DeepEqual(got, without) {
					t.Errorf("%s cut to %d of %d bytes: decoded %+v, %v", name, n, len(b), got, err)
				}
				continue
			}
			if !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("%s cut to %d of %d bytes: decoded %+v, %v", name, n, len(b), got, err)
			}
		}
	}
}

// withoutProof is m without the proof that it has; nil when it has none.
func withoutProof(m wire.Message) wire.Message {
	none := [wire.ProofSize]byte{}
	switch m := m.(type) {
	case *wire.LaneHello:
		if m.Proof != none {
			return &wire.LaneHello{Token: m.Token, Lane: m.Lane}
		}
	case *wire.LaneOK:
		if m.Proof != none {
			return &wire.LaneOK{Lane: m.Lane}
		}
	}
	return nil
}

func TestControlLengthBounds(t *testing.T) {
	tests := []struct {
		typ   wire.Type
		flags byte
		most  int // body
	}{
		{wire.TypeHello, 0, 4080}, {wire.TypeLaneHello, 0, 240}, {wire.TypeLaneOK, 0, 240}, {wire.TypeBye, 0, 4080},
		{wire.TypeOpen, 0, 16781296}, {wire.TypeAdmit, 0, 16781296}, {wire.TypeResult, 0, 16781296},
		{wire.TypeRefuse, 0, 4080}, {wire.TypeCancel, 0, 4080}, {wire.TypeGrant, 0, 240}, {wire.TypeFlush, 0, 240},
		{wire.TypeFinish, 0, 240}, {wire.TypeAck, 0, 65520}, {wire.TypeNack, 0, 8176}, {wire.TypeFlushed, 0, 262128},
		{99, wire.FlagOptional, 262128},
	}
	for _, tt := range tests {
		b := raw(tt.typ, tt.flags)
		binary.LittleEndian.PutUint32(b, uint32(tt.most))
		if n, typ, err := wire.ControlLength(seal(b)); err != nil || n != tt.most || typ != tt.typ {
			t.Errorf("%v with %d bytes: %d, %v, %v", tt.typ, tt.most, n, typ, err)
		}
		for _, n := range []uint32{uint32(tt.most) + 1, 1 << 31, 1<<32 - 1} {
			binary.LittleEndian.PutUint32(b, n)
			_, _, err := wire.ControlLength(seal(b))
			checkRefusal(t, err, fmt.Sprintf("body of %d bytes, limit %d", n, tt.most))
		}
	}
}

// TestLargestMessages encodes each message at its limits and decodes it.
func TestLargestMessages(t *testing.T) {
	text := strings.Repeat("t", transport.MaxReason)
	names := bytesOf(wire.MaxNames, strings.Repeat("n", wire.MaxNameItem))
	meta := make([]byte, transport.MaxMeta)
	piece := transport.Piece{Length: 1<<32 - 1, Block: 1<<32 - 1, Offset: 1<<64 - 1<<32, Sum: 1<<64 - 1}
	for _, m := range []wire.Message{
		&wire.Hello{
			Major: 1, Boot: seqID(1), MaxPayload: 1<<32 - 1, MaxMeta: 1<<32 - 1, Lanes: 1<<16 - 1,
			Name: strings.Repeat("n", wire.MaxName), Sums: names, Features: names,
		},
		&wire.Bye{Reason: text}, &wire.Refuse{Reason: text}, &wire.Cancel{Reason: text},
		&wire.Open{ID: seqID(1), Part: 63, Parts: 64, Kind: strings.Repeat("k", transport.MaxKind), Meta: meta},
		&wire.Admit{Window: wire.MaxWindow, Meta: meta}, &wire.Result{Meta: meta},
		&wire.Ack{Ranges: bytesOf(wire.MaxRanges, wire.BlockRange{First: 0, Count: 1<<32 - 1})},
		&wire.Nack{Pieces: bytesOf(transport.MaxPieces, piece)},
		&wire.Flushed{Missing: bytesOf(transport.MaxMissing, piece)},
	} {
		b := encode(t, m)
		if len(b) > wire.MaxControl {
			t.Errorf("%v of %d bytes, limit %d", m.Type(), len(b), wire.MaxControl)
		}
		if got, err := wire.Decode(b); err != nil || !bytes.Equal(encode(t, got), b) {
			t.Errorf("%v: decoded %v, not the same", m.Type(), err)
		}
	}
}

func TestUnencodableMessages(t *testing.T) {
	hello := wire.Hello{Major: 1, Boot: seqID(1), MaxPayload: wire.MinPayload, Lanes: 1, Sums: []string{"crc32c"}}
	with := func(change func(*wire.Hello)) *wire.Hello { h := hello; change(&h); return &h }
	open := wire.Open{ID: seqID(1), Parts: 1}
	withOpen := func(change func(*wire.Open)) *wire.Open { o := open; change(&o); return &o }
	large := make([]byte, transport.MaxMeta+1)
	tests := []struct {
		name string
		m    wire.Message
		want error
	}{
		{"hello boot", with(func(h *wire.Hello) { h.Boot = transport.ID{} }), transport.ErrInvalid},
		{"hello payload", with(func(h *wire.Hello) { h.MaxPayload = wire.MinPayload - 1 }), transport.ErrInvalid},
		{"hello lanes", with(func(h *wire.Hello) { h.Lanes = 0 }), transport.ErrInvalid},
		{"hello sums", with(func(h *wire.Hello) { h.Sums = nil }), transport.ErrInvalid},
		{"hello name", with(func(h *wire.Hello) { h.Name = strings.Repeat("n", 256) }), transport.ErrTooLarge},
		{"hello name form", with(func(h *wire.Hello) { h.Name = "a\x00" }), transport.ErrInvalid},
		{"hello feature", with(func(h *wire.Hello) { h.Features = []string{""} }), transport.ErrInvalid},
		{"hello feature length", with(func(h *wire.Hello) { h.Features = []string{strings.Repeat("f", 49)} }), transport.ErrTooLarge},
		{"hello features", with(func(h *wire.Hello) { h.Features = bytesOf(33, "f") }), transport.ErrTooLarge},
		{"lane hello token", &wire.LaneHello{}, transport.ErrInvalid},
		{"lane hello lane", &wire.LaneHello{Token: seqID(1), Lane: wire.MaxLanes}, transport.ErrInvalid},
		{"lane ok lane", &wire.LaneOK{Lane: wire.MaxLanes}, transport.ErrInvalid},
		{"ping token", &wire.Ping{}, transport.ErrInvalid},
		{"pong token", &wire.Pong{}, transport.ErrInvalid},
		{"open id", withOpen(func(o *wire.Open) { o.ID = transport.ID{} }), transport.ErrInvalid},
		{"open part", withOpen(func(o *wire.Open) { o.Part = 1 }), transport.ErrInvalid},
		{"open parts", withOpen(func(o *wire.Open) { o.Parts = 65 }), transport.ErrTooLarge},
		{"open kind", withOpen(func(o *wire.Open) { o.Kind = strings.Repeat("k", 65) }), transport.ErrTooLarge},
		{"open kind form", withOpen(func(o *wire.Open) { o.Kind = "\xff" }), transport.ErrInvalid},
		{"open meta", withOpen(func(o *wire.Open) { o.Meta = large }), transport.ErrTooLarge},
		{"admit window", &wire.Admit{}, transport.ErrInvalid},
		{"admit meta", &wire.Admit{Window: 1, Meta: large}, transport.ErrTooLarge},
		{"result meta", &wire.Result{Meta: large}, transport.ErrTooLarge},
		{"ack", &wire.Ack{}, transport.ErrInvalid},
		{"ack range", &wire.Ack{Ranges: []wire.BlockRange{{First: 1, Count: 1<<32 - 1}, {First: 2, Count: 1<<32 - 1}}}, transport.ErrInvalid},
		{"ack ranges", &wire.Ack{Ranges: bytesOf(wire.MaxRanges+1, wire.BlockRange{Count: 1})}, transport.ErrTooLarge},
		{"nack", &wire.Nack{}, transport.ErrInvalid},
		{"nack pieces", &wire.Nack{Pieces: bytesOf(127, transport.Piece{Length: 1})}, transport.ErrTooLarge},
		{"flushed missing", &wire.Flushed{Missing: bytesOf(4097, transport.Piece{Length: 1})}, transport.ErrTooLarge},
		{"flushed piece", &wire.Flushed{Missing: []transport.Piece{{}}}, transport.ErrInvalid},
		{"unknown", &wire.Unknown{Of: 99}, transport.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := wire.Append([]byte("x"), tt.m)
			if !errors.Is(err, tt.want) || string(b) != "x" {
				t.Errorf("Append = %q, %v, want %v", b, err, tt.want)
			}
		})
	}
}
