package main

import (
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
		{[]string{"decode", "--user", "nobody-of-that-name"}, "--user: "},
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
		if !ok || c.Name() != u.Service || !configurable(c) {
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
		`"PDLINK_DECODER_KEY=$PDLINK_DECODER_KEY" | sudo install -D -m 600 /dev/stdin /etc/pdlink/decode.env`,
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
