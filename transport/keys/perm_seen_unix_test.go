//go:build unix

package keys_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pdlink/transport/keys"
)

// TestUntrustedFileIsNobody: when others could have written the file, nobody is a
// peer any more.
func TestUntrustedFileIsNobody(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, p *problems) {
		a := admit(t, s, parse(t, rfcText))
		path := filepath.Join(dir, keys.PeersFile)
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := p.take(); len(got) != 1 || !errors.Is(got[0], keys.ErrPermissions) || !ended(a) || len(s.Peers()) != 0 {
			t.Errorf("problems %v, ended %v, peers %v", got, ended(a), s.Peers())
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := p.take(); len(got) != 0 || len(s.Peers()) != 2 {
			t.Errorf("problems %v, peers %v", got, s.Peers())
		}
	})
}
