package facts

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// ErrDocument is returned for a document that is none of this version, or that
// cannot be.
var ErrDocument = errors.New("facts: unusable document")

// Kinds of models.
const (
	KindKV   = "kv"   // plain keys and values
	KindDSV4 = "dsv4" // DeepSeek-V4
)

// Facts is what a loaded model is. Zero and nil say that an engine cannot tell.
// It is data: copies share its maps, which nobody changes.
type Facts struct {
	Version int    `json:"version"`
	Kind    string `json:"kind,omitempty"`
	DType   string `json:"dtype,omitempty"` // BF16, F16, F32: of keys and values, or of DeepSeek-V4's rows

	Layers  int     `json:"layers,omitempty"`
	Hidden  int     `json:"hidden,omitempty"`
	Vocab   int     `json:"vocab,omitempty"`
	Heads   int     `json:"heads,omitempty"` // of queries
	KVHeads int     `json:"kv_heads,omitempty"`
	HeadDim int     `json:"head_dim,omitempty"`
	Window  int     `json:"window,omitempty"` // tokens
	Ratios  []int   `json:"ratios,omitempty"` // of DeepSeek-V4, by layer
	Eps     float64 `json:"eps,omitempty"`    // of the norms

	// Rope is the rotation of some layers, by the layer's number.
	Rope map[string]Rope `json:"rope,omitempty"`

	// Tensors are fingerprints of tensors that quantisation leaves alone.
	Tensors map[string]Tensor `json:"tensors,omitempty"`

	// Text is what the tokenizer makes of the probe text, Template the sha256 of the
	// chat template. Both are for information: prompts travel as ids.
	Text     *Text  `json:"text,omitempty"`
	Template string `json:"template,omitempty"`

	// Projection is of what makes DeepSeek-V4's blocks.
	Projection *Projection `json:"projection,omitempty"`

	// Unknown says of what is missing above why, by the field's name; "" is
	// everything.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// Rope is how a layer rotates, as it was seen to: cosines and sines of some pairs
// of features at some positions, any scale included. A layer that rotates nothing
// has no Dims.
type Rope struct {
	Dims  int    `json:"dims"`            // features that are rotated
	First int    `json:"first,omitempty"` // of them
	Pairs string `json:"pairs,omitempty"` // PairsHalves, PairsNeighbours

	Index []int       `json:"index,omitempty"` // pairs
	At    []int       `json:"at,omitempty"`    // positions, rising
	Cos   [][]float64 `json:"cos,omitempty"`   // by position and pair
	Sin   [][]float64 `json:"sin,omitempty"`
}

// How features are paired.
const (
	PairsHalves     = "halves"     // i with i + Dims/2
	PairsNeighbours = "neighbours" // 2i with 2i + 1
)

// Tensor is a tensor's fingerprint.
type Tensor struct {
	Shape []int     `json:"shape"`
	Hash  string    `json:"hash"`            // 16 hex digits: sha256 of its values, as FACTS.md writes them
	First []float64 `json:"first,omitempty"` // some values, for people
}

// Text is what a tokenizer makes of the probe text.
type Text struct {
	Hash  string `json:"hash"` // 16 hex digits: sha256 of the ids
	Count int    `json:"count"`
	First []int  `json:"first,omitempty"`
}

// Projection is what makes DeepSeek-V4's blocks of attention inputs: at the
// decoder its own weights, at a prefill host the exported ones.
type Projection struct {
	Layers []string        `json:"layers,omitempty"` // 16 hex digits for each
	Rope   map[string]Rope `json:"rope,omitempty"`   // of a prefill host: that of its kernels
}

// Parse reads a document. Unknown fields are skipped. The error Is ErrDocument.
func Parse(b []byte) (*Facts, error) {
	if len(b) > MaxSize {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrDocument, len(b), MaxSize)
	}
	var f Facts
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	return &f, nil
}

// Encode returns the document. The error Is ErrDocument.
func (f *Facts) Encode() ([]byte, error) {
	c := *f
	c.Version = Version
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	b, err := json.Marshal(&c)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	case len(b) > MaxSize:
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrDocument, len(b), MaxSize)
	}
	return b, nil
}

// check demands what every reader relies on.
func (f *Facts) check() error {
	if f.Version != Version {
		return fmt.Errorf("version %d, this program knows %d: both ends need the same release of pdlink", f.Version, Version)
	}
	if f.Kind != "" && f.Kind != KindKV && f.Kind != KindDSV4 {
		return fmt.Errorf("kind %.40q", f.Kind)
	}
	for _, n := range []int{f.Layers, f.Hidden, f.Vocab, f.Heads, f.KVHeads, f.HeadDim, f.Window} {
		if n < 0 || n > maxNumber {
			return fmt.Errorf("a number of %d", n)
		}
	}
	if f.Layers > maxLayers || len(f.Ratios) > maxLayers || len(f.Tensors) > maxTensors || len(f.Unknown) > maxTensors ||
		f.Eps < 0 || math.IsNaN(f.Eps) || len(f.DType) > maxText || len(f.Template) > maxText {
		return fmt.Errorf("%d layers, %d ratios, %d tensors, eps %v", f.Layers, len(f.Ratios), len(f.Tensors), f.Eps)
	}
	for name, t := range f.Tensors {
		if len(name) > maxText || len(t.Hash) != 16 || len(t.Shape) > 8 || len(t.First) > maxSamples {
			return fmt.Errorf("fingerprint of %.40q", name)
		}
	}
	if err := checkRopes(f.Rope); err != nil {
		return err
	}
	if t := f.Text; t != nil && (len(t.Hash) != 16 || len(t.First) > maxSamples) {
		return errors.New("fingerprint of the probe text")
	}
	if p := f.Projection; p != nil {
		if len(p.Layers) > maxLayers {
			return fmt.Errorf("projection of %d layers", len(p.Layers))
		}
		return checkRopes(p.Rope)
	}
	return nil
}

func checkRopes(ropes map[string]Rope) error {
	if len(ropes) > maxSamples {
		return fmt.Errorf("rotations of %d layers", len(ropes))
	}
	for layer, r := range ropes {
		if n, err := strconv.Atoi(layer); err != nil || n < 0 || n >= maxLayers {
			return fmt.Errorf("rotation of layer %.40q", layer)
		}
		if err := r.check(); err != nil {
			return fmt.Errorf("rotation of layer %s: %w", layer, err)
		}
	}
	return nil
}

func (r *Rope) check() error {
	if r.Dims < 0 || r.Dims > maxNumber || r.First < 0 || r.First > maxNumber || len(r.Index) > maxSamples || len(r.At) > maxSamples {
		return fmt.Errorf("%d features from %d, %d pairs at %d positions", r.Dims, r.First, len(r.Index), len(r.At))
	}
	if r.Dims == 0 {
		if len(r.Index)+len(r.At)+len(r.Cos)+len(r.Sin) > 0 {
			return errors.New("samples of no rotation")
		}
		return nil
	}
	if len(r.Index) == 0 || len(r.At) == 0 || len(r.Cos) != len(r.At) || len(r.Sin) != len(r.At) {
		return errors.New("no samples")
	}
	for i := range r.At {
		if len(r.Cos[i]) != len(r.Index) || len(r.Sin[i]) != len(r.Index) {
			return fmt.Errorf("%d samples of %d pairs", len(r.Cos[i]), len(r.Index))
		}
	}
	return nil
}
