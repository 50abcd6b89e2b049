package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/session"
)

// transfer moves a job's blocks, to a receiver in this process or elsewhere.
func (f *replayFlags) transfer(ctx context.Context, std streams, j *job) (bridge.Verdict, error) {
	if len(f.routes) > 0 {
		return f.send(ctx, std, j, nil)
	}
	link := f.openLink(f.url, session.Options{})
	r, err := startReceiving(ctx, link, f.url, func() (bridge.Options, error) { return f.receiver(std) })
	if err != nil {
		return bridge.Verdict{}, err
	}
	v, err := f.send(ctx, std, j, []failover.Route{{Name: f.url.scheme, Link: link, Addr: r.listener.Addr()}})
	return v, errors.Join(err, r.stop())
}

// receiver is the options of the receiver in this process.
func (f *replayFlags) receiver(std streams) (bridge.Options, error) {
	if f.discard {
		return bridge.Options{Open: f.timeline.Opener(openDiscard), OnBlock: f.timeline.OnBlock(nil)}, nil
	}
	_, store, err := place{f.store, false}.open(std, f.noSync)
	if err != nil {
		return bridge.Options{}, err
	}
	return bridge.Options{Open: f.timeline.Opener(openStore(store)), OnBlock: f.timeline.OnBlock(nil)}, nil
}

// send runs the job's senders and returns the receiver's verdict, which is the
// same for all of them. All open before one sends: a transfer that ends early,
// on a full disk for example, has the same verdict for all of them. Without routes
// each sender makes those of --to, for itself.
func (f *replayFlags) send(ctx context.Context, std streams, j *job, routes []failover.Route) (bridge.Verdict, error) {
	senders := make([]*sender, len(j.parts))
	since := f.ports.Begin()
	defer func() {
		j.ports = portUses(since())
		for _, s := range senders {
			if s != nil {
				j.count(s.end())
			}
		}
	}()
	g, opening := errgroup.WithContext(ctx)
	for i, p := range j.parts {
		g.Go(func() (err error) {
			senders[i], err = f.sender(opening, std, j, p, routes)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return bridge.Verdict{}, err
	}
	verdicts := make([]bridge.Verdict, len(senders))
	g, running := errgroup.WithContext(ctx)
	for i, s := range senders {
		g.Go(func() (err error) {
			verdicts[i], err = s.Run(running, f.timeline.Source(j.parts[i].source))
			return s.explain(running, err)
		})
	}
	if err := g.Wait(); err != nil {
		return bridge.Verdict{}, err
	}
	return verdicts[0], nil
}

// sender sends one part.
type sender struct {
	*bridge.Courier
	dialler   *failover.Dialer
	ring      *transport.Ring // nil: each connection makes one
	connected atomic.Bool
	struck    atomic.Bool // a dial before the first connection found somebody or no answer
	instead   string      // what to do where there is no RDMA, for dialErrorOr
}

// way is the link of one of a sender's routes. It marks errors of dials that need not
// be tried again, for failover.Options.Permanent.
type way struct {
	transport.Link
	s       *sender
	strange atomic.Int32 // answers in a row that were not pdlink's, before the first connection
}

// Dial implements transport.Link.
func (w *way) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Link.Dial(ctx, addr)
	if err != nil && w.hopeless(err) {
		err = hopelessError{err}
	}
	return c, err
}

// hopelessError is an error of a dial that need not be tried again.
type hopelessError struct{ error }

// Unwrap is what went wrong.
func (e hopelessError) Unwrap() error { return e.error }

// sender dials and opens the transfer of one part. The caller ends it.
func (f *replayFlags) sender(ctx context.Context, std streams, j *job, p jobPart, routes []failover.Route) (s *sender, err error) {
	s = &sender{instead: f.instead()}
	defer func() {
		if err != nil {
			err = s.explain(ctx, err)
			s.end()
			s = nil
		}
	}()
	if routes == nil {
		if routes, err = f.ways(s); err != nil {
			return s, failed(err)
		}
	}
	ways := make([]failover.Route, len(routes))
	for i, r := range routes {
		ways[i] = r
		ways[i].Link = &way{Link: r.Link, s: s}
	}
	o := failover.Options{
		Routes: ways, Window: f.retry,
		Permanent: func(err error) bool {
			var hopeless hopelessError
			return linkkeys.Refused(err) || errors.As(err, &hopeless)
		},
		OnEvent: func(e failover.Event) { s.event(ctx, std, f.hide, p, e) },
	}
	if f.retry == 0 {
		o.Window = -1
	}
	if s.dialler, err = failover.New(o); err != nil {
		return s, err
	}
	s.Courier, err = bridge.OpenCourier(ctx, f.timeline.Dialer(s.dialler), transport.Request{
		ID: j.id, Kind: omlx.Kind, Part: p.share.Part, Parts: p.share.Parts, Replayable: !f.keep, Meta: j.meta,
	}, j.shape)
	return s, err
}

// ways are the routes of --to for one sender. What it keeps on one of them goes over
// another without a copy: they share a ring, which is the sender's.
func (f *replayFlags) ways(s *sender) (routes []failover.Route, err error) {
	var o session.Options
	if f.keep {
		if s.ring, err = transport.NewRing(0, 0); err != nil {
			return nil, err
		}
		o.SendRing = s.ring
	}
	for _, u := range f.routes {
		routes = append(routes, failover.Route{Name: u.route(), Link: f.openLink(u, o), Addr: u.addr})
	}
	return routes, nil
}

// hopeless reports that a dial before the first connection need not be tried again:
// where nobody is reached, nobody there or no way to there, that is a mistake to be told
// of at once, and so is somebody who speaks something else. A dial that was cut, or had
// no answer, may have found a network or a receiver that will be back, and after it
// nobody may be reached for a moment, over this route or another: those are tried as
// long as after a connection.
func (w *way) hopeless(err error) bool {
	s := w.s
	switch {
	case s.connected.Load():
		return false
	case errors.Is(err, transport.ErrProtocol): // or bytes that were damaged on the way
		s.struck.Store(true)
		return w.strange.Add(1) >= strangeAnswers
	case errors.Is(err, transport.ErrLost), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ETIMEDOUT):
		s.struck.Store(true)
		w.strange.Store(0)
		return false
	}
	w.strange.Store(0)
	return !s.struck.Load()
}

// strangeAnswers is how many answers of one route in a row are of another program:
// damage on the way is not there again each time.
const strangeAnswers = 3

// event tells people what became of a sender's connection. What ends the sender
// is its error.
func (s *sender) event(ctx context.Context, std streams, hide func(), p jobPart, e failover.Event) {
	was := s.connected.Load()
	switch e.Kind {
	case failover.Connected:
		s.connected.Store(true)
		if !was && e.Tries == 0 && e.Err == nil { // as it was asked for
			return
		}
		e.Err = lookedFor(e.Err)
	case failover.Failed:
		if e.Tries > 1 || e.Left == 0 {
			return
		}
		if !was {
			e.Err = dialErrorOr(ctx, e.Err, s.instead)
		}
	case failover.Lost:
		if e.Left == 0 {
			return
		}
	case failover.GaveUp, failover.Barred:
		return
	}
	who := ""
	if p.share.Parts > 1 {
		who = fmt.Sprintf("part %d of %d: ", p.share.Part+1, p.share.Parts)
	}
	if hide != nil {
		hide()
	}
	std.notef("%s%s\n", who, cmdline.PlainText(e.String()))
}

// explain adds to an error what to do about it.
func (s *sender) explain(ctx context.Context, err error) error {
	if err == nil || s.connected.Load() && !errors.Is(err, failover.ErrGaveUp) {
		return err
	}
	return dialErrorOr(ctx, err, s.instead)
}

// instead is what to do where there is no RDMA: another way may be there already, and
// --require forbid it.
func (f *replayFlags) instead() string {
	switch {
	case len(f.routes) < len(f.to):
		return "leave --require " + f.require + " out, and the other ways are taken"
	case len(f.routes) > 1:
		return ""
	}
	return withoutRDMA + "tcp://host:port"
}

// end ends the sender and returns what it sent, and over which routes.
func (s *sender) end() (sent bridge.Sent, routes []failover.Use) {
	if s.Courier != nil {
		s.Close()
		sent, routes = s.Sent(), s.dialler.Report().Routes
	}
	if s.ring != nil {
		s.ring.Close() //nolint:errcheck // no slot is in use any more
	}
	return sent, routes
}
