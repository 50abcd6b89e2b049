package rdma

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is one end of a control channel in memory.
type pipe struct {
	in, out chan []byte
	mine    chan struct{} // closed by this end
	peers   chan struct{} // closed by the other one
	once    *sync.Once
}

func newPipes() (a, b *pipe) {
	ab, ba := make(chan []byte, 256), make(chan []byte, 256)
	ca, cb := make(chan struct{}), make(chan struct{})
	return &pipe{ba, ab, ca, cb, new(sync.Once)}, &pipe{ab, ba, cb, ca, new(sync.Once)}
}

func (p *pipe) WriteControl(msg []byte) error {
	select {
	case <-p.mine:
		return net.ErrClosed
	default:
	}
	select {
	case p.out <- slices.Clone(msg):
		return nil
	case <-p.mine:
		return net.ErrClosed
	case <-p.peers:
		return io.ErrClosedPipe
	}
}

func (p *pipe) ReadControl() ([]byte, error) {
	select {
	case <-p.mine:
		return nil, net.ErrClosed
	default:
	}
	select {
	case msg := <-p.in:
		return msg, nil
	case <-p.mine:
		return nil, net.ErrClosed
	case <-p.peers:
	}
	select {
	case msg := <-p.in:
		return msg, nil
	default:
		return nil, io.EOF
	}
}

func (p *pipe) close() { p.once.Do(func() { close(p.mine) }) }

// driver is a pipe with lanes, as package tcp makes one of a socket.
type driver struct {
	*pipe
	writing *sync.Mutex
	*conn
}

func newDriver(p *pipe, l carrier.Lanes) *driver {
	d := &driver{p, new(sync.Mutex), l.(*conn)}
	l.Start(d.WriteControl)
	return d
}

func (d *driver) WriteControl(msg []byte) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.pipe.WriteControl(msg)
}

func (d *driver) ReadControl() ([]byte, error) {
	for {
		msg, err := d.pipe.ReadControl()
		if err != nil {
			return nil, err
		}
		if _, t, err := wire.ControlLength(msg); err != nil || !t.OfLink() {
			return msg, err
		}
		if err := d.Take(msg); err != nil {
			return nil, err
		}
	}
}

func (d *driver) Close() error {
	err := d.conn.Close()
	d.close()
	return err
}

// ends is two hosts and the links that use them.
type ends struct {
	net      *fakeverbs.Net
	a, b     *fakeverbs.Host
	la, lb   *Link
	oa, ob   session.Options
	lanes    int
	tapA     *conn // of the last connection
	tapB     *conn
	chosen   []Choice
	choosing sync.Mutex
}

func newEnds(p func() fakeverbs.Personality, lanes int, o Options) *ends {
	e := &ends{net: &fakeverbs.Net{}, lanes: lanes}
	e.a = e.net.Host("a", p(), netip.MustParseAddr("10.0.0.1"), 0)
	e.b = e.net.Host("b", p(), netip.MustParseAddr("10.0.0.2"), 0)
	o.OnChoice = func(c Choice) {
		e.choosing.Lock()
		defer e.choosing.Unlock()
		e.chosen = append(e.chosen, c)
	}
	e.la, e.lb = NewOver(e.a, o), NewOver(e.b, o)
	return e
}

// rings gives both ends rings of their own, as senders have that want no copies. The
// function that it returns closes them.
func (e *ends) rings(tb testing.TB, slots, size int) (free func()) {
	tb.Helper()
	var all []*transport.Ring
	for _, r := range []**transport.Ring{&e.oa.SendRing, &e.oa.RecvRing, &e.ob.SendRing, &e.ob.RecvRing} {
		ring, err := transport.NewRing(slots, size)
		if err != nil {
			tb.Fatal(err)
		}
		*r = ring
		all = append(all, ring)
	}
	return func() {
		for _, r := range all {
			if err := r.Close(); err != nil {
				tb.Error(err)
			}
		}
	}
}

// carried is one end of a connection whose lanes are made.
type carried struct {
	d   *driver
	a   session.Agreement
	o   session.Options
	err error
}

// carry makes both ends' lanes.
func (e *ends) carry(ctx context.Context) (a, b carried) {
	pa, pb := newPipes()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b = half(ctx, pb, session.Server, e.lb, e.ob, e.lanes)
	}()
	a = half(ctx, pa, session.Client, e.la, e.oa, e.lanes)
	if a.err != nil {
		pa.close()
	}
	<-done
	if b.err != nil {
		pb.close()
	}
	return a, b
}

// half is one end of carry.
func half(ctx context.Context, p *pipe, role session.Role, l *Link, o session.Options, lanes int) (c carried) {
	o.Lanes, o.Features = lanes, l.Features()
	o.PingEvery, o.LostAfter = time.Second, 6*time.Second
	c.a, c.err = session.Handshake(ctx, p, role, &o)
	c.o = o
	if c.err != nil {
		return c
	}
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	made, err := l.Carry(ctx, carrier.Base{Control: p, Role: role, Agreed: c.a, Options: &c.o, Local: addr, Remote: addr})
	if err != nil {
		c.err = err
		p.close()
		return c
	}
	c.d = newDriver(p, made)
	return c
}

// mustCarry is carry for tests that need lanes.
func (e *ends) mustCarry(t *testing.T) (a, b carried) {
	t.Helper()
	a, b = e.carry(t.Context())
	if err := errors.Join(a.err, b.err); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// connect makes a whole connection.
func (e *ends) connect(ctx context.Context) (a, b transport.Conn, err error) {
	ca, cb := e.carry(ctx)
	if ca.err != nil || cb.err != nil {
		for _, c := range []carried{ca, cb} {
			if c.err == nil {
				c.d.Close()
			}
		}
		return nil, nil, errors.Join(ca.err, cb.err)
	}
	e.tapA, e.tapB = ca.d.conn, cb.d.conn
	facts := transport.Facts{Link: Scheme, Local: "here", Remote: "there"}
	return session.New(ca.d, ca.a, ca.o, facts), session.New(cb.d, cb.a, cb.o, facts), nil
}

// mustConnect is connect for tests that need one.
func (e *ends) mustConnect(t *testing.T) (a, b transport.Conn) {
	t.Helper()
	a, b, err := e.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// closeBoth closes two ends at once.
func closeBoth(a, b transport.Conn) error {
	var wait sync.WaitGroup
	var ea, eb error
	wait.Go(func() { ea = a.Close() })
	wait.Go(func() { eb = b.Close() })
	wait.Wait()
	return errors.Join(ea, eb)
}

// left says what objects are left on either host.
func (e *ends) left() error {
	for _, h := range []*fakeverbs.Host{e.a, e.b} {
		c := h.Counts()
		if c.Writes, c.Sends, c.Reads, c.Immediates = 0, 0, 0, 0; c != (fakeverbs.Counts{}) {
			return fmt.Errorf("objects are left: %+v", c)
		}
	}
	return nil
}

// cargo is blocks to be moved: one piece each, whose content its number gives.
type cargo struct {
	sizes []int
	had   []bool // by the receiver, whole and right
}

func (c *cargo) content(i int) []byte {
	b := make([]byte, c.sizes[i])
	for at := 0; at < len(b); {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d/%d", i, at))
		at += copy(b[at:], sum[:])
	}
	return b
}

func (c *cargo) complete() bool { return !slices.Contains(c.had, false) }

// move sends what is missing from a to b.
func (c *cargo) move(ctx context.Context, a, b transport.Conn) error {
	received := make(chan error, 1)
	go func() { received <- c.receive(ctx, b) }()
	err := c.send(ctx, a)
	if err != nil {
		a.Close()
		b.Close()
	}
	return errors.Join(err, <-received)
}

func (c *cargo) send(ctx context.Context, a transport.Conn) error {
	out, err := a.Open(ctx, transport.Request{Kind: "test", Replayable: true})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	missing := slices.Clone(c.had) // the receiver changes it from here on
	for i, had := range missing {
		for data, at := c.content(i), 0; !had && at < len(data); {
			l, err := out.Lease(ctx)
			if err != nil {
				return fmt.Errorf("lease: %w", err)
			}
			at += l.Append(uint32(i), uint64(at), data[at:])
			if err := out.Send(ctx, l); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
	}
	_, err = out.Finish(ctx)
	return err
}

func (c *cargo) receive(ctx context.Context, b transport.Conn) error {
	offer, err := b.Accept(ctx)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	in, err := offer.Admit(nil)
	if err != nil {
		return fmt.Errorf("admit: %w", err)
	}
	got := make([]int, len(c.sizes))
	for {
		d, err := in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return in.Finish(nil)
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if d.Mark() {
			if err := d.Flushed(nil); err != nil {
				return err
			}
			continue
		}
		for i, p := range d.Pieces() {
			if want := c.content(int(p.Block))[p.Offset:p.End()]; !slices.Equal(d.Data(i), want) {
				d.Release()
				return fmt.Errorf("%w: block %d at %d", errWrong, p.Block, p.Offset)
			}
			if got[p.Block] += int(p.Length); got[p.Block] == c.sizes[p.Block] {
				c.had[p.Block] = true
			}
		}
		d.Release()
	}
}

// errWrong is what no fault may lead to.
var errWrong = errors.New("wrong bytes were delivered")
