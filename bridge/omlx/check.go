package omlx

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CheckOptions say what a block is checked against; the zero value checks the
// block against itself only.
type CheckOptions struct {
	// Layout is what the block should look like, if known.
	Layout *Layout
	// Tokens of the whole prompt; the block's hash must occur in their chain.
	Tokens []uint32
	// Finite reads all floating-point values and reports NaN and infinity.
	Finite bool
}

// Finding is one thing that is wrong with a block, or odd.
type Finding struct {
	// Check names the rule in a few words.
	Check string
	// Detail says what was found, where, and what was expected.
	Detail string
	// Warn is true if decoders work with the block nevertheless.
	Warn bool
}

// String returns the finding as one line.
func (f Finding) String() string {
	level := "error"
	if f.Warn {
		level = "warning"
	}
	return level + ": " + f.Check + ": " + f.Detail
}

// findings collects.
type findings []Finding

func (f *findings) fail(check, format string, args ...any) {
	*f = append(*f, Finding{Check: check, Detail: fmt.Sprintf(format, args...)})
}

func (f *findings) warn(check, format string, args ...any) {
	*f = append(*f, Finding{Check: check, Detail: fmt.Sprintf(format, args...), Warn: true})
}

// CheckFile reads the file and checks it; a file that cannot be read as a block
// is one finding and a nil Block.
func CheckFile(path string, o CheckOptions) (*Block, []Finding) {
	b, err := readBlock(path)
	if err != nil {
		return nil, []Finding{{Check: "structure", Detail: err.Error()}}
	}
	return b, Check(b, o)
}

// Check makes every check of a decoder and those that decoders forget: name and
// folder, hash against the tokens, signature against fields, layout, positions
// of windows and row ranges and, on request, the values.
func Check(b *Block, o CheckOptions) []Finding {
	var f findings
	checkName(&f, b)
	checkKeys(&f, b)
	checkSignature(&f, b)
	checkPositions(&f, b)
	if o.Layout != nil {
		checkLayout(&f, b, o.Layout)
	}
	if o.Tokens != nil {
		checkChain(&f, b, o)
	}
	if o.Finite {
		checkFinite(&f, b)
	}
	return f
}

// checkName checks where the file lies.
func checkName(f *findings, b *Block) {
	name, want := filepath.Base(b.Path), b.Hash.String()
	switch {
	case name == want+blockSuffix:
	case strings.HasSuffix(name, "_tmp"+blockSuffix):
		f.fail("name", "%s is a decoder's temporary file; scans index it all the same", name)
	case !strings.HasSuffix(name, blockSuffix):
		f.fail("name", "%s does not end in %s: no scan finds it", name, blockSuffix)
	default:
		f.fail("name", "%s holds block %s", name, want)
	}
	if dir := filepath.Base(filepath.Dir(b.Path)); dir != want[:1] {
		f.warn("folder", "block %s lies in %q, not %q", want, dir, want[:1])
	}
}

// checkKeys reports keys that newer decoders require, and placeholders.
func checkKeys(f *findings, b *Block) {
	for _, key := range []string{keyBlockSize, keySignature} {
		if _, ok := b.Meta[key]; !ok {
			f.warn("metadata", "no %s: decoders from 0.4.2 on refuse the block", key)
		}
	}
	if !validCreatedAt(b.Meta[keyCreated]) {
		f.warn("metadata", "%s is %q, not the text of a float", keyCreated, b.Meta[keyCreated])
	}
	known := []string{keyFormat, keyHash, keyTokens, keyLayers, keyModel, keyBlockSize, keySignature, keyPayload,
		keyCreated, keyTypes, keyMetas, keyParent, keyTail}
	for _, key := range slices.Sorted(maps.Keys(b.Meta)) {
		if !strings.HasPrefix(key, "layer_") && !slices.Contains(known, key) {
			f.warn("metadata", "unknown key %s", key)
		}
	}
	_, tail := b.Meta[keyTail]
	if b.BlockTokens != 0 && b.Tokens != b.BlockTokens && !tail {
		f.fail("tokens", "%d tokens in a block of %d that is not marked as a tail", b.Tokens, b.BlockTokens)
	}
	for i := range b.Layers {
		if b.Layers[i].Placeholder {
			f.warn("placeholder", "layer %d has no state: a prompt cannot end at this block", i)
		}
	}
}

// signature is cache_signature as JSON.
type signature struct {
	BlockSize int                 `json:"block_size"`
	Model     string              `json:"model_name"`
	Layers    int                 `json:"num_layers"`
	Types     []string            `json:"layer_cache_types"`
	Payload   string              `json:"payload_layout"`
	Subtypes  map[string][]string `json:"cachelist_subtypes"`
}

// checkSignature compares the signature with the fields that it repeats.
func checkSignature(f *findings, b *Block) {
	text, ok := b.Meta[keySignature]
	if !ok {
		return
	}
	var s signature
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		f.fail("signature", "not JSON: %v", err)
		return
	}
	// Forks write a signature without the key that it repeats.
	if _, said := b.Meta[keyBlockSize]; said && s.BlockSize != b.BlockTokens {
		f.fail("signature", "block size %d, metadata %d", s.BlockSize, b.BlockTokens)
	}
	if s.Model != b.Model {
		f.fail("signature", "model %q, metadata %q", s.Model, b.Model)
	}
	if s.Layers != len(b.Layers) || len(s.Types) != len(b.Layers) {
		f.fail("signature", "%d layers and %d types, block %d", s.Layers, len(s.Types), len(b.Layers))
		return
	}
	for i, class := range s.Types {
		want, _ := canonical(b.Layers[i].Type)
		if got, _ := canonical(class); got != want {
			f.fail("signature", "layer %d is %s, metadata %s", i, class, b.Layers[i].Type)
		}
	}
	if p := b.Meta[keyPayload]; p != s.Payload {
		f.fail("signature", "payload layout %q, metadata %q", s.Payload, p)
	}
	if s.Subtypes != nil {
		checkSubtypes(f, b, s.Subtypes)
	}
}

// checkSubtypes compares the listed members of composite layers with those stored,
// both ways: a decoder compares the whole list with its model's.
func checkSubtypes(f *findings, b *Block, got map[string][]string) {
	for _, key := range slices.Sorted(maps.Keys(got)) {
		i, err := strconv.Atoi(key)
		switch {
		case err != nil || i < 0 || i >= len(b.Layers) || strconv.Itoa(i) != key:
			f.fail("signature", "subtypes of layer %q, which does not exist", key)
		case !isComposite(&b.Layers[i]):
			f.fail("signature", "subtypes of layer %d, which is %s and has no members", i, b.Layers[i].Type)
		}
	}
	for i := range b.Layers {
		l := &b.Layers[i]
		if !isComposite(l) || l.Placeholder {
			continue
		}
		want, whole := make([]string, 0, len(l.States)), false
		for j := range l.States {
			want = append(want, descriptor(&l.States[j]))
			whole = whole || isWhole(l.States[j].Class)
		}
		members, listed := got[strconv.Itoa(i)]
		if !listed {
			if whole {
				f.fail("signature", "layer %d is not in the subtypes, stored are %v", i, want)
			}
			continue
		}
		if n := len(members); n > 0 && members[n-1] == "@pm" {
			members = members[:n-1]
		}
		if !slices.Equal(members, want) {
			f.fail("signature", "layer %d has subtypes %v, stored are %v", i, members, want)
		}
	}
}

// isComposite reports a layer of several cache objects.
func isComposite(l *BlockLayer) bool {
	class, _ := canonical(l.Type)
	return class == classList
}

// isWhole reports cache classes whose state cannot be cut at a token. Signatures
// list the composite layers that have such a member; others may be left out.
func isWhole(class string) bool {
	return class == classRotating || class == classPool || class == "ArraysCache"
}

// descriptor names a member with its logical number of elements.
func descriptor(st *BlockState) string {
	n := len(st.Elements)
	switch {
	case st.Class == classPool && st.Delta:
		return classPool + ":" + strconv.Itoa(n-1)
	case st.Class == classPool, st.Class == "ArraysCache":
		return st.Class + ":" + strconv.Itoa(n)
	}
	return st.Class
}

// checkPositions compares pools with the window's position: a decoder trusts the
// range of a delta and the row count of a full pool.
func checkPositions(f *findings, b *Block) {
	if b.End == 0 {
		return
	}
	bs := b.BlockTokens
	if bs == 0 {
		bs = b.Tokens
	}
	if (b.End-b.Tokens)%bs != 0 || b.End < b.Tokens {
		f.fail("position", "ends at token %d, %d tokens after no boundary of %d", b.End, b.Tokens, bs)
	}
	for i := range b.Layers {
		for j := range b.Layers[i].States {
			st := &b.Layers[i].States[j]
			if st.Class != classPool || len(st.Elements) < 3 {
				continue
			}
			end, start := int64(b.End/st.Ratio), int64((b.End-1)/bs*bs/st.Ratio)
			rows := int64(0)
			if e := &st.Elements[2]; e.Kind != ElementNone {
				rows = e.Shape[1]
			}
			switch {
			case st.Delta && (st.Start != start || st.End != end):
				f.fail("position", "%s holds rows %d..%d, want %d..%d", st.Prefix, st.Start, st.End, start, end)
			case !st.Delta && rows != end:
				f.fail("position", "%s holds %d rows, want %d", st.Prefix, rows, end)
			}
		}
	}
}

// checkChain looks for the block in the prompt's chain.
func checkChain(f *findings, b *Block, o CheckOptions) {
	bs, model := b.BlockTokens, b.Model
	var extra []string
	if o.Layout != nil {
		bs, model, extra = o.Layout.spec.BlockTokens, o.Layout.spec.Model, o.Layout.spec.Options.ExtraKeys
	}
	if bs == 0 {
		bs = b.Tokens
	}
	k := slices.Index(Chain(model, bs, o.Tokens, extra), b.Hash)
	switch {
	case k < 0:
		f.fail("hash", "%s is no block of this prompt under model %q with %d tokens a block", b.Hash, model, bs)
	case b.End != 0 && b.End != (k+1)*bs:
		f.fail("hash", "is block %d of the prompt, its window ends at token %d", k, b.End)
	}
}
