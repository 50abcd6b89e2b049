package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/tools/linkkeys"
	"pdlink/transport/keys"
)

// decoded runs a command line with --json and decodes what it printed, a line at
// a time, into v.
func decoded(t *testing.T, v any, args ...string) {
	t.Helper()
	status, out, errOut := cli(t, append(args, "--json")...)
	if status != exitOK || errOut != "" {
		t.Fatalf("%v: status %d\n%s%s", args, status, out, errOut)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%v: %v in %q", args, err, out)
	}
}

// keyed makes an identity in a new directory and returns it and its key.
func keyed(t *testing.T) (dir, key string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "keys")
	var own ownKey
	decoded(t, &own, "keys", "init", "--dir", dir)
	return dir, own.Key
}

// paired makes the keys of two hosts that know each other as "mac" and "spark".
func paired(t *testing.T) (mac, spark string) {
	t.Helper()
	mac, macKey := keyed(t)
	spark, sparkKey := keyed(t)
	for dir, peer := range map[string][]string{mac: {"spark", sparkKey}, spark: {"mac", macKey}} {
		if status, _, errOut := cli(t, "keys", "pair", peer[0], peer[1], "--dir", dir); status != exitOK {
			t.Fatal(errOut)
		}
	}
	return mac, spark
}

// pasted runs a line that a command printed, with the directory of the other
// host.
func pasted(t *testing.T, line, dir string) (status int, out, errOut string) {
	t.Helper()
	words := strings.Fields(line)
	if len(words) != 5 || words[0] != "pdlink" || strings.Count(line, "\n") != 1 {
		t.Fatalf("%q is not one command line", line)
	}
	return cli(t, append(words[1:], "--dir", dir)...)
}

// TestTwoHostsPairWithThreeCommands: what the README says.
func TestTwoHostsPairWithThreeCommands(t *testing.T) {
	mac, spark := filepath.Join(t.TempDir(), "a", "keys"), filepath.Join(t.TempDir(), "keys")
	status, line, errOut := cli(t, "keys", "init", "--dir", mac, "--name", "mac")
	if status != exitOK || !strings.Contains(errOut, "paste this line") {
		t.Fatalf("status %d: %s%s", status, line, errOut)
	}
	status, out, errOut := pasted(t, line, spark) // it has no key yet
	if status != exitOK || !strings.Contains(errOut, "paired with mac, pdlink1") || !strings.Contains(errOut, "made a private key in "+spark) ||
		!strings.HasPrefix(out, "pdlink keys pair ") || strings.Count(out, "\n") != 1 {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	if status, out, errOut = pasted(t, out, mac); status != exitOK || strings.Contains(errOut, "made a private key") {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	for dir, other := range map[string]string{mac: spark, spark: mac} {
		peers, err := keys.LoadPeers(dir)
		if err != nil || len(peers) != 1 {
			t.Fatalf("%v, %v", peers, err)
		}
		if id, err := keys.LoadIdentity(other); err != nil || id.Public() != peers[0].Key {
			t.Errorf("%s has %v, %s is %v, %v", dir, peers, other, id, err)
		}
	}
	for dir, want := range map[string]fs.FileMode{mac: 0o700, filepath.Join(mac, keys.IdentityFile): 0o600} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", dir, info.Mode(), err, want)
		}
	}
}

func TestKeysShowPrintsOneLine(t *testing.T) {
	dir, key := keyed(t)
	status, out, errOut := cli(t, "keys", "show", "--dir", dir, "--name", "spark1")
	if status != exitOK || out != "pdlink keys pair spark1 "+key+"\n" || errOut != "" {
		t.Errorf("status %d: %q %q", status, out, errOut)
	}
	if _, out, _ := cli(t, "keys", "show", "--dir", dir); out != "pdlink keys pair "+linkkeys.HostName()+" "+key+"\n" {
		t.Errorf("%q", out)
	}
	t.Setenv(linkkeys.Env, dir)
	var own ownKey
	decoded(t, &own, "keys", "show", "--name", "x") // which it does not remember
	if want := (ownKey{dir, "x", key, "pdlink keys pair x " + key}); own != want {
		t.Errorf("%+v, want %+v", own, want)
	}
}

// TestTheNameIsRemembered: what init or pair were told, show and pair say.
func TestTheNameIsRemembered(t *testing.T) {
	dir, _ := keyed(t)
	_, other := keyed(t)
	shown := func() string {
		var own ownKey
		decoded(t, &own, "keys", "show", "--dir", dir)
		return own.Name
	}
	var own ownKey
	if decoded(t, &own, "keys", "init", "--dir", dir, "--replace", "--name", "mac-a"); own.Name != "mac-a" || shown() != "mac-a" {
		t.Errorf("init says %s, show %s", own.Name, shown())
	}
	var p pairing
	if decoded(t, &p, "keys", "pair", "zeta", other, "--dir", dir); p.Back.Name != "mac-a" || !strings.HasPrefix(p.Back.Command, "pdlink keys pair mac-a ") {
		t.Errorf("pair says %+v", p.Back)
	}
	if decoded(t, &p, "keys", "pair", "zeta", other, "--dir", dir, "--name", "mac-b"); p.Back.Name != "mac-b" || shown() != "mac-b" {
		t.Errorf("pair says %+v, show %s", p.Back, shown())
	}
	if err := os.WriteFile(filepath.Join(dir, keys.NameFile), []byte("two words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errOut := cli(t, "keys", "show", "--dir", dir); status != exitUsage || !strings.Contains(errOut, keys.NameFile) {
		t.Errorf("status %d: %s", status, errOut)
	}
}

func TestKeysInitKeepsTheKey(t *testing.T) {
	dir, key := keyed(t)
	if status, out, errOut := cli(t, "keys", "init", "--dir", dir); status != exitUsage || out != "" ||
		!strings.Contains(errOut, "--replace") || !strings.Contains(errOut, "`pdlink keys show --dir "+dir+"`") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	var own ownKey
	if decoded(t, &own, "keys", "show", "--dir", dir); own.Key != key {
		t.Errorf("the key was %s and is %s", key, own.Key)
	}
	if decoded(t, &own, "keys", "init", "--dir", dir, "--replace"); own.Key == key {
		t.Error("--replace made no new key")
	}
}

func TestKeysListAndRevoke(t *testing.T) {
	mac, spark := paired(t)
	_, other := keyed(t)
	var own ownKey
	decoded(t, &own, "keys", "show", "--dir", mac)
	var p pairing
	decoded(t, &p, "keys", "pair", "zeta", other, "--dir", mac)
	if !p.New || p.Name != "zeta" || p.Key != other || p.Dir != mac || !strings.HasPrefix(p.Back.Command, "pdlink keys pair ") {
		t.Errorf("%+v", p)
	}
	if decoded(t, &p, "keys", "pair", "zeta", strings.ToUpper(other), "--dir", mac); p.New {
		t.Error("a peer that is there is new")
	}
	status, out, errOut := cli(t, "keys", "list", "--dir", mac)
	if status != exitOK || errOut != "" || strings.Count(out, "\n") != 3 || !strings.Contains(out, "zeta   "+other+"\n") ||
		!strings.Contains(out, "2 peers in "+mac+"; this host is "+own.Key+"\n") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	_, out, _ = cli(t, "keys", "list", "--dir", mac, "--json")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 || !strings.Contains(out, `"name":"zeta","key":"`+other+`"`) ||
		!strings.Contains(lines[2], `"event":"summary"`) || !strings.Contains(lines[2], `"peers":2`) {
		t.Errorf("%s", out)
	}
	if status, out, _ := cli(t, "keys", "revoke", "spark", "--dir", mac); status != exitOK || !strings.HasPrefix(out, "revoked spark, pdlink1") {
		t.Errorf("status %d: %s", status, out)
	}
	var r revocation
	if decoded(t, &r, "keys", "revoke", other, "--dir", mac); r.Dir != mac || !slices.Equal(r.Peers, []revoked{{"zeta", other}}) { // by its key
		t.Errorf("%+v", r)
	}
	if peers, err := keys.LoadPeers(mac); err != nil || len(peers) != 0 {
		t.Errorf("%v, %v", peers, err)
	}
	if peers, err := keys.LoadPeers(spark); err != nil || len(peers) != 1 {
		t.Errorf("another host's peers: %v, %v", peers, err)
	}
}

func TestPeersAreCompleted(t *testing.T) {
	mac, _ := paired(t)
	t.Setenv(linkkeys.Env, mac)
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"keys", "revoke", ""}, true}, {[]string{"keys", "revoke", "sp"}, true}, {[]string{"keys", "revoke", "x"}, false},
		{[]string{"keys", "revoke", "spark", ""}, false}, {[]string{"keys", "revoke", "--dir", t.TempDir(), ""}, false},
		{[]string{"replay", "--peer", "s"}, true}, {[]string{"replay", "--keys", t.TempDir(), "--peer", "s"}, false},
	} {
		_, out, _ := cli(t, append([]string{"__complete"}, c.args...)...)
		if strings.HasPrefix(out, "spark\t") != c.want {
			t.Errorf("%q: %q", c.args, out)
		}
	}
	for _, command := range []string{"replay", "decode"} {
		if _, out, _ := cli(t, "__complete", command, "--encrypt", ""); !strings.HasPrefix(out, "on\n256\noff\n") {
			t.Errorf("%s: %q", command, out)
		}
	}
}

// TestKeysAreRefusedWithTheCure: status 2, nothing changed, and what to do.
func TestKeysAreRefusedWithTheCure(t *testing.T) {
	mac, _ := paired(t)
	own, ownKey := keyed(t)
	_, other := keyed(t)
	none := filepath.Join(t.TempDir(), "none")
	open, _ := keyed(t)
	if err := os.Chmod(filepath.Join(open, keys.IdentityFile), 0o644); err != nil {
		t.Fatal(err)
	}
	bad, _ := keyed(t)
	if err := os.WriteFile(filepath.Join(bad, keys.PeersFile), []byte("one\ntwo x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := other[:20] + "a" + other[21:]
	if wrong == other {
		wrong = other[:20] + "b" + other[21:]
	}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"keys", "shwo"}, "did you mean show?"},
		{[]string{"keys", "show", "--dir", none}, "no private key in " + none + ": make one with `pdlink keys init --dir " + none + "`"},
		{[]string{"keys", "show", "--dir", open}, "run `chmod 600 "},
		{[]string{"keys", "list", "--dir", open}, "run `chmod 600 "},
		{[]string{"keys", "pair", "x", other, "--dir", open}, "run `chmod 600 "},
		{[]string{"keys", "list", "--dir", bad}, "line 2: "},
		{[]string{"keys", "pair", "x", other, "--dir", bad}, "line 1: "},
		{[]string{"keys", "pair", "x", "--dir", none}, "KEY is missing"},
		{[]string{"keys", "pair", other, "x", "--dir", none}, "the peer's name comes first"},
		{[]string{"keys", "pair", "a b", other, "--dir", none}, "want at most 63 letters"},
		{[]string{"keys", "pair", "x", "ssh-ed25519", "--dir", none}, "as `pdlink keys show` prints it"},
		{[]string{"keys", "pair", "x", other[:30], "--dir", none}, "35 of 65 characters are missing"},
		{[]string{"keys", "pair", "x", wrong, "--dir", none}, "mistyped"},
		{[]string{"keys", "pair", "x", ownKey, "--dir", own}, "this host's own key: run the line on the other host"},
		{[]string{"keys", "pair", "spark", other, "--dir", mac}, "`pdlink keys revoke spark` first"},
		{[]string{"keys", "revoke", "nobody", "--dir", mac}, "`pdlink keys list --dir " + mac + "` names those that are there"},
		{[]string{"keys", "init", "--dir", none, "--name", "-x"}, "--name: "},
		{[]string{"keys", "show", "--dir", mac, "--name", ""}, "--name is empty"},
		{[]string{"keys", "list", "--dir", ""}, "--dir is empty"},
	} {
		status, out, errOut := cli(t, c.args...)
		if status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%q: status %d, want 2; said %q, want %q in it; printed %q", c.args, status, errOut, c.say, out)
		}
	}
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was refused left something behind: %v", err)
	}
	file := filepath.Join(mac, keys.PeersFile)
	if status, _, errOut := cli(t, "keys", "init", "--dir", filepath.Join(file, "keys")); status != exitFailed || !strings.Contains(errOut, file) {
		t.Errorf("a directory that cannot be made: status %d: %s", status, errOut)
	}
}
