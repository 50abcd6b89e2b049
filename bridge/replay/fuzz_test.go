package replay_test

import (
	"encoding/json"
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
	// Short prompts: long seeds are minimised for minutes.
	f.Add([]byte(small))
	f.Add([]byte(changed(f, "dsv4-a", func(whole, _ map[string]json.RawMessage) {
		delete(whole, "blocks")
		whole["tokens"], whole["captured_tokens"], whole["block_size"] = json.RawMessage(`[1,2,3,4,5,6,7,8,9]`), json.RawMessage(`8`), json.RawMessage(`128`)
	})))
	f.Add([]byte(small[:len(small)-1] + `,"note":{"\ud83d\ude00":[null]},"layout_options":{"subtypes":"on"},"blocks":[]}`))
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
