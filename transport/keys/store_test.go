package keys_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport/keys"
)

// problems collects what a store reports.
type problems struct {
	mu  sync.Mutex
	all []error
}

func (p *problems) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, err)
}

// take returns what came since the last take.
func (p *problems) take() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.all
	p.all = nil
	return all
}

// watched runs f, in virtual time, with a store of a new directory that has the
// peers a (the RFC's key) and b.
func watched(t *testing.T, f func(t *testing.T, dir string, s *keys.Store, p *problems)) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	writePeers(t, dir, aLine+bLine)
	synctest.Test(t, func(t *testing.T) {
		var p problems
		s, err := keys.Open(dir, keys.Options{OnProblem: p.add})
		if err != nil {
			t.Fatal(err)
		}
		f(t, dir, s, &p)
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

const (
	aLine = "a " + rfcText + "\n"
	bLine = "b " + seqText + "\n"
)

// settle lets the store see the file often enough.
func settle() { time.Sleep(2500 * time.Millisecond) }

func ended(a keys.Admission) bool {
	select {
	case <-a.Revoked:
		return true
	default:
		return false
	}
}

func admit(t *testing.T, s *keys.Store, k keys.PublicKey) keys.Admission {
	t.Helper()
	a, err := s.Admit(k)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRevocation(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, p *problems) {
		rfc, seq := parse(t, rfcText), parse(t, seqText)
		a, a2, b := admit(t, s, rfc), admit(t, s, rfc), admit(t, s, seq)
		if a.Peer != (keys.Peer{Name: "a", Key: rfc}) || b.Peer.Name != "b" {
			t.Errorf("admitted %v and %v", a.Peer, b.Peer)
		}
		if _, err := keys.RemovePeer(t.Context(), dir, "a"); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		<-a.Revoked
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		if !ended(a2) || ended(b) {
			t.Errorf("the other connection of a ended: %v; b's: %v", ended(a2), ended(b))
		}
		if _, err := s.Admit(rfc); !errors.Is(err, keys.ErrUnknownPeer) || !strings.Contains(err.Error(), rfcText[:15]+"...") || strings.Contains(err.Error(), rfcText) {
			t.Errorf("admitted again: %v", err)
		}
		// Paired again: a new admission, the old one stays ended.
		if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "c", Key: rfc}); err != nil {
			t.Fatal(err)
		}
		settle()
		if c := admit(t, s, rfc); c.Peer.Name != "c" || ended(c) || !ended(a) {
			t.Errorf("paired again: %v, ended %v and %v", c.Peer, ended(c), ended(a))
		}
		if got := s.Peers(); len(got) != 2 || got[0].Name != "b" || got[1].Name != "c" {
			t.Errorf("peers %v", got)
		}
		if got := p.take(); len(got) != 0 {
			t.Errorf("problems %v", got)
		}
	})
}

// TestFileChanges has one state of the file after the other, and one admission of
// each peer in every state.
func TestFileChanges(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, p *problems) {
		path := filepath.Join(dir, keys.PeersFile)
		a, b := admit(t, s, parse(t, rfcText)), admit(t, s, parse(t, seqText))
		for _, step := range []struct {
			name    string
			do      func()
			peers   string
			ends    string // whose admissions end
			problem error
			times   int
		}{
			{"bad line", func() { writePeers(t, dir, aLine+"b\n") }, "a", "b", keys.ErrBadFile, 1},
			{"the same for long", func() { time.Sleep(time.Minute) }, "a", "", nil, 0},
			{"another bad line", func() { writePeers(t, dir, "\nx y\n"+aLine+bLine) }, "a b", "", keys.ErrBadFile, 1},
			{"renamed", func() { writePeers(t, dir, bLine+"host-a "+rfcText) }, "b host-a", "a", nil, 0},
			{"one key twice", func() { writePeers(t, dir, bLine+"host-a "+rfcText+"\na "+rfcText) }, "b", "a", keys.ErrBadFile, 1},
			{"one of them gone", func() { writePeers(t, dir, bLine+"a "+rfcText) }, "a b", "", nil, 0},
			{"one name twice", func() { writePeers(t, dir, aLine+"a "+seqText) }, "", "a b", keys.ErrBadFile, 1},
			{"mended", func() { writePeers(t, dir, aLine+bLine) }, "a b", "", nil, 0},
			{"cannot be reached", func() {
				if err := errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir, dir)); err != nil {
					t.Fatal(err)
				}
			}, "a b", "", errAny, 1},
			{"for ten seconds", func() { time.Sleep(10 * time.Second) }, "", "a b", errAny, 1},
			{"for minutes", func() { time.Sleep(3 * time.Minute) }, "", "", errAny, 3},
			{"back", func() {
				if err := errors.Join(os.Remove(dir), os.Rename(dir+"2", dir)); err != nil {
					t.Fatal(err)
				}
			}, "a b", "", nil, 0},
		} {
			step.do()
			settle()
			var names []string
			for _, q := range s.Peers() {
				names = append(names, q.Name)
			}
			if got := strings.Join(names, " "); got != step.peers {
				t.Errorf("%s: peers %q, want %q", step.name, got, step.peers)
			}
			got := p.take()
			if len(got) != step.times {
				t.Errorf("%s: problems %v", step.name, got)
			}
			for _, err := range got {
				if !errors.Is(err, step.problem) && !errors.Is(step.problem, errAny) {
					t.Errorf("%s: problem %v", step.name, err)
				}
			}
			if ended(a) != strings.Contains(step.ends, "a") || ended(b) != strings.Contains(step.ends, "b") {
				t.Errorf("%s: a ended %v, b %v", step.name, ended(a), ended(b))
			}
			for _, again := range []*keys.Admission{&a, &b} {
				if now, err := s.Admit(again.Peer.Key); err == nil {
					*again = now
				} else {
					*again = keys.Admission{Peer: again.Peer}
				}
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		settle()
		if !ended(a) || len(s.Peers()) != 0 || len(p.take()) != 0 {
			t.Errorf("without a file: ended %v, peers %v", ended(a), s.Peers())
		}
	})
}

// errAny stands for any error.
var errAny = errors.New("any")

// TestHalfWritten: what is there for one look only has no effect.
func TestHalfWritten(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, p *problems) {
		a := admit(t, s, parse(t, rfcText))
		path := filepath.Join(dir, keys.PeersFile)
		time.Sleep(500 * time.Millisecond) // between two looks
		for _, half := range []func(){
			func() { writePeers(t, dir, "") },
			func() { writePeers(t, dir, aLine[:20]) },
			func() { os.Remove(path) },
		} {
			half()
			time.Sleep(time.Second)
			writePeers(t, dir, aLine+bLine)
			time.Sleep(3 * time.Second)
		}
		if ended(a) || len(s.Peers()) != 2 || len(p.take()) != 0 {
			t.Errorf("ended %v, peers %v", ended(a), s.Peers())
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	if s, err := keys.Open(dir, keys.Options{}); !errors.Is(err, keys.ErrNoIdentity) || s != nil {
		t.Errorf("no identity: %v", err)
	}
	id, err := keys.Init(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	writePeers(t, dir, aLine+"x\n")
	if s, err := keys.Open(dir, keys.Options{}); !errors.Is(err, keys.ErrBadFile) || s != nil {
		t.Errorf("bad line: %v", err)
	}
	writePeers(t, dir, "")
	s, err := keys.Open(dir, keys.Options{})
	if err != nil || s.Public() != id.Public() {
		t.Fatal(err)
	}
	if _, err := s.Admit(keys.PublicKey{}); !errors.Is(err, keys.ErrUnknownPeer) {
		t.Errorf("the zero key: %v", err)
	}
	if _, err := s.Admit(id.Public()); !errors.Is(err, keys.ErrUnknownPeer) {
		t.Errorf("this host's own key: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestStoreConcurrent admits while peers come and go.
func TestStoreConcurrent(t *testing.T) {
	watched(t, func(t *testing.T, dir string, s *keys.Store, _ *problems) {
		rfc := parse(t, rfcText)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					if a, err := s.Admit(rfc); err == nil {
						select {
						case <-a.Revoked:
						case <-stop:
							return
						}
					} else if !slices.ContainsFunc(s.Peers(), func(p keys.Peer) bool { return p.Name == "b" }) {
						t.Error("b is gone")
					}
					select {
					case <-time.After(100 * time.Millisecond):
					case <-stop:
						return
					}
				}
			})
		}
		for i := range 20 {
			writePeers(t, dir, bLine+aLine[:len(aLine)*(i%2)])
			settle()
		}
		close(stop)
		wg.Wait()
	})
}
