package omlx

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/kernels/safetensors"
)

func TestCheckFinds(t *testing.T) {
	kv, ds, cum := loadCase(t, "kv-qwen3"), loadCase(t, "dsv4-a"), loadCase(t, "dsv4-a")
	ds.spec.Format, ds.spec.PoolState = Format5, 5
	kvPath, dsPath := kv.expected(1), buildStore(t, ds, "1.5").Path(ds.hashes[1])
	cases := map[*goldenCase]string{kv: kvPath, ds: dsPath, cum: cum.expected(1)}
	for name, c := range map[string]struct {
		base   *goldenCase
		file   string // name below the test's directory; the right one if empty
		check  string
		detail string
		warn   bool
		damage func(*edit)
	}{
		"other name":         {kv, "c/" + strings.Repeat("0", 64) + blockSuffix, "name", "holds block", false, nil},
		"decoder's temp":     {kv, "e/" + kv.hashes[1].String() + "_tmp" + blockSuffix, "name", "temporary", false, nil},
		"hidden temp":        {kv, "e/." + kv.hashes[1].String() + partSuffix, "name", "no scan finds it", false, nil},
		"wrong folder":       {kv, "0/" + kv.hashes[1].String() + blockSuffix, "folder", "lies in", true, nil},
		"no block size":      {kv, "", "metadata", "block_size", true, func(e *edit) { e.unset(keyBlockSize); e.unset(keySignature) }},
		"no created at":      {kv, "", "metadata", "created_at", true, func(e *edit) { e.unset(keyCreated) }},
		"created at garbage": {kv, "", "metadata", "created_at", true, func(e *edit) { e.set(keyCreated, "now") }},
		"unknown key":        {kv, "", "metadata", "unknown key", true, func(e *edit) { e.set("colour", "blue") }},
		"tail unmarked": {kv, "", "tokens", "not marked", false, func(e *edit) {
			e.set(keyBlockSize, "512")
		}},
		"signature garbage":  {kv, "", "signature", "not JSON", false, func(e *edit) { e.set(keySignature, "{") }},
		"signature size":     {kv, "", "signature", "block size", false, func(e *edit) { e.replace(keySignature, "256", "512") }},
		"signature model":    {kv, "", "signature", "model", false, func(e *edit) { e.replace(keySignature, "tiny-qwen3", "other") }},
		"signature layers":   {kv, "", "signature", "layers", false, func(e *edit) { e.replace(keySignature, `"num_layers":3`, `"num_layers":4`) }},
		"signature types":    {kv, "", "signature", "layer 0", false, func(e *edit) { e.replace(keySignature, "KVCache", "ArraysCache") }},
		"signature layout":   {ds, "", "signature", "payload layout", false, func(e *edit) { e.replace(keySignature, LayoutSplit, LayoutEmbedded) }},
		"signature subtypes": {ds, "", "signature", "subtypes", false, func(e *edit) { e.replace(keySignature, "PoolingCache:5", "PoolingCache:3") }},
		"signature lacks one": {ds, "", "signature", "layer 3 is not in the subtypes", false, func(e *edit) {
			e.replace(keySignature, `,"3":["RotatingKVCache","PoolingCache:5","PoolingCache:5"]`, "")
		}},
		"signature plain layer": {ds, "", "signature", "layer 0, which is RotatingKVCache", false, func(e *edit) {
			e.replace(keySignature, `"1":[`, `"0":["RotatingKVCache"],"1":[`)
		}},
		"signature odd number": {ds, "", "signature", `layer "01"`, false, func(e *edit) { e.replace(keySignature, `"1":[`, `"01":[`) }},
		"signature no layer":   {ds, "", "signature", "does not exist", false, func(e *edit) { e.replace(keySignature, `"1":[`, `"99":[`) }},
		"delta elsewhere": {ds, "", "position", "rows 129..257", false, func(e *edit) {
			r := e.data[e.at("layer_1_sub_1_state_5")]
			r[0]++
			r[8]++
		}},
		"window elsewhere": {ds, "", "position", "want 128..256", false, func(e *edit) {
			for _, n := range []string{"layer_1_sub_1_state_5", "layer_3_sub_2_state_5"} {
				clear(e.data[e.at(n)])
				e.data[e.at(n)][8] = 128
			}
		}},
		"offset off the grid": {ds, "", "position", "no boundary", false, func(e *edit) {
			e.set(keyMetas, strings.ReplaceAll(e.get(keyMetas), `"1024"`, `"1030"`))
		}},
		"rows missing": {cum, "", "position", "255 rows, want 256", false, func(e *edit) {
			i := e.at("layer_1_sub_1_state_2")
			e.data[i] = e.data[i][:len(e.data[i])-128]
			e.shape(e.tensors[i].Name, 1, 255, 64)
		}},
		"layout model": {kv, "", "layout", "model_name", false, func(e *edit) { e.set(keyModel, "other") }},
		"layout dtype": {kv, "", "layout", "F16", false, func(e *edit) { e.tensors[0].DType = safetensors.F16 }},
		"layout window": {ds, "", "layout", "layer_0_state_0", false, func(e *edit) {
			i := e.at("layer_0_state_0")
			e.data[i] = e.data[i][:len(e.data[i])/2]
			e.shape(e.tensors[i].Name, 1, 1, 64, 64)
			e.set("layer_0_state_1_zero_dim", "1,1,64,0")
		}},
		"other prompt": {kv, "", "hash", "no block of this prompt", false, func(e *edit) { e.set(keyHash, strings.Repeat("ab", 32)) }},
		"other place in the prompt": {ds, "", "hash", "ends at token 1024", false, func(e *edit) {
			e.set(keyHash, ds.hashes[0].String())
		}},
		"NaN": {kv, "", "values", "layer_1_state_0", false, func(e *edit) {
			copy(e.data[e.at("layer_1_state_0")][100:], []byte{0xc0, 0x7f})
		}},
		"infinity": {ds, "", "values", "layer_3_sub_2_state_2 has NaN or infinity at element 5", false, func(e *edit) {
			copy(e.data[e.at("layer_3_sub_2_state_2")][10:], []byte{0x80, 0xff})
		}},
		"NaN in F16": {kv, "", "values", "layer_0_state_0", false, func(e *edit) {
			e.tensors[0].DType = safetensors.F16
			clear(e.data[0])
			e.data[0][1] = 0x7c
		}},
		"placeholder not finite": {ds, "", "values", "layer_0_state_1", false, func(e *edit) {
			b := math.Float32bits(float32(math.Inf(1)))
			copy(e.data[e.at("layer_0_state_1")], []byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
		}},
		"placeholder layer": {ds, "", "placeholder", "layer 0", true, func(e *edit) {
			i := e.at("layer_0_state_0")
			e.tensors[i].DType, e.tensors[i].Shape, e.data[i] = safetensors.F32, []int64{1}, make([]byte, 4)
			e.unset("layer_0_state_1_zero_dim")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := takeApart(t, cases[c.base])
			if c.damage != nil {
				c.damage(e)
			}
			if c.file == "" {
				h := e.get(keyHash)
				c.file = h[:1] + "/" + h + blockSuffix
			}
			path := filepath.Join(t.TempDir(), c.file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, e.bytes(t), 0o600)); err != nil {
				t.Fatal(err)
			}
			l, err := NewLayout(c.base.spec)
			if err != nil {
				t.Fatal(err)
			}
			_, found := CheckFile(path, CheckOptions{Layout: l, Tokens: c.base.tokens, Finite: true})
			if !slices.ContainsFunc(found, func(f Finding) bool {
				return f.Check == c.check && strings.Contains(f.Detail, c.detail) && f.Warn == c.warn
			}) {
				t.Errorf("found %v; want %s: …%s…", found, c.check, c.detail)
			}
		})
	}
}

func TestCheckFileUnreadable(t *testing.T) {
	b, f := CheckFile(filepath.Join(t.TempDir(), "none"), CheckOptions{})
	if b != nil || len(f) != 1 || f[0].Check != "structure" || !strings.HasPrefix(f[0].String(), "error: structure: ") {
		t.Errorf("%v, %v", b, f)
	}
}

// TestCheckOrder: the same block gives the same findings in the same order.
func TestCheckOrder(t *testing.T) {
	ds := loadCase(t, "dsv4-a")
	ds.spec.Format, ds.spec.PoolState = Format5, 5
	path := buildStore(t, ds, "1.5").Path(ds.hashes[0])
	e := takeApart(t, path)
	var keys, layers []string
	for i := range 20 {
		keys = append(keys, "unknown key k"+string(rune('a'+i)))
		e.set("k"+string(rune('a'+i)), "x")
	}
	for i := 10; i < 30; i++ {
		layers = append(layers, "subtypes of layer \""+string(rune('0'+i/10))+string(rune('0'+i%10))+"\", which does not exist")
		e.replace(keySignature, `"cachelist_subtypes":{`, `"cachelist_subtypes":{"`+layers[i-10][len(`subtypes of layer "`):][:2]+`":[],`)
	}
	other := filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(other, e.bytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
	_, found := CheckFile(other, CheckOptions{})
	var gotKeys, gotLayers []string
	for _, f := range found {
		switch f.Check {
		case "metadata":
			gotKeys = append(gotKeys, f.Detail)
		case "signature":
			gotLayers = append(gotLayers, f.Detail)
		}
	}
	if !slices.Equal(gotKeys, keys) || !slices.Equal(gotLayers, layers) {
		t.Errorf("%q\n%q", gotKeys, gotLayers)
	}
}

// TestOneRuleForSameness: Begin, Check and Compare agree about what makes a file
// another block, and about what does not.
func TestOneRuleForSameness(t *testing.T) {
	c := loadCase(t, "dsv4-a")
	c.spec.Format, c.spec.PoolState = Format5, 5
	l, err := NewLayout(c.spec)
	if err != nil {
		t.Fatal(err)
	}
	path := buildStore(t, c, "1.5").Path(c.hashes[0])
	for name, v := range map[string]struct {
		same, equal bool // the decoder's block; byte for byte
		detail      string
		damage      func(*edit)
	}{
		"untouched":        {true, true, "", func(*edit) {}},
		"time of writing":  {true, true, "", func(e *edit) { e.set(keyCreated, "2.5") }},
		"no time":          {true, false, "metadata created_at is missing", func(e *edit) { e.unset(keyCreated) }},
		"key more":         {true, false, "metadata colour is extra", func(e *edit) { e.set("colour", "x") }},
		"key less":         {false, false, "metadata payload_layout is missing", func(e *edit) { e.unset(keyPayload) }},
		"value":            {false, false, `metadata model_name is "x", not "dsv4-a"`, func(e *edit) { e.set(keyModel, "x") }},
		"type of a tensor": {false, false, "tensor 0 is layer_0_state_0 F16", func(e *edit) { e.tensors[0].DType = safetensors.F16 }},
		"tensor less":      {false, false, "tensors, not", func(e *edit) { e.drop("layer_3_sub_2_state_0") }},
	} {
		e := takeApart(t, path)
		if name == "value" {
			v.detail = strings.Replace(v.detail, "dsv4-a", e.get(keyModel), 1)
		}
		v.damage(e)
		s := mustOpen(t, t.TempDir())
		other := s.Path(c.hashes[0])
		if err := os.WriteFile(other, e.bytes(t), 0o600); err != nil {
			t.Fatal(err)
		}
		err := s.examine(l, 0, c.hashes[0])
		if v.same != (err == nil) || (err != nil && (!errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), v.detail))) {
			t.Errorf("%s: begin says %v", name, err)
		}
		d, err := Compare(path, other)
		if err != nil || d.Equal() != v.equal || !strings.Contains(d.String(), v.detail) {
			t.Errorf("%s: compare says %v, %v", name, d, err)
		}
		b, found := CheckFile(other, CheckOptions{Layout: l})
		differs := b == nil || slices.ContainsFunc(found, func(f Finding) bool { return f.Check == "layout" && strings.Contains(f.Detail, v.detail) })
		if differs == v.same {
			t.Errorf("%s: check says %v", name, found)
		}
	}
}
