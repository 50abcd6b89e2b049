package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// Listen accepts connections at addr ("host:port"; port 0 takes a free one).
// When the host has several addresses the first is used, IPv4 before IPv6. The
// context bounds the look-up only. With keys a missing host means every
// interface. Errors: ErrInsecure for an address that is not loopback where the
// link has no keys, and what the network said.
func (l *Link) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if err := l.available(); err != nil {
		return nil, err
	}
	addrs, err := resolve(ctx, l.names, addr, l.o.Keys != nil)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive()}
	// Package net listens for multipath TCP where it can. Its sockets lack some
	// of the options here, and lanes are the link's own way of using more paths.
	lc.SetMultipathTCP(false)
	nl, err := lc.Listen(ctx, "tcp", socketAddr(addrs[0]))
	if err != nil {
		return nil, fmt.Errorf("tcp: listen at %s: %w", addr, err)
	}
	tl, ok := nl.(*net.TCPListener)
	if !ok {
		nl.Close() //nolint:errcheck // the error that counts is returned
		return nil, fmt.Errorf("tcp: listen at %s: got %T", addr, nl)
	}
	if l.o.Congestion != "" { // to fail now and not with the first peer
		if err := tune(tl, l.o.Congestion); err != nil {
			nl.Close() //nolint:errcheck // the error that counts is returned
			return nil, fmt.Errorf("tcp: listen at %s: %w", addr, err)
		}
	}
	return l.serve(nl, nl.Addr().String()), nil
}

// serve starts to take peers from nl, whose address is addr. It owns nl.
func (l *Link) serve(nl net.Listener, addr string) *listener {
	s := &listener{
		link:      l,
		nl:        nl,
		addr:      addr,
		rooms:     make(chan struct{}, maxGreeters),
		strangers: gate{limit: maxStrangers},
		waiting:   table{limit: maxPending},
		peers:     quota{limit: l.o.MaxPerPeer},
		talks:     make(chan struct{}, maxTalks),
		carries:   make(chan struct{}, maxCarried),
	}
	s.lobby = newLobby(maxUnaccepted, l.acceptTime, s.late)
	l.session() // so that no peer waits for the measuring of sums
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.running.Go(s.serve)
	return s
}

// listener implements transport.Listener.
type listener struct {
	link      *Link
	nl        net.Listener
	addr      string
	rooms     chan struct{} // one for each goroutine that greets
	talks     chan struct{} // one for each peer that is told why it cannot connect
	strangers gate          // sockets whose first message has not come
	waiting   table         // sessions whose lanes have not come
	peers     quota         // of authenticated peers
	carries   chan struct{} // one for each connection whose lanes a carrier makes or has made, and nobody accepted
	lobby     *lobby        // connections that nobody accepted yet
	running   sync.WaitGroup

	mu   sync.Mutex      // held while the listener closes, and while running grows by others than itself
	ctx  context.Context // ends when the listener closes
	stop context.CancelFunc
}

// arrival is a connection whose session has not started: it holds sockets, or the
// lanes of a carrier with the memory that they registered, but no ring and no
// goroutine of the session.
type arrival struct {
	ctl    *control
	lanes  []socket
	agreed session.Agreement
	guard  *guard // nil without keys
	opts   session.Options
	done   func() // called once when it has ended; may be nil

	carried carrier.Lanes // in place of lanes, of a link with a carrier
	settled func()        // called once when it was accepted, or has ended; may be nil
}

// settle says that the arrival waits for nobody any more.
func (a *arrival) settle() {
	if a.settled != nil {
		a.settled()
		a.settled = nil
	}
}

// close ends an arrival that nothing comes of. Nobody else may use it. It counts as
// there until all that it has is given back, which takes a carrier some time.
func (a *arrival) close() {
	a.guard.forget()
	if a.carried != nil {
		a.carried.Close() //nolint:errcheck // dropped
	}
	closeSocket(a.ctl.sock) //nolint:errcheck // dropped
	for _, c := range a.lanes {
		closeSocket(c) //nolint:errcheck // dropped
	}
	a.settle()
	if a.done != nil {
		a.done()
	}
}

// Addr implements transport.Listener.
func (s *listener) Addr() string { return s.addr }

// Accept implements transport.Listener.
func (s *listener) Accept(ctx context.Context) (transport.Conn, error) {
	for {
		if s.ctx.Err() != nil {
			return nil, fmt.Errorf("tcp: accept at %s: %w", s.Addr(), transport.ErrClosed)
		}
		if a := s.lobby.next(); a != nil {
			if a.guard.gone() {
				if !s.spawn(func() { s.dismiss(a) }) {
					a.close()
				}
				continue
			}
			c, err := s.link.start(a)
			if err == nil {
				a.settle()
				return c, nil
			}
			a.close()
			return nil, fmt.Errorf("tcp: accept at %s: %w", s.Addr(), err)
		}
		select {
		case <-s.lobby.come:
		case <-ctx.Done():
			return nil, fmt.Errorf("tcp: accept at %s: %w", s.Addr(), ctx.Err())
		case <-s.ctx.Done():
		}
	}
}

// late ends a connection that nobody accepted in time.
func (s *listener) late(a *arrival) {
	s.talk(s.ctx, a.ctl, func() { s.say(a.ctl, &wire.Bye{Reason: "nobody accepted the connection in time"}) })
	remote := remoteOf(a.ctl.sock)
	a.close()
	if s.ctx.Err() == nil {
		s.link.o.OnReject(remote, errLate)
	}
}

// spawn runs f in a goroutine that Close waits for, or reports that the listener is
// closed.
func (s *listener) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.running.Go(f)
	return true
}

// Close implements transport.Listener.
func (s *listener) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	err := s.nl.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the second call
	}
	s.strangers.close()
	s.waiting.close()
	s.lobby.close()
	s.running.Wait()
	return err
}

// accept takes the next socket.
func (s *listener) accept() (socket, error) {
	c, err := s.nl.Accept()
	if err != nil {
		return nil, err
	}
	k, ok := c.(socket)
	if !ok {
		closeSocket(c) //nolint:errcheck // the error that counts is returned
		return nil, fmt.Errorf("got %T", c)
	}
	return k, nil
}

// serve takes sockets until the listener is closed. A failure to accept one,
// for want of descriptors for example, does not end it.
func (s *listener) serve() {
	pause := acceptPause
	for {
		c, err := s.accept()
		if err == nil {
			pause = acceptPause
			select {
			case s.rooms <- struct{}{}:
				s.running.Go(func() { s.greet(c) })
			case <-s.ctx.Done():
				closeSocket(c) //nolint:errcheck // dropped
				return
			}
			continue
		}
		if s.ctx.Err() != nil {
			return
		}
		s.link.o.OnReject("", fmt.Errorf("tcp: accept at %s: %w", s.Addr(), err))
		select {
		case <-time.After(pause):
			pause = min(2*pause, acceptPauseMax)
		case <-s.ctx.Done():
			return
		}
	}
}
