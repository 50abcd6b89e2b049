package omlx

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"pdlink/kernels/safetensors"
)

// examine looks at the file under a block's name: nil if it is this block with
// this layout, fs.ErrNotExist if there is none, ErrConflict with the difference
// if it is something else or may not be read by this account.
func (s *Store) examine(l *Layout, k int, h Hash) error {
	path := s.Path(h)
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file", ErrConflict, path)
	}
	f, err := openBlock(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, safetensors.ErrHeader) || errors.Is(err, safetensors.ErrLayout):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w (it belongs to another account: let this one read it)", ErrConflict, err)
	case err != nil:
		return err
	}
	err = sameBlock(f, path, l, k, h)
	return errors.Join(err, f.Close())
}

// sameBlock returns ErrConflict with the first difference if a file's structure
// is not that of the layout's block k.
func sameBlock(f *safetensors.File, path string, l *Layout, k int, h Hash) error {
	for _, d := range differences(l.Tensors(k), l.metadata(k, h, "0.0"), f.Tensors(), f.Metadata()) {
		if !d.Warn {
			return fmt.Errorf("%w: %s: %s", ErrConflict, path, d.Detail)
		}
	}
	return nil
}

// differences compares a file's structure with a wanted one and is the only place
// that says what makes two the same. Errors are what a decoder would stumble over:
// tensors, of which the first that differs is named, and metadata, in the order of
// want. Warnings are what no reader looks at: keys beyond the wanted ones, and a
// created_at on one side only; its value never counts.
func differences(want []safetensors.Tensor, wantMeta []safetensors.KV, got []safetensors.Tensor, gotMeta map[string]string) []Finding {
	var f findings
	if len(want) != len(got) {
		f.fail("tensors", "%d tensors, not %d", len(got), len(want))
	}
	for i := range min(len(want), len(got)) {
		w, g := &want[i], &got[i]
		if w.Name != g.Name || w.DType != g.DType || !slices.Equal(w.Shape, g.Shape) {
			f.fail("tensors", "tensor %d is %s %s %v, not %s %s %v", i, g.Name, g.DType, g.Shape, w.Name, w.DType, w.Shape)
			break
		}
	}
	wanted := make(map[string]struct{}, len(wantMeta))
	for _, kv := range wantMeta {
		wanted[kv.Key] = struct{}{}
		switch v, ok := gotMeta[kv.Key]; {
		case !ok && kv.Key == keyCreated:
			f.warn("metadata", "metadata %s is missing", kv.Key)
		case !ok:
			f.fail("metadata", "metadata %s is missing", kv.Key)
		case v != kv.Value && kv.Key != keyCreated:
			f.fail("metadata", "metadata %s is %.200q, not %.200q", kv.Key, v, kv.Value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(gotMeta)) {
		if _, ok := wanted[key]; !ok {
			f.warn("metadata", "metadata %s is extra", key)
		}
	}
	return f
}
