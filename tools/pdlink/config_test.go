package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/tools/cmdline"
)

// configured writes a config file.
func configured(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "pdlink.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shown is what `pdlink config show` says of one flag.
func shown(t *testing.T, flag string, args ...string) cmdline.Setting {
	t.Helper()
	status, out, errOut := cli(t, append([]string{"config", "show", "--json"}, args...)...)
	if status != exitOK {
		t.Fatalf("%v: status %d: %s", args, status, errOut)
	}
	for line := range strings.Lines(out) {
		var e settingEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event == "setting" && e.Flag == flag {
			return e.Setting
		}
	}
	t.Fatalf("%v: no --%s in %s", args, flag, out)
	return cmdline.Setting{}
}

// TestConfigShow: what counts, from where, and where the file is found.
func TestConfigShow(t *testing.T) {
	file := configured(t, "[decode]\nlisten = 'tcp://0.0.0.0:7411'\nmin-tokens = 4096\n[replay]\nto = ['tcp://a:1', 'tcp://b:1']\n")
	t.Setenv("PDLINK_DECODE_MIN_TOKENS", "8192")
	for _, args := range [][]string{{"decode", "--config", file}, {"--config", file}} {
		if got := shown(t, "listen", args...); got.Value != "tcp://0.0.0.0:7411" || got.Origin != cmdline.FromFile || got.Command != "decode" {
			t.Errorf("%+v", got)
		}
	}
	if got := shown(t, "min-tokens", "--config", file); got.Value != "8192" || got.Origin != cmdline.FromEnv || got.Variable != "PDLINK_DECODE_MIN_TOKENS" {
		t.Errorf("%+v", got)
	}
	if got := shown(t, "part-wait", "--config", file); got.Value != "10s" || got.Origin != cmdline.FromDefault {
		t.Errorf("%+v", got)
	}
	if got := shown(t, "to", "replay", "--config", file); got.Value != "tcp://a:1,tcp://b:1" {
		t.Errorf("%+v", got)
	}
	t.Setenv(configEnv, file)
	if got := shown(t, "listen"); got.Origin != cmdline.FromFile {
		t.Errorf("$%s: %+v", configEnv, got)
	}
	home := t.TempDir()
	t.Setenv(configEnv, "")
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	base, err := os.UserConfigDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, out, _ := cli(t, "config", "show"); !strings.Contains(out, filepath.Join(base, "pdlink", "config.toml")+", which is not there\n[decode]\n") ||
		!strings.Contains(out, "[prefill]\n") || !regexp.MustCompile(`(?m)^  min-tokens +8192 +\$PDLINK_DECODE_MIN_TOKENS$`).MatchString(out) {
		t.Errorf("%s", out)
	}
	t.Setenv("HOME", "")
	if _, out, _ := cli(t, "config", "show"); !strings.HasPrefix(out, "no config file: this user has no home directory") {
		t.Errorf("%s", out)
	}
	t.Setenv("HOME", home)
	if err := os.MkdirAll(filepath.Join(base, "pdlink"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "pdlink", "config.toml"), []byte("[prefill]\nname = 'gpu'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, "name", "prefill"); got.Value != "gpu" || got.Origin != cmdline.FromFile {
		t.Errorf("the usual place: %+v", got)
	}
}

// TestConfigMistakes: with the cure, before anything is done, and without being in the
// way of what finds them.
func TestConfigMistakes(t *testing.T) {
	file := configured(t, "[decode]\nlistn = 'tcp://127.0.0.1:0'\n")
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"decode", "--discard", "--config", file}, "line 2: unknown setting listn of [decode]: did you mean listen?"},
		{[]string{"replay", "bundled:kv-qwen3", "--discard", "--config", file}, "did you mean listen?"},
		{[]string{"config", "show", "--config", file}, "did you mean listen?"},
		{[]string{"decode", "--discard", "--config", file + "x"}, "no such file"},
		{[]string{"decode", "--discard", "--config", ""}, "--config is empty"},
		{[]string{"config", "show", "dcode"}, "did you mean decode?"},
		{[]string{"config", "show", "store"}, "pdlink store takes no settings"},
		{[]string{"config", "show", "version"}, "pdlink version takes no settings"},
		{[]string{"config", "shw"}, "did you mean show?"},
		{[]string{"prefill", "--to", "tcp://127.0.0.1:1", "--config", configured(t, "{\"a\": 1}\n")}, "line 1"},
	} {
		if status, out, errOut := cli(t, c.args...); status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d: %s%s", c.args, status, out, errOut)
		}
	}
	for _, args := range [][]string{{"version", "--config", file}, {"help", "decode"}, {"config", "--config", file}, {"completion", "bash", "--config", file}} {
		if status, _, errOut := cli(t, args...); status != exitOK {
			t.Errorf("%v: status %d: %s", args, status, errOut)
		}
	}
	t.Setenv("PDLINK_REPLAY_FROMAT", "3")
	if status, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--discard"); status != exitUsage || !strings.Contains(errOut, "did you mean $PDLINK_REPLAY_FORMAT?") {
		t.Errorf("a mistyped variable: status %d: %s", status, errOut)
	}
}

// TestAConfigFileOfOthersDoesNotCount: it says which keys do.
func TestAConfigFileOfOthersDoesNotCount(t *testing.T) {
	file := configured(t, "[replay]\n")
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	status, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--discard", "--config", file)
	if status != exitUsage || !strings.Contains(errOut, "run `chmod go-w "+file+"`") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// TestOneFileForBothCommands: what a transfer makes of it, and what a command line says
// else.
func TestOneFileForBothCommands(t *testing.T) {
	mac, spark := paired(t)
	store := t.TempDir()
	file := configured(t, "[decode]\nlisten = 'tcp://127.0.0.1:0'\nstore = '"+store+"'\nkeys = '"+mac+"'\npart-wait = '1s'\n")
	t.Setenv(configEnv, file)
	r := startText(t, "decode", "--json", "--once")
	var e listening
	if err := json.Unmarshal([]byte(r.out.String()), &e); err != nil || e.Store != store || e.Keys != mac {
		t.Fatalf("%+v, %v", e, err)
	}
	t.Setenv("PDLINK_REPLAY_PEER", "mac")
	t.Setenv(configEnv, configured(t, "[replay]\nto = ['"+e.Listen+"']\nkeys = '"+spark+"'\nretry = '5s'\nno-sync = true\ntokens = 5\n"))
	res := replayJSON(t, exitOK, "bundled:kv-qwen3")
	protected(t, "the sender", res.verdictFields, res.Peers, true, "mac")
	if status := r.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, r)
	}
	t.Setenv("PDLINK_REPLAY_PEER", "")
	if res := replayJSON(t, exitOK, "bundled:kv-qwen3", "--store", t.TempDir()); res.State != bridge.Complete || res.Link != schemeMem {
		t.Errorf("elsewhere: %+v", res)
	}
}

// TestEveryFlagMayBeConfigured: by a variable that no other flag has.
func TestEveryFlagMayBeConfigured(t *testing.T) {
	seen := map[string]string{}
	s := cmdline.Settings{Prefix: envPrefix}
	commands(newRoot(newStreams(&output{}, &output{})), func(c *cobra.Command) {
		if !cmdline.TakesSettings(c) {
			return
		}
		list, err := s.List(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			if other := seen[x.Variable]; other != "" && c.Parent().Name() != "doctor" ||
				x.Variable == configEnv || !regexp.MustCompile(`^PDLINK_[A-Z0-9_]+$`).MatchString(x.Variable) {
				t.Errorf("$%s is of --%s of %s and of %s", x.Variable, x.Flag, c.CommandPath(), other)
			}
			seen[x.Variable] = c.CommandPath()
		}
	})
	if len(seen) < 50 {
		t.Errorf("%d flags", len(seen))
	}
}

// TestReadmeConfigFilesAreRead: every example of one.
func TestReadmeConfigFilesAreRead(t *testing.T) {
	var files [][][]byte
	for _, name := range []string{"README.md", "bridge/vllm/README.md"} {
		readme, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllSubmatch(readme, -1)...)
	}
	for _, m := range files {
		if status, _, errOut := cli(t, "config", "show", "--config", configured(t, string(m[1]))); status != exitOK || strings.Contains(errOut, "warning") {
			t.Errorf("status %d: %s\n%s", status, errOut, m[1])
		}
	}
	if len(files) < 4 {
		t.Errorf("%d config files", len(files))
	}
}

// TestConfigShowTellsWhatDoesNotCount: settings that have no effect with the others are
// there, checked and marked, and a file that does not hold together is warned of.
func TestConfigShowTellsWhatDoesNotCount(t *testing.T) {
	file := configured(t, "[decode]\nstore = '/s'\nfront = '127.0.0.1:9'\n")
	if got := shown(t, "front", "decode", "--config", file); got.Value != "127.0.0.1:9" || got.Origin != cmdline.FromFile || got.Idle != "only with --decoder" {
		t.Errorf("%+v", got)
	}
	if _, out, errOut := cli(t, "config", "show", "decode", "--config", file); !regexp.MustCompile(`front +127.0.0.1:9 +file, no effect: only with --decoder`).MatchString(out) || errOut != "" {
		t.Errorf("%s%s", out, errOut)
	}
	for text, say := range map[string]string{
		"[decode]\nlisten = 'x'\n":                          "give one of --store DIR, --discard, --decoder URL",
		"[decode]\ndecoder = 'http://127.0.0.1:8012'\n":     "requests would come back for ever",
		"[prefill]\nengine = 'http://127.0.0.1:1'\n":        "--to URL is missing",
		"[prefill]\nto = 'tcp://127.0.0.1:1'\nrank = '1'\n": "--rank 1 is for --group",
	} {
		if status, _, errOut := cli(t, "config", "show", "--config", configured(t, text)); status != exitOK || !strings.Contains(errOut, "warning: ") || !strings.Contains(errOut, say) {
			t.Errorf("%q: status %d: %s", text, status, errOut)
		}
	}
	file = configured(t, "[decode]\nstore = '/s'\nmin-tokens = '4k'\n")
	if status, _, errOut := cli(t, "config", "show", "--config", file); status != exitUsage || !strings.Contains(errOut, `line 3: min-tokens = "4k": want a whole number without a unit, for example min-tokens = 4096`) {
		t.Errorf("status %d: %s", status, errOut)
	}
}
