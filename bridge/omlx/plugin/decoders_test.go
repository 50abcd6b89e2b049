package plugin

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge/omlx"
)

// TestDecoders reads what the plug-in said in real decoders.
func TestDecoders(t *testing.T) {
	for name, want := range map[string]omlx.Options{
		"omlx-0.5.3":      {PayloadLayout: omlx.LayoutNone, Subtypes: omlx.Off},
		"flyto-mlx-0.7.0": {PayloadLayout: omlx.LayoutNone, Subtypes: omlx.Off, NoBlockSize: true, NoSignature: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ParsePlan(example(t, filepath.Join(name, "plan.json")))
			if err != nil {
				t.Fatal(err)
			}
			info, err := ParseInfo(example(t, filepath.Join(name, "info.json")))
			if err != nil {
				t.Fatal(err)
			}
			if p.Tokens != 576 || p.Blocks != 2 || info.Model.Layout != p.Layout || info.Model.HashModel != p.HashModel {
				t.Errorf("%d tokens, %d blocks, layouts %s and %s", p.Tokens, p.Blocks, p.Layout, info.Model.Layout)
			}
			if m := info.Model; m.BlockTokens != 256 || m.BlockBytes < 256*3*2*2*64*2 || m.Format != "3" || m.Store.Dir() == "" {
				t.Errorf("model is %+v", m)
			}
			spec, err := info.Model.Native.Spec()
			if err != nil {
				t.Fatal(err)
			}
			if o := spec.Options; o.PayloadLayout != want.PayloadLayout || o.NoBlockSize != want.NoBlockSize || o.NoSignature != want.NoSignature {
				t.Errorf("options are %+v", o)
			}
			if spec.Kind != omlx.KindKV || spec.Layers != 3 || spec.KVHeads != 2 || spec.HeadDim != 64 || spec.DType != "BF16" || spec.BlockTokens != 256 {
				t.Errorf("spec is %+v", spec)
			}
			if _, err := p.Transfer(spec); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDecodersDSV4 reads blocks that real decoders made of a small model of
// DeepSeek-V4's shape. The fork keeps windows as long as its chunks, which is not
// what this module writes: that must be seen, not guessed at.
func TestDecodersDSV4(t *testing.T) {
	read := func(name string) Native {
		var n Native
		if err := json.Unmarshal(example(t, filepath.Join(name, "native-dsv4.json")), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	spec, err := read("omlx-0.5.3").Spec()
	if err != nil {
		t.Fatal(err)
	}
	if spec.Kind != omlx.KindDSV4 || len(spec.Ratios) != 4 || spec.Ratios[1] != 4 || spec.Ratios[2] != 128 || spec.Window != 128 ||
		spec.HeadDim != 96 || spec.IndexHeadDim != 64 || spec.PoolState != 3 || spec.BlockTokens != 512 {
		t.Errorf("spec is %+v", spec)
	}
	if _, err := read("flyto-mlx-0.7.0").Spec(); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "512") {
		t.Errorf("the fork's windows: %v", err)
	}
}

// TestStoreDir: a path that would mean another directory here is none.
func TestStoreDir(t *testing.T) {
	for path, want := range map[string]string{"/a/b": "/a/b", "": "", "a/b": "", "~/a": ""} {
		if got := (Store{Path: path}).Dir(); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
