package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lines are the JSON objects that a command printed, a line each.
func lines(t *testing.T, out string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(out) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, m)
	}
	return all
}

// messyStore is a store with five blocks, two of which cannot be read, and with
// files that are no blocks.
func messyStore(t *testing.T) (store string, bad []string) {
	t.Helper()
	store = t.TempDir()
	replayJSON(t, exitOK, "bundled:kv-qwen3", "--store", store)
	blocks, err := filepath.Glob(filepath.Join(store, "?", "*"+blockSuffix))
	if err != nil || len(blocks) != 5 {
		t.Fatal(blocks, err)
	}
	for _, path := range blocks[:2] {
		if err := os.Truncate(path, 1000); err != nil {
			t.Fatal(err)
		}
	}
	part := "." + strings.Repeat("ab", 32) + ".part"
	for name, size := range map[string]int{part: 1000, strings.Repeat("cd", 32) + "_tmp" + blockSuffix: 500, "notes.txt": 7} {
		if err := os.WriteFile(filepath.Join(store, "a", name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return store, []string{nameOf(blocks[0]), nameOf(blocks[1])}
}

// TestListsEndWithASummary: of every kind, the last line of JSON output.
func TestListsEndWithASummary(t *testing.T) {
	store, _ := messyStore(t)
	expected := filepath.Join(casesDir, "kv-qwen3", "expected")
	for _, c := range []struct {
		args  []string
		event string // of all lines but the last
		count int
		want  map[string]any
	}{
		{[]string{"store", "ls", store}, "entry", 8,
			map[string]any{"blocks": 3., "bad": 2., "temp": 2., "temp_bytes": 1500., "other": 1.}},
		{[]string{"store", "verify", store}, "finding", 5, map[string]any{"files": 8., "sound": 3., "bad": 3., "warnings": 2., "missing": 0.}},
		{[]string{"store", "diff", store, expected}, "block", 5, map[string]any{"identical": 3., "not_identical": 2.}},
	} {
		status, out, errOut := cli(t, append(c.args, "--json")...)
		all := lines(t, out)
		if status != exitFailed || errOut != "" || len(all) != c.count+1 {
			t.Fatalf("%v: status %d: %s%s", c.args, status, out, errOut)
		}
		for _, m := range all[:c.count] {
			if m["event"] != c.event {
				t.Errorf("%v: %v", c.args, m)
			}
		}
		last := all[c.count]
		if last["event"] != "summary" {
			t.Errorf("%v: last line %v", c.args, last)
		}
		for k, v := range c.want {
			if last[k] != v {
				t.Errorf("%v: %s is %v, want %v", c.args, k, last[k], v)
			}
		}
	}
	status, out, _ := cli(t, "store", "ls", store)
	for _, say := range []string{"3 blocks, 1.2 MB, 2 unusable; 2 temporary files, 1.5 kB; 1 other\n", "unusable: " + store} {
		if status != exitFailed || !strings.Contains(out, say) {
			t.Errorf("want %q in\n%s", say, out)
		}
	}
	if _, out, _ := cli(t, "store", "verify", store); !strings.Contains(out, "the next pdlink decode or replay into this store removes it") {
		t.Errorf("nobody says how to be rid of temporary files:\n%s", out)
	}
}

// TestDiffGoesOnAfterAnUnreadableBlock: on either side.
func TestDiffGoesOnAfterAnUnreadableBlock(t *testing.T) {
	store, bad := messyStore(t)
	expected := filepath.Join(casesDir, "kv-qwen3", "expected")
	for _, c := range []struct{ a, b, result string }{
		{store, expected, diffUnreadableA}, {expected, store, diffUnreadableB},
		{filepath.Join(store, bad[0][:1], bad[0]+blockSuffix), store, diffUnreadableA},
	} {
		_, out, _ := cli(t, "store", "diff", c.a, c.b, "--json")
		found := map[any]bool{}
		for _, m := range lines(t, out) {
			if m["result"] == c.result {
				found[m["hash"]] = m["detail"] != ""
			}
		}
		if !found[bad[0]] || found[bad[1]] == strings.HasSuffix(c.a, blockSuffix) {
			t.Errorf("diff %s %s: %v\n%s", c.a, c.b, found, out)
		}
	}
	_, out, _ := cli(t, "store", "diff", expected, expected)
	for line := range strings.Lines(out) {
		if strings.HasSuffix(line, " \n") {
			t.Errorf("a space at the end of %q", line)
		}
	}
}

func TestShowFindsABlockByItsHash(t *testing.T) {
	store := filepath.Join(casesDir, "kv-qwen3", "expected")
	for _, digits := range []string{"c0", "C0556E", "c0556e411c6195ece7c456e89f1f2fb94f03bfd61cd1177b277b1efada97744a"} {
		status, out, errOut := cli(t, "store", "show", store, digits)
		if status != exitOK || !strings.Contains(out, "[1, 2, 256, 64]") {
			t.Errorf("%s: status %d: %s%s", digits, status, out, errOut)
		}
	}
}

// TestDemoNamesTheBlockThatDiffers: a demo that fails says where.
func TestDemoNamesTheBlockThatDiffers(t *testing.T) {
	good := replayResult{Case: "a", verdictFields: verdictFields{Blocks: 2, Total: 2}, Identical: 2}
	bad := replayResult{Case: "b", verdictFields: verdictFields{Blocks: 2, Total: 2}, Identical: 1, Different: 1}
	for _, asJSON := range []bool{false, true} {
		var o, e bytes.Buffer
		err := demoReport(newStreams(&o, &e), []replayResult{good, bad}, asJSON)
		want := "demo: FAILED, 3 of 4 blocks identical to the decoder's own\n"
		if asJSON {
			want = `{"event":"summary","ok":false,"identical":3,"total":4}` + "\n"
		}
		if err == nil || !strings.HasSuffix(o.String(), want) {
			t.Errorf("%v: %s", err, o.String())
		}
	}
	dir := edited(t, "kv-qwen3", func(map[string]any) {})
	blocks, err := filepath.Glob(filepath.Join(dir, "expected", "?", "*"+blockSuffix))
	if err != nil || len(blocks) != 5 {
		t.Fatal(blocks, err)
	}
	damage(t, blocks[2])
	var o, e bytes.Buffer
	std := newStreams(&o, &e)
	res, err := demoRun(t.Context(), std, dir, "mem://", t.TempDir())
	if err != nil || res.Different != 1 || !strings.Contains(e.String(), filepath.Base(blocks[2])) {
		t.Errorf("%v, %+v: %s", err, res, e.String())
	}
}
