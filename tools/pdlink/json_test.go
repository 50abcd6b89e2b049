package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// withJSON are the commands that print JSON, by their words.
func withJSON(c *cobra.Command) (names []string) {
	for _, sub := range c.Commands() {
		if sub.HasSubCommands() {
			names = append(names, withJSON(sub)...)
		} else if sub.Flag("json") != nil {
			_, name, _ := strings.Cut(sub.CommandPath(), " ")
			names = append(names, name)
		}
	}
	return names
}

// TestEveryFailureIsAnObject: with --json a command that fails ends standard output with
// an object that says so, whatever the reason; once only.
func TestEveryFailureIsAnObject(t *testing.T) {
	t.Setenv("PDLINK_KEYS", filepath.Join(t.TempDir(), "none"))
	none := filepath.Join(t.TempDir(), "none")
	failing := map[string][][]string{
		"replay":         {{}, {"--bogus"}, {none, "--store", t.TempDir()}, {"bundled:kv-qwen3", "--to", "tcp://192.0.2.1:7411"}, {"bundled:kv-qwen3", "--to", "tcp://127.0.0.1:1", "--encrypt", "256"}, {"bundled:kv-qwen3", "--to", "tcp://127.0.0.1:1"}},
		"decode":         {{}, {"--store", t.TempDir(), "--listen", "tcp://192.0.2.1:7411"}, {"--discard", "--listen", "unix://" + none + "/s"}, {"--discard", "--config", none}},
		"prefill":        {{}, {"--to", "tcp://192.0.2.1:7411"}, {"--to", "tcp://127.0.0.1:1", "--socket", none + "/s"}},
		"doctor decode":  {{}, {"surplus"}},
		"doctor prefill": {{}, {"--bogus"}},
		"doctor rdma":    {{"no-such-host.invalid"}, {"--device", ":"}},
		"store ls":       {{}, {none}},
		"store show":     {{}, {none}},
		"store verify":   {{}, {none}},
		"store diff":     {{}, {none, none}},
		"bench":          {{}, {"--native", "http://127.0.0.1:1"}},
		"verify":         {{}, {none}, {"bundled:dsv4-a", "--workers", "-1"}, {"bundled:dsv4-a", "--layers", "9"}},
		"demo":           {{"surplus"}},
		"keys init":      {{"surplus"}, {"--name", "/"}},
		"keys show":      {{}},
		"keys pair":      {{}, {"a", "b"}},
		"keys list":      {{"surplus"}},
		"keys revoke":    {{}, {"nobody"}},
		"config show":    {{"nothing"}, {"--config", none}},
		"version":        {{"surplus"}},
		"cost compare":   {{}, {"no such file", "no such file"}},
	}
	var o, e bytes.Buffer
	all := withJSON(newRoot(newStreams(&o, &e)))
	slices.Sort(all)
	if known := slices.Sorted(maps.Keys(failing)); !slices.Equal(all, known) {
		t.Errorf("commands with --json are %q, looked at are %q", all, known)
	}
	for name, lines := range failing {
		for _, args := range lines {
			args = append(append(strings.Fields(name), "--json"), args...)
			status, out, errOut := cli(t, args...)
			objects := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
			var last map[string]any
			if err := json.Unmarshal([]byte(objects[len(objects)-1]), &last); status == exitOK || err != nil {
				t.Errorf("%v: status %d, %v: %q, %q", args, status, err, out, errOut)
				continue
			}
			if name == "replay" && last["state"] == string(stateFailed) {
				if len(objects) != 1 || last["reason"] == "" || last["link"] == "" {
					t.Errorf("%v: %q", args, out)
				}
				continue
			}
			text, _ := last["error"].(string)
			if last["event"] != "error" || last["status"] != float64(status) || !strings.HasPrefix(errOut, "pdlink: "+strings.Split(text, "\n")[0]) || len(objects) != 1 {
				t.Errorf("%v: status %d: %q, %q", args, status, out, errOut)
			}
		}
	}
}

// TestWhoAsksForJSON: the command line, a variable, and also a command line that cannot
// be used.
func TestWhoAsksForJSON(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  string
		want bool
	}{
		{[]string{"verify", "/none"}, "", false},
		{[]string{"verify", "/none"}, "true", true},
		{[]string{"verify", "--bogus", "--json"}, "", true},
		{[]string{"verfy", "--json=true"}, "", true},
		{[]string{"verify", "--json=false", "/none"}, "true", false},
		{[]string{"verify", "--", "--json"}, "", false},
	} {
		t.Setenv("PDLINK_VERIFY_JSON", c.env)
		status, out, errOut := cli(t, c.args...)
		if status != exitUsage || (out != "") != c.want || errOut == "" {
			t.Errorf("%v, %q: status %d: %q, %q", c.args, c.env, status, out, errOut)
		}
	}
}

// TestAnInterruptIsAnObject: and the exit status is its own.
func TestAnInterruptIsAnObject(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for _, args := range [][]string{{"verify", "--json", "bundled:dsv4-a", "--engine", "reference"}, {"replay", "--json", "bundled:kv-qwen3", "--to", "tcp://127.0.0.1:1"}} {
		var o, e bytes.Buffer
		status := run(ctx, args, newStreams(&o, &e))
		var last map[string]any
		if err := json.Unmarshal(o.Bytes(), &last); status != exitStopped || err != nil || last["state"] != "stopped" && last["error"] != "stopped" {
			t.Errorf("%v: status %d, %v: %q, %q", args, status, err, o.String(), e.String())
		}
	}
}
