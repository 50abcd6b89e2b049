package replay_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
)

// FuzzCase feeds case.json. Whatever it says, loading ends in a case whose plan
// stands its own check, or in an error.
func FuzzCase(f *testing.F) {
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		b, err := os.ReadFile(filepath.Join(casesDir, name, "case.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"kind":"kv","model":"m","format":"3","block_size":2,"layers":1,"kv_heads":1,"head_dim":1,"tokens":[1,2,3]}`))
	f.Add([]byte(`{"kind":"dsv4","model":"m","format":"5","block_size":128,"tokens":[1],"config":{"compress_ratios":[0,4,128]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "case.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := replay.Load(dir)
		if err != nil {
			return
		}
		spec, err := c.Spec(replay.Overrides{})
		if err != nil {
			t.Fatalf("a loaded case has no layout: %v", err)
		}
		l, err := omlx.NewLayout(spec)
		if err != nil {
			t.Fatal(err)
		}
		// Its files are not there.
		if _, err := replay.NewSource(c, l, replay.Options{}); c.Kind == omlx.KindKV && c.Blocks() > 0 != errors.Is(err, replay.ErrCase) {
			t.Fatalf("%d blocks without a capture: %v", c.Blocks(), err)
		}
		if plan := c.Plan(spec); len(plan.Hashes) > 0 {
			_, _ = plan.Check() // may refuse for size, must not panic
		}
	})
}
