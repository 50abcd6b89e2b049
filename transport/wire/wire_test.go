package wire_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// TestExtension appends what a later minor version might.
func TestExtension(t *testing.T) {
	for name, m := range sampleMessages() {
		b := relen(append(encode(t, m), 1, 2, 3))
		if got, err := wire.Decode(b); err != nil || !reflect.DeepEqual(normal(got), normal(m)) {
			t.Errorf("%s with an appended field: %+v, %v", name, got, err)
		}
		b = seal(put(encode(t, m), 5, wire.FlagOptional))
		if link, is := m.(*wire.Link); is { // whether its type is known is for others to say
			m = &wire.Link{Of: link.Of, Optional: true, Body: link.Body}
			if again := encode(t, m); !bytes.Equal(again, b) {
				t.Errorf("%s: an optional one is encoded as %x, want %x", name, again, b)
			}
		}
		if got, err := wire.Decode(b); err != nil || !reflect.DeepEqual(normal(got), normal(m)) {
			t.Errorf("%s marked optional: %+v, %v", name, got, err)
		}
	}
	got, err := wire.Decode(raw(99, wire.FlagOptional, 'h', 'i'))
	if u, ok := got.(*wire.Unknown); err != nil || !ok || u.Of != 99 || u.Type() != 99 {
		t.Errorf("optional message of type 99: %+v, %v", got, err)
	}
	b := seal(put(encode(t, &wire.Refuse{Handle: 1, Reason: "why"}), 20, 77))
	if got, err := wire.Decode(b); err != nil || !reflect.DeepEqual(got, &wire.Refuse{Handle: 1, Reason: "why"}) {
		t.Errorf("refusal with a code of a newer peer: %+v, %v", got, err)
	}
}

// TestOtherMajor has a hello of another major version, whose body is unknown
// after the boot id.
func TestOtherMajor(t *testing.T) {
	ours := sampleMessages()["hello"].(*wire.Hello)
	b := put(encode(t, ours), 20, 2)
	for n := wire.ControlPrefix + 24; n <= len(b); n++ {
		m, err := wire.Decode(relen(bytes.Clone(b[:n])))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		theirs := m.(*wire.Hello)
		if _, err := wire.Negotiate(ours, theirs); !errors.Is(err, transport.ErrIncompatible) {
			t.Errorf("%d bytes: Negotiate as client: %v", n, err)
		}
		if _, err := wire.Negotiate(theirs, ours); !errors.Is(err, transport.ErrIncompatible) {
			t.Errorf("%d bytes: Negotiate as server: %v", n, err)
		}
	}
}

func TestNegotiate(t *testing.T) {
	client := wire.Hello{Major: 1, Minor: 3, MaxPayload: 1 << 20, MaxMeta: 100, Lanes: 8, Epoch: 9, Features: []string{"a", "b", "a", "c"}}
	server := wire.Hello{
		Major: 1, Minor: 1, MaxPayload: 1<<32 - 1, MaxMeta: 1<<32 - 1, Lanes: 1<<16 - 1,
		Epoch: 77, Token: seqID(1), Features: []string{"c", "x", "a"},
	}
	tests := []struct {
		client, server, sum string // sum "" means incompatible
	}{
		{"xxh3-64 crc32c none", "xxh3-64 crc32c none", "xxh3-64"},
		{"crc32c xxh3-64", "xxh3-64 crc32c", "crc32c"},
		{"new xxh3-64", "xxh3-64", "xxh3-64"},
		{"crc32c", "xxh3-64", ""},
		{"none", "none", "none"},
		{"none xxh3-64", "none xxh3-64", "none"},
		{"none xxh3-64", "xxh3-64 none", "xxh3-64"},
		{"xxh3-64 none", "none xxh3-64", "xxh3-64"},
		{"none", "xxh3-64 none", ""},
		{"xxh3-64 none", "none", ""},
		{"crc32c none", "xxh3-64 none", ""},
		{"", "", ""},
		{"none", "", ""},
	}
	for _, tt := range tests {
		c, s := client, server
		c.Sums, s.Sums = strings.Fields(tt.client), strings.Fields(tt.server)
		got, err := wire.Negotiate(&c, &s)
		if tt.sum == "" {
			if !errors.Is(err, transport.ErrIncompatible) {
				t.Errorf("%q with %q: %+v, %v, want incompatible", tt.client, tt.server, got, err)
			}
			continue
		}
		want := wire.Terms{
			Epoch: 77, Token: seqID(1), MaxPayload: 1 << 20, MaxMeta: 100, Lanes: 8,
			Sum: tt.sum, Features: []string{"a", "c"},
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q with %q: %+v, %v, want %+v", tt.client, tt.server, got, err, want)
		}
	}
}

func TestNegotiateLimits(t *testing.T) {
	h := wire.Hello{Major: 1, MaxPayload: 1<<32 - 1, MaxMeta: 1<<32 - 1, Lanes: 1<<16 - 1, Sums: []string{"crc32c"}, Token: seqID(1)}
	got, err := wire.Negotiate(&h, &h)
	if err != nil || got.MaxPayload != wire.MaxPayload || got.MaxMeta != transport.MaxMeta || got.Lanes != wire.MaxLanes {
		t.Errorf("two ends without limits: %+v, %v", got, err)
	}
	server := h
	server.Token = [16]byte{}
	if _, err := wire.Negotiate(&h, &server); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("server without a token: %v", err)
	}
}

// TestSumsOfContract has the names that package transport offers pass as names.
func TestSumsOfContract(t *testing.T) {
	h := &wire.Hello{Major: 1, Boot: seqID(1), MaxPayload: wire.MinPayload, Lanes: 1, Sums: transport.Sums(), Token: seqID(1)}
	m, err := wire.Decode(encode(t, h))
	if err != nil {
		t.Fatal(err)
	}
	terms, err := wire.Negotiate(m.(*wire.Hello), h)
	if err != nil || terms.Sum != transport.Sums()[0] {
		t.Errorf("terms %+v, %v", terms, err)
	}
}

func TestPrintable(t *testing.T) {
	tests := []struct {
		in    string
		limit int
		want  string
	}{
		{"", 10, ""},
		{"plain", 10, "plain"},
		{"ünïcode 😀", 20, "ünïcode 😀"},
		{"two\nlines\tand\r", 20, "two lines and "},
		{"\x1b[31mred", 20, "?[31mred"},
		{"a\u202eb\u2066c\ufeffd\u200be\u061cf", 20, "a?b?c?d?e?f"},
		{"line\u2028sep", 20, "line sep"},
		{"\x7f\u0085\u009f", 20, "???"},
		{"bad\xff\xfeutf", 20, "bad?utf"},
		{"kept\ufffd", 20, "kept\ufffd"},
		{"cut here", 3, "cut"},
		{"üü", 3, "ü"},
		{"üü", 1, ""},
		{"x", 0, ""},
	}
	for _, tt := range tests {
		if got := wire.Printable(tt.in, tt.limit); got != tt.want {
			t.Errorf("Printable(%q, %d) = %q, want %q", tt.in, tt.limit, got, tt.want)
		}
	}
}

// TestReasons has encoders make any reason one that the peer takes.
func TestReasons(t *testing.T) {
	reason := "open /tmp/x:\n\x00\xff" + strings.Repeat("ü", transport.MaxReason)
	for _, m := range []wire.Message{
		&wire.Bye{Reason: reason}, &wire.Refuse{Reason: reason}, &wire.Cancel{Reason: reason},
	} {
		got, err := wire.Decode(encode(t, m))
		if err != nil {
			t.Errorf("%v: %v", m.Type(), err)
			continue
		}
		s := reflect.ValueOf(got).Elem().FieldByName("Reason").String()
		if !strings.HasPrefix(s, "open /tmp/x: ??ü") || len(s) > transport.MaxReason || len(s) < transport.MaxReason-1 || !utf8.ValidString(s) {
			t.Errorf("%v: reason of %d bytes %q", m.Type(), len(s), s)
		}
	}
}

// TestDecoderReuse has one decoder give right answers whatever it decoded
// before, failures included.
func TestDecoderReuse(t *testing.T) {
	var d wire.Decoder
	for range 3 {
		for name, m := range sampleMessages() {
			b := encode(t, m)
			if _, err := d.Decode(relen(bytes.Clone(b[:len(b)-1]))); err == nil && withoutProof(m) == nil {
				t.Errorf("%s: cut message decoded", name)
			}
			got, err := d.Decode(b)
			if err != nil || !reflect.DeepEqual(normal(got), normal(m)) {
				t.Errorf("%s: decoded %+v, %v, want %+v", name, got, err, m)
			}
		}
	}
}

// TestMetaIsPartOfMessage holds the promise that large metas are not copied.
func TestMetaIsPartOfMessage(t *testing.T) {
	b := encode(t, &wire.Result{Handle: 1, Meta: []byte("abc")})
	m, err := wire.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	meta := m.(*wire.Result).Meta
	if &meta[0] != &b[len(b)-3] || cap(meta) != 3 {
		t.Errorf("meta with capacity %d is a copy or reaches behind itself", cap(meta))
	}
}

// TestAllocations holds what happens for every frame to no allocation.
func TestAllocations(t *testing.T) {
	frame := sampleFrames()["frame_full"]
	header := make([]byte, 0, wire.MaxHeader)
	encoded := encodeFrame(t, frame)
	pieces := make([]transport.Piece, 0, transport.MaxPieces)
	grant, ack := sampleMessages()["grant"].(*wire.Grant), sampleMessages()["ack"].(*wire.Ack)
	flush := sampleMessages()["flush"].(*wire.Flush)
	ping, pong := sampleMessages()["ping"].(*wire.Ping), sampleMessages()["pong"].(*wire.Pong)
	msgs := [][]byte{
		encode(t, grant), encode(t, ack), encode(t, flush), encode(t, sampleMessages()["nack"]), encode(t, ping), encode(t, pong),
	}
	buf := make([]byte, 0, 1024)
	var d wire.Decoder
	tests := []struct {
		name string
		f    func() error
	}{
		{"AppendFrame", func() error { _, err := wire.AppendFrame(header, &frame); return err }},
		{"FrameLength", func() error { _, _, err := wire.FrameLength(encoded, wire.MaxPayload); return err }},
		{"DecodeFrame", func() error { _, err := wire.DecodeFrame(encoded, wire.MaxPayload, pieces); return err }},
		{"DecodeChecked", func() error { _, err := wire.DecodeChecked(encoded, pieces); return err }},
		{"AppendGrant", func() error { _, err := wire.AppendGrant(buf, grant); return err }},
		{"AppendAck", func() error { _, err := wire.AppendAck(buf, ack); return err }},
		{"ControlLength", func() error { _, _, err := wire.ControlLength(msgs[0]); return err }},
		{"AppendFlush", func() error { _, err := wire.AppendFlush(buf, flush); return err }},
		{"AppendPing", func() error { _, err := wire.AppendPing(buf, ping); return err }},
		{"AppendPong", func() error { _, err := wire.AppendPong(buf, pong); return err }},
		{"Decode", func() error {
			for _, b := range msgs {
				if _, err := d.Decode(b); err != nil {
					return err
				}
			}
			return nil
		}},
	}
	for _, tt := range tests {
		if n := testing.AllocsPerRun(100, func() {
			if err := tt.f(); err != nil {
				t.Error(tt.name, err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", tt.name, n)
		}
	}
}

func BenchmarkFrame(b *testing.B) {
	for _, name := range []string{"frame", "frame_full"} {
		h := sampleFrames()[name]
		encoded := encodeFrame(b, h)
		b.Run("append/"+name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, wire.MaxHeader)
			for b.Loop() {
				if _, err := wire.AppendFrame(buf, &h); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("decode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			pieces := make([]transport.Piece, 0, transport.MaxPieces)
			for b.Loop() {
				if _, err := wire.DecodeFrame(encoded, wire.MaxPayload, pieces); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
