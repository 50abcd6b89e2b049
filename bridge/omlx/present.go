package omlx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"pdlink/kernels/safetensors"
)

// examine looks at the file under a block's name: nil if it is this block with
// this layout, fs.ErrNotExist if there is none, ErrConflict with the difference
// if it is something else.
func (s *Store) examine(l *Layout, k int, h Hash) error {
	path := s.Path(h)
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file", ErrConflict, path)
	}
	f, err := safetensors.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, safetensors.ErrHeader) || errors.Is(err, safetensors.ErrLayout):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case err != nil:
		return err
	}
	diff := differs(f, l, k, h)
	if err := f.Close(); err != nil {
		return err
	}
	if diff != "" {
		return fmt.Errorf("%w: %s: %s", ErrConflict, path, diff)
	}
	return nil
}

// differs compares a file's structure with what the layout would write and
// returns the first difference; empty if there is none. The time of writing and
// keys that the layout does not know may differ.
func differs(f *safetensors.File, l *Layout, k int, h Hash) string {
	want, got := l.Tensors(k), f.Tensors()
	if len(want) != len(got) {
		return fmt.Sprintf("%d tensors, want %d", len(got), len(want))
	}
	for i := range want {
		w, g := &want[i], &got[i]
		if w.Name != g.Name || w.DType != g.DType || !slices.Equal(w.Shape, g.Shape) {
			return fmt.Sprintf("tensor %d is %s %s %v, want %s %s %v", i, g.Name, g.DType, g.Shape, w.Name, w.DType, w.Shape)
		}
	}
	meta := f.Metadata()
	for _, kv := range l.metadata(k, h, "0.0") {
		if v, ok := meta[kv.Key]; kv.Key != keyCreated && (!ok || v != kv.Value) {
			return fmt.Sprintf("metadata %s is %.200q, want %.200q", kv.Key, v, kv.Value)
		}
	}
	return ""
}
