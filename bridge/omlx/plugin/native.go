package plugin

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"pdlink/bridge/omlx"
	"pdlink/kernels/safetensors"
)

// Native is a block that the decoder made itself: the first of a made-up prompt.
type Native struct {
	// Header is the JSON header of its file, without padding.
	Header string `json:"header"`
	// DataBytes is the length of the file behind the header.
	DataBytes int64 `json:"data_bytes"`
	// Hash is its name, IDs are its tokens.
	Hash omlx.Hash `json:"hash"`
	IDs  packedIDs `json:"ids"`
}

// Metadata keys and classes of block files that a layout is told by.
const (
	keyFormat    = "omlx_cache_format_version"
	keyModel     = "model_name"
	keyTokens    = "token_count"
	keyBlockSize = "block_size"
	keySignature = "cache_signature"
	keyPayload   = "payload_layout"
	keyCreated   = "created_at"
	keyTypes     = "layer_cache_types"
	keyMetas     = "layer_meta_states"
	keySubtypes  = `"cachelist_subtypes"`
	classKV      = "KVCache"
	classWindow  = "RotatingKVCache"
	classList    = "CacheList"
	classPool    = "PoolingCache"
	classDelta   = "PoolingCacheDelta"
)

// Spec tells the layout of the decoder's blocks from its block, and proves it: the
// layout's own header of this block must be the decoder's, byte for byte, and the
// hash that of its tokens.
//
// The error is ErrForeign with the first difference.
func (n Native) Spec() (omlx.Spec, error) {
	head, err := safetensors.ParseHeader([]byte(n.Header), n.DataBytes)
	if err != nil {
		return omlx.Spec{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	r := reader{meta: make(map[string]string, len(head.Metadata)), tensors: make(map[string]safetensors.Tensor, len(head.Tensors))}
	for _, kv := range head.Metadata {
		r.meta[kv.Key] = kv.Value
	}
	for _, t := range head.Tensors {
		r.tensors[t.Name] = t
	}
	spec, err := r.spec()
	if err != nil {
		return omlx.Spec{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if err := n.prove(spec, r.meta[keyCreated]); err != nil {
		return omlx.Spec{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return spec, nil
}

// prove holds a layout against the block that it was told from.
func (n Native) prove(spec omlx.Spec, createdAt string) error {
	own := omlx.Chain(spec.Model, spec.BlockTokens, n.IDs, nil)
	if len(own) != 1 || own[0] != n.Hash {
		return fmt.Errorf("its block of %d tokens has hash %s, pdlink's chain gives %v", len(n.IDs), n.Hash, own)
	}
	l, err := omlx.NewLayout(spec)
	if err != nil {
		return err
	}
	head, err := l.Header(0, n.Hash, createdAt)
	if err != nil {
		return err
	}
	if d := difference(n.Header, strings.TrimRight(string(head[8:]), " ")); d != "" {
		return fmt.Errorf("%s", d)
	}
	if l.DataLen(0) != n.DataBytes {
		return fmt.Errorf("its block has %d bytes of data, pdlink's %d", n.DataBytes, l.DataLen(0))
	}
	return nil
}

// difference says where two headers begin to differ, "" if nowhere.
func difference(theirs, ours string) string {
	i := 0
	for i < len(theirs) && i < len(ours) && theirs[i] == ours[i] {
		i++
	}
	if i == len(theirs) && i == len(ours) {
		return ""
	}
	cut := func(s string) string { return s[max(0, i-40):min(len(s), i+40)] }
	return fmt.Sprintf("its block's header differs from pdlink's at byte %d: %q, not %q", i, cut(theirs), cut(ours))
}

// reader takes a header apart. What it does not look at is proved afterwards.
type reader struct {
	meta    map[string]string
	tensors map[string]safetensors.Tensor
}

func (r reader) spec() (omlx.Spec, error) {
	var types []string
	var metas []json.RawMessage
	if err := json.Unmarshal([]byte(r.meta[keyTypes]), &types); err != nil {
		return omlx.Spec{}, fmt.Errorf("%s: %w", keyTypes, err)
	}
	if err := json.Unmarshal([]byte(r.meta[keyMetas]), &metas); err != nil {
		return omlx.Spec{}, fmt.Errorf("%s: %w", keyMetas, err)
	}
	tokens, err := strconv.Atoi(r.meta[keyTokens])
	if err != nil || len(types) == 0 || len(types) != len(metas) {
		return omlx.Spec{}, fmt.Errorf("%d layer types, %d metas, %s %q", len(types), len(metas), keyTokens, r.meta[keyTokens])
	}
	spec := omlx.Spec{Model: r.meta[keyModel], BlockTokens: tokens, Format: r.meta[keyFormat], Layers: len(types), Options: r.options()}
	if types[0] == classKV {
		err = r.plain(&spec, types)
	} else {
		err = r.pooled(&spec, types, metas)
	}
	return spec, err
}

// options tells which keys this decoder writes.
func (r reader) options() omlx.Options {
	has := func(key string) bool { _, ok := r.meta[key]; return ok }
	o := omlx.Options{NoBlockSize: !has(keyBlockSize), NoSignature: !has(keySignature), PayloadLayout: omlx.LayoutNone, Subtypes: omlx.Off}
	if has(keyPayload) {
		o.PayloadLayout = r.meta[keyPayload]
	}
	if strings.Contains(r.meta[keySignature], keySubtypes) {
		o.Subtypes = omlx.On
	}
	return o
}

// plain fills in the layout of a model with plain keys and values.
func (r reader) plain(s *omlx.Spec, types []string) error {
	for i, class := range types {
		if class != classKV {
			return fmt.Errorf("layer %d is %s, the first is %s: no layout for such a model", i, class, types[0])
		}
	}
	t, err := r.tensor("layer_0_state_0", 4)
	if err != nil {
		return err
	}
	s.Kind, s.DType, s.KVHeads, s.HeadDim = omlx.KindKV, string(t.DType), int(t.Shape[1]), int(t.Shape[3])
	return nil
}

// pooled fills in the layout of a model with windows and compressed pools.
func (r reader) pooled(s *omlx.Spec, types []string, metas []json.RawMessage) error {
	s.Kind, s.Options.ClassNames = omlx.KindDSV4, omlx.Off
	for i, class := range types {
		prefix := "layer_" + strconv.Itoa(i)
		ratio := 0
		switch class {
		case classWindow:
		case classList:
			var err error
			if ratio, err = r.pool(s, prefix, metas[i]); err != nil {
				return err
			}
			prefix += "_sub_0"
		default:
			return fmt.Errorf("layer %d is %s: no layout for such a model", i, class)
		}
		s.Ratios = append(s.Ratios, ratio)
		if i > 0 {
			continue
		}
		w, err := r.tensor(prefix+"_state_0", 4)
		if err != nil {
			return err
		}
		s.Window, s.HeadDim = int(w.Shape[2]), int(w.Shape[3])
		s.Options.ZeroDimDType = string(r.tensors[prefix+"_state_1"].DType)
	}
	return nil
}

// pool reads one composite layer: its ratio, and what its pools say about all.
func (r reader) pool(s *omlx.Spec, prefix string, meta json.RawMessage) (ratio int, err error) {
	var parts [2]json.RawMessage
	var classes []string
	var subs []json.RawMessage
	if json.Unmarshal(meta, &parts) != nil || json.Unmarshal(parts[0], &classes) != nil || json.Unmarshal(parts[1], &subs) != nil ||
		len(classes) < 2 || len(classes) > 3 || len(subs) != len(classes) || classes[0] != classWindow || classes[1] != classPool {
		return 0, fmt.Errorf("%s holds %.200s: no layout for such a layer", prefix, meta)
	}
	if err := json.Unmarshal(subs[1], &ratio); err != nil {
		return 0, fmt.Errorf("%s: ratio %.100s", prefix, subs[1])
	}
	count, err := strconv.Atoi(r.meta[prefix+"_sub_1_state_count"])
	if err != nil {
		return 0, fmt.Errorf("%s_sub_1_state_count: %w", prefix, err)
	}
	switch class, named := r.meta[prefix+"_sub_1_state_class_name"]; {
	case class == classDelta:
		count--
		s.Options.ClassNames = omlx.On
	case named:
		s.Options.ClassNames = omlx.On
	}
	s.PoolState = count
	if len(classes) == 3 {
		t, err := r.tensor(prefix+"_sub_2_state_2", 3)
		if err != nil {
			return 0, err
		}
		s.IndexHeadDim = int(t.Shape[2])
	}
	return ratio, nil
}

// tensor returns a tensor of so many dimensions.
func (r reader) tensor(name string, dims int) (safetensors.Tensor, error) {
	t, ok := r.tensors[name]
	if !ok || len(t.Shape) != dims {
		return t, fmt.Errorf("%s is missing or has not %d dimensions", name, dims)
	}
	return t, nil
}
