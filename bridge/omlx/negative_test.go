package omlx

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/kernels/safetensors"
)

// edit is a block file taken apart, to be damaged and put together again.
type edit struct {
	tensors []safetensors.Tensor
	meta    []safetensors.KV
	data    [][]byte
}

func takeApart(t testing.TB, path string) *edit {
	f := openTensors(t, path)
	h := f.Header()
	e := &edit{tensors: slices.Clone(h.Tensors), meta: slices.Clone(h.Metadata)}
	for _, x := range e.tensors {
		e.data = append(e.data, tensorBytes(t, f, x.Name))
	}
	return e
}

func (e *edit) bytes(t testing.TB) []byte {
	t.Helper()
	at := int64(0)
	var body []byte
	for i := range e.tensors {
		x := &e.tensors[i]
		x.Begin, x.End = at, at+int64(len(e.data[i]))
		at = x.End
		body = append(body, e.data[i]...)
	}
	head, err := safetensors.EncodeHeader(e.tensors, e.meta)
	if err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

func (e *edit) set(key, value string) {
	for i := range e.meta {
		if e.meta[i].Key == key {
			e.meta[i].Value = value
			return
		}
	}
	e.meta = append(e.meta, safetensors.KV{Key: key, Value: value})
}

func (e *edit) get(key string) string {
	for _, kv := range e.meta {
		if kv.Key == key {
			return kv.Value
		}
	}
	return ""
}

func (e *edit) unset(key string) {
	e.meta = slices.DeleteFunc(e.meta, func(kv safetensors.KV) bool { return kv.Key == key })
}

func (e *edit) replace(key, from, to string) { e.set(key, strings.Replace(e.get(key), from, to, 1)) }

func (e *edit) at(name string) int {
	return slices.IndexFunc(e.tensors, func(x safetensors.Tensor) bool { return x.Name == name })
}

func (e *edit) drop(name string) {
	i := e.at(name)
	e.tensors, e.data = slices.Delete(e.tensors, i, i+1), slices.Delete(e.data, i, i+1)
}

func (e *edit) shape(name string, shape ...int64) {
	e.tensors[e.at(name)].Shape = shape
}

// buildStore writes a case's blocks in another format into a new store.
func buildStore(t testing.TB, c *goldenCase, created string) *Store {
	t.Helper()
	l, err := NewLayout(c.spec)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, t.TempDir())
	j := mustBegin(t, s, Plan{Spec: c.spec, Tokens: c.tokens, Hashes: c.hashes, CreatedAt: created})
	for k := range c.hashes {
		if err := j.Write(k, 0, wireFromState(t, c, l, k)); err != nil {
			t.Fatal(err)
		}
		sealAndPublish(t, j, k)
	}
	return s
}

func TestReadBlockRefuses(t *testing.T) {
	kv := loadCase(t, "kv-qwen3")
	ds := loadCase(t, "dsv4-a")
	ds.spec.Format, ds.spec.PoolState = Format5, 5
	kvPath, dsPath := kv.expected(1), buildStore(t, ds, "1.5").Path(ds.hashes[1])
	for name, c := range map[string]struct {
		path   string
		reason string
		damage func(*edit)
	}{
		"no version":          {kvPath, "format version", func(e *edit) { e.unset(keyFormat) }},
		"version 1":           {kvPath, "format version", func(e *edit) { e.set(keyFormat, "1") }},
		"version 6":           {kvPath, "format version", func(e *edit) { e.set(keyFormat, "6") }},
		"version 2 names":     {kvPath, "layer_0_keys is missing", func(e *edit) { e.set(keyFormat, "2") }},
		"no hash":             {kvPath, "hash of 0", func(e *edit) { e.unset(keyHash) }},
		"upper-case hash":     {kvPath, "lower-case", func(e *edit) { e.set(keyHash, strings.ToUpper(e.get(keyHash))) }},
		"other block's hash":  {kvPath, "wants the name", func(e *edit) { e.set(keyHash, kv.hashes[0].String()) }},
		"no model":            {kvPath, "model_name", func(e *edit) { e.unset(keyModel) }},
		"empty model":         {kvPath, "model_name", func(e *edit) { e.set(keyModel, "") }},
		"no token count":      {kvPath, "token_count", func(e *edit) { e.unset(keyTokens) }},
		"zero tokens":         {kvPath, "token_count", func(e *edit) { e.set(keyTokens, "0") }},
		"padded number":       {kvPath, "token_count", func(e *edit) { e.set(keyTokens, "0256") }},
		"wrong token count":   {kvPath, "holds 256 tokens", func(e *edit) { e.set(keyTokens, "128") }},
		"more than the block": {kvPath, "512 tokens in a block", func(e *edit) { e.set(keyTokens, "512") }},
		"huge token count":    {kvPath, "token_count", func(e *edit) { e.set(keyTokens, "99999999999") }},
		"block size text":     {kvPath, "block_size", func(e *edit) { e.set(keyBlockSize, "big") }},
		"layer count":         {kvPath, "3 types and 3 metas for 2", func(e *edit) { e.set(keyLayers, "2") }},
		"huge layer count":    {kvPath, "num_layers", func(e *edit) { e.set(keyLayers, "1000000000") }},
		"no types":            {kvPath, keyTypes, func(e *edit) { e.unset(keyTypes) }},
		"types no JSON":       {kvPath, keyTypes, func(e *edit) { e.set(keyTypes, "[") }},
		"types missing one":   {kvPath, "2 types", func(e *edit) { e.set(keyTypes, `["KVCache", "KVCache"]`) }},
		"unknown type":        {kvPath, "unknown type", func(e *edit) { e.replace(keyTypes, "KVCache", "XCache") }},
		"wrong type":          {kvPath, "window metas", func(e *edit) { e.replace(keyTypes, "KVCache", "RotatingKVCache") }},
		"no metas":            {kvPath, keyMetas, func(e *edit) { e.unset(keyMetas) }},
		"metas no list":       {kvPath, keyMetas, func(e *edit) { e.set(keyMetas, "{}") }},
		"no state count":      {kvPath, "layer_1_state_count", func(e *edit) { e.unset("layer_1_state_count") }},
		"count too large":     {kvPath, "layer_1_state_2 is missing", func(e *edit) { e.set("layer_1_state_count", "3") }},
		"count too small":     {kvPath, "1 elements", func(e *edit) { e.set("layer_1_state_count", "1") }},
		"absurd count":        {kvPath, "state_count", func(e *edit) { e.set("layer_1_state_count", "1000000") }},
		"tensor missing":      {kvPath, "layer_1_state_1 is missing", func(e *edit) { e.drop("layer_1_state_1") }},
		"tensor renamed":      {kvPath, "layer_1_state_1 is missing", func(e *edit) { e.tensors[e.at("layer_1_state_1")].Name = "x" }},
		"extra tensor": {kvPath, "belongs to nothing", func(e *edit) {
			e.set(keyLayers, "2")
			e.set(keyTypes, `["KVCache", "KVCache"]`)
			e.set(keyMetas, "[[], []]")
		}},
		"stray layer key":      {kvPath, "belongs to nothing", func(e *edit) { e.set("layer_9_state_count", "2") }},
		"no batch axis":        {kvPath, "four dimensions", func(e *edit) { e.shape("layer_1_state_0", 2, 256, 64) }},
		"tokens and heads":     {kvPath, "holds 2 tokens", func(e *edit) { e.shape("layer_1_state_0", 1, 256, 2, 64) }},
		"heads differ":         {kvPath, "keys", func(e *edit) { e.shape("layer_1_state_1", 2, 1, 256, 64) }},
		"none mark on keys":    {kvPath, "placeholder", func(e *edit) { e.set("layer_1_state_0_none", "1") }},
		"two marks":            {kvPath, "two marks", func(e *edit) { e.set("layer_1_state_0_none", "1"); e.set("layer_1_state_0_nested", "tuple") }},
		"nested and tensor":    {kvPath, "nested and a tensor", func(e *edit) { e.set("layer_1_state_0_nested", "tuple") }},
		"members of KVCache":   {kvPath, "has members", func(e *edit) { e.set("layer_1_sub_count", "2") }},
		"declared class":       {kvPath, "declares class", func(e *edit) { e.set("layer_1_state_class_name", "PoolingCache") }},
		"turboquant version":   {kvPath, "turboquant_v2", func(e *edit) { e.set("layer_1_turboquant_v2", "2") }},
		"turboquant fields":    {kvPath, "fields", func(e *edit) { e.set("layer_1_turboquant_v2", "1") }},
		"none value":           {dsPath, "want 1", func(e *edit) { e.set("layer_1_sub_1_state_0_none", "yes") }},
		"none mark missing":    {dsPath, "without the other", func(e *edit) { e.unset("layer_1_sub_1_state_0_none") }},
		"placeholder shape":    {dsPath, "placeholder", func(e *edit) { e.data[e.at("layer_0_state_1")] = make([]byte, 8); e.shape("layer_0_state_1", 2) }},
		"zero-dim mark gone":   {dsPath, "four dimensions", func(e *edit) { e.unset("layer_0_state_1_zero_dim") }},
		"zero-dim not zero":    {dsPath, "no zero", func(e *edit) { e.set("layer_0_state_1_zero_dim", "1,1,128,1") }},
		"zero-dim garbage":     {dsPath, "not a shape", func(e *edit) { e.set("layer_0_state_1_zero_dim", "1, 0") }},
		"zero-dim lead":        {dsPath, "keys", func(e *edit) { e.set("layer_0_state_1_zero_dim", "1,1,64,0") }},
		"sub count":            {dsPath, "2 members and 3", func(e *edit) { e.set("layer_1_sub_count", "2") }},
		"sub count missing":    {dsPath, "state_count", func(e *edit) { e.unset("layer_1_sub_count") }},
		"storage mode":         {dsPath, "storage mode", func(e *edit) { e.set("layer_1_storage_mode", "x") }},
		"ratio as text":        {dsPath, "bare positive integer", func(e *edit) { e.replace(keyMetas, "4, 4]", `"4", 4]`) }},
		"ratio zero":           {dsPath, "bare positive integer", func(e *edit) { e.replace(keyMetas, "4, 4]", `0, 4]`) }},
		"member unknown":       {dsPath, "unknown type", func(e *edit) { e.replace(keyMetas, `"PoolingCache"`, `"Pool"`) }},
		"member a list":        {dsPath, "unknown type", func(e *edit) { e.replace(keyMetas, `"PoolingCache"`, `"CacheList"`) }},
		"member metas missing": {dsPath, "no member names", func(e *edit) { e.replace(keyMetas, "4, 4]", `4]`) }},
		"window metas three":   {dsPath, "window metas", func(e *edit) { e.replace(keyMetas, `"0", "128"`, `"0"`) }},
		"window metas text":    {dsPath, "not a number", func(e *edit) { e.replace(keyMetas, `"1024"`, `"x"`) }},
		"windows disagree":     {dsPath, "an earlier window", func(e *edit) { e.replace(keyMetas, `"1024"`, `"512"`) }},
		"delta in format 3":    {dsPath, "format 3 does not have", func(e *edit) { e.set(keyFormat, "3") }},
		"delta class missing":  {dsPath, "declares class", func(e *edit) { e.unset("layer_1_sub_1_state_class_name") }},
		"pool class wrong":     {dsPath, "declares class", func(e *edit) { e.set("layer_1_sub_1_state_class_name", "KVCache") }},
		"range type":           {dsPath, "no row range", func(e *edit) { e.tensors[e.at("layer_1_sub_1_state_5")].DType = safetensors.U64 }},
		"range backwards": {dsPath, "impossible range", func(e *edit) {
			e.data[e.at("layer_1_sub_1_state_5")][0] = 0xff
			e.data[e.at("layer_1_sub_1_state_5")][1] = 0xff
		}},
		"range negative":      {dsPath, "impossible range", func(e *edit) { e.data[e.at("layer_1_sub_1_state_5")][7] = 0x80 }},
		"range too long":      {dsPath, "its range is", func(e *edit) { e.data[e.at("layer_1_sub_1_state_5")][8]++ }},
		"rows two dimensions": {dsPath, "three dimensions", func(e *edit) { e.shape("layer_1_sub_1_state_2", 128, 64) }},
		"range left out": {dsPath, "belongs to nothing", func(e *edit) {
			e.set("layer_1_sub_1_state_count", "5")
			e.set("layer_1_sub_1_state_class_name", "PoolingCache")
		}},
		"list without members": {dsPath, "", func(e *edit) { e.replace(keyTypes, "RotatingKVCache", "CacheList") }},
	} {
		t.Run(name, func(t *testing.T) {
			e := takeApart(t, c.path)
			c.damage(e)
			path := filepath.Join(t.TempDir(), filepath.Base(c.path))
			if err := os.WriteFile(path, e.bytes(t), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := ReadBlock(path)
			if !errors.Is(err, ErrBlock) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %v; want ErrBlock with %q", err, c.reason)
			}
		})
	}
}

func TestReadBlockRefusesContainer(t *testing.T) {
	c := loadCase(t, "kv-qwen3")
	good, err := os.ReadFile(c.expected(2))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, filepath.Base(c.expected(2)))
	for name, data := range map[string][]byte{
		"empty":        nil,
		"half":         good[:len(good)/2],
		"in header":    good[:500],
		"one short":    good[:len(good)-1],
		"one too many": append(bytes.Clone(good), 0),
		"other label":  bytes.Replace(good, []byte(`"BF16"`), []byte(`"BF17"`), 1),
		"wider label":  bytes.Replace(good, []byte(`"BF16"`), []byte(`"F32 "`), 1),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadBlock(path)
		if !errors.Is(err, safetensors.ErrHeader) && !errors.Is(err, safetensors.ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadBlock(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

// TestReadBlockAccepts has what other writers of the format may do.
func TestReadBlockAccepts(t *testing.T) {
	kv, ds := loadCase(t, "kv-qwen3"), loadCase(t, "dsv4-a")
	ds.spec.Format, ds.spec.PoolState = Format5, 5
	kvPath, dsPath := kv.expected(1), buildStore(t, ds, "1.5").Path(ds.hashes[1])
	for name, c := range map[string]struct {
		path   string
		change func(*edit)
		check  func(*Block) bool
	}{
		"format 2": {kvPath, func(e *edit) {
			e.set(keyFormat, "2")
			for i, x := range e.tensors {
				e.tensors[i].Name = strings.NewReplacer("_state_0", "_keys", "_state_1", "_values").Replace(x.Name)
			}
			e.meta = slices.DeleteFunc(e.meta, func(kv safetensors.KV) bool { return strings.HasSuffix(kv.Key, "_state_count") })
		}, func(b *Block) bool {
			return b.Format == "2" && b.Layers[2].States[0].Elements[1].Name == "layer_2_values"
		}},
		"no block size or signature": {kvPath, func(e *edit) { e.unset(keyBlockSize); e.unset(keySignature) },
			func(b *Block) bool { return b.BlockTokens == 0 }},
		"reversed keys": {kvPath, func(e *edit) { slices.Reverse(e.meta) }, func(b *Block) bool { return len(b.Layers) == 3 }},
		"window metas as numbers": {dsPath, func(e *edit) {
			e.set(keyMetas, strings.NewReplacer(`"0"`, "0", `"128"`, "128", `"1024"`, "1024").Replace(e.get(keyMetas)))
		},
			func(b *Block) bool { return b.End == 1024 }},
		"alias": {dsPath, func(e *edit) { e.replace(keyTypes, "RotatingKVCache", "PrefillReadyRotatingKVCache") },
			func(b *Block) bool { return b.Layers[0].States[0].Class == classRotating }},
		"placeholder layer": {dsPath, func(e *edit) {
			i := e.at("layer_0_state_0")
			e.tensors[i].DType, e.tensors[i].Shape, e.data[i] = safetensors.F32, []int64{1}, make([]byte, 4)
			e.unset("layer_0_state_1_zero_dim")
			e.replace(keyMetas, `["0", "128", "1024", "128"]`, "[]")
		}, func(b *Block) bool { return b.Layers[0].Placeholder && !b.Layers[1].Placeholder }},
		"nested element": {kvPath, func(e *edit) {
			e.replace(keyTypes, "KVCache", "QuantizedKVCache")
			i := e.at("layer_0_state_0")
			e.tensors[i].Name = "layer_0_state_0_state_0"
			e.set("layer_0_state_0_nested", "tuple")
			e.set("layer_0_state_0_state_count", "1")
		}, func(b *Block) bool { return b.Layers[0].States[0].Elements[0].Nested[0].Tensor.Size() > 0 }},
		"turboquant": {kvPath, func(e *edit) {
			e.replace(keyTypes, "KVCache", "TurboQuantKVCache")
			e.tensors[e.at("layer_0_state_0")].Name = "layer_0_tq_k_norms"
			e.tensors[e.at("layer_0_state_1")].Name = "layer_0_tq_v_norms"
			e.unset("layer_0_state_count")
			for _, kv := range [][2]string{{"turboquant_v2", "1"}, {"tq_key_type", "A"}, {"tq_value_type", "A"}, {"tq_key_fields", "norms"}, {"tq_value_fields", "norms"}} {
				e.set("layer_0_"+kv[0], kv[1])
			}
		}, func(b *Block) bool { return b.Layers[0].Type == "TurboQuantKVCache" }},
	} {
		t.Run(name, func(t *testing.T) {
			e := takeApart(t, c.path)
			c.change(e)
			path := filepath.Join(t.TempDir(), filepath.Base(c.path))
			if err := os.WriteFile(path, e.bytes(t), 0o600); err != nil {
				t.Fatal(err)
			}
			b, err := ReadBlock(path)
			if err != nil || !c.check(b) {
				t.Errorf("%v\n%+v", err, b)
			}
		})
	}
}
