package tcp

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/transport"
)

// patient starts a listener whose complete connections wait so long for Accept.
func patient(t *testing.T, limit time.Duration, o Options) (*listener, *rejects) {
	t.Helper()
	var r rejects
	o.OnReject, o.Session = r.add, smallRings(t)
	l := New(o)
	l.acceptTime = limit
	s, err := l.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*listener), &r
}

// held is how many connections a listener counts of all its peers.
func (s *listener) heldOfPeers() (n int) {
	s.peers.mu.Lock()
	defer s.peers.mu.Unlock()
	for _, k := range s.peers.held {
		n += k
	}
	return n
}

// TestUnacceptedConnectionsEnd: what nobody accepts is given back after a while, and
// the peer is told; who comes later is served.
func TestUnacceptedConnectionsEnd(t *testing.T) {
	for _, carries := range []bool{false, true} {
		c := &chatty{}
		var o Options
		if carries {
			o.Carrier = c
		}
		s, r := patient(t, 50*time.Millisecond, o)
		own := Options{Session: smallRings(t)}
		if carries {
			own.Carrier = &chatty{}
		}
		a, err := New(own).Dial(t.Context(), s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		r.wait(t, errLate)
		if _, err := a.Accept(t.Context()); !errors.Is(err, transport.ErrLost) {
			t.Errorf("the peer: %v", err)
		}
		a.Close()
		if got := c.noted(); carries && (len(got) != 1 || got[0] != "close") {
			t.Errorf("the lanes were told %v", got)
		}
		if n := s.lobby.len() + len(s.carries); n != 0 {
			t.Errorf("%d are left", n)
		}
		s.lobby.time = time.Minute
		connect(t, New(own), s)
	}
}

// TestCarriersOfUnacceptedConnectionsAreBounded: as many connections have memory of a
// device before somebody accepts them, and no more.
func TestCarriersOfUnacceptedConnectionsAreBounded(t *testing.T) {
	var carries atomic.Int32
	s, r := patient(t, time.Minute, Options{Carrier: &chatty{during: func() { carries.Add(1) }}})
	l := New(Options{Session: smallRings(t), Carrier: &chatty{}})
	var all []transport.Conn
	for range maxCarried + 2 {
		a, err := l.Dial(t.Context(), s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	eventually(t, "all but two wait", func() bool { return s.lobby.len() == maxCarried && len(s.rooms) == 2 })
	for i := range 2 {
		if n := carries.Load(); n != int32(maxCarried+i) {
			t.Errorf("lanes of %d connections, want %d", n, maxCarried+i)
		}
		b, err := s.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
		eventually(t, "the next has lanes", func() bool { return s.lobby.len() == maxCarried })
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range all {
		c.Close()
	}
	if len(s.carries) != 0 || len(r.errs) != 0 {
		t.Errorf("%d have lanes, %v", len(s.carries), r.errs)
	}
}

// TestQuotaIsHeldUntilTheLanesAreGone: a connection counts as the peer's until all
// that it has is given back, accepted or not.
func TestQuotaIsHeldUntilTheLanesAreGone(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		server, client := twoHosts(t)
		inClose, release := make(chan struct{}), make(chan struct{})
		c := &chatty{ends: func() {
			close(inClose)
			<-release
		}}
		limit := 50 * time.Millisecond
		if accepted {
			limit = time.Minute
		}
		s, _ := patient(t, limit, Options{Keys: server, MaxPerPeer: 1, Carrier: c})
		l := secureLink(t, client, Options{Peer: "server", Carrier: &chatty{}})
		a, err := l.Dial(t.Context(), s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if accepted {
			b, err := s.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go b.Close()
		}
		<-inClose
		if n := s.heldOfPeers(); n != 1 {
			t.Errorf("accepted %t: %d connections count while the lanes end", accepted, n)
		}
		if second, err := l.Dial(t.Context(), s.Addr()); err == nil {
			second.Close()
			t.Errorf("accepted %t: there is room while the lanes end", accepted)
		}
		close(release)
		eventually(t, "the room is given back", func() bool { return s.heldOfPeers() == 0 })
		a.Close()
	}
}

// TestUnixHasNoCarrier: it is refused before anything is made.
func TestUnixHasNoCarrier(t *testing.T) {
	u := NewUnix(Options{Carrier: &chatty{}})
	_, dial := u.Dial(t.Context(), t.TempDir()+"/s")
	_, listen := u.Listen(t.Context(), t.TempDir()+"/s")
	for _, err := range []error{dial, listen} {
		if !errors.Is(err, transport.ErrUnavailable) {
			t.Errorf("%v", err)
			continue
		}
		saysFix(t, err, "chatty", "use one of TCP")
	}
}
