package keys_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/transport/keys"
)

func TestNamesAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if name, err := keys.LoadName(dir); name != "" || err != nil {
		t.Errorf("no directory: %q, %v", name, err)
	}
	for _, want := range []string{"mac", "spark.lan-1"} {
		if err := keys.SaveName(t.Context(), dir, want); err != nil {
			t.Fatal(err)
		}
		if name, err := keys.LoadName(dir); name != want || err != nil {
			t.Errorf("%q, %v", name, err)
		}
	}
	for _, bad := range []string{"", "a b", "-x", "pdlink1x", strings.Repeat("a", 64)} {
		if err := keys.SaveName(t.Context(), dir, bad); !errors.Is(err, keys.ErrBadKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	path := filepath.Join(dir, keys.NameFile)
	for _, content := range []string{"a b\n", "", strings.Repeat("a", 1000)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if name, err := keys.LoadName(dir); name != "" || !errors.Is(err, keys.ErrBadFile) {
			t.Errorf("%.20q: %q, %v", content, name, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if name, err := keys.LoadName(dir); name != "" || err != nil {
		t.Errorf("none: %q, %v", name, err)
	}
}

// TestRevokedKeysAreKnownAsSuch: by a store that ran meanwhile and by one that is
// opened later, until they are paired again.
func TestRevokedKeysAreKnownAsSuch(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, _ *problems) {
		rfc := parse(t, rfcText)
		stranger := keys.PublicKey{7}
		if _, err := keys.RemovePeer(t.Context(), dir, "a"); err != nil {
			t.Fatal(err)
		}
		settle()
		later, err := keys.Open(dir, keys.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer later.Close()
		for _, s := range []*keys.Store{s, later} {
			_, err := s.Admit(rfc)
			if !errors.Is(err, keys.ErrRevoked) || !errors.Is(err, keys.ErrUnknownPeer) || strings.Contains(err.Error(), "`pdlink") ||
				!strings.Contains(err.Error(), "a (key "+rfc.Short()+") was taken out of ") {
				t.Errorf("%v", err)
			}
			if _, err := s.Admit(stranger); errors.Is(err, keys.ErrRevoked) || !errors.Is(err, keys.ErrUnknownPeer) {
				t.Errorf("a stranger: %v", err)
			}
		}
		if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "again", Key: rfc}); err != nil {
			t.Fatal(err)
		}
		settle()
		for _, s := range []*keys.Store{s, later} {
			if a, err := s.Admit(rfc); err != nil || a.Peer.Name != "again" {
				t.Errorf("%+v, %v", a, err)
			}
		}
		if b, err := os.ReadFile(filepath.Join(dir, keys.PeersFile)); err != nil || strings.Contains(string(b), "revoked") {
			t.Errorf("%q, %v", b, err)
		}
	})
}
