package transporttest

import (
	"context"
	"errors"
	"io"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// errorChecks have the errors that the contract lists for a method and that no
// other check provokes.
func errorChecks() []check {
	return []check{
		{name: "errors/dial", run: errorsDial},
		{name: "errors/open", run: errorsOpen},
		{name: "errors/offer", run: errorsOffer},
		{name: "errors/offer of a connection that ended", run: errorsOfferEnded},
		{name: "errors/mark", run: errorsMark},
		{name: "errors/misuse", run: errorsMisuse},
	}
}

// errorsDial: a dial does not begin when its context has ended, and ends with it.
func errorsDial(e *env) {
	dial, l := e.listen()
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	conn, err := dial.Dial(ctx, l.Addr())
	if err == nil {
		conn.Close() //nolint:errcheck // must not exist
	}
	e.is(err, context.Canceled, "dial with an ended context")
}

// errorsOpen: what no connection would take is told from what this one does not
// take, and an offer that the peer cancels instead of refusing it is cancelled.
func errorsOpen(e *env) {
	p, f := e.broken(session.Options{}, session.Options{})
	for what, r := range map[string]transport.Request{
		"part 2 of 2":      {Part: 2, Parts: 2},
		"part 1 of 1":      {Part: 1},
		"part -1 of 2":     {Part: -1, Parts: 2},
		"-1 parts":         {Parts: -1},
		"too many parts":   {Parts: transport.MaxParts + 1},
		"unprintable kind": {Kind: "a\x00b"},
		"kind of no text":  {Kind: "\xff"},
	} {
		_, err := p.A.Open(e.ctx, r)
		e.is(err, transport.ErrInvalid, "open "+what)
		if errors.Is(err, transport.ErrTooLarge) || errors.Is(err, transport.ErrClosed) {
			e.Errorf("open %s: error %v has another kind too", what, err)
		}
	}
	_, err := p.B.Accept(e.deadline())
	e.is(err, context.DeadlineExceeded, "accept after requests that were invalid")

	f.Hook(Hooks{TakeControl: func(msg []byte) []byte {
		m, err := wire.Decode(msg)
		if r, ok := m.(*wire.Refuse); err == nil && ok {
			return e.message(&wire.Cancel{Handle: r.Handle, Reason: "no"})
		}
		return msg
	}})
	opening := e.opening(p)
	offer, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	e.must(offer.Refuse(transport.RefuseOther, "no"), "refuse")
	e.ends(opening, transport.ErrCancelled, "open that the peer cancels")
	f.Hook(Hooks{})
	e.usable(p.A, p.B)
}

// errorsOffer: the errors that say whether an offer is still to be decided: an
// answer that is too large leaves it so, a ring without room does not.
func errorsOffer(e *env) {
	const limit = 1000
	p := e.pair(session.Options{MaxMeta: limit}, session.Options{RecvRing: e.ring(2, testPayload)})
	offered := func() (transport.Offer, <-chan outcome[struct{}]) {
		opening := call(func() error { _, err := p.A.Open(e.ctx, transport.Request{Replayable: true}); return err })
		offer, err := p.B.Accept(e.ctx)
		e.must(err, "accept an offer")
		return offer, opening
	}
	decided := func(offer transport.Offer, how string) {
		e.Helper()
		_, err := offer.Admit(nil)
		e.is(err, transport.ErrDecided, "admit what was "+how)
		err = offer.Refuse(transport.RefuseOther, "late")
		e.is(err, transport.ErrDecided, "refuse what was "+how)
		if errors.Is(err, transport.ErrClosed) {
			e.Errorf("refuse what was %s: %v looks like an orderly end", how, err)
		}
	}
	offer, opening := offered()
	_, err := offer.Admit(make([]byte, limit+1))
	e.is(err, transport.ErrTooLarge, "answer above the largest meta")
	e.must(offer.Refuse(transport.RefuseOther, "cannot answer"), "refuse what is undecided")
	e.ends(opening, transport.ErrRefused, "open")
	decided(offer, "refused")

	var ins []transport.Incoming
	for range 2 { // more do not fit
		offer, opening = offered()
		in, err := offer.Admit(nil)
		if errors.Is(err, transport.ErrBusy) {
			break
		}
		e.must(err, "admit")
		e.ends(opening, nil, "open")
		decided(offer, "admitted")
		ins = append(ins, in)
		opening = nil
	}
	if opening == nil {
		offer, opening = offered()
		_, err = offer.Admit(nil)
		e.is(err, transport.ErrBusy, "admit without a slot to promise")
	}
	e.ends(opening, transport.ErrBusy, "open without a slot to promise")
	decided(offer, "refused for want of room")
	for _, in := range ins {
		in.Cancel("checked")
	}
}

// errorsOfferEnded: an offer whose connection has ended says how.
func errorsOfferEnded(e *env) {
	for here, want := range map[bool]error{true: transport.ErrClosed, false: transport.ErrLost} {
		p := e.pair(session.Options{}, session.Options{})
		offers := make([]transport.Offer, 2)
		for i := range offers {
			e.opening(p)
			o, err := p.B.Accept(e.ctx)
			e.must(err, "accept an offer")
			offers[i] = o
		}
		if here {
			e.must(p.B.Close(), "close")
		} else {
			e.must(p.A.Close(), "close")
			_, err := p.B.Accept(e.ctx)
			e.is(err, transport.ErrLost, "accept")
		}
		_, err := offers[0].Admit(nil)
		e.is(err, want, "admit after the end")
		e.is(offers[1].Refuse(transport.RefuseOther, ""), want, "refuse after the end")
		p.Close()
	}
}

// errorsMark: an answer that cannot be said ends the transfer, so that its sender
// does not wait; one that comes after the end says what the end was.
func errorsMark(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	marked := func() (transport.Incoming, *transport.Delivery, <-chan outcome[struct{}]) {
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		flushing := call(func() error { return out.Flush(e.ctx) })
		return in, e.mark(in), flushing
	}
	in, m, flushing := marked()
	e.is(m.Flushed([]transport.Piece{{Length: 2, Offset: 1<<64 - 1}}), transport.ErrInvalid, "answer with a piece past the end")
	e.ends(flushing, transport.ErrCancelled, "flush that cannot be answered")
	_, err := in.Recv(e.ctx)
	e.is(err, transport.ErrCancelled, "receive after an answer that cannot be said")

	in, m, flushing = marked()
	in.Cancel("checked")
	e.is(m.Flushed(nil), transport.ErrCancelled, "answer after a cancel")
	e.ends(flushing, transport.ErrCancelled, "flush")
	_, m, flushing = marked()
	_, lost, _ := marked()
	e.must(p.A.Close(), "close")
	e.ends(flushing, transport.ErrClosed, "flush")
	_, err = p.B.Accept(e.ctx)
	e.is(err, transport.ErrLost, "accept")
	e.is(lost.Flushed(nil), transport.ErrLost, "answer after the connection was lost")
	e.must(p.B.Close(), "close")
	e.is(m.Flushed(nil), transport.ErrClosed, "answer after close")
}

// errorsMisuse: a program that ends something twice, or the wrong way, is stopped
// before it gives memory to two owners or leaves the other end waiting.
func errorsMisuse(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	l, err := out.Lease(e.ctx)
	e.must(err, "lease")
	l.Append(0, 0, e.bytes(100, 5))
	e.must(out.Send(e.ctx, l), "send")
	again := func() { out.Send(e.ctx, l) } //nolint:errcheck // must not return
	panics(e, again, "lease sent twice")
	panics(e, l.Release, "lease released after it was sent")
	d := e.recv(in)
	panics(e, func() { d.Flushed(nil) }, "frame answered as a mark") //nolint:errcheck // must not return
	d.Release()
	flushing := call(func() error { return out.Flush(e.ctx) })
	m := e.mark(in)
	panics(e, m.Release, "mark released")
	e.must(m.Flushed(nil), "answer the mark all the same")
	e.ends(flushing, nil, "flush")
	finishing := call(func() error { _, err := out.Finish(e.ctx); return err })
	e.must(e.mark(in).Flushed(nil), "answer the mark of finish")
	if _, err := in.Recv(e.ctx); !errors.Is(err, io.EOF) {
		e.Errorf("receive: %v, want the end", err)
	}
	e.must(in.Finish(nil), "finish the receiver")
	e.ends(finishing, nil, "finish")
}
