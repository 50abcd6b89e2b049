package prefill

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pdlink/transport"
)

var update = flag.Bool("update", false, "write the golden file")

// goldenMessage is a message in testdata/golden.json: its fields by the names of
// PROTOCOL.md, ids in hex, and its bytes.
type goldenMessage struct {
	Name   string         `json:"name"`
	Type   int            `json:"type"`
	Code   int            `json:"code"`
	Handle int            `json:"handle"`
	Fields map[string]any `json:"fields"`
	Hex    string         `json:"hex"`
}

// goldenRecord is a record, with as many bytes as its list needs, or the ring's
// header.
type goldenRecord struct {
	Name   string `json:"name"`
	About  string `json:"about"`
	Prefix string `json:"hex"`
}

type goldenFile struct {
	Messages []goldenMessage `json:"messages"`
	Memory   []goldenRecord  `json:"memory"`
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func seqID(first byte) (id transport.ID) {
	for i := range id {
		id[i] = first + byte(i)
	}
	return id
}

// example is one message of each type.
type example struct {
	name   string
	typ    msgType
	code   code
	handle uint32
	body   fields
	fields map[string]any
}

func textOf(s string) *text { t := text(s); return &t }

func examples() []example {
	at := sealed(5)
	return []example{
		{"hello", typeHello, flagRing, 0, &hello{seqID(0x10), 1, 2, 2, span{3, 40}, span{4, 8}, 4321}, map[string]any{
			"instance": seqID(0x10).String(), "tp_rank": 1, "tp_size": 2, "local_workers": 2, "layer_first": 3, "layer_end": 40,
			"head_first": 4, "head_end": 8, "pid": 4321,
		}},
		{"welcome", typeWelcome, flagRing, 0, &welcome{seqID(0x20), 202907648, 192, 1052672, 790528, 4096, 250}, map[string]any{
			"ring_id": seqID(0x20).String(), "size": 202907648, "slots": 192, "slot_size": 1052672, "first_slot": 790528,
			"record_size": 4096, "max_wait_ms": 250,
		}},
		{"refuse", typeRefuse, codeDenied, 0, textOf("user 1000 is not accepted"), map[string]any{"text": "user 1000 is not accepted"}},
		{"begin", typeBegin, codeOK, 7, &begin{seqID(0x30), 1500, 256, modeRows, dtypeBF16, 1024, 0x1122334455667788}, map[string]any{
			"transfer": seqID(0x30).String(), "prompt_tokens": 1500, "first_token": 256, "mode": 2, "dtype": 1, "row_bytes": 1024,
			"layout": "1122334455667788",
		}},
		{"begun", typeBegun, codeOK, 7, &begun{kindDSV4, 40, 2048, 0, 20480000, span{0, 22}, 0x8877665544332211, 180, 32}, map[string]any{
			"kind": 2, "blocks": 40, "block_tokens": 2048, "from_token": 0, "block_bytes": 20480000, "layer_first": 0, "layer_end": 22,
			"layout": "8877665544332211", "arrays": 180, "max_leases": 32,
		}},
		{"begun_refused", typeBegun, codePlan, 8, nil, map[string]any{}},
		{"array", typeArray, codeOK, 7, &array{21, 3, 123456, 524288, 1024, 512, dtypeBF16, 179}, map[string]any{
			"layer": 21, "array": 3, "offset": 123456, "size": 524288, "row_bytes": 1024, "rows": 512, "dtype": 1, "index": 179,
		}},
		{"lease", typeLease, codeOK, 7, &lease{9, 2, 100}, map[string]any{"seq": 9, "block": 2, "wait_ms": 100}},
		{"leased", typeLeased, codeOK, 7, &leased{9, 17, 3, 1048576, notSealed}, map[string]any{
			"seq": 9, "slot": 17, "generation": 3, "room": 1048576, "sealed": notSealed,
		}},
		{"leased_late", typeLeased, codeLate, 7, &leased{Seq: 10, Sealed: 5}, map[string]any{
			"seq": 10, "slot": 0, "generation": 0, "room": 0, "sealed": 5,
		}},
		{"commit", typeCommit, codeOK, 7, &commit{17, 3, 2, 196608}, map[string]any{"slot": 17, "generation": 3, "entries": 2, "payload": 196608}},
		{"return", typeReturn, codeOK, 0, &commit{Slot: 18, Generation: 1}, map[string]any{"slot": 18, "generation": 1}},
		{"end", typeEnd, codeOK, 7, &end{1500, 1000000, 2000000, 3000000}, map[string]any{
			"tokens": 1500, "capture_ns": 1000000, "project_ns": 2000000, "wait_ns": 3000000,
		}},
		{"abort", typeAbort, codeFailed, 7, textOf("client went away"), map[string]any{"text": "client went away"}},
		{"sealed", typeSealed, codeMemory, 7, &at, map[string]any{"sealed": 5}},
		{"reclaim", typeReclaim, codeOK, 0, &reclaim{seqID(0x30), 1, 17, 3}, map[string]any{
			"transfer": seqID(0x30).String(), "seq": 1, "slot": 17, "generation": 3,
		}},
		{"facts", typeFacts, codeOK, 0, &factsBody{8123, factsForm, sha256.Sum256([]byte("facts"))}, map[string]any{
			"size": 8123, "form": 1, "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte("facts"))),
		}},
	}
}

// goldenMemory is a ring's header and records of both modes.
func goldenMemory(t *testing.T) []goldenRecord {
	g := geometry{4, 8192}
	r := &region{mem: make([]byte, g.size()), geometry: g, id: seqID(0x40)}
	r.format()
	pieces, list := r.record(1), make([]byte, 2*entrySize)
	if gen := pieces.lease(seqID(0x30), seqID(0x10), modePieces); gen != 1 {
		t.Errorf("generation %d", gen)
	}
	putPiece(list, transport.Piece{Block: 2, Length: 96, Offset: 4096, Sum: 0x1111})
	putPiece(list[entrySize:], transport.Piece{Block: 3, Length: 32, Offset: 0, Sum: 0x2222})
	pieces.take(seqID(0x30), list, 128, 1)
	leased := r.record(2)
	leased.lease(seqID(0x30), seqID(0x10), modeRows)
	x := rows{Layer: 5, Length: 2048, First: 300, Tokens: 4, What: whatV, Heads: span{2, 4}}
	x.put(leased.list())
	return []goldenRecord{
		{"ring_header", "4 slots of 8,192 bytes", hex.EncodeToString(r.mem[:48])},
		{"record_taken", "slot 1, first lease, 2 pieces, taken with made-up sums of algorithm 1", hex.EncodeToString(pieces[:recordHead+2*entrySize])},
		{"record_rows", "slot 2, first lease, a list of one entry: layer 5, v, tokens 300 to 303, heads 2 and 3", hex.EncodeToString(leased[:recordHead+entrySize])},
	}
}

func TestGolden(t *testing.T) {
	path := filepath.Join("testdata", "golden.json")
	file := goldenFile{Memory: goldenMemory(t)}
	seen := map[msgType]bool{}
	for _, x := range examples() {
		m := pack(x.typ, x.code, x.handle, x.body)
		p := m.appendTo(nil)
		file.Messages = append(file.Messages, goldenMessage{x.name, int(x.typ), int(x.code), int(x.handle), x.fields, hex.EncodeToString(p)})
		seen[x.typ] = true
		back, err := parseMessage(p)
		if err != nil || back != m {
			t.Fatalf("%s: read back as %+v, %v", x.name, back, err)
		}
		if x.body == nil {
			continue
		}
		again := fresh(t, x.body)
		if again.get(&back.body); !reflect.DeepEqual(again, x.body) {
			t.Errorf("%s: read back as %+v, want %+v", x.name, again, x.body)
		}
	}
	for typ := typeHello; typ < numTypes; typ++ {
		if !seen[typ] {
			t.Errorf("no example of type %d", typ)
		}
	}
	got, err := json.MarshalIndent(file, "", " ")
	must(t, err)
	got = append(got, '\n')
	if *update {
		must(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the bytes differ from testdata/golden.json: the protocol changed, or -update was forgotten")
	}
}

// TestRefusedPackets: what is no message of this version.
func TestRefusedPackets(t *testing.T) {
	m := pack(typeLease, 0, 7, &lease{1, 2, 3})
	good := m.appendTo(nil)
	change := func(at int, v byte) []byte {
		p := bytes.Clone(good)
		p[at] = v
		return p
	}
	for name, p := range map[string][]byte{
		"short": good[:63], "long": append(bytes.Clone(good), 0), "empty": nil, "magic": change(0, 'Q'),
		"type 0": change(5, 0), "type 15": change(5, byte(numTypes)),
	} {
		if _, err := parseMessage(p); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var v versionError
	if _, err := parseMessage(change(4, 2)); !errors.As(err, &v) || v != 2 || !strings.Contains(err.Error(), "install the same release") {
		t.Errorf("version: %v", err)
	}
	if _, err := parseMessage(good); err != nil {
		t.Error(err)
	}
}

// TestTexts: a worker's words cannot forge a log.
func TestTexts(t *testing.T) {
	long := strings.Repeat("x", 60)
	for in, want := range map[string]string{
		"plain": "plain", "two\nlines\x1b[0m": "two?lines?[0m", "schön": "sch?n", long: long[:48], "": "",
	} {
		m := pack(typeAbort, codeFailed, 1, textOf(in))
		var got text
		if got.get(&m.body); string(got) != want {
			t.Errorf("%q read as %q, want %q", in, got, want)
		}
	}
	var raw [bodySize]byte
	copy(raw[:], "a\x00b\x00\x00")
	var got text
	if got.get(&raw); got != "a?b" {
		t.Errorf("%q", got)
	}
}

func FuzzMessage(f *testing.F) {
	for _, x := range examples() {
		m := pack(x.typ, x.code, x.handle, x.body)
		f.Add(m.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := parseMessage(p)
		if err != nil {
			return
		}
		again, err := parseMessage(m.appendTo(nil))
		if err != nil || again != m {
			t.Fatalf("%+v read back as %+v, %v", m, again, err)
		}
		for _, x := range examples() {
			if x.typ != m.typ || x.body == nil {
				continue
			}
			first, second := fresh(t, x.body), fresh(t, x.body)
			first.get(&m.body)
			packed := pack(m.typ, m.code, m.handle, first)
			if second.get(&packed.body); !reflect.DeepEqual(first, second) {
				t.Fatalf("fields %+v come back as %+v", first, second)
			}
		}
	})
}

// fresh returns a new value of the type of f.
func fresh(tb testing.TB, f fields) fields {
	n, ok := reflect.New(reflect.TypeOf(f).Elem()).Interface().(fields)
	if !ok {
		tb.Fatalf("%T", f)
	}
	return n
}
