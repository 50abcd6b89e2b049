package tcp

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/transport/carrier"
	"pdlink/transport/keys"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// chatty is a carrier whose lanes carry nothing and do what a test says.
type chatty struct {
	during func() // of Carry; nil: nothing
	talks  bool   // says link messages until it is closed
	take   func() // of each one that comes; nil: nothing
	ends   func() // of Close; nil: nothing

	said atomic.Int64 // messages that talks said

	mu    sync.Mutex
	calls []string // of Start and Close, in order; guarded by mu
}

func (c *chatty) note(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

func (c *chatty) noted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (*chatty) Link() string       { return "chatty" }
func (*chatty) Available() error   { return nil }
func (*chatty) Features() []string { return []string{"chatty/1"} }

func (c *chatty) Carry(context.Context, carrier.Base) (carrier.Lanes, error) {
	if c.during != nil {
		c.during()
	}
	return &chattyLanes{c: c, over: make(chan struct{})}, nil
}

type chattyLanes struct {
	c    *chatty
	over chan struct{}
	once sync.Once
	work sync.WaitGroup
}

func (*chattyLanes) Lanes() int { return 1 }

func (l *chattyLanes) WriteFrame(int, []byte, []byte) error {
	<-l.over
	return net.ErrClosed
}

func (l *chattyLanes) ReadFrame(int, []byte, session.Placer) (int, error) {
	<-l.over
	return 0, net.ErrClosed
}

func (l *chattyLanes) Start(say func([]byte) error) {
	l.c.note("start")
	if !l.c.talks {
		return
	}
	msg, err := wire.AppendLink(nil, &wire.Link{Of: 36, Body: make([]byte, 60000)})
	if err != nil {
		return
	}
	l.work.Go(func() {
		for say(msg) == nil {
			l.c.said.Add(1)
			select {
			case <-l.over:
				return
			default:
			}
		}
	})
}

func (l *chattyLanes) Take([]byte) error {
	if l.c.take != nil {
		l.c.take()
	}
	return nil
}

func (l *chattyLanes) Close() error {
	l.once.Do(func() {
		if l.c.ends != nil {
			l.c.ends()
		}
		l.c.note("close")
		close(l.over)
	})
	l.work.Wait()
	return nil
}

// TestCarriedCloseWhileThePeerIsSilent: lanes that are saying something to a peer that
// does not read its control channel hold up Close no longer than any connection.
func TestCarriedCloseWhileThePeerIsSilent(t *testing.T) {
	stuck, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	_, s, _ := listen(t, Options{Carrier: &chatty{take: func() {
		once.Do(func() { close(stuck) })
		<-release
	}}})
	c := &chatty{talks: true}
	a, _ := connect(t, New(Options{Session: smallRings(t), Carrier: c}), s)
	<-stuck
	for before := int64(-1); before != c.said.Load(); time.Sleep(300 * time.Millisecond) { // until the sockets are full
		before = c.said.Load()
	}
	closed := make(chan struct{})
	go func() {
		a.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second): // the user timeout would end it after 30
		t.Error("Close waits for what the lanes are saying")
	}
	close(release)
	<-closed
}

// TestCarriedPeerThatIsRevokedMeanwhile: a peer that is revoked while the lanes come
// about is noticed when they have begun, not before.
func TestCarriedPeerThatIsRevokedMeanwhile(t *testing.T) {
	dirs := keyDirs(t, "server", "client")
	server, client := openKeys(t, dirs[0]), openKeys(t, dirs[1])
	_, s, _ := listen(t, Options{Keys: server, Carrier: &chatty{}})
	c := &chatty{during: func() {
		if _, err := keys.RemovePeer(t.Context(), dirs[1], "server"); err != nil {
			t.Error(err)
		}
		eventually(t, "the peer is forgotten", func() bool { return len(client.Peers()) == 0 })
	}}
	go func() {
		if b, err := s.Accept(t.Context()); err == nil {
			b.Accept(t.Context())
			b.Close()
		}
	}()
	a, err := secureLink(t, client, Options{Peer: "server", Carrier: c}).Dial(t.Context(), s.Addr())
	if err == nil {
		eventually(t, "the lanes are closed", func() bool { return len(c.noted()) == 2 })
		a.Close()
	}
	if got := c.noted(); len(got) > 1 && !slices.Equal(got, []string{"start", "close"}) {
		t.Errorf("the lanes were told %v", got)
	}
}
