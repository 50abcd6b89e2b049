package omlx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestSpecRefuses(t *testing.T) {
	ds := tiny(Format5, 1).Spec
	kv := Spec{Kind: KindKV, Model: "m", BlockTokens: 256, Format: Format3, Layers: 2, KVHeads: 2, HeadDim: 64}
	for _, s := range []Spec{ds, kv} {
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		base   Spec
		reason string
		change func(*Spec)
	}{
		"kind":              {kv, "kind", func(s *Spec) { s.Kind = "x" }},
		"no model":          {kv, "model id", func(s *Spec) { s.Model = "" }},
		"model not UTF-8":   {kv, "model id", func(s *Spec) { s.Model = "\xff" }},
		"long model":        {kv, "model id", func(s *Spec) { s.Model = strings.Repeat("m", maxText+1) }},
		"no tokens":         {kv, "block of 0", func(s *Spec) { s.BlockTokens = 0 }},
		"too many tokens":   {kv, "block of", func(s *Spec) { s.BlockTokens = maxBlockTokens + 1 }},
		"format 2":          {kv, "format", func(s *Spec) { s.Format = "2" }},
		"head width":        {kv, "head width", func(s *Spec) { s.HeadDim = 0 }},
		"no layers":         {kv, "0 layers", func(s *Spec) { s.Layers = 0 }},
		"too many layers":   {kv, "layers", func(s *Spec) { s.Layers = maxLayers + 1 }},
		"kv format 4":       {kv, "no pool deltas", func(s *Spec) { s.Format = Format4 }},
		"no heads":          {kv, "heads", func(s *Spec) { s.KVHeads = 0 }},
		"kv dtype":          {kv, "dtype", func(s *Spec) { s.DType = "I64" }},
		"kv with window":    {kv, "no meaning", func(s *Spec) { s.Window = 1 }},
		"kv with ratios":    {kv, "no meaning", func(s *Spec) { s.Ratios = []int{0} }},
		"kv with pool":      {kv, "no meaning", func(s *Spec) { s.PoolState = 3 }},
		"too large":         {kv, "more than", func(s *Spec) { s.BlockTokens, s.KVHeads, s.HeadDim = maxBlockTokens, maxDim, maxDim }},
		"layers and ratios": {ds, "3 ratios for 4", func(s *Spec) { s.Layers = 4 }},
		"pool state":        {ds, "pool state", func(s *Spec) { s.PoolState = 4 }},
		"ratio":             {ds, "ratio 8", func(s *Spec) { s.Ratios = []int{8} }},
		"negative ratio":    {ds, "ratio -4", func(s *Spec) { s.Ratios = []int{-4} }},
		"block and ratio":   {ds, "no multiple", func(s *Spec) { s.BlockTokens = 130 }},
		"block and window":  {ds, "no complete window", func(s *Spec) { s.Window = 129 }},
		"no window":         {ds, "window", func(s *Spec) { s.Window = 0 }},
		"index width":       {ds, "index head", func(s *Spec) { s.IndexHeadDim = 0 }},
		"dsv4 dtype":        {ds, "BF16", func(s *Spec) { s.DType = "F16" }},
		"dsv4 heads":        {ds, "heads", func(s *Spec) { s.KVHeads = 2 }},
		"payload layout":    {ds, "payload layout", func(s *Spec) { s.Options.PayloadLayout = "x" }},
		"subtypes":          {ds, "subtypes", func(s *Spec) { s.Options.Subtypes = "x" }},
		"class names":       {ds, "class names", func(s *Spec) { s.Options.ClassNames = "x" }},
		"delta unnamed":     {ds, "class name", func(s *Spec) { s.Options.ClassNames = Off }},
		"placeholder dtype": {ds, "placeholder", func(s *Spec) { s.Options.ZeroDimDType = "I8" }},
		"extra keys":        {ds, "extra key", func(s *Spec) { s.Options.ExtraKeys = []string{""} }},
		"many extra keys":   {ds, "extra keys", func(s *Spec) { s.Options.ExtraKeys = make([]string, maxExtra+1) }},
	} {
		s := c.base
		c.change(&s)
		_, err := NewLayout(s)
		if !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: got %v; want ErrPlan with %q", name, err, c.reason)
		}
	}
}

func TestSpecJSON(t *testing.T) {
	s := tiny(Format5, 1).Spec
	text, err := json.Marshal(s)
	if err != nil || strings.Contains(string(text), "options") {
		t.Errorf("%s, %v", text, err)
	}
	s.Options = Options{NoBlockSize: true, ExtraKeys: []string{"x"}, ClassNames: On}
	text, err = json.Marshal(s)
	var back Spec
	if err := errors.Join(err, json.Unmarshal(text, &back)); err != nil || !reflect.DeepEqual(s, back) {
		t.Errorf("%s: %+v, %v", text, back, err)
	}
}

func TestPlanCheck(t *testing.T) {
	good := Plan{Spec: tiny(Format5, 1).Spec, Tokens: span(0, 300)}
	good.Hashes = Chain("m", 128, good.Tokens, nil)
	if _, err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		reason string
		change func(*Plan)
	}{
		"spec":          {"format \"1\"", func(p *Plan) { p.Spec.Format = "1" }},
		"no blocks":     {"0 blocks", func(p *Plan) { p.Hashes = nil }},
		"many blocks":   {"blocks are not in", func(p *Plan) { p.Hashes = make([]Hash, maxBlocks+1) }},
		"repeated hash": {"same hash", func(p *Plan) { p.Tokens = nil; p.Hashes = make([]Hash, 2) }},
		"created at":    {"created_at", func(p *Plan) { p.CreatedAt = `1","x":"` }},
		"other hash":    {"block 1 is 01", func(p *Plan) { p.Hashes = []Hash{p.Hashes[0], {1}} }},
		"other model":   {"tokens hash to", func(p *Plan) { p.Spec.Model = "n" }},
		"salted":        {"tokens hash to", func(p *Plan) { p.Spec.Options.ExtraKeys = []string{"x"} }},
		"few tokens":    {"255 tokens for 2 blocks", func(p *Plan) { p.Tokens = p.Tokens[:255] }},
		"many tokens":   {"tokens, limit", func(p *Plan) { p.Tokens = make([]uint32, maxTokens+1) }},
		"too large": {"bytes, limit", func(p *Plan) {
			p.Tokens, p.Spec = nil, flash(Format3, 3)
			for i := range 2000 {
				p.Hashes = append(p.Hashes, Hash{byte(i), byte(i >> 8), 1})
			}
		}},
	} {
		p := good
		c.change(&p)
		if _, err := p.Check(); !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v; want ErrPlan with %q", name, err, c.reason)
		}
		if _, err := NewDiscard().Begin(p); !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: begin: %v; want ErrPlan with %q", name, err, c.reason)
		}
	}
}

func TestPlanBinary(t *testing.T) {
	p := Plan{Spec: flash(Format5, 0), Tokens: span(0, 1_000_000), CreatedAt: "1.5"}
	for i := range p.Tokens {
		p.Tokens[i] = uint32(i*7919) % 129280
	}
	p.Hashes = Chain(p.Spec.Model, 2048, p.Tokens, nil)
	raw, err := p.MarshalBinary()
	if err != nil || len(raw) > 4<<20 {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	var back Plan
	if err := back.UnmarshalBinary(raw); err != nil || !reflect.DeepEqual(p, back) {
		t.Fatalf("round trip: %v", err)
	}
	small := tiny(Format5, 2)
	if raw, err = small.MarshalBinary(); err != nil {
		t.Fatal(err)
	}
	for n := range raw {
		if err := back.UnmarshalBinary(raw[:n]); !errors.Is(err, ErrPlan) {
			t.Errorf("first %d of %d bytes: %v", n, len(raw), err)
		}
	}
	if !reflect.DeepEqual(p, back) {
		t.Error("a failed decode changed the plan")
	}
	huge := append([]byte(planMagic), 2, '{', '}', 0, 0)
	for name, bad := range map[string][]byte{
		"trailing byte":  append(bytes.Clone(raw), 0),
		"other version":  append([]byte("pdplan\x00\x02"), raw[8:]...),
		"unknown field":  append([]byte(planMagic), "\x07{\"x\":1}\x00\x00\x00"...),
		"two objects":    append([]byte(planMagic), "\x04{}{}\x00\x00\x00"...),
		"claimed tokens": binary.AppendUvarint(bytes.Clone(huge), maxTokens),
		"token too wide": append(binary.AppendUvarint(bytes.Clone(huge), 1), binary.AppendUvarint(nil, 1<<32)...),
		"claimed hashes": binary.AppendUvarint([]byte(planMagic+"\x02{}\x00"), maxBlocks),
		"huge number":    append([]byte(planMagic), bytes.Repeat([]byte{0xff}, 11)...),
	} {
		if err := back.UnmarshalBinary(bad); !errors.Is(err, ErrPlan) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzPlan(f *testing.F) {
	for _, p := range []Plan{tiny(Format3, 1), tiny(Format5, 3), {Spec: Spec{Model: "é"}, Tokens: []uint32{1, 1 << 31}}} {
		raw, err := p.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Plan
		if err := p.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, ErrPlan) {
				t.Fatalf("error without the sentinel: %v", err)
			}
			return
		}
		raw, err := p.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back Plan
		if err := back.UnmarshalBinary(raw); err != nil {
			t.Fatalf("own bytes refused: %v", err)
		}
		again, err := back.MarshalBinary()
		if err != nil || !bytes.Equal(raw, again) {
			t.Fatalf("round trip differs: %v", err)
		}
		if l, err := p.Check(); err == nil {
			if _, err := l.Header(len(p.Hashes)-1, p.Hashes[0], "0.0"); err != nil {
				t.Fatalf("checked plan has no header: %v", err)
			}
		}
	})
}
