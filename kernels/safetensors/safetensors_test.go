package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestByteSize(t *testing.T) {
	for _, c := range []struct {
		d     DType
		shape []int64
		want  int64
		err   error
	}{
		{BF16, []int64{1, 2, 3}, 12, nil},
		{F32, nil, 4, nil},
		{I64, []int64{2}, 16, nil},
		{U8, []int64{5}, 5, nil},
		{F32, []int64{math.MaxInt64, 0}, 0, ErrLayout},
		{F32, []int64{0, 7}, 0, nil},
		{F32, []int64{-1}, 0, ErrLayout},
		{F32, []int64{1 << 31, 1 << 31, 2}, 0, ErrLayout},
		{"F4", []int64{2}, 0, ErrHeader},
	} {
		got, err := ByteSize(c.d, c.shape)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("ByteSize(%s, %v) = %d, %v; want %d, %v", c.d, c.shape, got, err, c.want, c.err)
		}
	}
}

const a4 = `"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`

func TestParseHeaderRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		data   int64
		want   error
		reason string
	}{
		"empty":              {``, 0, ErrHeader, "begin with"},
		"leading space":      {` {}`, 0, ErrHeader, "begin with"},
		"array":              {`[]`, 0, ErrHeader, "begin with"},
		"not utf8":           {"{\"\xff\":1}", 0, ErrHeader, "UTF-8"},
		"unterminated":       {`{`, 0, ErrHeader, "expected"},
		"trailing comma":     {`{` + a4 + `,}`, 4, ErrHeader, "expected"},
		"trailing garbage":   {`{` + a4 + `}x`, 4, ErrHeader, "after the object"},
		"trailing newline":   {`{` + a4 + "}\n", 4, ErrHeader, "after the object"},
		"duplicate tensor":   {`{` + a4 + `,` + a4 + `}`, 4, ErrHeader, "duplicate"},
		"escaped duplicate":  {`{` + a4 + `,"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4, ErrHeader, "duplicate"},
		"duplicate field":    {`{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4, ErrHeader, "duplicate"},
		"duplicate meta":     {`{"__metadata__":{"k":"1","k":"2"}}`, 0, ErrHeader, "duplicate"},
		"meta twice":         {`{"__metadata__":{},"__metadata__":{}}`, 0, ErrHeader, "duplicate"},
		"meta number":        {`{"__metadata__":{"k":1}}`, 0, ErrHeader, "expected"},
		"meta nul":           {`{"__metadata__":nul}`, 0, ErrHeader, "expected"},
		"tensor null":        {`{"a":null}`, 0, ErrHeader, "expected"},
		"unknown dtype":      {`{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}`, 4, ErrHeader, "unknown dtype"},
		"unknown field":      {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"y"}}`, 4, ErrHeader, "unknown field"},
		"missing field":      {`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4, ErrHeader, "of the fields"},
		"three offsets":      {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}`, 4, ErrHeader, "data offsets"},
		"float offset":       {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}}`, 4, ErrHeader, "expected"},
		"negative dimension": {`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4, ErrHeader, "non-negative"},
		"leading zero":       {`{"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}}`, 4, ErrHeader, "leading zero"},
		"integer overflow":   {`{"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}}`, 4, ErrHeader, "too large"},
		"lone surrogate":     {`{"__metadata__":{"\ud800":""}}`, 0, ErrHeader, "surrogate"},
		"bad pair":           {`{"__metadata__":{"\ud800\u0041":""}}`, 0, ErrHeader, "surrogate"},
		"control character":  {"{\"__metadata__\":{\"a\x01\":\"\"}}", 0, ErrHeader, "control"},
		"bad escape":         {`{"__metadata__":{"\x":""}}`, 0, ErrHeader, "escape"},
		"size mismatch":      {`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4, ErrLayout, "needs 8"},
		"shape overflow":     {`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}`, 4, ErrLayout, "overflows"},
		"ends early":         {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 4, ErrLayout, "hole"},
		"backwards":          {`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, 4, ErrLayout, "before it begins"},
		"hole at start":      {`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, ErrLayout, "hole"},
		"overlap":            {`{` + a4 + `,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, 6, ErrLayout, "overlaps"},
		"trailing bytes":     {`{` + a4 + `}`, 5, ErrLayout, "data has 5"},
		"short data":         {`{` + a4 + `}`, 3, ErrLayout, "data has 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHeader([]byte(c.header), c.data)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %v; want %v with %q", err, c.want, c.reason)
			}
		})
	}
}

func TestParseHeaderAccepts(t *testing.T) {
	h, err := ParseHeader([]byte(`{ "b" : {"shape":[2],"dtype":"BF16","data_offsets":[4,8]}, `+a4+
		`,"z":{"dtype":"I8","shape":[3,0],"data_offsets":[4,4]},"__metadata__":{"k\n":"\u00e9\ud83d\ude00\/","a":""}}   `), 8)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range h.Tensors {
		names = append(names, x.Name)
	}
	if got := strings.Join(names, ","); got != "a,z,b" {
		t.Errorf("data order %s", got)
	}
	if want := []KV{{"k\n", "é😀/"}, {"a", ""}}; !reflect.DeepEqual(h.Metadata, want) {
		t.Errorf("metadata %q", h.Metadata)
	}
	if h, err := ParseHeader([]byte(`{}`), 0); err != nil || h.Metadata != nil {
		t.Errorf("empty object: %v, %v", h, err)
	}
	if h, err := ParseHeader([]byte(`{"__metadata__": null,`+a4+`}`), 4); err != nil || h.Metadata != nil || len(h.Tensors) != 1 {
		t.Errorf("null metadata: %v, %v", h, err)
	}
}

func sample() ([]Tensor, []KV) {
	return []Tensor{
			{Name: "x", DType: BF16, Shape: []int64{1, 3}, Begin: 0, End: 6},
			{Name: "é", DType: F32, Shape: []int64{}, Begin: 6, End: 10},
		}, []KV{
			{"format", "3"}, {"text", "a\"b\\c/\x7f\x01\b\f\n\r\t€😀"},
		}
}

func TestEncodeHeader(t *testing.T) {
	tensors, meta := sample()
	got, err := EncodeHeader(tensors, meta)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"x":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]},"\u00e9":{"dtype":"F32","shape":[],"data_offsets":[6,10]},` +
		`"__metadata__":{"format":"3","text":"a\"b\\c/\u007f\u0001\b\f\n\r\t\u20ac\ud83d\ude00"}}`
	if n := binary.LittleEndian.Uint64(got); n != uint64(len(got)-8) || n%8 != 0 {
		t.Errorf("length field %d of %d bytes", n, len(got))
	}
	if text := strings.TrimRight(string(got[8:]), " "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	h, err := ParseHeader(got[8:], 10)
	if err != nil || !reflect.DeepEqual(h.Tensors, tensors) || !reflect.DeepEqual(h.Metadata, meta) {
		t.Errorf("round trip: %+v, %v", h, err)
	}
	var loose map[string]any
	if err := json.Unmarshal(got[8:], &loose); err != nil {
		t.Errorf("not JSON: %v", err)
	}
}

func TestEncodeHeaderRefuses(t *testing.T) {
	ok := Tensor{Name: "a", DType: F32, Shape: []int64{1}, Begin: 0, End: 4}
	with := func(f func(*Tensor)) []Tensor { x := ok; f(&x); return []Tensor{x} }
	for name, c := range map[string]struct {
		tensors []Tensor
		meta    []KV
		want    error
	}{
		"dtype":     {with(func(x *Tensor) { x.DType = "Q" }), nil, ErrHeader},
		"size":      {with(func(x *Tensor) { x.Shape = []int64{2} }), nil, ErrLayout},
		"start":     {with(func(x *Tensor) { x.Begin, x.End = 4, 8 }), nil, ErrLayout},
		"reserved":  {with(func(x *Tensor) { x.Name = metadataKey }), nil, ErrHeader},
		"utf8":      {with(func(x *Tensor) { x.Name = "\xff" }), nil, ErrHeader},
		"repeated":  {[]Tensor{ok, ok}, nil, ErrHeader},
		"order":     {[]Tensor{{Name: "b", DType: F32, Shape: []int64{1}, Begin: 4, End: 8}, ok}, nil, ErrLayout},
		"meta key":  {[]Tensor{ok}, []KV{{"k", ""}, {"k", ""}}, ErrHeader},
		"meta utf8": {[]Tensor{ok}, []KV{{"k", "\xff"}}, ErrHeader},
	} {
		if _, err := EncodeHeader(c.tensors, c.meta); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func sampleFile(t *testing.T) []byte {
	t.Helper()
	head, err := EncodeHeader(sample())
	if err != nil {
		t.Fatal(err)
	}
	return append(head, "0123456789"...)
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, sampleFile(t), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	x, ok := f.Tensor("é")
	buf := make([]byte, 4)
	if err := f.ReadTensor(x, buf); !ok || err != nil || string(buf) != "6789" {
		t.Errorf("read tensor: %q, %v", buf, err)
	}
	if err := f.ReadTensor(x, buf[:3]); err == nil {
		t.Error("wrong destination length accepted")
	}
	if n, err := f.ReadAt(buf, 8); n != 2 || !errors.Is(err, io.EOF) || string(buf[:2]) != "89" {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	if _, err := f.ReadAt(buf, 10); !errors.Is(err, io.EOF) {
		t.Errorf("read at the end: %v", err)
	}
	if _, err := f.ReadAt(buf, -1); err == nil {
		t.Error("negative offset accepted")
	}
	if f.Metadata()["format"] != "3" || f.MetadataKeys()[1] != "text" || f.DataLen() != 10 || len(f.Tensors()) != 2 {
		t.Error("accessors disagree with the file")
	}
	if _, ok := f.Tensor("y"); ok {
		t.Error("found a tensor that is not there")
	}
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	good := sampleFile(t)
	patch := func(n uint64) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint64(b, n)
		return b
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"empty":           {nil, ErrHeader},
		"seven bytes":     {good[:7], ErrHeader},
		"zero length":     {patch(0), ErrHeader},
		"length past end": {patch(uint64(len(good))), ErrHeader},
		"huge length":     {patch(math.MaxUint64), ErrHeader},
		"over the limit":  {patch(MaxHeader + 1), ErrHeader},
		"cut in header":   {good[:40], ErrHeader},
		"one byte short":  {good[:len(good)-1], ErrLayout},
		"one byte more":   {append(bytes.Clone(good), 0), ErrLayout},
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !errors.Is(err, c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %v with the path", name, err, c.want)
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrHeader) {
		t.Errorf("directory: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

// sparse pretends to be a file of any size with a given beginning.
type sparse struct{ head []byte }

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(s.head)) {
		return 0, fmt.Errorf("read past the written part")
	}
	return copy(p, s.head[off:]), nil
}

func TestNewFileReportsReadErrors(t *testing.T) {
	head := make([]byte, 8)
	binary.LittleEndian.PutUint64(head, 64)
	if _, err := NewFile(sparse{head}, 1<<20); err == nil || errors.Is(err, ErrHeader) {
		t.Errorf("got %v; want the reader's own error", err)
	}
}

func FuzzParseHeader(f *testing.F) {
	head, err := EncodeHeader(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head[8:], int64(10))
	f.Add([]byte(`{`+a4+`}`), int64(4))
	f.Add([]byte(`{"__metadata__":{"a":"\ud83d\ude00"}}`), int64(0))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}`), int64(4))
	f.Fuzz(func(t *testing.T, header []byte, dataLen int64) {
		h, err := ParseHeader(header, dataLen)
		if err != nil {
			if !errors.Is(err, ErrHeader) && !errors.Is(err, ErrLayout) {
				t.Fatalf("error without a sentinel: %v", err)
			}
			return
		}
		out, err := EncodeHeader(h.Tensors, h.Metadata)
		if err != nil {
			t.Fatalf("accepted header does not encode: %v", err)
		}
		again, err := ParseHeader(out[8:], dataLen)
		if err != nil || !reflect.DeepEqual(h, again) {
			t.Fatalf("round trip differs: %v\n%+v\n%+v", err, h, again)
		}
	})
}
