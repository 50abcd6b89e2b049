package mem

import (
	"context"
	"fmt"
	"sync"

	"pdlink/transport"
	"pdlink/transport/session"
)

// backlog is how many connections wait for Accept before Dial waits too: as many
// as the transfers of one, a size that no test comes near.
const backlog = 64

// listener implements transport.Listener.
type listener struct {
	names *names
	addr  string
	o     session.Options

	ready chan transport.Conn // connections whose handshake succeeded
	slots chan struct{}       // held from the dial until Accept, capacity backlog
	done  chan struct{}       // closed by Close
	ctx   context.Context     // of handshakes under way; ends with done
	stop  context.CancelFunc
	once  sync.Once

	mu      sync.Mutex // guards closed: no handshake begins after it is set
	closed  bool
	workers sync.WaitGroup // handshakes under way
}

func newListener(n *names, addr string, o session.Options) *listener {
	ctx, stop := context.WithCancel(context.Background())
	return &listener{
		names: n, addr: addr, o: o,
		ready: make(chan transport.Conn, backlog),
		slots: make(chan struct{}, backlog),
		done:  make(chan struct{}),
		ctx:   ctx, stop: stop,
	}
}

func (ln *listener) errClosed() error {
	return fmt.Errorf("mem: %w: listener %q", transport.ErrClosed, ln.addr)
}

// offer begins the listener's half of a handshake on its end of a pipe.
func (ln *listener) offer(ctx context.Context, p *pipe) error {
	select {
	case ln.slots <- struct{}{}:
	case <-ln.done:
		return fmt.Errorf("%w: the listener closed", transport.ErrLost)
	case <-ctx.Done():
		return ctx.Err()
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed {
		return fmt.Errorf("%w: the listener closed", transport.ErrLost)
	}
	ln.workers.Go(func() { ln.serve(p) })
	return nil
}

// serve is the listener's half of a handshake. A peer that fails it is dropped.
func (ln *listener) serve(p *pipe) {
	c, err := connect(ln.ctx, p, session.Server, ln.o, ln.addr, "mem")
	if err != nil {
		<-ln.slots
		return
	}
	ln.ready <- c // room for every slot
}

// Accept implements transport.Listener.
func (ln *listener) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case <-ln.done:
		return nil, ln.errClosed()
	default:
	}
	select {
	case c := <-ln.ready:
		<-ln.slots
		return c, nil
	case <-ln.done:
		return nil, ln.errClosed()
	case <-ctx.Done():
		return nil, fmt.Errorf("mem: accept: %w", ctx.Err())
	}
}

// Addr implements transport.Listener: the name.
func (ln *listener) Addr() string { return ln.addr }

// Close implements transport.Listener. The name is free when it returns.
func (ln *listener) Close() error {
	ln.once.Do(func() {
		ln.names.remove(ln)
		ln.mu.Lock()
		ln.closed = true
		ln.mu.Unlock()
		close(ln.done)
		ln.stop()
	})
	ln.workers.Wait()
	for {
		select {
		case c := <-ln.ready:
			c.Close() //nolint:errcheck // nobody has seen the connection
		default:
			return nil
		}
	}
}
