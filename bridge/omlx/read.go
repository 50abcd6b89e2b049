package omlx

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pdlink/kernels/safetensors"
)

// Block is what a block file says about itself, verified. It is plain data and
// holds no open file.
type Block struct {
	Path string
	// Format is "2", "3", "4" or "5".
	Format string
	// Hash is the identity in the metadata.
	Hash  Hash
	Model string
	// Tokens covered by this block; fewer than BlockTokens for a tail block.
	Tokens int
	// BlockTokens is the decoder's block size; 0 if the file does not say.
	BlockTokens int
	// End is the number of prompt tokens up to this block's end, where a rotating
	// window tells it; otherwise 0.
	End int
	// Layers in model order.
	Layers []BlockLayer
	// Meta holds all metadata as it stands in the file.
	Meta map[string]string
	// Tensors in data order, and where the data region begins in the file.
	Tensors    []safetensors.Tensor
	DataOffset int64
}

// BlockLayer is one layer's stored state.
type BlockLayer struct {
	// Type is the cache class as the file spells it.
	Type string
	// Placeholder is true if the layer has no state at this block.
	Placeholder bool
	// States has one entry, or one for each member of a CacheList.
	States []BlockState
}

// BlockState is one cache object's stored state.
type BlockState struct {
	// Prefix of its tensor and metadata names.
	Prefix string
	// Class is the cache class by the layer's type or metas.
	Class string
	// Ratio is a pool's compression ratio.
	Ratio int
	// Delta is true if the pool holds only the rows [Start, End).
	Delta      bool
	Start, End int64
	Elements   []Element
}

// ElementKind says how an element is stored.
type ElementKind int

// The kinds of element.
const (
	ElementArray   ElementKind = iota // a tensor
	ElementNone                       // absent; its tensor is a placeholder
	ElementZeroDim                    // an array without values; likewise
	ElementNested                     // composite; has Nested and no tensor
)

// Element is one element of a state.
type Element struct {
	Name   string
	Kind   ElementKind
	Tensor safetensors.Tensor
	// Shape is the true shape: the tensor's, or the recorded one of an array
	// without values.
	Shape  []int64
	Nested []Element
}

// ReadBlock reads and verifies the structure of a block file of format 2 to 5:
// the container strictly, the name against the recorded hash, every metadata key
// that describes data, and that every tensor is accounted for. Values are not
// read, apart from the row ranges of pool deltas.
//
// Errors: ErrBlock with the reason, those of safetensors.Open, or the file
// system's.
func ReadBlock(path string) (*Block, error) {
	b, err := readBlock(path)
	if err != nil {
		return nil, err
	}
	if want := b.Hash.String() + blockSuffix; filepath.Base(path) != want {
		return nil, fmt.Errorf("read block %s: %w: recorded hash wants the name %s", path, ErrBlock, want)
	}
	return b, nil
}

// openBlock opens a block file; a header that no block has is not read.
func openBlock(path string) (*safetensors.File, error) {
	return safetensors.OpenLimited(path, maxHeaderBytes)
}

// readBlock is ReadBlock without the check of the name.
func readBlock(path string) (*Block, error) {
	f, err := openBlock(path)
	if err != nil {
		return nil, fmt.Errorf("read block: %w", err)
	}
	b, err := parseBlock(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read block %s: %w", path, err)
	}
	b.Path = path
	return b, nil
}

// blockReader takes a file's metadata and tensors apart and notes what was used.
type blockReader struct {
	f     *safetensors.File
	meta  map[string]string
	block *Block
	keys  map[string]struct{} // metadata keys accounted for
	names map[string]struct{} // tensors accounted for
}

// damaged returns ErrBlock with a reason.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBlock, fmt.Sprintf(format, args...))
}

func parseBlock(f *safetensors.File) (*Block, error) {
	r := &blockReader{
		f: f, meta: f.Metadata(), keys: make(map[string]struct{}), names: make(map[string]struct{}),
		block: &Block{Tensors: f.Tensors(), DataOffset: f.DataOffset()},
	}
	r.block.Meta = r.meta
	layers, err := r.identity()
	if err != nil {
		return nil, err
	}
	types, metas, err := r.lists(layers)
	if err != nil {
		return nil, err
	}
	for i := range types {
		l, err := r.layer(i, types[i], metas[i])
		if err != nil {
			return nil, err
		}
		r.block.Layers = append(r.block.Layers, l)
	}
	return r.block, r.leftovers()
}

// identity reads the keys that say what the block is; it returns the layer count.
func (r *blockReader) identity() (layers int, err error) {
	b := r.block
	b.Format = r.meta[keyFormat]
	if !slices.Contains([]string{"2", Format3, Format4, Format5}, b.Format) {
		return 0, damaged("format version %q is not 2, 3, 4 or 5", b.Format)
	}
	if b.Hash, err = ParseHash(r.meta[keyHash]); err != nil {
		return 0, err
	}
	if b.Model = r.meta[keyModel]; b.Model == "" {
		return 0, damaged("no %s: decoders drop the whole hit when they restore it", keyModel)
	}
	if b.Tokens, err = r.number(keyTokens, maxBlockTokens); err != nil {
		return 0, err
	}
	if _, ok := r.meta[keyBlockSize]; ok {
		if b.BlockTokens, err = r.number(keyBlockSize, maxBlockTokens); err != nil {
			return 0, err
		}
		if b.Tokens > b.BlockTokens {
			return 0, damaged("%d tokens in a block of %d", b.Tokens, b.BlockTokens)
		}
	}
	return r.number(keyLayers, maxLayers)
}

// number reads a required decimal key with a value in 1..limit.
func (r *blockReader) number(key string, limit int) (int, error) {
	r.keys[key] = struct{}{}
	text, ok := r.meta[key]
	if !ok {
		return 0, damaged("no %s", key)
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 1 || v > limit || strconv.Itoa(v) != text {
		return 0, damaged("%s %q is not a decimal in 1..%d", key, text, limit)
	}
	return v, nil
}

// lists reads the two per-layer lists.
func (r *blockReader) lists(layers int) ([]string, []json.RawMessage, error) {
	var types []string
	var metas []json.RawMessage
	if err := json.Unmarshal([]byte(r.meta[keyTypes]), &types); err != nil {
		return nil, nil, damaged("%s: %v", keyTypes, err)
	}
	if err := json.Unmarshal([]byte(r.meta[keyMetas]), &metas); err != nil {
		return nil, nil, damaged("%s: %v", keyMetas, err)
	}
	if len(types) != layers || len(metas) != layers {
		return nil, nil, damaged("%d types and %d metas for %d layers", len(types), len(metas), layers)
	}
	return types, metas, nil
}

// leftovers refuses tensors and per-layer keys that nothing refers to.
func (r *blockReader) leftovers() error {
	for _, t := range r.block.Tensors {
		if _, ok := r.names[t.Name]; !ok {
			return damaged("tensor %s belongs to nothing", t.Name)
		}
	}
	for _, key := range r.f.MetadataKeys() {
		if _, ok := r.keys[key]; !ok && strings.HasPrefix(key, "layer_") && key != keyTypes && key != keyMetas {
			return damaged("metadata %s belongs to nothing", key)
		}
	}
	return nil
}

// get returns an optional key and notes that it is accounted for.
func (r *blockReader) get(key string) (string, bool) {
	v, ok := r.meta[key]
	if ok {
		r.keys[key] = struct{}{}
	}
	return v, ok
}

// tensor returns a required tensor that no other element uses.
func (r *blockReader) tensor(name string) (safetensors.Tensor, error) {
	t, ok := r.f.Tensor(name)
	if !ok {
		return t, damaged("tensor %s is missing", name)
	}
	if _, used := r.names[name]; used {
		return t, damaged("tensor %s is used twice", name)
	}
	r.names[name] = struct{}{}
	return t, nil
}
