package keys

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options of a Store. The zero value works.
type Options struct {
	// Poll is how often the peers file is looked at. A change takes effect when
	// two looks in a row have seen the same. Zero or less means one second.
	Poll time.Duration

	// OnProblem, when set, is told once of each state of the peers file that is
	// not right while the store is open. When lines are wrong (ErrBadFile) the
	// others count; when the file is not to be trusted, or this process may not
	// read it (ErrPermissions), nobody is a peer; when it cannot be read for
	// another reason, for want of descriptors for example, the peers stay as they
	// are for ten seconds, then nobody is one, and that is told of again every
	// minute. It is called from one goroutine at a time, and not from the one that
	// follows the file: while it hangs, revocations count all the same, and of
	// what happens meanwhile it is told the last.
	OnProblem func(error)
}

// Store is the identity and the peers of a directory while a process uses them.
// The peers follow the file, the identity does not change. It may be used
// concurrently. The caller closes it.
type Store struct {
	dir  string
	o    Options
	id   *Identity
	cert tls.Certificate

	mu      sync.Mutex // guards what follows, and the channels in it
	peers   map[PublicKey]*pinned
	revoked map[PublicKey]string // keys that the file says were taken out, and their names

	problems chan view // capacity 1: the last that OnProblem was not told of
	stop     chan struct{}
	stopped  sync.Once
	running  sync.WaitGroup
}

// pinned is a peer that may connect.
type pinned struct {
	name string
	gone chan struct{} // closed when it no longer may
}

// Admission is a peer's right to be connected.
type Admission struct {
	Peer Peer

	// Revoked is closed when the peer, by this name and key, is no longer in the
	// peers file. Whoever holds a connection of the peer must end it then. It is
	// not closed when the store is.
	Revoked <-chan struct{}
}

// Open loads the identity and the peers of dir and starts to watch the peers.
// Errors: those of LoadIdentity and LoadPeers.
func Open(dir string, o Options) (*Store, error) {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.OnProblem == nil {
		o.OnProblem = func(error) {}
	}
	id, err := LoadIdentity(dir)
	if err != nil {
		return nil, err
	}
	cert, err := certificate(id)
	if err != nil {
		return nil, err
	}
	w := &watch{dir: dir, read: readPeers}
	w.used = w.look()
	w.last = w.used
	peers, err := w.used.peers(dir)
	if err != nil {
		w.close()
		return nil, err
	}
	s := &Store{
		dir: dir, o: o, id: id, cert: cert, peers: map[PublicKey]*pinned{},
		problems: make(chan view, 1), stop: make(chan struct{}),
	}
	s.apply(peers, w.used.revoked())
	s.running.Go(func() { s.poll(w) })
	s.running.Go(s.tell)
	return s, nil
}

// Close stops the watch and waits for it, and for a call of OnProblem. Admissions
// stay as they are. It is idempotent.
func (s *Store) Close() error {
	s.stopped.Do(func() { close(s.stop) })
	s.running.Wait()
	return nil
}

// Public is this host's own public key.
func (s *Store) Public() PublicKey { return s.id.Public() }

// Peers returns the peers that may connect, by name.
func (s *Store) Peers() []Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	peers := make([]Peer, 0, len(s.peers))
	for k, p := range s.peers {
		peers = append(peers, Peer{p.name, k})
	}
	slices.SortFunc(peers, func(a, b Peer) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return peers
}

// Admit returns the right of a key to be connected. The error Is ErrUnknownPeer: an
// UnknownKeyError, or ErrRevoked besides for a key that was one.
func (s *Store) Admit(key PublicKey) (Admission, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[key]
	if name := s.revoked[key]; p == nil && name != "" {
		return Admission{}, fmt.Errorf("%w: %w: %s (key %s) was taken out of %s",
			ErrRevoked, ErrUnknownPeer, name, key.Short(), filepath.Join(s.dir, PeersFile))
	}
	if p == nil {
		return Admission{}, &UnknownKeyError{Key: key, File: filepath.Join(s.dir, PeersFile)}
	}
	return Admission{Peer{p.name, key}, p.gone}, nil
}

// byName returns the key that has a name.
func (s *Store) byName(name string) (PublicKey, error) {
	for _, p := range s.Peers() {
		if p.Name == name {
			return p.Key, nil
		}
	}
	return PublicKey{}, fmt.Errorf("%w: %.*q is not in %s", ErrUnknownPeer, maxQuoted, name, filepath.Join(s.dir, PeersFile))
}

// apply makes list the peers, and ends the admissions of all others. Under another
// name a key is another peer: what was admitted goes by the old one. revoked are keys
// that were peers.
func (s *Store) apply(list []Peer, revoked map[PublicKey]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = revoked
	now := make(map[PublicKey]*pinned, len(list))
	for _, p := range list {
		if old := s.peers[p.Key]; old != nil && old.name == p.Name {
			now[p.Key] = old
			continue
		}
		now[p.Key] = &pinned{p.Name, make(chan struct{})}
	}
	for k, p := range s.peers {
		if now[k] != p {
			close(p.gone)
		}
	}
	s.peers = now
}

// poll follows the file.
func (s *Store) poll(w *watch) {
	defer close(s.problems)
	defer w.close()
	t := time.NewTicker(s.o.Poll)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.stop:
			return
		}
		v := w.next(time.Now())
		if v.changed {
			s.apply(v.peers, v.revoked)
		}
		if v.problem == nil {
			continue
		}
		select { // what was not told yet is out of date
		case <-s.problems:
		default:
		}
		s.problems <- v
	}
}

// tell hands problems to OnProblem.
func (s *Store) tell() {
	for v := range s.problems {
		s.o.OnProblem(v.problem)
	}
}
