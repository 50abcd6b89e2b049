package omlx

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"pdlink/kernels/safetensors"
)

// Kinds of layout.
const (
	KindKV    = "kv"   // plain attention: keys and values per layer
	KindDSV4  = "dsv4" // DeepSeek-V4: windows and compressed pools
	overlap   = 4      // the compression ratio whose windows overlap and that has an indexer
	poolDType = safetensors.BF16
)

// Block file formats that can be written.
const (
	Format3 = "3" // pools cumulative
	Format4 = "4" // pools as deltas, recurrent state embedded
	Format5 = "5" // pools as deltas, split layout
)

// Payload layout labels.
const (
	LayoutEmbedded = "embedded"
	LayoutSplit    = "split_recurrent_v1"
	LayoutNone     = "none" // write no label
)

// Settings of Options fields that depend on the format by default.
const (
	Auto = ""    // what the format's usual writer does
	On   = "on"  // always
	Off  = "off" // never
)

// Spec is everything that determines a layout. It is plain data: it travels as
// JSON in a plan and two equal specs give equal files.
type Spec struct {
	// Kind is KindKV or KindDSV4.
	Kind string `json:"kind"`
	// Model is the id that goes into hash, metadata and signature.
	Model string `json:"model"`
	// BlockTokens is the number of tokens of a block.
	BlockTokens int `json:"block_tokens"`
	// Format is "3", "4" or "5". Plain KV never holds pool deltas, so its writers
	// stamp "5" in the split layout and "3" otherwise; "4" is refused for it.
	Format string `json:"format"`
	// PoolState is the logical number of elements of a pool's state, 3 or 5;
	// 0 means 3 in format 3 and 5 in the later formats.
	PoolState int `json:"pool_state,omitempty"`
	// Layers of the model; for dsv4 it must equal len(Ratios), or be 0.
	Layers int `json:"layers,omitempty"`
	// KVHeads is the number of key/value heads (kv only).
	KVHeads int `json:"kv_heads,omitempty"`
	// HeadDim is the width of a head, and of a window or pooled row.
	HeadDim int `json:"head_dim"`
	// DType of keys and values: BF16 (default), F16 or F32; dsv4 is always BF16.
	DType string `json:"dtype,omitempty"`
	// Ratios holds each layer's compression ratio: 0, 4 or 128 (dsv4 only).
	Ratios []int `json:"ratios,omitempty"`
	// IndexHeadDim is the width of an indexer row (dsv4 with a ratio of 4).
	IndexHeadDim int `json:"index_head_dim,omitempty"`
	// Window is the sliding window in tokens (dsv4 only).
	Window int `json:"window,omitempty"`
	// Options are deviations of forks and versions; usually zero.
	Options Options `json:"options,omitzero"`
}

// Options describe how one decoder version or fork deviates from the format.
// The zero value is the format's usual writer. What a running decoder really
// does is known from a block of its own.
type Options struct {
	// NoBlockSize leaves out the block_size key (forks before 0.4.2).
	NoBlockSize bool `json:"no_block_size,omitempty"`
	// NoSignature leaves out the cache_signature key (the same forks).
	NoSignature bool `json:"no_signature,omitempty"`
	// PayloadLayout overrides the label: Auto gives none in format 3, embedded in
	// 4 and split_recurrent_v1 in 5.
	PayloadLayout string `json:"payload_layout,omitempty"`
	// Subtypes says whether the signature lists the members of composite layers:
	// Auto leaves them out for three-element pools in format 3 only.
	Subtypes string `json:"subtypes,omitempty"`
	// ClassNames says whether pools carry their class name: Auto leaves it out in
	// format 3 (as 0.5.3 does) and writes it for deltas.
	ClassNames string `json:"class_names,omitempty"`
	// ZeroDimDType is the dtype of the placeholder of zero-width arrays; F32 if empty.
	ZeroDimDType string `json:"zero_dim_dtype,omitempty"`
	// ExtraKeys salt the chain hash.
	ExtraKeys []string `json:"extra_keys,omitempty"`
}

// normalised returns s with its defaults filled in.
func (s Spec) normalised() Spec {
	if s.Kind == KindDSV4 {
		if s.Layers == 0 {
			s.Layers = len(s.Ratios)
		}
		if s.PoolState == 0 {
			s.PoolState = 5
			if s.Format == Format3 {
				s.PoolState = 3
			}
		}
	}
	if s.DType == "" {
		s.DType = string(safetensors.BF16)
	}
	if s.Options.ZeroDimDType == "" {
		s.Options.ZeroDimDType = string(safetensors.F32)
	}
	if s.Options.PayloadLayout == "" {
		s.Options.PayloadLayout = map[string]string{Format3: LayoutNone, Format4: LayoutEmbedded, Format5: LayoutSplit}[s.Format]
	}
	delta := s.Format != Format3
	s.Options.ClassNames = onOff(s.Options.ClassNames, delta)
	s.Options.Subtypes = onOff(s.Options.Subtypes, delta || s.PoolState == 5)
	return s
}

func onOff(setting string, usual bool) string {
	switch {
	case setting != Auto:
		return setting
	case usual:
		return On
	}
	return Off
}

// Validate reports why no layout can be made of s, as ErrPlan; nil if one can.
func (s Spec) Validate() error {
	n := s.normalised()
	if err := n.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrPlan, err)
	}
	return nil
}

func (s Spec) check() error {
	switch {
	case s.Model == "" || len(s.Model) > maxText || !utf8.ValidString(s.Model):
		return fmt.Errorf("model id must be 1 to %d bytes of UTF-8: blocks without one are refused when they are restored", maxText)
	case s.BlockTokens < 1 || s.BlockTokens > maxBlockTokens:
		return fmt.Errorf("block of %d tokens is not in 1..%d", s.BlockTokens, maxBlockTokens)
	case s.Format != Format3 && s.Format != Format4 && s.Format != Format5:
		return fmt.Errorf("format %q is not 3, 4 or 5", s.Format)
	case s.HeadDim < 1 || s.HeadDim > maxDim:
		return fmt.Errorf("head width %d is not in 1..%d", s.HeadDim, maxDim)
	case s.Layers < 1 || s.Layers > maxLayers:
		return fmt.Errorf("%d layers are not in 1..%d", s.Layers, maxLayers)
	}
	if err := s.Options.check(); err != nil {
		return err
	}
	switch s.Kind {
	case KindKV:
		return s.checkKV()
	case KindDSV4:
		return s.checkDSV4()
	}
	return fmt.Errorf("kind %q is not %q or %q", s.Kind, KindKV, KindDSV4)
}

func (s Spec) checkKV() error {
	switch d := safetensors.DType(s.DType); {
	case s.Format == Format4:
		return fmt.Errorf("plain KV holds no pool deltas, so no writer stamps it 4: use 5 (split) or 3")
	case s.KVHeads < 1 || s.KVHeads > maxDim:
		return fmt.Errorf("%d key/value heads are not in 1..%d", s.KVHeads, maxDim)
	case d != safetensors.BF16 && d != safetensors.F16 && d != safetensors.F32:
		return fmt.Errorf("dtype %q is not BF16, F16 or F32", s.DType)
	case len(s.Ratios) > 0 || s.Window != 0 || s.IndexHeadDim != 0 || s.PoolState != 0:
		return fmt.Errorf("ratios, window, index head width and pool state have no meaning for kind kv")
	}
	return nil
}

func (s Spec) checkDSV4() error {
	switch {
	case len(s.Ratios) != s.Layers:
		return fmt.Errorf("%d ratios for %d layers", len(s.Ratios), s.Layers)
	case s.PoolState != 3 && s.PoolState != 5:
		return fmt.Errorf("pool state of %d elements is not 3 or 5", s.PoolState)
	case s.DType != string(poolDType):
		return fmt.Errorf("dtype %q: dsv4 caches are always BF16", s.DType)
	case s.KVHeads > 1 || s.KVHeads < 0:
		return fmt.Errorf("%d key/value heads: dsv4 has one", s.KVHeads)
	case s.Format != Format3 && s.Options.ClassNames == Off:
		return fmt.Errorf("class names off: a pool delta without its class name cannot be read back")
	case s.Window < 1 || s.Window > s.BlockTokens:
		return fmt.Errorf("window of %d tokens is not in 1..%d (the block): shorter blocks have no complete window", s.Window, s.BlockTokens)
	case slices.Contains(s.Ratios, overlap) && (s.IndexHeadDim < 1 || s.IndexHeadDim > maxDim):
		return fmt.Errorf("index head width %d is not in 1..%d", s.IndexHeadDim, maxDim)
	}
	for i, r := range s.Ratios {
		switch {
		case r != 0 && r != overlap && r != 128:
			return fmt.Errorf("layer %d: ratio %d is not 0, 4 or 128", i, r)
		case r > 0 && s.BlockTokens%r != 0:
			return fmt.Errorf("layer %d: block of %d tokens is no multiple of ratio %d", i, s.BlockTokens, r)
		}
	}
	return nil
}

func (o Options) check() error {
	switch {
	case !slices.Contains([]string{LayoutNone, LayoutEmbedded, LayoutSplit}, o.PayloadLayout):
		return fmt.Errorf("payload layout %q is not %s, %s or %s", o.PayloadLayout, LayoutNone, LayoutEmbedded, LayoutSplit)
	case o.Subtypes != On && o.Subtypes != Off:
		return fmt.Errorf("subtypes %q is not on or off", o.Subtypes)
	case o.ClassNames != On && o.ClassNames != Off:
		return fmt.Errorf("class names %q is not on or off", o.ClassNames)
	case o.ZeroDimDType != string(safetensors.F32) && o.ZeroDimDType != string(safetensors.BF16):
		return fmt.Errorf("zero-width placeholder dtype %q is not F32 or BF16", o.ZeroDimDType)
	case len(o.ExtraKeys) > maxExtra:
		return fmt.Errorf("%d extra keys, limit %d", len(o.ExtraKeys), maxExtra)
	}
	for _, k := range o.ExtraKeys {
		if k == "" || len(k) > maxText || !utf8.ValidString(k) {
			return fmt.Errorf("extra key %q must be 1 to %d bytes of UTF-8", k, maxText)
		}
	}
	return nil
}
