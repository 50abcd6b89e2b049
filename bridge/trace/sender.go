package trace

import (
	"context"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
)

// Dialer records what transfers over the connections of d wait for: slots, grants,
// flushes and the verdict.
func (r *Recorder) Dialer(d bridge.Dialer) bridge.Dialer {
	if r == nil {
		return d
	}
	return &dialer{d, r}
}

type dialer struct {
	bridge.Dialer
	r *Recorder
}

// Dial implements bridge.Dialer.
func (d *dialer) Dial(ctx context.Context) (transport.Conn, error) {
	c, err := d.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c, d.r}, nil
}

// Lost implements bridge.Dialer.
func (d *dialer) Lost(c transport.Conn, err error) { d.Dialer.Lost(plain(c), err) }

// Done implements bridge.Dialer.
func (d *dialer) Done(c transport.Conn) { d.Dialer.Done(plain(c)) }

// plain is the connection that the dialler knows.
func plain(c transport.Conn) transport.Conn {
	if t, ok := c.(*conn); ok {
		return t.Conn
	}
	return c
}

type conn struct {
	transport.Conn
	r *Recorder
}

// Open implements transport.Conn.
func (c *conn) Open(ctx context.Context, req transport.Request) (transport.Outgoing, error) {
	s := c.r.Begin(Await, "open")
	o, err := c.Conn.Open(ctx, req)
	s.End(NoBlock, 0)
	if err != nil {
		return nil, err
	}
	return &outgoing{o, c.r}, nil
}

type outgoing struct {
	transport.Outgoing
	r *Recorder
}

// Lease implements transport.Outgoing.
func (o *outgoing) Lease(ctx context.Context) (*transport.Lease, error) {
	s := o.r.Begin(Lease, "slot")
	l, err := o.Outgoing.Lease(ctx)
	s.End(NoBlock, 0)
	return l, err
}

// Send implements transport.Outgoing.
func (o *outgoing) Send(ctx context.Context, l *transport.Lease) error {
	block, bytes := NoBlock, int64(0)
	for i, p := range l.Pieces() {
		if i == 0 {
			block = int(p.Block)
		}
		bytes += int64(p.Length)
	}
	s := o.r.Begin(Grant, "grant")
	err := o.Outgoing.Send(ctx, l)
	s.End(block, bytes)
	return err
}

// Flush implements transport.Outgoing.
func (o *outgoing) Flush(ctx context.Context) error {
	s := o.r.Begin(Await, "flush")
	err := o.Outgoing.Flush(ctx)
	s.End(NoBlock, 0)
	return err
}

// Finish implements transport.Outgoing.
func (o *outgoing) Finish(ctx context.Context) (transport.Outcome, error) {
	s := o.r.Begin(Await, "finish")
	out, err := o.Outgoing.Finish(ctx)
	s.End(NoBlock, 0)
	return out, err
}

// mergeGap is how long a source may be in Put for what it makes before and after to
// be drawn as one span: a copy into a slot, not a wait.
const mergeGap = 200 * time.Microsecond

// Source records the time that a source spends on making pieces: all of its run but
// the calls of its sink.
func (r *Recorder) Source(s bridge.Source) bridge.Source {
	if r == nil {
		return s
	}
	return &source{s, r}
}

type source struct {
	s bridge.Source
	r *Recorder
}

// Run implements bridge.Source.
func (s *source) Run(ctx context.Context, to bridge.Sink) error {
	k := &sink{Sink: to, r: s.r, begin: s.r.now(), block: NoBlock}
	k.end = k.begin
	err := s.s.Run(ctx, k)
	k.end = s.r.now()
	k.flush()
	return err
}

// sink belongs to one goroutine at a time, as every Sink.
type sink struct {
	bridge.Sink
	r          *Recorder
	begin, end int64 // of what the source is making
	block      int   // for which block, once it has said so
	bytes      int64
}

// Put implements bridge.Sink.
func (k *sink) Put(ctx context.Context, block int, off int64, p []byte) error {
	k.arrive(block)
	k.bytes += int64(len(p))
	err := k.Sink.Put(ctx, block, off, p)
	k.leave()
	return err
}

// Push implements bridge.Sink.
func (k *sink) Push(ctx context.Context) error {
	k.arrive(k.block)
	err := k.Sink.Push(ctx)
	k.leave()
	return err
}

// arrive ends the making of something for a block.
func (k *sink) arrive(block int) {
	now := k.r.now()
	if k.block != NoBlock && k.block != block { // what was made since belongs to the next block
		k.flush()
		k.begin = k.end
	}
	k.block, k.end = block, now
}

// leave begins to make something.
func (k *sink) leave() {
	now := k.r.now()
	if now-k.end > int64(mergeGap) {
		k.flush()
		k.begin = now
	}
	k.end = now
}

// flush records what was made until end.
func (k *sink) flush() {
	if k.end > k.begin {
		k.r.add(span{begin: k.begin, end: k.end, name: "project", bytes: k.bytes, block: int32(k.block), row: Project})
	}
	k.bytes, k.block = 0, NoBlock
}
