package omlx

import (
	"bytes"
	"errors"
	"fmt"

	"pdlink/kernels/safetensors"
)

// Diff says how two block files differ.
type Diff struct {
	// Header holds the differences of the headers, the time of writing and the
	// padding apart: what the second file has, and what the first has instead.
	// Empty if there are none.
	Header []string
	// Tensor is the first tensor, in the first file, whose bytes differ, and
	// Offset the first differing byte in the data region; empty and -1 if none do.
	Tensor string
	Offset int64
	// Bytes is the number of bytes that differ; a difference in length counts too.
	Bytes int64
}

// Equal reports whether the files are the same block to the byte, the time of
// writing and the padding apart.
func (d Diff) Equal() bool { return len(d.Header) == 0 && d.Bytes == 0 }

// String returns "equal" or the differences in one line.
func (d Diff) String() string {
	if d.Equal() {
		return "equal"
	}
	s := ""
	for _, h := range d.Header {
		s += h + "; "
	}
	if d.Bytes > 0 {
		s += fmt.Sprintf("%d data bytes differ, the first at %d in %s; ", d.Bytes, d.Offset, d.Tensor)
	}
	return s[:len(s)-2]
}

// Compare compares two block files: headers as text except the value of
// created_at and the padding, data byte for byte. Both files are read whole in
// steps of 1 MiB. It fails if one cannot be read as a safetensors file.
func Compare(pathA, pathB string) (Diff, error) {
	a, err := openBlock(pathA)
	if err != nil {
		return Diff{}, fmt.Errorf("compare: %w", err)
	}
	b, err := openBlock(pathB)
	if err != nil {
		return Diff{}, errors.Join(fmt.Errorf("compare: %w", err), a.Close())
	}
	d := Diff{Header: compareHeaders(a, b), Offset: -1}
	err = d.compareData(a, b)
	return d, errors.Join(err, a.Close(), b.Close())
}

// timeless returns a header's text without the time of writing and the padding. It
// goes from string to string of the JSON, so that a key which only ends like the one
// that is looked for stays.
func timeless(f *safetensors.File) []byte {
	text := bytes.TrimRight(f.HeaderBytes(), " ")
	for at := 0; ; {
		i := bytes.IndexByte(text[at:], '"')
		if i < 0 {
			return text
		}
		key := at + i
		at = stringEnd(text, key)
		if string(text[key:at]) != `"`+keyCreated+`"` || !bytes.HasPrefix(text[at:], []byte(`:"`)) {
			continue
		}
		value := at + 1
		return append(bytes.Clone(text[:value]), text[stringEnd(text, value):]...)
	}
}

// stringEnd returns where the JSON string that begins at a quote ends.
func stringEnd(text []byte, at int) int {
	for at++; at < len(text) && text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return min(at+1, len(text))
}

// compareHeaders names what differs; if all parts agree and the text does not,
// it says so.
func compareHeaders(a, b *safetensors.File) []string {
	if bytes.Equal(timeless(a), timeless(b)) {
		return nil
	}
	var out []string
	for _, d := range differences(a.Tensors(), a.Header().Metadata, b.Tensors(), b.Metadata()) {
		out = append(out, d.Detail)
	}
	if out == nil {
		out = append(out, "header text differs in order or spelling")
	}
	return out
}

func (d *Diff) compareData(a, b *safetensors.File) error {
	x, y := make([]byte, readStep), make([]byte, readStep)
	both := min(a.DataLen(), b.DataLen())
	for at := int64(0); at < both; {
		n := min(both-at, readStep)
		if got, err := a.ReadAt(x[:n], at); int64(got) < n {
			return fmt.Errorf("compare: read first file: %w", err)
		}
		if got, err := b.ReadAt(y[:n], at); int64(got) < n {
			return fmt.Errorf("compare: read second file: %w", err)
		}
		if !bytes.Equal(x[:n], y[:n]) {
			d.count(x[:n], y[:n], at)
		}
		at += n
	}
	if rest := max(a.DataLen(), b.DataLen()) - both; rest > 0 {
		if d.Bytes += rest; d.Offset < 0 {
			d.Offset = both
		}
	}
	for _, t := range a.Tensors() {
		if d.Offset >= t.Begin && d.Offset < t.End {
			d.Tensor = t.Name
		}
	}
	return nil
}

func (d *Diff) count(x, y []byte, at int64) {
	for i := range x {
		if x[i] == y[i] {
			continue
		}
		if d.Bytes++; d.Offset < 0 {
			d.Offset = at + int64(i)
		}
	}
}
