package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// ErrFull is the Err of an event for a connection that came when maxConns were
// open.
var ErrFull = errors.New("faultproxy: too many connections")

// Proxy forwards what connects to its listener. It may be used concurrently.
type Proxy struct {
	ln     net.Listener
	target string
	o      Options
	damage *damage
	ctx    context.Context // of dials and waits; ends by Close
	stop   context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[*conn]bool
	opened int
	closed bool
}

// New makes a proxy from ln, which it takes over, to target (host:port). It
// accepts nothing before Serve. Who may reach ln and target is the caller's
// business.
func New(ln net.Listener, target string, o Options) *Proxy {
	p := &Proxy{ln: ln, target: target, o: o, damage: newDamage(o), conns: map[*conn]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Addr is the address to dial instead of the target.
func (p *Proxy) Addr() net.Addr { return p.ln.Addr() }

// Serve forwards until Close, and then returns nil.
func (p *Proxy) Serve() error {
	for p.ctx.Err() == nil {
		in, err := p.ln.Accept()
		switch {
		case err == nil:
			p.take(in)
		case p.ctx.Err() != nil:
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("faultproxy: accept: %w", err)
		default:
			p.sleep(time.Now().Add(acceptPause))
		}
	}
	return nil
}

// Stats counts what happened so far.
func (p *Proxy) Stats() Stats {
	p.damage.mu.Lock()
	s := p.damage.stats
	p.damage.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.OpenNow = len(p.conns)
	return s
}

// Close ends the listener and all connections and waits for their goroutines.
// It is idempotent.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	err := p.ln.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the second call
	}
	p.cut(false)
	p.wait.Wait()
	return err
}

// take starts to forward a connection.
func (p *Proxy) take(in net.Conn) {
	c := &conn{p: p, remote: in.RemoteAddr().String()}
	if err := p.add(c, in); err != nil {
		in.Close() //nolint:errcheck // dropped
		p.refuse(c, err)
		return
	}
	p.wait.Go(func() {
		defer p.remove(c)
		var dialer net.Dialer
		out, err := dialer.DialContext(p.ctx, "tcp", p.target)
		if err != nil {
			p.refuse(c, fmt.Errorf("faultproxy: dial target: %w", err))
			return
		}
		if !c.join(out) {
			return // closed or cut meanwhile
		}
		p.damage.mu.Lock()
		p.damage.stats.Conns++
		p.damage.mu.Unlock()
		p.tell(Event{Kind: Opened, Conn: c.number, Remote: c.remote})
		c.forward()
		p.tell(Event{Kind: Ended, Conn: c.number, Remote: c.remote})
	})
}

func (p *Proxy) add(c *conn, in net.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	if len(p.conns) >= maxConns {
		return ErrFull
	}
	p.opened++
	c.number = p.opened
	c.ends = []net.Conn{in}
	p.conns[c] = true
	return nil
}

func (p *Proxy) remove(c *conn) {
	c.end(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) refuse(c *conn, err error) {
	p.damage.mu.Lock()
	p.damage.stats.RefusedConns++
	p.damage.mu.Unlock()
	p.tell(Event{Kind: Refused, Conn: c.number, Remote: c.remote, Err: err})
}

// cut ends all connections now.
func (p *Proxy) cut(reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.end(reset)
	}
}

func (p *Proxy) tell(e Event) {
	if p.o.OnEvent != nil {
		p.o.OnEvent(e)
	}
}
