package keys_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pdlink/transport/keys"
)

func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	if _, err := keys.LoadIdentity(dir); !errors.Is(err, keys.ErrNoIdentity) || !strings.Contains(err.Error(), dir) {
		t.Errorf("no file: %v", err)
	}
	if _, err := keys.LoadIdentity(filepath.Join(dir, "none")); !errors.Is(err, keys.ErrNoIdentity) {
		t.Errorf("no directory: %v", err)
	}
	id, err := keys.Init(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, keys.IdentityFile))
	if err != nil {
		t.Fatal(err)
	}
	got, err := keys.LoadIdentity(dir)
	if err != nil || got.Public() != id.Public() || got.Public() == (keys.PublicKey{}) {
		t.Errorf("loaded %v, want %v: %v", got, id, err)
	}
	if _, err := keys.Init(t.Context(), dir, false); !errors.Is(err, keys.ErrIdentityExists) {
		t.Errorf("second Init: %v", err)
	}
	if again, err := keys.LoadIdentity(dir); err != nil || again.Public() != id.Public() {
		t.Errorf("after a refused Init: %v, %v", again, err)
	}
	next, err := keys.Init(t.Context(), dir, true)
	if err != nil || next.Public() == id.Public() {
		t.Errorf("replaced by %v: %v", next, err)
	}
	if got, err := keys.LoadIdentity(dir); err != nil || got.Public() != next.Public() {
		t.Errorf("after replacing: %v, %v", got, err)
	}
	seed := pem.EncodeToMemory(&pem.Block{Type: "X", Bytes: []byte("secret")})
	for _, text := range []string{fmt.Sprint(id), fmt.Sprintf("%v %+v %#v %s", id, id, id, id)} {
		if !strings.Contains(text, id.Public().String()) || len(text) > 4*66 {
			t.Errorf("prints as %s", text)
		}
	}
	if bytes.Contains(file, seed) || len(file) > 200 {
		t.Errorf("file of %d bytes", len(file))
	}
}

func TestBadIdentity(t *testing.T) {
	dir := t.TempDir()
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, keys.IdentityFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"empty":       nil,
		"text":        []byte("pdlink1"),
		"public key":  []byte(rfcText + "\n"),
		"cut":         good[:len(good)-30],
		"two":         append(bytes.Clone(good), good...),
		"other type":  bytes.ReplaceAll(good, []byte("PRIVATE KEY"), []byte("CERTIFICATE")),
		"no PKCS":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("0123456789")}),
		"other curve": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"large":       append(bytes.Clone(good), make([]byte, 4<<10)...),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := keys.LoadIdentity(dir)
		if !errors.Is(err, keys.ErrBadFile) || id != nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
}

// TestInitRace: of many only one makes the identity, and all see that one.
func TestInitRace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			id, err := keys.Init(t.Context(), dir, false)
			if err == nil {
				made.Add(1)
			} else if !errors.Is(err, keys.ErrIdentityExists) {
				t.Error(err)
			}
			if got, err := keys.LoadIdentity(dir); err != nil || id != nil && got.Public() != id.Public() {
				t.Errorf("loaded %v: %v", got, err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("%d were made", made.Load())
	}
}

// writePeers replaces the peers file of dir.
func writePeers(t *testing.T, dir, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, keys.PeersFile), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPeers(t *testing.T) {
	dir := t.TempDir()
	rfc, seq := parse(t, rfcText), parse(t, seqText)
	if peers, err := keys.LoadPeers(dir); err != nil || len(peers) != 0 {
		t.Errorf("no file: %v, %v", peers, err)
	}
	if _, err := keys.RemovePeer(t.Context(), dir, "a"); !errors.Is(err, keys.ErrUnknownPeer) {
		t.Errorf("remove from nothing: %v", err)
	}
	add := func(name string, k keys.PublicKey, want error) {
		t.Helper()
		if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: name, Key: k}); !errors.Is(err, want) {
			t.Errorf("add %q: %v, want %v", name, err, want)
		}
	}
	add("spark-1", rfc, nil)
	add("spark-1", rfc, nil)
	add("spark-1", seq, keys.ErrPeerExists)
	add("spark-2", rfc, keys.ErrPeerExists)
	add("spark-2", keys.PublicKey{}, keys.ErrBadKey)
	for _, name := range []string{"", "-a", ".a", "a b", "a#b", "a\nb", "ä", rfcText, "PDLINK1x", strings.Repeat("a", 64)} {
		add(name, seq, keys.ErrBadKey)
	}
	add("Mac.2_x-"+strings.Repeat("a", 55), seq, nil)
	peers, err := keys.LoadPeers(dir)
	if err != nil || len(peers) != 2 || peers[0] != (keys.Peer{Name: "spark-1", Key: rfc}) || peers[1].Key != seq {
		t.Errorf("peers %v: %v", peers, err)
	}

	// Edited by hand: no end of line, comments, another order, line ends of Windows.
	writePeers(t, dir, "# mine\r\n\r\nb\t"+strings.ToUpper(seqText)+" # basement\r\n  # a next\n  a "+rfcText)
	peers, err = keys.LoadPeers(dir)
	if err != nil || len(peers) != 2 || peers[0] != (keys.Peer{Name: "b", Key: seq}) || peers[1] != (keys.Peer{Name: "a", Key: rfc}) {
		t.Errorf("peers %v: %v", peers, err)
	}
	third := keys.PublicKey{3}
	add("c", third, nil)
	if p, err := keys.RemovePeer(t.Context(), dir, seqText); err != nil || !slices.Equal(p, []keys.Peer{{Name: "b", Key: seq}}) {
		t.Errorf("removed %v: %v", p, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, keys.PeersFile))
	if want := "# mine\r\n\r\n  # a next\n  a " + rfcText + "\nc " + third.String() + "\n# revoked: b " + seqText + "\n"; err != nil || string(b) != want {
		t.Errorf("file\n%q, want\n%q", b, want)
	}
}

func TestBadPeers(t *testing.T) {
	dir := t.TempDir()
	good := "a " + rfcText + "\n"
	for name, tt := range map[string]struct{ content, says string }{
		"one word":    {good + "b\n", "line 2"},
		"three words": {"b " + seqText + " c\n" + good, "line 1"},
		"typo":        {good + "b " + seqText[:64] + "a\n", "line 2"},
		"name":        {good + "\n-b " + seqText + "\n", "line 3"},
		"same name":   {good + "a " + seqText + "\n", "line 2: the name a is there 2 times"},
		"same key":    {good + "b " + rfcText + "\n", "line 2: b has a key that is there 2 times"},
		"binary":      {good + "\x00\xff\x00\n", "line 2"},
		"large":       {good + strings.Repeat("#\n", 1<<19), "bytes"},
	} {
		writePeers(t, dir, tt.content)
		peers, err := keys.LoadPeers(dir)
		if !errors.Is(err, keys.ErrBadFile) || peers != nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, %v", name, peers, err)
		}
		if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "z", Key: keys.PublicKey{9}}); !errors.Is(err, keys.ErrBadFile) {
			t.Errorf("%s: added to it: %v", name, err)
		}
		if name == "large" {
			continue
		}
		// Revoking works whatever else is wrong, and leaves it.
		if _, err := keys.RemovePeer(t.Context(), dir, "a"); err != nil {
			t.Errorf("%s: revoke: %v", name, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, keys.PeersFile))
		if err != nil || bytes.Contains(bytes.ReplaceAll(b, []byte("# revoked: a "+rfcText+"\n"), nil), []byte(rfcText)) {
			t.Errorf("%s: after revoking: %q, %v", name, b, err)
		}
	}
}

// TestAddPeerRace: changes at the same time lose nothing.
func TestAddPeerRace(t *testing.T) {
	dir := t.TempDir()
	writePeers(t, dir, "gone "+rfcText+"\n")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: fmt.Sprint("p", i), Key: keys.PublicKey{byte(i + 1)}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if _, err := keys.RemovePeer(t.Context(), dir, "gone"); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	peers, err := keys.LoadPeers(dir)
	if err != nil || len(peers) != 16 || slices.ContainsFunc(peers, func(p keys.Peer) bool { return p.Name == "gone" }) {
		t.Errorf("%d peers: %v", len(peers), err)
	}
}

func TestDefaultDir(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", base)
	t.Setenv("HOME", base)
	t.Setenv("AppData", base)
	dir, err := keys.DefaultDir()
	if err != nil || filepath.Base(dir) != "pdlink" || !strings.HasPrefix(dir, base) {
		t.Errorf("%q, %v", dir, err)
	}
	for _, name := range []string{"XDG_CONFIG_HOME", "HOME", "AppData"} {
		t.Setenv(name, "")
	}
	if dir, err := keys.DefaultDir(); err == nil {
		t.Errorf("without a home: %q", dir)
	}
}

// FuzzPeers: a file that is accepted means what it says: written again, peer by
// peer, it gives the same peers.
func FuzzPeers(f *testing.F) {
	for _, s := range []string{
		"", "a " + rfcText, "# x\n\na " + rfcText + " # y\r\nb " + seqText + "\n", "a " + rfcText + "\na " + seqText, "a\nb c d\n\x00",
	} {
		f.Add([]byte(s))
	}
	dir, again := f.TempDir(), f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		writePeers(t, dir, string(b))
		peers, err := keys.LoadPeers(dir)
		if err != nil {
			if !errors.Is(err, keys.ErrBadFile) || peers != nil {
				t.Fatalf("%v, %v", peers, err)
			}
			return
		}
		if len(peers) > 0 { // revoked, its key is nobody's
			gone := peers[len(b)%len(peers)]
			if _, err := keys.RemovePeer(t.Context(), dir, gone.Name); err != nil {
				t.Fatal(err)
			}
			left, err := os.ReadFile(filepath.Join(dir, keys.PeersFile))
			left = bytes.ReplaceAll(left, []byte("# revoked: "+gone.Name+" "+gone.Key.String()+"\n"), nil)
			if err != nil || bytes.Contains(bytes.ToLower(left), []byte(gone.Key.String())) && !bytes.Contains(b, []byte("#")) {
				t.Fatalf("left %q, %v", left, err)
			}
		}
		writePeers(t, again, "")
		for _, p := range peers {
			if err := keys.AddPeer(t.Context(), again, p); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := keys.LoadPeers(again); err != nil || !slices.Equal(got, peers) {
			t.Fatalf("%v, want %v: %v", got, peers, err)
		}
	})
}
