package main

import (
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/tools/cmdline"
	"pdlink/tools/services"
)

func TestServicePrint(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ service, system, line, place, start string }{
		{"prefill", "systemd", `ExecStart="` + self + `" prefill`, "/etc/systemd/system/pdlink-prefill.service", "systemctl enable --now pdlink-prefill"},
		{"decode", "systemd", "User=" + me.Username, "/etc/systemd/system/pdlink-decode.service", "journalctl -u pdlink-decode"},
		{"decode", "launchd", "<string>" + me.HomeDir + "</string>", "/Library/LaunchDaemons/pdlink.decode.plist", "launchctl bootstrap system"},
	} {
		status, out, errOut := cli(t, "service", "print", c.service, "--system", c.system)
		if status != exitOK || !strings.Contains(out, c.line) || !strings.Contains(errOut, c.place) || !strings.Contains(errOut, c.start) || !strings.HasSuffix(out, "\n") {
			t.Errorf("%s of %s: status %d: %s%s", c.service, c.system, status, out, errOut)
		}
	}
	if _, out, _ := cli(t, "service", "print", "decode", "--program", "./pdlink"); !strings.Contains(out, filepath.Join(filepath.Dir(must1(filepath.Abs("x"))), "pdlink")) {
		t.Errorf("%s", out)
	}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"prefill", "--system", "launchd"}, "there are decode of systemd"},
		{[]string{"dcode"}, "no such service"},
		{[]string{"decode", "--user", "no body"}, "want a name of letters"},
		{[]string{"decode", "--program", "/a\"b"}, "cannot stand in a service file"},
		{nil, "SERVICE is missing"},
	} {
		if status, out, errOut := cli(t, append([]string{"service", "print"}, c.args...)...); status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d: %s%s", c.args, status, out, errOut)
		}
	}
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestServicesRunCommandsThatExist: with flags that they have.
func TestServicesRunCommandsThatExist(t *testing.T) {
	for _, u := range services.Units() {
		text, err := u.Text(services.Host{Program: "/usr/local/bin/pdlink", User: "ada", Home: "/home/ada"})
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(text, "/usr/local/bin/pdlink")
		if u.System == services.Launchd {
			rest, _, _ = strings.Cut(rest, "</array>")
			rest = strings.NewReplacer("<string>", " ", "</string>", " ").Replace(rest)
		} else {
			rest, _, _ = strings.Cut(strings.TrimPrefix(rest, `"`), "\n")
		}
		c, left := cmdline.Find(newRoot(newStreams(&output{}, &output{})), strings.Fields(rest))
		if !ok || c.Name() != u.Service || !cmdline.TakesSettings(c) {
			t.Errorf("%s runs %q", u.Place, rest)
		}
		for _, word := range left {
			if name, is := strings.CutPrefix(word, "--"); is && c.Flag(name) == nil {
				t.Errorf("%s: pdlink %s has no flag %s", u.Place, c.Name(), word)
			}
		}
	}
}

// TestServicePrintWarns: of what keeps a service from what works in this shell.
func TestServicePrintWarns(t *testing.T) {
	config := configured(t, "[decode]\n")
	t.Setenv("PDLINK_KEYS", "")
	t.Setenv(decoderKeyEnv, "sesam")
	t.Setenv("PDLINK_DECODE_MIN_TOKENS", "8192")
	status, out, errOut := cli(t, "service", "print", "decode", "--system", "systemd", "--config", config)
	if status != exitOK || !strings.Contains(out, ` decode --config "`+config+`"`) || !strings.Contains(out, "EnvironmentFile=-/etc/pdlink/decode.env") || strings.Contains(out+errOut, "sesam") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	for _, say := range []string{
		"does not see $" + decoderKeyEnv + ", $PDLINK_DECODE_MIN_TOKENS of this shell",
		`printf '%s\n' "PDLINK_DECODER_KEY=$PDLINK_DECODER_KEY" "PDLINK_DECODE_MIN_TOKENS=$PDLINK_DECODE_MIN_TOKENS" | sudo sh -c 'umask 077; mkdir -p -m 755 /etc/pdlink; cat >> /etc/pdlink/decode.env'`,
	} {
		if !strings.Contains(errOut, say) {
			t.Errorf("no %q in %s", say, errOut)
		}
	}
	if services.Here == services.Systemd && !strings.Contains(errOut, "give --program /usr/local/bin/pdlink") {
		t.Errorf("the program is a test's: %s", errOut)
	}
	if _, _, errOut := cli(t, "service", "print", "decode", "--system", "launchd"); !strings.Contains(errOut, "Add :EnvironmentVariables:PDLINK_DECODER_KEY string $PDLINK_DECODER_KEY") {
		t.Errorf("%s", errOut)
	}
	t.Setenv(decoderKeyEnv, "")
	t.Setenv("PDLINK_KEYS", "")
	t.Setenv("PDLINK_DECODE_MIN_TOKENS", "")
	t.Setenv(configEnv, config)
	if _, out, errOut := cli(t, "service", "print", "prefill", "--system", "systemd"); !strings.Contains(out, `--config "`+config+`"`) || strings.Contains(errOut, "of this shell") {
		t.Errorf("%s%s", out, errOut)
	}
}

// TestServiceForAUserOfAnotherHost: it is printed, and said.
func TestServiceForAUserOfAnotherHost(t *testing.T) {
	t.Setenv(configEnv, "")
	t.Setenv("HOME", t.TempDir())
	for system, home := range map[string]string{"systemd": "/home/nobody-of-that-name/.config", "launchd": "/Users/nobody-of-that-name/Library"} {
		status, out, errOut := cli(t, "service", "print", "decode", "--user", "nobody-of-that-name", "--system", system)
		if status != exitOK || !strings.Contains(out, home) || !strings.Contains(errOut, "this host has no user nobody-of-that-name") {
			t.Errorf("%s: status %d: %s%s", system, status, out, errOut)
		}
	}
}

// TestServiceMayWriteItsSocket: where the config file has it, or why it cannot.
func TestServiceMayWriteItsSocket(t *testing.T) {
	for _, c := range []struct{ socket, line, say string }{
		{"/run/pdlink/engine.sock", "", ""},
		{"/srv/engine/e.sock", "ProtectSystem=strict\nReadWritePaths=\"/srv/engine\"\nProtectHome", "/srv/engine must be there before the service starts"},
		{"/tmp/e.sock", "", "a /tmp of its own"},
		{"e.sock", "", "write the whole path"},
	} {
		file := configured(t, "[prefill]\nto = 'tcp://h:1'\nsocket = '"+c.socket+"'\n")
		status, out, errOut := cli(t, "service", "print", "prefill", "--system", "systemd", "--config", file)
		if status != exitOK || strings.Contains(out, "ReadWritePaths") != (c.line != "") || !strings.Contains(out, c.line) || !strings.Contains(errOut, c.say) ||
			strings.Contains(errOut, "socket = ") != (c.say != "") {
			t.Errorf("%s: status %d: %s%s", c.socket, status, out, errOut)
		}
	}
}

// TestSocketCureIsForTheDirectoryThatIsMeant: by its whole path, and the service makes
// only its own.
func TestSocketCureIsForTheDirectoryThatIsMeant(t *testing.T) {
	here := filepath.Dir(must1(filepath.Abs("x")))
	if got := socketCure("no/e.sock", fs.ErrNotExist); !strings.Contains(got, " "+here+"/no`") || strings.Contains(got, "by itself") {
		t.Errorf("%s", got)
	}
	if got := socketCure(defaultSocket, fs.ErrNotExist); !strings.Contains(got, " /run/pdlink`, which the service does by itself") {
		t.Errorf("%s", got)
	}
}

// TestServiceMayWriteWhatIsWatched: of a config file that names files, and one that the
// command refuses is warned of.
func TestServiceMayWriteWhatIsWatched(t *testing.T) {
	for _, c := range []struct{ line, unit, say string }{
		{`trace = "/srv/t/t.json"`, `ReadWritePaths="/srv/t"`, "/srv/t must be there"},
		{`metrics = "unix:///srv/m/m.sock"`, `ReadWritePaths="/srv/m"`, "/srv/m must be there"},
		{`trace = "t.json"`, "", "trace: a service has no directory of its own"},
		{`trace = "/tmp/t.json"`, "", "trace: the service has a /tmp of its own"},
		{`metrics = "what"`, "", `the service would end with `},
		{`slots = -1`, "", "--slots -1"},
	} {
		file := configured(t, "[prefill]\nto = 'tcp://h:1'\n"+c.line+"\n")
		status, out, errOut := cli(t, "service", "print", "prefill", "--system", "systemd", "--config", file)
		if status != exitOK || strings.Contains(out, "ReadWritePaths") != (c.unit != "") || !strings.Contains(out, c.unit) || !strings.Contains(errOut, c.say) {
			t.Errorf("%s: status %d: %s%s", c.line, status, out, errOut)
		}
	}
}
