package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// TestHeaderMemory parses headers that are made to cost memory: what is allocated
// stays below a small multiple of their text, refused or not.
func TestHeaderMemory(t *testing.T) {
	repeat := func(n int, head, tail string, item func(i int) string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(item(i))
		}
		return b.String() + tail
	}
	num := strconv.Itoa
	empty := func(i int) string {
		return `"` + strconv.FormatInt(int64(i), 36) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
	}
	entry := func(i int) string { return `"` + strconv.FormatInt(int64(i), 36) + `":""` }
	for name, c := range map[string]struct {
		header string
		reason string // empty: accepted
	}{
		"one long shape":   {repeat(1<<18, `{"a":{"dtype":"U8","data_offsets":[0,0],"shape":[`, `]}}`, func(int) string { return "0" }), "more than 16 numbers"},
		"many offsets":     {repeat(1<<18, `{"a":{"dtype":"U8","shape":[0],"data_offsets":[`, `]}}`, func(int) string { return "0" }), "more than 16 numbers"},
		"many tensors":     {repeat(maxTensors, `{`, `}`, empty), ""},
		"too many tensors": {repeat(maxTensors+9, `{`, `}`, empty), "more than 262145 keys"},
		"many entries":     {repeat(maxMetadata, `{"__metadata__":{`, `}}`, entry), ""},
		"too many entries": {repeat(2*maxMetadata, `{"__metadata__":{`, `}}`, entry), "more than 65536 keys"},
		"long value":       {`{"__metadata__":{"a":"` + strings.Repeat("x", 8<<20) + `"}}`, ""},
		"long escapes":     {`{"__metadata__":{"a":"` + strings.Repeat(`\n`, 4<<20) + `"}}`, ""},
		"long name":        {`{"` + strings.Repeat("x", 8<<20) + `":{"dtype":"U8","shape":[1],"data_offsets":[0,0]}}`, "needs 1"},
		"long dtype":       {`{"a":{"dtype":"` + strings.Repeat("x", 8<<20) + `"}}`, "unknown dtype"},
		"long field":       {`{"a":{"` + strings.Repeat("x", 8<<20) + `":1}}`, "unknown field"},
		"long duplicate":   {`{"` + strings.Repeat("x", 4<<20) + `":` + empty(0)[4:] + `,"` + strings.Repeat("x", 4<<20) + `":1}`, "duplicate"},
		"many shapes": {repeat(60_000, `{`, `}`, func(i int) string {
			return `"` + num(i) + `":{"dtype":"U8","shape":[0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,0]}`
		}), ""},
	} {
		raw := []byte(c.header)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ParseHeader(raw, 0)
		runtime.ReadMemStats(&after)
		if c.reason == "" && err != nil || c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)) {
			t.Errorf("%s: %v; want %q", name, err, c.reason)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 12*uint64(len(raw))+32<<20 {
			t.Errorf("%s: %d bytes allocated for a header of %d", name, got, len(raw))
		} else {
			t.Logf("%s: %.1f bytes a byte", name, float64(got)/float64(len(raw)))
		}
	}
}

func TestDimensions(t *testing.T) {
	shape := make([]int64, maxDims+1)
	for i := range shape {
		shape[i] = 1
	}
	most := []Tensor{{Name: "a", DType: U8, Shape: shape[:maxDims], Begin: 0, End: 1}}
	head, err := EncodeHeader(most, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := ParseHeader(head[8:], 1); err != nil || len(h.Tensors[0].Shape) != maxDims {
		t.Errorf("%v, %v", h, err)
	}
	most[0].Shape = shape
	if _, err := EncodeHeader(most, nil); !errors.Is(err, ErrHeader) {
		t.Errorf("one dimension too many: %v", err)
	}
	if _, err := EncodeHeader(nil, make([]KV, maxMetadata+1)); !errors.Is(err, ErrHeader) {
		t.Errorf("one entry too many: %v", err)
	}
}

func TestOpenLimited(t *testing.T) {
	data := sampleFile(t)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	n := int64(binary.LittleEndian.Uint64(data))
	for limit, want := range map[int64]error{n: nil, n + 1: nil, 2 * MaxHeader: nil, n - 1: ErrHeader, 0: ErrHeader, -1: ErrHeader} {
		f, err := OpenLimited(path, limit)
		if !errors.Is(err, want) {
			t.Errorf("limit %d of %d: %v", limit, n, err)
		}
		if err == nil {
			f.Close()
		}
	}
	// The limit of the format stays.
	long := bytes.Clone(data)
	binary.LittleEndian.PutUint64(long, MaxHeader+1)
	if err := os.WriteFile(path, long, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLimited(path, 1<<40); !errors.Is(err, ErrHeader) || !strings.Contains(err.Error(), "100000000") {
		t.Error(err)
	}
}
