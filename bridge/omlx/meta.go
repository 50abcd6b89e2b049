package omlx

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"pdlink/kernels/safetensors"
)

// Metadata keys of a block file.
const (
	keyFormat    = "omlx_cache_format_version"
	keyHash      = "block_hash"
	keyTokens    = "token_count"
	keyLayers    = "num_layers"
	keyModel     = "model_name"
	keyBlockSize = "block_size"
	keySignature = "cache_signature"
	keyPayload   = "payload_layout"
	keyCreated   = "created_at"
	keyTypes     = "layer_cache_types"
	keyMetas     = "layer_meta_states"
	keyParent    = "parent_hash"
	keyTail      = "tail_terminal"
)

// Header returns block k's header as it begins the file: length field, JSON and
// padding. createdAt is the text of a Python float (see CreatedAt). The result
// depends on nothing else and belongs to the caller.
func (l *Layout) Header(k int, hash Hash, createdAt string) ([]byte, error) {
	if k < 0 || k >= maxBlocks || l.DataLen(k) > maxBlockBytes {
		return nil, fmt.Errorf("%w: no plan has a block %d of this layout", ErrCall, k)
	}
	if !validCreatedAt(createdAt) {
		return nil, fmt.Errorf("%w: created_at %q is not the text of a float", ErrPlan, createdAt)
	}
	head, err := safetensors.EncodeHeader(l.Tensors(k), l.metadata(k, hash, createdAt))
	if err != nil {
		return nil, fmt.Errorf("header of block %d: %w", k, err)
	}
	return head, nil
}

// metadata returns block k's metadata in the order of the file.
func (l *Layout) metadata(k int, hash Hash, createdAt string) []safetensors.KV {
	s := &l.spec
	kv := make([]safetensors.KV, 0, 12+len(l.keys))
	add := func(key, value string) { kv = append(kv, safetensors.KV{Key: key, Value: value}) }
	add(keyFormat, s.Format)
	add(keyHash, hash.String())
	add(keyTokens, strconv.Itoa(s.BlockTokens))
	add(keyLayers, strconv.Itoa(s.Layers))
	add(keyModel, s.Model)
	if !s.Options.NoBlockSize {
		add(keyBlockSize, strconv.Itoa(s.BlockTokens))
	}
	if !s.Options.NoSignature {
		add(keySignature, l.sign)
	}
	if s.Options.PayloadLayout != LayoutNone {
		add(keyPayload, s.Options.PayloadLayout)
	}
	add(keyCreated, createdAt)
	add(keyTypes, l.types)
	add(keyMetas, l.metas(k))
	return append(kv, l.keys...)
}

// describe prepares the parts of the metadata that are the same for all blocks.
func (l *Layout) describe() {
	types := make([]string, len(l.layers))
	for i := range l.layers {
		types[i] = l.layers[i].states[0].kind
		if l.layers[i].sub {
			types[i] = classList
		}
	}
	l.types = list(types, ", ")
	l.sign = l.signature(types)
	for i := range l.layers {
		prefix := "layer_" + strconv.Itoa(i)
		if l.layers[i].sub {
			l.key(prefix+"_sub_count", strconv.Itoa(len(l.layers[i].states)))
		}
		for j := range l.layers[i].states {
			l.describeState(&l.layers[i].states[j])
		}
	}
}

func (l *Layout) key(k, v string) { l.keys = append(l.keys, safetensors.KV{Key: k, Value: v}) }

func (l *Layout) describeState(st *state) {
	if st.class != "" {
		l.key(st.prefix+"_state_class_name", st.class)
	}
	l.key(st.prefix+"_state_count", strconv.Itoa(st.len))
	for _, s := range l.slots[st.first : st.first+st.len] {
		switch s.mark {
		case markNone:
			l.key(s.name+"_none", "1")
		case markZeroDim:
			l.key(s.name+"_zero_dim", "1,1,"+strconv.Itoa(l.spec.Window)+",0")
		}
	}
}

// signature returns the compact JSON with sorted keys.
func (l *Layout) signature(types []string) string {
	s := &l.spec
	b := []byte(`{"block_size":`)
	b = strconv.AppendInt(b, int64(s.BlockTokens), 10)
	if sub := l.subtypes(); sub != "" && s.Options.Subtypes == On {
		b = append(b, `,"cachelist_subtypes":`+sub...)
	}
	b = append(b, `,"layer_cache_types":`+list(types, ",")...)
	b = append(b, `,"model_name":`...)
	b = safetensors.AppendQuoted(b, s.Model)
	b = append(b, `,"num_layers":`...)
	b = strconv.AppendInt(b, int64(s.Layers), 10)
	if s.Options.PayloadLayout != LayoutNone {
		b = append(b, `,"payload_layout":`...)
		b = safetensors.AppendQuoted(b, s.Options.PayloadLayout)
	}
	return string(append(b, '}'))
}

// subtypes returns the members of composite layers, keyed by the layer number as
// text and sorted as text; empty if there is no composite layer.
func (l *Layout) subtypes() string {
	var entries []string
	for i := range l.layers {
		if !l.layers[i].sub {
			continue
		}
		var members []string
		for _, st := range l.layers[i].states {
			if st.kind == classPool {
				members = append(members, classPool+":"+strconv.Itoa(l.spec.PoolState))
			} else {
				members = append(members, st.kind)
			}
		}
		entries = append(entries, `"`+strconv.Itoa(i)+`":`+list(members, ","))
	}
	if entries == nil {
		return ""
	}
	sort.Slice(entries, func(a, b int) bool {
		return entries[a][:strings.IndexByte(entries[a], ':')] < entries[b][:strings.IndexByte(entries[b], ':')]
	})
	return "{" + strings.Join(entries, ",") + "}"
}

// metas returns layer_meta_states of block k: nothing for plain KV, the rotating
// window's four texts, and a pool's ratio as a bare number (a pool whose ratio is
// a text is read back with ratio 1).
func (l *Layout) metas(k int) string {
	window := strconv.Itoa(l.spec.Window)
	end := strconv.Itoa((k + 1) * l.spec.BlockTokens)
	rotating := list([]string{"0", window, end, window}, ", ")
	out := make([]string, len(l.layers))
	for i := range l.layers {
		states := l.layers[i].states
		if !l.layers[i].sub {
			out[i] = "[]"
			if states[0].kind == classRotating {
				out[i] = rotating
			}
			continue
		}
		kinds, metas := make([]string, len(states)), make([]string, len(states))
		for j := range states {
			kinds[j], metas[j] = states[j].kind, rotating
			if states[j].kind == classPool {
				metas[j] = strconv.Itoa(states[j].meta)
			}
		}
		out[i] = "[" + list(kinds, ", ") + ", [" + strings.Join(metas, ", ") + "]]"
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// list returns plain ASCII texts as a JSON list.
func list(items []string, sep string) string {
	if len(items) == 0 {
		return "[]"
	}
	return `["` + strings.Join(items, `"`+sep+`"`) + `"]`
}
