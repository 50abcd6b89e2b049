package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/transport"
)

// Dialer connects to one peer, again and again where needed. All methods may be
// called concurrently. It has no goroutines and nothing to close; the connections
// that it returns are the caller's.
type Dialer struct {
	o Options

	moved atomic.Int64 // of the last progress, in nanoseconds since begun
	begun time.Time

	telling sync.Mutex // held while OnEvent is called; taken before mu

	mu         sync.Mutex // guards what follows
	events     []Event    // that OnEvent has not been told of, oldest first
	routes     []*route
	live       []connection // dialled and neither lost nor done, oldest first
	outage     bool         // somebody wants a connection and has had none since the last progress
	lost       bool         // the next connection replaces one that was lost
	reached    bool         // there was a connection
	reconnects int
	waits      int       // calls of Wait since the last progress
	waited     time.Time // the last of them
	paused     time.Time // until when it pauses
}

// connection is one that was dialled.
type connection struct {
	c     transport.Conn
	r     *route
	since time.Time
}

// New returns a dialler. It dials nothing. Errors: ErrInvalid (no routes, or one
// without a link), ErrUnavailable (none has the required name).
func New(o Options) (*Dialer, error) {
	routes, err := o.usable()
	if err != nil {
		return nil, err
	}
	return &Dialer{o: o, routes: routes, begun: time.Now()}, nil
}

// Dial returns the next connection. It waits as long as the window allows, which
// begins with the first call or with the last progress, and tries at once after a
// connection that was good for something was lost. Errors: ErrGaveUp; the
// context's; what barred the routes, when no route is left that trying again
// could mend: ErrInsecure, ErrIncompatible, ErrUnavailable and what
// Options.Permanent knows.
func (d *Dialer) Dial(ctx context.Context) (transport.Conn, error) {
	defer d.tell()
	d.want()
	for tried := 0; ; tried++ {
		if err := ctx.Err(); err != nil {
			return nil, d.stopped(err)
		}
		r, wait, bound, err := d.choose(time.Now(), tried)
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, d.stopped(err)
		}
		c, err := dial(ctx, r, bound)
		switch {
		case err == nil:
			d.connected(r, c)
			return c, nil
		case ctx.Err() != nil:
			return nil, d.stopped(ctx.Err())
		}
		d.failed(r, err)
		d.tell()
	}
}

// Wait pauses before something other than a dial is tried again: an open that
// the peer refused because it has the transfer still, or no room. It counts
// against the window like a dial; with a negative one nothing is tried again.
// Errors: ErrGaveUp, wrapped with cause; the context's.
func (d *Dialer) Wait(ctx context.Context, cause error) error {
	defer d.tell()
	p, err := d.pace(time.Now(), cause)
	if err != nil {
		return err
	}
	if err := sleep(ctx, p); err != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return nil
}

// pace is how long Wait pauses now, or that it is over.
func (d *Dialer) pace(now time.Time, cause error) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.waited.After(d.progress()) {
		d.waits = 0
	}
	d.waits++
	d.waited = now
	p := pause(d.waits)
	if d.o.Window < 0 || p >= d.left(now) {
		return 0, d.gaveUp(cause)
	}
	d.paused = now.Add(p)
	return p, nil
}

// Progress says that the peer has taken something for good: the window begins
// anew. It is cheap.
func (d *Dialer) Progress() { d.moved.Store(int64(time.Since(d.begun))) }

// Lost says that a connection ended without the caller asking for it, and why.
// The next Dial replaces it. The time that it lived does not count against the
// window, nor does it begin anew: that takes progress. A connection that Dial did
// not return is ignored, as is one that was lost or done with before.
func (d *Dialer) Lost(c transport.Conn, err error) {
	if err == nil {
		err = transport.ErrLost
	}
	d.lose(c, time.Now(), err)
	d.tell()
}

func (d *Dialer) lose(c transport.Conn, now time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.take(c)
	if !ok {
		return
	}
	r := l.r
	good := d.progress().After(l.since)
	if good {
		d.restart(now)
	} else { // of the window, what was spent before it lived, or was spent in Wait, stays spent
		from := l.since
		if d.paused.After(from) {
			from = d.paused
		}
		d.restart(d.progress().Add(max(0, now.Sub(from))))
	}
	d.outage, d.lost = true, true
	r.use.Losses++
	var trips bool
	if good {
		r.err, r.use.Reason = err, err.Error()
		r.tries, r.next = 0, now
		trips = r.count(now)
	} else {
		trips = r.fail(now, err)
	}
	left := d.shown(now)
	d.note(Event{Kind: Lost, Route: r.Name, Addr: r.Addr, Err: err, Left: left})
	d.noteTrip(r, trips, err, left)
}

// Done says that the caller ends a connection in order: it is no loss, and a
// further Dial is one of the caller's own will. A connection that Dial did not
// return is ignored, as is one that was lost or done with before.
func (d *Dialer) Done(c transport.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.take(c)
}

// Report tells what became of each route so far.
func (d *Dialer) Report() Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	rep := Report{Reconnects: d.reconnects, Routes: make([]Use, len(d.routes))}
	for i, r := range d.routes {
		rep.Routes[i] = r.use
	}
	return rep
}

// want begins the window for a caller that comes of its own will.
func (d *Dialer) want() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.outage {
		d.outage = true
		d.restart(time.Now())
	}
}

// progress is when the window began.
func (d *Dialer) progress() time.Time { return d.begun.Add(time.Duration(d.moved.Load())) }

// restart begins the window no earlier than at a time.
func (d *Dialer) restart(at time.Time) {
	for {
		was, is := d.moved.Load(), int64(at.Sub(d.begun))
		if was >= is || d.moved.CompareAndSwap(was, is) {
			return
		}
	}
}

// left is what is left of the window. Without one it is endless: what ends the
// trying then is that each route was tried.
func (d *Dialer) left(now time.Time) time.Duration {
	if d.o.Window < 0 {
		return endless
	}
	return d.o.Window - now.Sub(d.progress())
}

// shown is left for people: 0 where nothing is tried again.
func (d *Dialer) shown(now time.Time) time.Duration {
	if d.o.Window < 0 {
		return 0
	}
	return max(0, d.left(now))
}

// choose picks the route to dial, how long to wait for it and how long that may
// take. tried is how many dials this call has seen fail.
func (d *Dialer) choose(now time.Time, tried int) (r *route, wait, bound time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, others := d.best(now)
	if r == nil {
		return nil, 0, 0, fmt.Errorf("failover: %w", d.reasons())
	}
	left := d.left(now)
	if d.o.Window > 0 {
		wait = max(0, r.next.Sub(now))
	} else if d.lost || tried > 0 && !d.untried() {
		return nil, 0, 0, d.gaveUp(d.reasons())
	}
	if wait >= left {
		return nil, 0, 0, d.gaveUp(d.reasons())
	}
	bound = attempt
	if others {
		bound = attemptOther
	}
	if !d.reached { // a window that is shorter is for a peer that was there
		return r, wait, bound, nil
	}
	return r, wait, min(bound, left-wait), nil
}

// gaveUp is the error for a window that is over, or has no room for another try.
// It is called with mu held.
func (d *Dialer) gaveUp(cause error) error {
	err := fmt.Errorf("%w: no progress for %v: %w", ErrGaveUp, d.o.Window, cause)
	if d.o.Window < 0 {
		err = fmt.Errorf("%w: %w", ErrGaveUp, cause)
	}
	d.note(Event{Kind: GaveUp, Err: err})
	return err
}

// best is the route to dial next, nil if all are barred, and whether there are
// others that could be dialled instead. Of routes that are not tripped the first
// counts; if all are, the one whose turn comes first.
func (d *Dialer) best(now time.Time) (best *route, others bool) {
	var last *route // of those that are tripped
	n := 0
	for _, r := range d.routes {
		if r.barred != nil {
			continue
		}
		n++
		switch hadItsTry := d.o.Window < 0 && r.tries > 0; {
		case now.Before(r.tripped) || hadItsTry:
			if last == nil || r.next.Before(last.next) {
				last = r
			}
		case best == nil:
			best = r
		}
	}
	if best == nil {
		best = last
	}
	return best, n > 1
}

// untried reports whether a route is left that has not failed.
func (d *Dialer) untried() bool {
	for _, r := range d.routes {
		if r.barred == nil && r.tries == 0 {
			return true
		}
	}
	return false
}

// reasons is the last error of each route.
func (d *Dialer) reasons() error {
	var errs []error
	for _, r := range d.routes {
		if r.err != nil {
			errs = append(errs, r.err)
		}
	}
	if len(errs) == 0 {
		return errors.New("nothing was tried")
	}
	return errors.Join(errs...)
}

// connected takes note of a new connection.
func (d *Dialer) connected(r *route, c transport.Conn) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.live) == maxLive {
		d.live = append(d.live[:0], d.live[1:]...)
	}
	d.live = append(d.live, connection{c, r, now})
	e := Event{Kind: Connected, Route: r.Name, Addr: r.Addr, Tries: r.tries, Again: d.lost, Left: d.shown(now)}
	for _, better := range d.routes {
		if better == r {
			break
		}
		e.Err = errors.Join(e.Err, better.err)
	}
	if d.lost {
		d.reconnects++
	}
	d.outage, d.lost, d.reached = false, false, true
	r.use.Connects++
	d.note(e)
}

// failed takes note of a dial that failed.
func (d *Dialer) failed(r *route, err error) {
	err = fmt.Errorf("%s to %s: %w", r.Name, r.Addr, err)
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	r.use.Failures++
	trips := r.fail(now, err)
	e := Event{Kind: Failed, Route: r.Name, Addr: r.Addr, Err: err, Tries: r.tries, Left: d.shown(now)}
	if d.permanent(err) {
		r.barred, e.Kind, trips = err, Barred, false
	} else if _, others := d.best(now); others && !trips && errors.Is(err, context.DeadlineExceeded) {
		r.trip(now) // silence costs too long to be tried three times
		trips = true
	}
	d.note(e)
	d.noteTrip(r, trips, err, e.Left)
}

// permanent reports an error that trying again does not mend. What is unavailable
// because a connection was lost on the way may be there the next time.
func (d *Dialer) permanent(err error) bool {
	if errors.Is(err, transport.ErrUnavailable) && errors.Is(err, transport.ErrLost) {
		return false
	}
	for _, target := range []error{transport.ErrInsecure, transport.ErrIncompatible, transport.ErrUnavailable, transport.ErrInvalid} {
		if errors.Is(err, target) {
			return true
		}
	}
	return d.o.Permanent != nil && d.o.Permanent(err)
}

// take removes a connection from those that live.
func (d *Dialer) take(c transport.Conn) (connection, bool) {
	for i, l := range d.live {
		if l.c == c {
			d.live = append(d.live[:i], d.live[i+1:]...)
			return l, true
		}
	}
	return connection{}, false
}

// stopped is the error of a dial whose context ended.
func (d *Dialer) stopped(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.routes {
		if r.err != nil {
			return fmt.Errorf("failover: %w: %w", err, d.reasons())
		}
	}
	return fmt.Errorf("failover: dial: %w", err)
}

// note puts an event behind those that OnEvent is to be told of. It is called with
// mu held, so their order is that in which things happened.
func (d *Dialer) note(e Event) {
	if d.o.OnEvent != nil {
		d.events = append(d.events, e)
	}
}

func (d *Dialer) noteTrip(r *route, trips bool, err error, left time.Duration) {
	if trips && len(d.routes) > 1 {
		d.note(Event{Kind: Tripped, Route: r.Name, Addr: r.Addr, Err: err, Left: left})
	}
}

// tell tells OnEvent of what was noted, by this caller or another one. What the
// caller noted has been told when it returns.
func (d *Dialer) tell() {
	if d.o.OnEvent == nil {
		return
	}
	d.telling.Lock()
	defer d.telling.Unlock()
	d.mu.Lock()
	events := d.events
	d.events = nil
	d.mu.Unlock()
	for _, e := range events {
		d.o.OnEvent(e)
	}
}

// dial is one attempt.
func dial(ctx context.Context, r *route, bound time.Duration) (transport.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, context.DeadlineExceeded)
	defer cancel()
	return r.Link.Dial(ctx, r.Addr)
}

// sleep waits. Its error is the context's.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
