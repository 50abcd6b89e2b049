package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
)

const casesDir = "testdata/cases"

// cli runs one command line in this process.
func cli(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(t.Context(), args, newStreams(&o, &e))
	return status, o.String(), e.String()
}

// replayJSON runs `pdlink replay … --json` and demands a status.
func replayJSON(t *testing.T, want int, args ...string) replayResult {
	t.Helper()
	status, out, errOut := cli(t, append([]string{"replay", "--json"}, args...)...)
	if status != want {
		t.Fatalf("replay %v: status %d, want %d\n%s%s", args, status, want, out, errOut)
	}
	var res replayResult
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		t.Fatalf("replay %v: %v in %q", args, err, out)
	}
	return res
}

// theCases are the bundled cases and their blocks.
func theCases() map[string]int { return map[string]int{"kv-qwen3": 5, "dsv4-a": 2, "dsv4-b": 2} }

func TestReplayIsIdenticalOverEveryLinkAndChunk(t *testing.T) {
	for name, blocks := range theCases() {
		for _, link := range demoLinks() {
			for _, chunk := range []string{"-1", "0", "1", "7", "130", "512"} {
				if chunk == "1" && name == "dsv4-b" && link == "mem://" {
					continue // 4,301 single rows once are enough
				}
				res := replayJSON(t, exitOK, filepath.Join(casesDir, name), "--store", t.TempDir(), "--link", link, "--chunk", chunk, "--no-sync")
				if res.Verdict != "complete" || res.Identical != blocks || res.Different != 0 || res.Missing != 0 || !res.Compared {
					t.Errorf("%s over %s, chunk %s: %+v", name, link, chunk, res)
				}
				if res.Case != name || !strings.HasPrefix(link, res.Link+":") || res.Blocks != blocks || res.Bytes == 0 {
					t.Errorf("%s over %s, chunk %s: %+v", name, link, chunk, res)
				}
			}
		}
	}
}

func TestSendersShareTheLayers(t *testing.T) {
	for name, blocks := range theCases() {
		for _, senders := range []string{"2", "3", "9"} { // more senders than layers too
			res := replayJSON(t, exitOK, filepath.Join(casesDir, name), "--store", t.TempDir(), "--link", "tcp://127.0.0.1:0", "--senders", senders)
			if res.Identical != blocks {
				t.Errorf("%s, %s senders: %+v", name, senders, res)
			}
		}
	}
}

func TestReplayAgainSendsNothing(t *testing.T) {
	dir, store := filepath.Join(casesDir, "kv-qwen3"), t.TempDir()
	replayJSON(t, exitOK, dir, "--store", store)
	gone := filepath.Join(store, "c", "c0556e411c6195ece7c456e89f1f2fb94f03bfd61cd1177b277b1efada97744a.safetensors")
	if res := replayJSON(t, exitOK, dir, "--store", store); res.Bytes != 0 || res.Identical != 5 {
		t.Errorf("a complete store: %+v", res)
	}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if res := replayJSON(t, exitOK, dir, "--store", store); res.Bytes != 1966080/5 || res.Identical != 5 {
		t.Errorf("one block missing: %+v", res)
	}
}

func TestKeepingFramesUntilDurable(t *testing.T) {
	res := replayJSON(t, exitOK, filepath.Join(casesDir, "dsv4-b"), "--store", t.TempDir(), "--keep", "--chunk", "100")
	if res.Identical != 2 {
		t.Errorf("%+v", res)
	}
	status, _, errOut := cli(t, "replay", "--synthetic", "deepseek-v4-flash", "--tokens", "100000", "--discard", "--keep")
	if status != exitUsage || !strings.Contains(errOut, "smaller chunks") {
		t.Errorf("a ring too small: status %d, %s", status, errOut)
	}
}

func TestOtherFormatsAreSound(t *testing.T) {
	for name, formats := range map[string][]string{"kv-qwen3": {"5"}, "dsv4-a": {"4", "5"}, "dsv4-b": {"5"}} {
		for _, format := range formats {
			store, dir := t.TempDir(), filepath.Join(casesDir, name)
			res := replayJSON(t, exitOK, dir, "--store", store, "--format", format)
			if res.Compared || res.Blocks != theCases()[name] {
				t.Errorf("%s in format %s: %+v", name, format, res)
			}
			status, out, errOut := cli(t, "store", "verify", store, "--case", dir, "--format", format, "--finite")
			if status != exitOK {
				t.Errorf("verify %s in format %s: status %d\n%s%s", name, format, status, out, errOut)
			}
		}
	}
	res := replayJSON(t, exitOK, filepath.Join(casesDir, "dsv4-a"), "--store", t.TempDir(), "--pool-state", "5")
	if res.Compared || res.Blocks != 2 {
		t.Errorf("format 3 with five elements: %+v", res)
	}
}

// edited copies a case with changes of case.json.
func edited(t *testing.T, name string, change func(map[string]any)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(casesDir, name))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "case.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	if text, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// prompt cuts a case's prompt to n tokens, all of them captured as far as the
// capture goes.
func prompt(n int) func(map[string]any) {
	return func(m map[string]any) {
		m["tokens"] = m["tokens"].([]any)[:n]
		delete(m, "blocks")
	}
}

func TestPromptLengths(t *testing.T) {
	for _, c := range []struct {
		name             string
		tokens           int
		blocks, withheld int
		verdict          string
	}{
		{"kv-qwen3", 1281, 5, 0, "complete"},
		{"kv-qwen3", 1280, 5, 0, "complete"}, // plain KV is trimmed by a token where blocks cover all
		{"dsv4-a", 1303, 2, 0, "complete"},
	} {
		dir := edited(t, c.name, prompt(c.tokens))
		res := replayJSON(t, exitOK, dir, "--store", t.TempDir())
		if res.Verdict != c.verdict || res.Blocks != c.blocks || res.Withheld != c.withheld || res.Different+res.Missing != 0 {
			t.Errorf("%s with %d tokens: %+v", c.name, c.tokens, res)
		}
	}
}

func TestUsableBlocksAtTheEdges(t *testing.T) {
	kv := omlx.Spec{Kind: omlx.KindKV, BlockTokens: 256}
	ds := omlx.Spec{Kind: omlx.KindDSV4, BlockTokens: 512}
	for _, c := range []struct {
		spec         omlx.Spec
		tokens, want int
	}{
		{kv, 0, 0}, {kv, 255, 0}, {kv, 256, 1}, {kv, 257, 1}, {kv, 1280, 5},
		{ds, 511, 0}, {ds, 512, 0}, {ds, 513, 1}, {ds, 1024, 1}, {ds, 1025, 2},
	} {
		if got := c.spec.UsableBlocks(c.tokens); got != c.want {
			t.Errorf("%s, %d tokens: %d blocks, want %d", c.spec.Kind, c.tokens, got, c.want)
		}
	}
}

func TestRefusedInput(t *testing.T) {
	kv, ds := filepath.Join(casesDir, "kv-qwen3"), filepath.Join(casesDir, "dsv4-a")
	store := filepath.Join(t.TempDir(), "store")
	set := func(key string, v any) func(map[string]any) { return func(m map[string]any) { m[key] = v } }
	for _, c := range []struct {
		what   string
		args   []string
		status int
		say    string
	}{
		{"no case", []string{"replay", "--store", store}, exitUsage, "which case? give a directory, one of bundled:dsv4-a"},
		{"no destination", []string{"replay", kv}, exitUsage, "give one of --store DIR, --to URL, --discard"},
		{"two destinations", []string{"replay", kv, "--store", store, "--to", "tcp://127.0.0.1:1"}, exitUsage, "--store and --to exclude each other"},
		{"no such case", []string{"replay", "nowhere", "--store", store}, exitUsage, "case.json"},
		{"unknown link", []string{"replay", kv, "--store", store, "--link", "ib://x"}, exitUsage, "link unavailable"},
		{"no link", []string{"replay", kv, "--store", store, "--link", "127.0.0.1:5"}, exitUsage, "scheme://"},
		{"not loopback", []string{"replay", kv, "--store", store, "--link", "tcp://0.0.0.0:0"}, exitUsage, "127.0.0.1"},
		{"nobody there", []string{"replay", kv, "--to", "tcp://127.0.0.1:1"}, exitFailed, "is `pdlink decode` running"},
		{"format of plain KV", []string{"replay", kv, "--store", store, "--format", "4"}, exitUsage, "use 5 (split) or 3"},
		{"unknown format", []string{"replay", ds, "--store", store, "--format", "9"}, exitUsage, "9"},
		{"pool state of plain KV", []string{"replay", kv, "--store", store, "--pool-state", "5"}, exitUsage, "pool state"},
		{"pool state 4", []string{"replay", ds, "--store", store, "--pool-state", "4"}, exitUsage, "4"},
		{"chunk", []string{"replay", ds, "--store", store, "--chunk", "-7"}, exitUsage, "chunk"},
		{"numerics", []string{"replay", ds, "--store", store, "--numerics", "exactly"}, exitUsage, "exactly"},
		{"part", []string{"replay", kv, "--to", "tcp://127.0.0.1:1", "--part", "3/2"}, exitUsage, "1/2"},
		{"senders", []string{"replay", kv, "--store", store, "--senders", "0"}, exitUsage, "senders"},
		{"id", []string{"replay", kv, "--store", store, "--id", "xyz"}, exitUsage, "32 hex"},
		{"synthetic and case", []string{"replay", kv, "--synthetic", "qwen3-32b", "--discard"}, exitUsage, "not both"},
		{"unknown model", []string{"replay", "--synthetic", "gpt", "--tokens", "9999", "--discard"}, exitUsage, "deepseek-v4-flash"},
		{"too few tokens", []string{"replay", "--synthetic", "qwen3-32b", "--tokens", "9", "--discard"}, exitUsage, "less than one block"},
		{"tampered tokens", []string{"replay", edited(t, "kv-qwen3", func(m map[string]any) {
			m["tokens"].([]any)[3] = 1
		}), "--store", store}, exitUsage, "hashes"},
		{"no ratios", []string{"replay", edited(t, "dsv4-a", func(m map[string]any) {
			delete(m["config"].(map[string]any), "compress_ratios")
		}), "--store", store}, exitUsage, "compress_ratios"},
		{"more captured than there is", []string{"replay", edited(t, "kv-qwen3", set("captured_tokens", 1400)), "--store", store}, exitUsage, "layer_0.k"},
		{"captured beyond the prompt", []string{"replay", edited(t, "kv-qwen3", set("captured_tokens", 9999)), "--store", store}, exitUsage, "captured_tokens"},
		{"unknown kind", []string{"replay", edited(t, "kv-qwen3", set("kind", "gru")), "--store", store}, exitUsage, "gru"},
		{"empty model", []string{"replay", edited(t, "kv-qwen3", set("model", "")), "--store", store}, exitUsage, "model"},
		{"decode without store", []string{"decode"}, exitUsage, "give one of --store DIR, --discard"},
		{"decode with a tiny ring", []string{"decode", "--discard", "--ring", "1"}, exitUsage, "want 3 to 4096 MiB"},
		{"verify nothing", []string{"store", "verify", "nowhere"}, exitUsage, "nowhere"},
		{"unknown command", []string{"fly"}, exitUsage, "fly"},
		{"unknown flag", []string{"replay", "--fast"}, exitUsage, "fast"},
	} {
		status, _, errOut := cli(t, c.args...)
		if status != c.status || !strings.Contains(errOut, c.say) {
			t.Errorf("%s: status %d, want %d; said %q, want %q in it", c.what, status, c.status, errOut, c.say)
		}
	}
	if _, err := os.Stat(store); err == nil {
		if entries, _ := filepath.Glob(filepath.Join(store, "*", "*.safetensors")); len(entries) > 0 {
			t.Errorf("refused input left %v", entries)
		}
	}
}

func TestAnotherFormatUnderTheSameHashIsDeclined(t *testing.T) {
	dir, store := filepath.Join(casesDir, "dsv4-a"), t.TempDir()
	replayJSON(t, exitOK, dir, "--store", store)
	status, out, errOut := cli(t, "replay", dir, "--store", store, "--format", "5")
	if status != exitFailed || !strings.Contains(out, "declined: ") || !strings.Contains(out, "taken") || errOut != "" {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	res := replayJSON(t, exitFailed, dir, "--store", store, "--format", "5")
	if res.State != bridge.Declined || !strings.Contains(res.Reason, "taken") || res.Verdict != "declined: "+res.Reason || res.Total != 2 || res.Compared {
		t.Errorf("%+v", res)
	}
	if res := replayJSON(t, exitOK, dir, "--store", store); res.Identical != 2 {
		t.Errorf("the blocks that were there: %+v", res)
	}
}

func TestStoreCommands(t *testing.T) {
	dir, store := filepath.Join(casesDir, "kv-qwen3"), t.TempDir()
	replayJSON(t, exitOK, dir, "--store", store)
	expected := filepath.Join(dir, "expected")
	blocks, err := filepath.Glob(filepath.Join(store, "?", "*.safetensors"))
	if err != nil || len(blocks) != 5 {
		t.Fatal(blocks, err)
	}
	for _, c := range []struct {
		args   []string
		status int
		say    string
	}{
		{[]string{"store", "ls", store}, exitOK, "5 blocks, 2.0 MB, 0 unusable\n"},
		{[]string{"store", "ls", store, "--json"}, exitOK, `"model":"tiny-qwen3"`},
		{[]string{"store", "show", blocks[0]}, exitOK, "layer_2_state_1"},
		{[]string{"store", "show", blocks[0], "--json"}, exitOK, `"tensors"`},
		{[]string{"store", "verify", store, "--finite"}, exitOK, "5 sound, 0 bad"},
		{[]string{"store", "verify", store, "--case", dir, "--json"}, exitOK, `"sound":5`},
		{[]string{"store", "verify", store, "--case", filepath.Join(casesDir, "dsv4-a")}, exitFailed, "2 missing"},
		{[]string{"store", "diff", store, expected}, exitOK, "5 identical, 0 not"},
		{[]string{"store", "diff", blocks[0], expected, "--json"}, exitFailed, "only_b"},
	} {
		status, out, errOut := cli(t, c.args...)
		if status != c.status || !strings.Contains(out, c.say) {
			t.Errorf("%v: status %d, want %d, want %q in\n%s%s", c.args, status, c.status, c.say, out, errOut)
		}
	}
	damage(t, blocks[1])
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"store", "diff", store, expected}, "different"},
		{[]string{"replay", dir, "--store", store, "--json"}, `"different":1`},
	} {
		if status, out, _ := cli(t, c.args...); status != exitFailed || !strings.Contains(out, c.say) {
			t.Errorf("a damaged store: %v: status %d\n%s", c.args, status, out)
		}
	}
	if err := os.Truncate(blocks[1], 1000); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"store", "ls", store}, {"store", "verify", store}, {"store", "diff", store, expected}} {
		if status, out, _ := cli(t, args...); status != exitFailed {
			t.Errorf("a truncated block: %v: status %d\n%s", args, status, out)
		}
	}
}

// damage flips the last byte of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDemo(t *testing.T) {
	status, out, errOut := cli(t, "demo")
	if status != exitOK || !strings.HasSuffix(out, "demo: ok, 18 of 18 blocks identical to the decoder's own\n") {
		t.Errorf("status %d\n%s%s", status, out, errOut)
	}
}

func TestVersionHelpAndCompletion(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"version"}, "protocol"},
		{[]string{"version", "--json"}, `"links":["mem","tcp","unix"`},
		{nil, "pdlink demo"},
		{[]string{"replay", "--help"}, "130 interrupted"},
		{[]string{"store"}, "verify"},
		{[]string{"completion", "bash"}, "bash completion"},
		{[]string{"__complete", "replay", "--format", ""}, "5\n"},
	} {
		if status, out, errOut := cli(t, c.args...); status != exitOK || !strings.Contains(out, c.say) {
			t.Errorf("%v: status %d, want %q in\n%s%s", c.args, status, c.say, out, errOut)
		}
	}
}

func TestTimeout(t *testing.T) {
	status, _, errOut := cli(t, "replay", "--synthetic", "deepseek-v4-flash", "--tokens", "1000000", "--discard", "--timeout", "50ms")
	if status != exitFailed || !strings.Contains(errOut, "--timeout") {
		t.Errorf("status %d: %s", status, errOut)
	}
}
