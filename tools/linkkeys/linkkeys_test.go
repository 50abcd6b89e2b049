package linkkeys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDirOf(t *testing.T) {
	t.Setenv(Env, "")
	t.Setenv("HOME", "/home/somebody")
	t.Setenv("XDG_CONFIG_HOME", "")
	usual, err := keys.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flag, env string
		want      Dir
		command   string
	}{
		{"", "", Dir{usual, false, false}, "`pdlink keys show`"},
		{"", "/e", Dir{"/e", false, true}, "`pdlink keys show`"},
		{"", "~/e", Dir{"/home/somebody/e", false, true}, "`pdlink keys show`"},
		{"/f", "/e", Dir{"/f", true, false}, "`pdlink keys show --dir /f`"},
		{"/f g/$(h)", "", Dir{"/f g/$(h)", true, false}, "`pdlink keys show --dir '/f g/$(h)'`"},
	} {
		t.Setenv(Env, c.env)
		if d, err := DirOf(c.flag); err != nil || d != c.want || d.Command("show") != c.command {
			t.Errorf("%q, %q: %+v, %v, %s", c.flag, c.env, d, err, d.Command("show"))
		}
	}
	t.Setenv(Env, "~ada/e")
	if _, err := DirOf(""); err == nil || !strings.Contains(err.Error(), "$PDLINK_KEYS: ") {
		t.Errorf("somebody else's home: %v", err)
	}
	t.Setenv("PDLINK_KEYS_DIR", "/d")
	t.Setenv(Env, "/e")
	if d, err := DirOf(""); err != nil || d.String() != "/e ($PDLINK_KEYS)" {
		t.Errorf("both names: %v, %v", d, err)
	}
	t.Setenv(Env, "")
	if _, err := DirOf(""); !errors.Is(err, ErrVariable) || !strings.Contains(err.Error(), "$PDLINK_KEYS_DIR: the directory of keys is $PDLINK_KEYS") {
		t.Errorf("a name that there is not: %v", err)
	}
	if d, err := DirOf("/f"); err != nil || d.Path != "/f" {
		t.Errorf("a flag counts first: %v, %v", d, err)
	}
	t.Setenv("PDLINK_KEYS_DIR", "")
	t.Setenv("HOME", "")
	if d, err := DirOf(""); err == nil || !strings.Contains(err.Error(), "$"+Env) {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestPeerName(t *testing.T) {
	for host, want := range map[string]string{
		"spark1": "spark1", "Bobs-Mac.local": "Bobs-Mac", "a b": "a-b", "-x_": "x", "": "peer", "münchen": "m-nchen", "--": "peer",
		"pdlink1box": "peer", strings.Repeat("h", 64): "peer", "a;rm -rf": "a-rm--rf",
	} {
		name := peerName(host)
		if err := keys.CheckName(name); err != nil || name != want {
			t.Errorf("%q: %q, %v; want %q", host, name, err, want)
		}
	}
	if err := keys.CheckName(HostName()); err != nil {
		t.Error(err)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true, "localhost:1": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "192.0.2.1:1": false, "127.0.0.1": false, "": false, "no.such.host.invalid:1": false,
	} {
		if got := (Place{Addr: addr}).Exposed(t.Context()) == nil; got != want {
			t.Errorf("%q: %t", addr, got)
		}
	}
	for _, path := range []string{"sock", "./sock", "/run/sock", "192.0.2.1:1"} {
		if (Place{path, true}).Exposed(t.Context()) != nil {
			t.Errorf("the socket %q can be reached by others", path)
		}
	}
}

// on is a command line that has these flags.
func on(flags ...string) func(string) bool {
	return func(flag string) bool {
		for _, f := range flags {
			if f == flag {
				return true
			}
		}
		return false
	}
}

func TestChoose(t *testing.T) {
	ours, theirs, remove, err := Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	none := t.TempDir()
	const far, near = "192.0.2.1:7411", "127.0.0.1:7411"
	for _, c := range []struct {
		what  string
		env   string
		flags Flags
		given []string
		addr  string
		also  Place  // another way there
		dir   string // "": no keys
		suite seal.Suite
		fails error
	}{
		{what: "another host", env: ours, addr: far, dir: ours},
		{what: "loopback", env: ours, addr: near},
		{what: "another host without an identity", env: none, addr: far},
		{what: "asked for", env: none, flags: Flags{Dir: theirs}, given: []string{"keys"}, addr: near, dir: theirs},
		{what: "asked for without an identity", flags: Flags{Dir: none}, given: []string{"keys"}, addr: near, fails: keys.ErrNoIdentity},
		{what: "--encrypt on asks for keys", env: ours, flags: Flags{Encrypt: "on"}, given: []string{"encrypt"}, addr: near, dir: ours},
		{what: "--encrypt on without an identity", env: none, flags: Flags{Encrypt: "on"}, given: []string{"encrypt"}, addr: near, fails: keys.ErrNoIdentity},
		{what: "--encrypt off keeps the proof", env: ours, flags: Flags{Encrypt: "off"}, given: []string{"encrypt"}, addr: near, dir: ours, suite: seal.Clear},
		{what: "--encrypt off asks for none", env: none, flags: Flags{Encrypt: "off"}, given: []string{"encrypt"}, addr: near},
		{what: "--encrypt off elsewhere", env: ours, flags: Flags{Encrypt: "off"}, given: []string{"encrypt"}, addr: far, dir: ours, suite: seal.Clear},
		{what: "--encrypt 256", env: ours, flags: Flags{Encrypt: "256"}, given: []string{"encrypt"}, addr: far, dir: ours, suite: seal.AES256GCM},
		{what: "--encrypt off elsewhere without an identity", env: none, flags: Flags{Encrypt: "off"}, given: []string{"encrypt"}, addr: far},
		{what: "--peer without an identity", env: none, flags: Flags{Peer: "listener"}, given: []string{"peer"}, addr: near, fails: keys.ErrNoIdentity},
		{what: "--peer elsewhere without an identity", env: none, flags: Flags{Peer: "listener"}, given: []string{"peer"}, addr: far, fails: keys.ErrNoIdentity},
		{what: "--peer", env: ours, flags: Flags{Peer: "listener"}, given: []string{"peer"}, addr: near, dir: ours},
		{what: "a socket", env: ours, addr: near, also: Place{"sock", true}},
		{what: "one way is loopback", env: ours, addr: near, also: Place{Addr: far}, dir: ours},
		{what: "an unknown --peer", env: ours, flags: Flags{Peer: "nobody"}, given: []string{"peer"}, addr: near, fails: keys.ErrUnknownPeer},
	} {
		t.Setenv(Env, c.env)
		places := []Place{{Addr: c.addr}}
		if c.also.Addr != "" {
			places = append(places, c.also)
		}
		k, err := c.flags.Choose(t.Context(), on(c.given...), nil, places...)
		if !errors.Is(err, c.fails) || (k.Store != nil) != (c.dir != "") || k.Dir.Path != c.dir || k.Suite != c.suite || k.Peer != c.flags.Peer && c.dir != "" {
			t.Errorf("%s: %+v, %v", c.what, k, err)
		}
		if (k.Text() != "") != (c.dir != "") || !strings.Contains(k.Text(), c.dir) {
			t.Errorf("%s: %q", c.what, k.Text())
		}
		if err := k.Close(); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestAPastedSecretIsNotRepeated: in the place of a peer's name.
func TestAPastedSecretIsNotRepeated(t *testing.T) {
	ours, _, remove, err := Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	for _, pasted := range []string{"MC4CAQAwBQYDK2VwBCIEIAbcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQR", "MC4CAQAwBQYDK2VwBCIEIAbcdefghijklmnopqrstuvwxyz"} {
		_, err := (&Flags{Dir: ours, Peer: pasted}).Choose(t.Context(), on("keys", "peer"), nil, Place{Addr: "127.0.0.1:1"})
		if err == nil || strings.Contains(err.Error(), "Abcdef") {
			t.Errorf("%v", err)
		}
	}
}

func TestWarnings(t *testing.T) {
	ours, _, remove, err := Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	alone := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(t.Context(), alone, false); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags   Flags
		listens bool
		want    []string
	}{
		{Flags{Dir: ours}, true, nil},
		{Flags{Dir: alone}, false, nil},
		{Flags{Dir: alone}, true, []string{"nobody can connect"}},
		{Flags{Dir: ours, Encrypt: "off"}, false, []string{"--encrypt off"}},
		{Flags{Dir: alone, Encrypt: "off"}, true, []string{"--encrypt off", "nobody can connect"}},
	} {
		k, err := c.flags.Choose(t.Context(), on("keys"), nil, Place{Addr: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		got := k.Warnings(c.listens)
		if len(got) != len(c.want) {
			t.Errorf("%+v: %q", c.flags, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%+v: %q", c.flags, got)
			}
		}
		k.Close()
	}
	if w := (Choice{}).Warnings(true); w != nil {
		t.Errorf("without keys: %q", w)
	}
}

func TestExplain(t *testing.T) {
	ours, _, remove, err := Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	named, err := (&Flags{Dir: ours}).Choose(t.Context(), on("keys"), nil, Place{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	found := named
	found.Dir.Named = false
	insecure := func(err error) error { return fmt.Errorf("dial: %w: %w", transport.ErrInsecure, err) }
	for _, c := range []struct {
		what    string
		choice  Choice
		err     error
		refused bool
		say     string // "": nothing is added
	}{
		{"an unknown peer", found, insecure(keys.ErrUnknownPeer), true, "; no data was sent: make sure that it is the right host before you trust it"},
		{"an unknown peer, --keys", named, insecure(keys.ErrUnknownPeer), true, ", and add --dir " + ours + " to the command"},
		{"not known there", named, insecure(keys.ErrRefused), true, ": run `" + PairCommand(HostName(), named.Store.Public()) + "` there"},
		{"a copy of this host's key", named, insecure(&keys.UnknownKeyError{Key: named.Store.Public()}), true, "on this one: its private key is in the wrong hands"},
		{"another key", found, insecure(&keys.UnknownKeyError{}), true, "before you trust it"},
		{"revoked", named, insecure(fmt.Errorf("%w: %w", keys.ErrRevoked, keys.ErrUnknownPeer)), true, ""},
		{"no keys there", found, insecure(keys.ErrNoKeys), true, "`pdlink keys pair` on both, and start it with keys"},
		{"no keys there, --keys", named, insecure(keys.ErrNoKeys), true, "; on this host commands need --dir " + ours},
		{"no keys here", Choice{}, insecure(keys.ErrKeysWanted), false, "and use the keys here; with --keys DIR, or $PDLINK_KEYS, the keys in a directory are used"},
		{"not loopback", Choice{}, insecure(keys.ErrExposed), false, "through an ssh tunnel; with --keys DIR, or $PDLINK_KEYS, the keys in a directory are used"},
		{"another user's socket", Choice{}, insecure(errors.New("user 7")), false, "; with --keys DIR, or $PDLINK_KEYS, the keys in a directory are used"},
		{"something else", named, errors.New("refused"), false, ""},
	} {
		got := c.choice.Explain(c.err)
		if !errors.Is(got, c.err) || Refused(c.err) != c.refused || !strings.HasSuffix(got.Error(), c.say) || (c.say == "") != (got.Error() == c.err.Error()) {
			t.Errorf("%s: %v, refused %t", c.what, got, Refused(c.err))
		}
	}
}

func TestFlags(t *testing.T) {
	for _, f := range []Flags{{}, {Encrypt: "on"}, {Encrypt: "256"}, {Encrypt: "off"}, {Peer: "a-1"}} {
		if err := f.Check(); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, f := range []Flags{{Encrypt: "no"}, {Encrypt: "aes"}, {Peer: "a b"}, {Peer: "pdlink1x"}} {
		if err := f.Check(); err == nil || !strings.HasPrefix(err.Error(), "--") {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, dials := range []bool{true, false} {
		c := &cobra.Command{Use: "x"}
		(&Flags{}).Register(c, dials)
		for _, name := range Names() {
			if there := c.Flags().Lookup(name) != nil; there != (dials || name != "peer") {
				t.Errorf("dials %t: --%s is there: %t", dials, name, there)
			}
		}
	}
}

func TestTemporary(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dialler, listener, remove, err := Temporary()
	if err != nil {
		t.Fatal(err)
	}
	for dir, peer := range map[string]string{dialler: "listener", listener: "dialler"} {
		if names := CompletePeer(dir, peer[:2]); len(names) != 1 || !strings.HasPrefix(names[0], peer+"\t") {
			t.Errorf("%s: %q", dir, names)
		}
	}
	if info, err := os.Stat(filepath.Dir(dialler)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	remove()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	t.Setenv("TMPDIR", filepath.Join(temp, "none"))
	if _, _, _, err := Temporary(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
