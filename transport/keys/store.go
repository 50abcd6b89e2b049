package keys

import (
	"bytes"
	"crypto/tls"
	"errors"
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
	// others count; when the file is not to be trusted (ErrPermissions) nobody is
	// a peer; when the system could not read it, for want of descriptors for
	// example, the peers stay as they are. It is called from one goroutine at a
	// time.
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

	mu    sync.Mutex // guards peers and the channels in it
	peers map[PublicKey]*pinned

	stop    chan struct{}
	stopped sync.Once
	done    chan struct{} // closed when the poll has ended
}

// pinned is a peer that may connect.
type pinned struct {
	name string
	gone chan struct{} // closed when it no longer may
}

// Admission is a peer's right to be connected.
type Admission struct {
	Peer Peer

	// Revoked is closed when the peer is no longer in the peers file. Whoever
	// holds a connection of the peer must end it then. It is not closed when the
	// store is.
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
	look := lookAt(dir)
	peers, err := look.peers(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, o: o, id: id, cert: cert, peers: map[PublicKey]*pinned{},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.apply(peers)
	go s.poll(look)
	return s, nil
}

// Close stops the watch and waits for it. Admissions stay as they are. It is
// idempotent.
func (s *Store) Close() error {
	s.stopped.Do(func() { close(s.stop) })
	<-s.done
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

// Admit returns the right of a key to be connected. The error Is ErrUnknownPeer.
func (s *Store) Admit(key PublicKey) (Admission, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[key]
	if p == nil {
		return Admission{}, fmt.Errorf("%w: key %s is not in %s: run `pdlink keys pair NAME %v` here if you know whose it is",
			ErrUnknownPeer, key.Short(), filepath.Join(s.dir, PeersFile), key)
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
	return PublicKey{}, fmt.Errorf("%w: %.80q is not in %s: run `pdlink keys pair %.80s KEY` with the key that `pdlink keys show` prints there",
		ErrUnknownPeer, name, filepath.Join(s.dir, PeersFile), name)
}

// apply makes list the peers, and ends the admissions of all others.
func (s *Store) apply(list []Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := make(map[PublicKey]*pinned, len(list))
	for _, p := range list {
		if old := s.peers[p.Key]; old != nil {
			old.name = p.Name
			now[p.Key] = old
			continue
		}
		now[p.Key] = &pinned{p.Name, make(chan struct{})}
	}
	for k, p := range s.peers {
		if now[k] == nil {
			close(p.gone)
		}
	}
	s.peers = now
}

// look is what one look at the peers file saw.
type look struct {
	content []byte
	err     error
}

func lookAt(dir string) look {
	b, err := readPeers(dir)
	return look{b, err}
}

// same says whether two looks saw the same; errors are the same when they read
// the same.
func (l look) same(m look) bool {
	if l.err != nil || m.err != nil {
		return l.err != nil && m.err != nil && l.err.Error() == m.err.Error()
	}
	return bytes.Equal(l.content, m.content)
}

// peers is what the look means.
func (l look) peers(dir string) ([]Peer, error) {
	if l.err != nil {
		return nil, l.err
	}
	return parsePeers(filepath.Join(dir, PeersFile), l.content)
}

// poll follows the file; used is the look that the peers are from. A change must
// be seen twice: an editor may be in the middle of writing, and half a file must
// not end a connection.
func (s *Store) poll(used look) {
	defer close(s.done)
	t := time.NewTicker(s.o.Poll)
	defer t.Stop()
	last := used
	for {
		select {
		case <-t.C:
		case <-s.stop:
			return
		}
		now := lookAt(s.dir)
		settled := now.same(last)
		last = now
		if !settled || now.same(used) {
			continue
		}
		used = now
		peers, err := now.peers(s.dir)
		if err == nil || errors.Is(err, ErrBadFile) || errors.Is(err, ErrPermissions) {
			s.apply(peers)
		}
		if err != nil {
			s.o.OnProblem(err)
		}
	}
}
