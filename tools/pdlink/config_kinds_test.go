package main

import (
	"strings"
	"testing"
)

// TestConfigSaysWhatWouldBeRight: for values of another kind, a key that is there twice,
// and one in a place where it does nothing.
func TestConfigSaysWhatWouldBeRight(t *testing.T) {
	for _, c := range []struct{ text, say string }{
		{"[decode]\nmin-tokens = \"8192\"\n", `line 2: min-tokens = "8192": want a whole number without a unit: min-tokens = 8192`},
		{"[decode]\nno-sync = \"true\"\n", `line 2: no-sync = "true": want true or false: no-sync = true`},
		{"[replay]\nformat = 5\n", `line 2: format = 5: want a text in quotes: format = "5"`},
		{"[decode]\nkeep-alive = 0\n", `line 2: keep-alive = 0: want a time with its unit, in quotes: keep-alive = "0s"`},
		{"[decode]\nring = 64.5\n", "line 2: ring = 64.5: want a whole number without a unit, for example ring = 64"},
		{"[prefill]\nuid = [\"1000\"]\n", "line 2: uid = [\"1000\"]: want a list of whole numbers"},
		{"[prefill]\nmodel = [1]\n", "line 2: model = [1]: want a list of texts in quotes"},
		{"[decode]\nring = 1\nring = 2\n", "line 3: "},
		{"to = \"tcp://h:1\"\n[decode]\n", "line 1: to stands before the first table: put it into that of its command, [prefill] or [replay]\n"},
		{"nothing = 1\n[decode]\n", "put it into that of its command, [decode]\n"},
		{"[keys]\ndir = \"/k\"\n", "line 2: dir has no effect in [keys], which is no command: put it into [keys.init], [keys.list], [keys.pair]"},
	} {
		status, out, errOut := cli(t, "decode", "--discard", "--config", configured(t, c.text))
		if status != exitUsage || !strings.Contains(errOut, c.say) || out != "" || strings.Contains(errOut, "2: want a") {
			t.Errorf("%q: status %d: %s", c.text, status, errOut)
		}
	}
	for _, text := range []string{"[prefill]\nto = 'tcp://h:1'\nuid = 1000\n", "[prefill]\nto = ['tcp://h:1']\nuid = [1000, 1001]\n", "[decode]\ndiscard = true\ndecoder-rate = 1500\n"} {
		if status, _, errOut := cli(t, "config", "show", "--config", configured(t, text)); status != exitOK {
			t.Errorf("%q: status %d: %s", text, status, errOut)
		}
	}
}

// TestConfigShowWarnsOfAllThatIsWrong: of one command, not only of what is first.
func TestConfigShowWarnsOfAllThatIsWrong(t *testing.T) {
	for _, c := range []struct {
		text string
		says []string
	}{
		{"[decode]\ndecoder = 'http://127.0.0.1:1'\nmin-tokens = -5\nmin-tail = -1\nper-engine = 0\nring = 1\nlisten = 'x'\n", []string{
			"--min-tokens -5: want 0 or more", "--min-tail -1: want 0 or more", "--per-engine 0: want 1 or more", "--ring 1: want", `link "x": want`,
		}},
		{"[prefill]\nto = 'x'\nslots = -1\nretry = '-1s'\nrank = '1'\nengine = 'y'\nmodel = ['z']\nuid = [4294967297]\n", []string{
			`link "x": want`, "--slots -1: want", "--retry -1s: want a time", "--rank 1 is for --group", `--model "z": want`, "--uid 4294967297: want",
		}},
	} {
		status, _, errOut := cli(t, "config", "show", "--config", configured(t, c.text))
		for _, say := range c.says {
			if status != exitOK || strings.Count(errOut, say) != 1 {
				t.Errorf("status %d, no %q in %s", status, say, errOut)
			}
		}
		for line := range strings.Lines(errOut) {
			if !strings.HasPrefix(line, "pdlink: warning: pdlink ") {
				t.Errorf("%q", line)
			}
		}
	}
}

// TestMessagesNameWhereTheyLooked: the variable, and the file that is not there.
func TestMessagesNameWhereTheyLooked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(configEnv, dir+"/none.toml")
	if _, _, errOut := cli(t, "decode", "--discard"); !strings.Contains(errOut, "$PDLINK_CONFIG: ") || !strings.Contains(errOut, dir+"/none.toml") {
		t.Errorf("%s", errOut)
	}
	t.Setenv(configEnv, "")
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", "")
	for _, command := range []string{"prefill", "decode", "replay"} {
		args := []string{command}
		if command == "replay" {
			args = append(args, "bundled:kv-qwen3")
		}
		if status, _, errOut := cli(t, args...); status != exitUsage || !strings.Contains(errOut, "there is no config file at "+dir) {
			t.Errorf("%s: status %d: %s", command, status, errOut)
		}
	}
	t.Setenv("PDLINK_KEYS", dir+"/keys")
	if _, _, errOut := cli(t, "keys", "show"); !strings.Contains(errOut, dir+"/keys ($PDLINK_KEYS)") {
		t.Errorf("%s", errOut)
	}
}
