package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// driver is a control socket and its lanes. It implements session.Driver and
// owns the sockets.
type driver struct {
	ctl        *control
	lanes      []lane
	maxPayload int
	linger     time.Duration // bound of the wait in Close
	closed     atomic.Bool
	governor   *codec.Governor // of a connection that agreed on a codec; nil: of no other

	// reading and writing are held by the calls on the control socket. Close
	// takes them to know that nobody else touches the socket before it reads
	// the rest.
	reading, writing sync.Mutex
	ended            bool // guarded by reading: the peer's direction is over

	// Of a connection with keys.
	revoked  atomic.Pointer[error] // why it ended, when the peer's right did
	quit     chan struct{}         // closed by Close
	cut      func() error          // ends the lanes of a carrier; nil: the lanes are sockets
	watching sync.WaitGroup
	done     func() // called by Close; may be nil
}

var (
	_ session.Driver = (*driver)(nil)
	_ session.Packer = (*driver)(nil)
)

// newDriver owns the sockets when it succeeds. lowWater is Options.LowWater in
// its range.
func newDriver(ctl *control, lanes []socket, maxPayload, lowWater int) (*driver, error) {
	d := &driver{ctl: ctl, lanes: make([]lane, len(lanes)), maxPayload: maxPayload, linger: lingerTime, quit: make(chan struct{})}
	for i, c := range lanes {
		d.lanes[i].conn = c
		if err := d.lanes[i].in.sock.open(c, lowWater); err != nil {
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return d, nil
}

// compress lets each lane code payloads. It is called before protect. Nil: none does.
func (d *driver) compress(p *packing) {
	if p == nil {
		return
	}
	d.governor = p.governor
	for i := range d.lanes {
		if !p.governor.Idle() {
			d.lanes[i].pack = &packer{packing: p}
		}
		d.lanes[i].unpack = &unpacker{packing: p}
	}
}

// delivered is how many bytes have left the buffers of the lanes; false: the system does
// not tell. Socket by socket, for codec.Place.
func (d *driver) delivered() (uint64, bool) {
	sum := uint64(0)
	for i := range d.lanes {
		raw, err := d.lanes[i].conn.SyscallConn()
		if err != nil {
			return 0, false
		}
		n, ok := uint64(0), false
		if raw.Control(func(fd uintptr) { n, ok = left(int(fd)) }) != nil || !ok {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

// protect gives each lane its keys, where g says that frames are sealed. It is called
// before anything is read or written. The secret is gone then.
func (d *driver) protect(g *guard) error {
	defer g.forget()
	if g.sealed() {
		for i := range d.lanes {
			c, err := newCrypt(g, i, d.maxPayload, d.lanes[i].unpack != nil)
			if err != nil {
				return err
			}
			d.lanes[i].crypt = c
		}
	}
	return nil
}

// watch ends the connection when the peer is no longer one, also when that was so
// before. It is called once, when the lanes have begun.
func (d *driver) watch(g *guard) {
	d.watching.Go(func() {
		select {
		case <-g.peer.Revoked:
			err := g.errGone()
			d.revoked.Store(&err)
			d.dismiss()
		case <-d.quit:
		}
	})
}

// dismiss ends the connection with a peer that was revoked: nothing more is read,
// and it is told why, where it still reads.
func (d *driver) dismiss() {
	for i := range d.lanes {
		d.lanes[i].conn.SetDeadline(past()) //nolint:errcheck // a dead socket unblocks by itself
	}
	// The reader ends now. A writer that is at work gets a moment, so that its
	// message is whole and the last one can follow.
	d.ctl.sock.SetWriteDeadline(time.Now().Add(byeTime)) //nolint:errcheck // as above
	d.ctl.sock.SetReadDeadline(past())                   //nolint:errcheck // as above
	if d.cut != nil {
		d.cut()                                              //nolint:errcheck // Close says it again
		d.ctl.sock.SetWriteDeadline(time.Now().Add(byeTime)) //nolint:errcheck // as above; that may have taken a while
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if msg, err := wire.AppendBye(nil, &wire.Bye{Reason: byeRevoked}); err == nil {
		d.ctl.WriteControl(msg) //nolint:errcheck // best effort
	}
}

// interrupt makes every call on a socket return.
func (d *driver) interrupt() {
	for i := range d.lanes {
		d.lanes[i].conn.SetDeadline(past()) //nolint:errcheck // a dead socket unblocks by itself
	}
	d.ctl.sock.SetDeadline(past()) //nolint:errcheck // as above
}

// WriteControl implements session.Driver.
func (d *driver) WriteControl(msg []byte) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	switch {
	case d.closed.Load():
		return net.ErrClosed
	case d.revoked.Load() != nil: // nothing follows the farewell
		return *d.revoked.Load()
	}
	return d.why(d.ctl.WriteControl(msg))
}

// ReadControl implements session.Driver.
func (d *driver) ReadControl() ([]byte, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.closed.Load() {
		return nil, net.ErrClosed
	}
	msg, err := d.ctl.ReadControl()
	if err != nil {
		// After a message that breaks the rules the peer is still there.
		d.ended = !d.closed.Load() && !errors.Is(err, transport.ErrProtocol)
		return nil, d.why(err)
	}
	return msg, nil
}

// Lanes implements session.Driver.
func (d *driver) Lanes() int { return len(d.lanes) }

// WriteFrame implements session.Driver.
func (d *driver) WriteFrame(lane int, header, payload []byte) error {
	if err := d.lanes[lane].write(header, payload); err != nil {
		return d.why(fmt.Errorf("lane %d: %w", lane, err))
	}
	return nil
}

// ReadFrame implements session.Driver.
func (d *driver) ReadFrame(lane int, header []byte, place session.Placer) (int, error) {
	n, err := d.lanes[lane].read(header, d.maxPayload, place)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		return 0, d.why(io.EOF)
	}
	return 0, d.why(fmt.Errorf("lane %d: %w", lane, err))
}

// LastSent implements session.Packer.
func (d *driver) LastSent(lane int) (saved int, codec string) {
	if lane >= len(d.lanes) || d.lanes[lane].pack == nil {
		return 0, ""
	}
	return d.lanes[lane].pack.last.get()
}

// LastReceived implements session.Packer.
func (d *driver) LastReceived(lane int) (saved int, codec string) {
	if lane >= len(d.lanes) || d.lanes[lane].unpack == nil {
		return 0, ""
	}
	return d.lanes[lane].unpack.last.get()
}

// why replaces the error of a call that was interrupted.
func (d *driver) why(err error) error {
	if err == nil {
		return nil
	}
	if d.closed.Load() {
		return net.ErrClosed
	}
	if revoked := d.revoked.Load(); revoked != nil {
		return *revoked
	}
	return err
}

// Close implements session.Driver. It ends the control direction in order and
// waits, for a bounded time, for the peer to end its own: a socket that is
// closed while bytes for it are under way answers with a reset, which can
// destroy the last message at the peer.
func (d *driver) Close() error {
	if !d.closed.CompareAndSwap(false, true) {
		return nil
	}
	close(d.quit)
	d.watching.Wait()
	if d.governor != nil {
		d.governor.Close() // else the Link's Meter keeps the connection
	}
	d.interrupt()
	var errs []error
	if d.cut != nil {
		// Before the peer learns that this end is gone, so that nothing arrives any more; after
		// interrupt, since lanes may be saying something to a peer that does not listen.
		errs = append(errs, d.cut())
	}
	d.reading.Lock()
	d.writing.Lock()
	if !d.ended || d.revoked.Load() != nil {
		lingerClose(d.ctl, d.linger, lingerBytes)
	}
	d.writing.Unlock()
	d.reading.Unlock()
	if d.done != nil {
		defer d.done()
	}
	errs = append(errs, closeSocket(d.ctl.sock))
	for i := range d.lanes {
		errs = append(errs, closeSocket(d.lanes[i].conn))
	}
	return errors.Join(errs...)
}
