package prefill

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"maps"
	"math"
	"slices"
	"strconv"

	"pdlink/bridge/facts"
	"pdlink/kernels"
)

// errChanged is returned for weights that are not those which were fingerprinted.
var errChanged = errors.New("prefill: weights have changed")

// Facts fingerprints the weights, all of which are read, and tells how the kernels
// rotate. Errors: those of reading the weights.
func (p *Projection) Facts() (*facts.Projection, error) {
	return factsOf(p.Geometry, func(layer int) (string, error) {
		l, err := p.Weights.Layer(layer)
		if err != nil {
			return "", err
		}
		return layerHash(p.Geometry, layer, l), nil
	})
}

// factsOf puts together the facts of a projection whose layers have these hashes.
func factsOf(g kernels.Geometry, hash func(layer int) (string, error)) (*facts.Projection, error) {
	out := &facts.Projection{Rope: ropesOf(g)}
	for i := range g.Layers() {
		h, err := hash(i)
		if err != nil {
			return nil, err
		}
		out.Layers = append(out.Layers, h)
	}
	return out, nil
}

// ropesOf is how the kernels rotate what they make.
func ropesOf(g kernels.Geometry) map[string]facts.Rope {
	out := make(map[string]facts.Rope)
	for _, i := range facts.SampledLayers(g.Layers(), g.Ratios) {
		out[strconv.Itoa(i)] = facts.RopeOf(g.HeadDim-g.RopeDim, facts.PairsNeighbours, g.InverseFrequencies(g.Ratios[i] != 0))
	}
	return out
}

// layerHash is the hash of one layer's weights that FACTS.md defines.
func layerHash(g kernels.Geometry, layer int, l kernels.LayerWeights) string {
	tensors := map[string]func(*tensorHash){
		"wkv.weight": bf16Tensor(l.KV, g.HeadDim, g.Hidden), "kv_norm.weight": bf16Tensor(l.Norm, g.HeadDim),
	}
	pool := func(name string, p kernels.PoolWeights) {
		if len(p.Norm) == 0 {
			return
		}
		tensors[name+".wkv.weight"] = bf16Tensor(p.KV, len(p.KV)/g.Hidden, g.Hidden)
		tensors[name+".wgate.weight"] = bf16Tensor(p.Gate, len(p.Gate)/g.Hidden, g.Hidden)
		tensors[name+".ape"] = f32Tensor(p.APE, g.Ratios[layer], len(p.APE)/g.Ratios[layer])
		tensors[name+".norm.weight"] = bf16Tensor(p.Norm, len(p.Norm))
	}
	pool("comp", l.Comp)
	pool("idx", l.Index)
	h := tensorHash{sum: sha256.New(), buf: make([]byte, 0, hashChunk)}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		h.sum.Write([]byte(name))
		tensors[name](&h)
	}
	return hex.EncodeToString(h.sum.Sum(nil)[:8])
}

// tensorHash hashes tensors a chunk at a time. A hash takes everything, so nothing fails.
type tensorHash struct {
	sum hash.Hash
	buf []byte // scratch: a chunk; what makes one leaves it empty
}

// head hashes what stands in front of a tensor's bytes, behind its name.
func (h *tensorHash) head(dtype string, dims []int) {
	b := append(append(h.buf, ' '), dtype...)
	for i, n := range dims {
		b = strconv.AppendInt(append(b, " ,"[min(i, 1)]), int64(n), 10)
	}
	h.sum.Write(append(b, '\n'))
}

// bf16Tensor hashes a tensor as FACTS.md wants it, behind its name.
func bf16Tensor(values []uint16, dims ...int) func(*tensorHash) {
	return func(h *tensorHash) {
		h.head("BF16", dims)
		for part := range slices.Chunk(values, cap(h.buf)/2) {
			b := h.buf
			for _, v := range part {
				b = binary.LittleEndian.AppendUint16(b, v)
			}
			h.sum.Write(b)
		}
	}
}

// f32Tensor is bf16Tensor for floats.
func f32Tensor(values []float32, dims ...int) func(*tensorHash) {
	return func(h *tensorHash) {
		h.head("F32", dims)
		for part := range slices.Chunk(values, cap(h.buf)/4) {
			b := h.buf
			for _, v := range part {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
			h.sum.Write(b)
		}
	}
}
