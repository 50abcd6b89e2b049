package wire_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pdlink/transport"
	"pdlink/transport/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares b with a file of hex digits, 16 bytes a line, and returns the
// file's bytes.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	if *update {
		var text strings.Builder
		for at := 0; at < len(b); at += 16 {
			fmt.Fprintf(&text, "%x\n", b[at:min(at+16, len(b))])
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("%s: encoded\n%x\nwant\n%x", name, b, want)
	}
	return want
}

func seqID(first byte) (id transport.ID) {
	for i := range id {
		id[i] = first + byte(i)
	}
	return id
}

func seqProof(first byte) (proof [wire.ProofSize]byte) {
	for i := range proof {
		proof[i] = first + byte(i)
	}
	return proof
}

func samplePieces() []transport.Piece {
	return []transport.Piece{
		{Block: 7, Length: 3, Offset: 0x1122334455, Sum: 0x0102030405060708},
		{Block: 8, Length: 5, Offset: 0, Sum: 0xfffefdfcfbfaf9f8},
	}
}

// sampleMessages has every message type at least once, by golden file's name.
func sampleMessages() map[string]wire.Message {
	return map[string]wire.Message{
		"hello": &wire.Hello{
			Major: 1, Minor: 2, Boot: seqID(0x10), Epoch: 0x01020304, MaxPayload: 1 << 20, MaxMeta: 16 << 20, Lanes: 4,
			Token: seqID(0x40), Name: "spark-1 ü", Sums: []string{"xxh3-64", "crc32c"}, Features: []string{"tunnel"},
		},
		"hello_least": &wire.Hello{Major: 1, Boot: seqID(1), MaxPayload: wire.MinPayload, Lanes: 1, Sums: []string{"none"}},
		"lane_hello":  &wire.LaneHello{Token: seqID(0x40), Lane: 3},
		"lane_ok":     &wire.LaneOK{Lane: 3},
		"lane_hello_proof": &wire.LaneHello{
			Token: seqID(0x40), Lane: 3, Proof: seqProof(0x60),
		},
		"lane_ok_proof": &wire.LaneOK{Lane: 3, Proof: seqProof(0x80)},
		"bye":           &wire.Bye{Reason: "done"},
		"ping":          &wire.Ping{Token: 0x1122334455667788},
		"pong":          &wire.Pong{Token: 0xa1a2a3a4a5a6a7a8},
		"open": &wire.Open{
			Handle: 5, ID: seqID(0x20), Part: 1, Parts: 2, Replayable: true, Kind: "omlx/dsv4", Meta: []byte("{plan}"),
		},
		"open_least":    &wire.Open{ID: seqID(1), Parts: 1, Meta: []byte{}},
		"admit":         &wire.Admit{Handle: 5, Window: 16, Meta: []byte("yes")},
		"refuse":        &wire.Refuse{Handle: 5, Code: transport.RefuseBusy, Reason: "no slot"},
		"grant":         &wire.Grant{Handle: 5, Epoch: 0x01020304, Total: 0x1122334455667788},
		"ack":           &wire.Ack{Handle: 5, Ranges: []wire.BlockRange{{First: 0, Count: 3}, {First: 1<<32 - 1, Count: 1}}},
		"nack":          &wire.Nack{Handle: 5, Seq: 9, Pieces: samplePieces()},
		"flush":         &wire.Flush{Handle: 5, Token: 0xa1a2a3a4a5a6a7a8, Frames: 10},
		"flushed":       &wire.Flushed{Handle: 5, Token: 0xa1a2a3a4a5a6a7a8, More: true, Missing: samplePieces()},
		"flushed_clean": &wire.Flushed{Handle: 5, Token: 1, Missing: []transport.Piece{}},
		"finish":        &wire.Finish{Handle: 5, Frames: 11},
		"result":        &wire.Result{Handle: 5, Meta: []byte("complete")},
		"link":          &wire.Link{Of: wire.FirstLink, Body: []byte("queue pairs")},
		"cancel":        &wire.Cancel{Handle: 5, FromOpener: true, Reason: "client went away"},
	}
}

func TestGoldenMessages(t *testing.T) {
	seen := map[wire.Type]bool{}
	for name, m := range sampleMessages() {
		t.Run(name, func(t *testing.T) {
			b, err := wire.Append(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			got, err := wire.Decode(golden(t, name, b))
			if err != nil {
				t.Fatal(err)
			}
			if got.Type() != m.Type() || !reflect.DeepEqual(normal(got), normal(m)) {
				t.Errorf("decoded %+v, want %+v", got, m)
			}
			n, typ, err := wire.ControlLength(b[:wire.ControlPrefix])
			if err != nil || n != len(b)-wire.ControlPrefix || typ != m.Type() {
				t.Errorf("ControlLength = %d, %v, %v", n, typ, err)
			}
		})
		seen[m.Type()] = true
	}
	for i := range 256 {
		typ := wire.Type(i)
		if typ.OfLink() && typ != wire.FirstLink {
			continue // all of them have one form
		}
		if known := !strings.HasPrefix(typ.String(), "type "); known != seen[typ] {
			t.Errorf("%v: known %v, has a golden file %v", typ, known, seen[typ])
		}
	}
}

// normal makes lists comparable: no list and an empty one say the same.
func normal(m wire.Message) wire.Message {
	v := reflect.New(reflect.TypeOf(m).Elem())
	v.Elem().Set(reflect.ValueOf(m).Elem())
	for i := range v.Elem().NumField() {
		if f := v.Elem().Field(i); f.Kind() == reflect.Slice && f.Len() == 0 {
			f.SetZero()
		}
	}
	return v.Interface().(wire.Message)
}

func sampleFrames() map[string]wire.FrameHeader {
	full := make([]transport.Piece, transport.MaxPieces)
	for i := range full {
		full[i] = transport.Piece{Block: uint32(i), Length: uint32(i + 1), Offset: uint64(i) << 32, Sum: ^uint64(i)}
	}
	return map[string]wire.FrameHeader{
		"frame":        {Handle: 5, Epoch: 0x01020304, Seq: 0x1122334455667788, Payload: 8, Pieces: samplePieces()},
		"frame_repeat": {Payload: 1, Repeat: true, Pieces: []transport.Piece{{Length: 1, Offset: 1<<64 - 2}}},
		"frame_full":   {Handle: 1, Seq: 1, Payload: 126 * 127 / 2, Pieces: full},
	}
}

func TestGoldenFrames(t *testing.T) {
	for name, h := range sampleFrames() {
		t.Run(name, func(t *testing.T) {
			b, err := wire.AppendFrame([]byte("before"), &h)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(b, []byte("before")) {
				t.Error("what was in dst is gone")
			}
			b = golden(t, name, bytes.TrimPrefix(b, []byte("before")))
			n, payload, err := wire.FrameLength(b[:wire.FixedHeader], wire.MaxPayload)
			if err != nil || n != len(b) || payload != int(h.Payload) {
				t.Errorf("FrameLength = %d, %d, %v", n, payload, err)
			}
			// A slot's header room is longer than the header.
			room := append(bytes.Clone(b), "garbage"...)
			got, err := wire.DecodeFrame(room, int(h.Payload), nil)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, h) {
				t.Errorf("decoded %+v, want %+v", got, h)
			}
		})
	}
}

// TestLiteralBytes states a few encodings by hand, so that the golden files
// cannot follow a mistake.
func TestLiteralBytes(t *testing.T) {
	grant, err := wire.AppendGrant(nil, &wire.Grant{Handle: 5, Epoch: 6, Total: 0x0807})
	if err != nil {
		t.Fatal(err)
	}
	if want := "10000000" + "13" + "00" + "0000" + "08379474" + "82e071bf" + "05000000" + "06000000" + "0708000000000000"; hex.EncodeToString(grant) != want {
		t.Errorf("grant %x, want %s", grant, want)
	}
	ping, err := wire.AppendPing(nil, &wire.Ping{Token: 0x0807})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(ping); got[:16]+got[32:] != "08000000"+"05"+"00"+"0000"+"0708000000000000" {
		t.Errorf("ping %s", got)
	}
	pong, err := wire.AppendPong(nil, &wire.Pong{Token: 0x0807})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(pong); got[:16]+got[32:] != "08000000"+"06"+"00"+"0000"+"0708000000000000" {
		t.Errorf("pong %s", got)
	}
	lane, err := wire.AppendLaneHello(nil, &wire.LaneHello{Token: seqID(0x40), Lane: 7, Proof: seqProof(0x60)})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(lane); got[:16]+got[32:] != "36000000"+"02"+"00"+"0000"+"50444c4b"+"404142434445464748494a4b4c4d4e4f"+"0700"+
		"606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f" {
		t.Errorf("lane hello %s", got)
	}
	frame, err := wire.AppendFrame(nil, &wire.FrameHeader{
		Handle: 5, Epoch: 6, Seq: 7, Payload: 2, Repeat: true,
		Pieces: []transport.Piece{{Block: 1, Length: 2, Offset: 3, Sum: 4}},
	})
	if err != nil {
		t.Fatal(err)
	}
	fixed := "50444c46" + "01" + "01" + "0100" + "05000000" + "06000000" + "0700000000000000" + "02000000" + "0100" + "0000" +
		strings.Repeat("00", 16)
	list := "01000000" + "02000000" + "0300000000000000" + "0400000000000000" + "0000000000000000"
	if got := hex.EncodeToString(frame[:48]); got != fixed {
		t.Errorf("fixed part %s, want %s", got, fixed)
	}
	if got := hex.EncodeToString(frame[wire.FixedHeader:]); got != list {
		t.Errorf("piece list %s, want %s", got, list)
	}
	if wire.MaxHeader != transport.HeaderRoom {
		t.Errorf("MaxHeader %d, header room %d", wire.MaxHeader, transport.HeaderRoom)
	}
}
