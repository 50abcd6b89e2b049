package omlx

import (
	"encoding/binary"
	"errors"
	"math"

	"pdlink/kernels/safetensors"
)

// checkLayout compares names, types, shapes and metadata with a layout's.
func checkLayout(f *findings, b *Block, l *Layout) {
	k := 0
	if b.End > 0 {
		k = b.End/l.spec.BlockTokens - 1
	}
	if k < 0 || k >= maxBlocks {
		f.fail("layout", "ends at token %d: not at a block's end", b.End)
		return
	}
	for _, d := range differences(l.Tensors(k), l.metadata(k, b.Hash, "0.0"), b.Tensors, b.Meta) {
		if !d.Warn { // checkKeys has its own words for the others
			f.fail("layout", "%s", d.Detail)
		}
	}
}

// checkFinite reads all floating-point tensors; one finding per bad tensor.
func checkFinite(f *findings, b *Block) {
	file, err := openBlock(b.Path)
	if err != nil {
		f.fail("values", "%v", err)
		return
	}
	buf := make([]byte, readStep)
	for _, t := range file.Tensors() {
		test := notFinite(t.DType)
		if test == nil {
			continue
		}
		size := t.DType.Size()
		for at := t.Begin; at < t.End; {
			n := min(t.End-at, readStep)
			if got, err := file.ReadAt(buf[:n], at); int64(got) < n {
				f.fail("values", "read %s: %v", t.Name, err)
				break
			}
			if i := test(buf[:n]); i >= 0 {
				f.fail("values", "%s has NaN or infinity at element %d", t.Name, (at-t.Begin)/size+int64(i))
				break
			}
			at += n
		}
	}
	if err := errors.Join(file.Close()); err != nil {
		f.fail("values", "%v", err)
	}
}

// notFinite returns a function that finds the first NaN or infinity in a buffer
// of whole elements, -1 if there is none; nil for types without them.
func notFinite(d safetensors.DType) func([]byte) int {
	half := func(mask uint16) func([]byte) int {
		return func(p []byte) int {
			for i := 0; i+2 <= len(p); i += 2 {
				if binary.LittleEndian.Uint16(p[i:])&mask == mask {
					return i / 2
				}
			}
			return -1
		}
	}
	switch d {
	case safetensors.BF16:
		return half(0x7f80)
	case safetensors.F16:
		return half(0x7c00)
	case safetensors.F32:
		return func(p []byte) int {
			for i := 0; i+4 <= len(p); i += 4 {
				if v := float64(math.Float32frombits(binary.LittleEndian.Uint32(p[i:]))); math.IsNaN(v) || math.IsInf(v, 0) {
					return i / 4
				}
			}
			return -1
		}
	}
	return nil
}
