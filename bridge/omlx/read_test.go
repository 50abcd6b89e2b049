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

func TestCompare(t *testing.T) {
	c := loadCase(t, "kv-qwen3")
	// A key that only ends like created_at is no time of writing.
	odd := takeApart(t, c.expected(1))
	odd.meta = slices.Insert(odd.meta, 0, safetensors.KV{Key: `x"created_at`, Value: "1.5"})
	path := filepath.Join(t.TempDir(), "odd")
	if err := os.WriteFile(path, odd.bytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]struct {
		equal  bool
		text   string
		damage func(*edit)
	}{
		"same":         {true, "equal", func(*edit) {}},
		"created at":   {true, "equal", func(e *edit) { e.set(keyCreated, "1.5") }},
		"one bit":      {false, "1 data bytes differ, the first at 65546 in layer_0_state_1", func(e *edit) { e.data[1][10] ^= 1 }},
		"metadata":     {false, `metadata model_name is "x", not "tiny-qwen3"`, func(e *edit) { e.set(keyModel, "x") }},
		"key gone":     {false, "metadata block_size is missing", func(e *edit) { e.unset(keyBlockSize) }},
		"key more":     {false, "metadata colour is extra", func(e *edit) { e.set("colour", "x") }},
		"key order":    {false, "order or spelling", func(e *edit) { slices.Reverse(e.meta) }},
		"dtype":        {false, "tensor 0 is layer_0_state_0 F16", func(e *edit) { e.tensors[0].DType = safetensors.F16 }},
		"tensor gone":  {false, "5 tensors, not 6", func(e *edit) { e.drop("layer_2_state_1") }},
		"like created": {false, `metadata x"created_at is "2.5", not "1.5"`, func(e *edit) { e.set(`x"created_at`, "2.5") }},
		"created gone": {false, "metadata created_at is missing", func(e *edit) { e.unset(keyCreated) }},
	} {
		e := takeApart(t, path)
		v.damage(e)
		other := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(other, e.bytes(t), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Compare(path, other)
		if err != nil || d.Equal() != v.equal || !strings.Contains(d.String(), v.text) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	for _, pair := range [][2]string{{path, "none"}, {"none", path}} {
		if _, err := Compare(pair[0], pair[1]); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("missing file: %v", err)
		}
	}
}

func TestList(t *testing.T) {
	plan := tiny(Format5, 2)
	s := mustOpen(t, t.TempDir())
	j := mustBegin(t, s, plan)
	if err := j.Write(1, 0, content(j, 1)); err != nil {
		t.Fatal(err)
	}
	first := plan
	first.Hashes = plan.Hashes[:1]
	if err := writeAll(mustBegin(t, s, first)); err != nil {
		t.Fatal(err)
	}
	h := plan.Hashes[0].String()
	good, err := os.ReadFile(s.Path(plan.Hashes[0]))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"0/" + h + "_tmp.safetensors": good, "1/" + strings.Repeat("1", 64) + ".safetensors": good[:100], "2/notes.txt": nil,
	} {
		if err := os.WriteFile(filepath.Join(s.root, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(s.Path(plan.Hashes[0]), filepath.Join(s.root, "3", h+".safetensors")); err != nil {
		t.Fatal(err)
	}
	count := make(map[EntryKind]int)
	unreadable := 0
	err = List(s.root, func(e Entry) error {
		count[e.Kind]++
		switch {
		case e.Err != nil:
			unreadable++
		case e.Kind == EntryBlock && (e.Hash != plan.Hashes[0] || e.Model != "m" || e.Format != Format5 || e.Tokens != 128 ||
			e.BlockTokens != 128 || e.Layers != 3 || e.Size != int64(len(good)) || e.ModTime.IsZero()):
			t.Errorf("%+v", e)
		}
		return nil
	})
	if err != nil || unreadable != 1 || count[EntryBlock] != 2 || count[EntryPart] != 1 || count[EntryTemp] != 1 ||
		count[EntrySymlink] != 1 || count[EntryOther] != 1 {
		t.Errorf("%v, %d unreadable, %v", count, unreadable, err)
	}
	stop := errors.New("stop")
	if err := List(s.root, func(Entry) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	if err := List(filepath.Join(s.root, "none"), func(Entry) error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzReadBlock changes one metadata value and one data byte of small blocks of
// every format: whole files would need luck to get past the container.
func FuzzReadBlock(f *testing.F) {
	var bases []safetensors.Header
	for _, format := range []string{Format3, Format4, Format5} {
		l, err := NewLayout(Spec{Kind: KindDSV4, Model: "m", BlockTokens: 128, Format: format, PoolState: 5,
			HeadDim: 1, IndexHeadDim: 1, Window: 1, Ratios: []int{0, 4, 128}})
		if err != nil {
			f.Fatal(err)
		}
		bases = append(bases, safetensors.Header{Tensors: l.Tensors(0), Metadata: l.metadata(0, Hash{}, "0.0"), DataLen: l.DataLen(0)})
	}
	for i, kv := range bases[2].Metadata {
		f.Add(uint8(2), uint8(i), kv.Value, uint16(i), uint8(1))
	}
	f.Add(uint8(0), uint8(0), "2", uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, base, key uint8, value string, at uint16, flip uint8) {
		h := bases[int(base)%len(bases)]
		meta := slices.Clone(h.Metadata)
		meta[int(key)%len(meta)].Value = value
		head, err := safetensors.EncodeHeader(h.Tensors, meta)
		if err != nil {
			return // not UTF-8
		}
		data := append(head, make([]byte, h.DataLen)...)
		data[len(head)+int(at)%int(h.DataLen)] ^= flip
		file, err := safetensors.NewFile(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := parseBlock(file)
		if err != nil {
			if !errors.Is(err, ErrBlock) {
				t.Fatalf("error without the sentinel: %v", err)
			}
			return
		}
		b.Path = filepath.Join("x", "y")
		Check(b, CheckOptions{})
	})
}
