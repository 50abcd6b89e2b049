package transporttest

import (
	"context"
	"errors"
	"strings"

	"pdlink/transport"
	"pdlink/transport/session"
)

func admitChecks() []check {
	return []check{
		{name: "admit/refuse", run: admitRefuse},
		{name: "admit/only the first answer counts", run: admitOnce},
		{name: "admit/duplicate id", run: admitDuplicate},
		{name: "admit/too large", run: admitLarge},
		{name: "admit/request is copied", run: admitCopied},
		{name: "admit/id is drawn", run: admitDrawn},
	}
}

func linkChecks() []check {
	return []check{
		{name: "link/close ends accept", run: linkClose},
		{name: "link/accepted connections live on", run: linkLiveOn},
		{name: "link/dial to nobody", run: linkNobody},
		{name: "link/many connections", run: linkMany},
		{name: "link/deadline of accept", run: linkDeadline},
	}
}

// admitRefuse: each code and the reason reach the opener.
func admitRefuse(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	for _, c := range []struct {
		code transport.RefuseCode
		want error
		not  []error
	}{
		{transport.RefuseOther, transport.ErrRefused, []error{transport.ErrBusy, transport.ErrDuplicate}},
		{transport.RefuseBusy, transport.ErrBusy, []error{transport.ErrDuplicate}},
		{transport.RefuseDuplicate, transport.ErrDuplicate, []error{transport.ErrBusy}},
	} {
		id := transport.NewID()
		opened := call(func() error { _, err := p.A.Open(e.ctx, transport.Request{ID: id}); return err })
		offer, err := p.B.Accept(e.ctx)
		e.must(err, "accept an offer")
		e.must(offer.Refuse(c.code, "wrong model"), "refuse")
		r := <-opened
		e.is(r.err, c.want, "refused open")
		e.is(r.err, transport.ErrRefused, "refused open")
		for _, not := range c.not {
			if errors.Is(r.err, not) {
				e.Errorf("code %d: error %v is %q too", c.code, r.err, not)
			}
		}
		var refused *transport.RefusedError
		if !errors.As(r.err, &refused) || refused.Reason != "wrong model" || refused.Transfer != id || refused.Code != c.code {
			e.Errorf("code %d: refusal arrived as %+v", c.code, refused)
		}
	}
	e.usable(p.A, p.B)
}

// admitOnce: of Admit and Refuse the first counts; the second fails and
// changes nothing.
func admitOnce(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	opened := start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, transport.Request{}) })
	offer, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	in, err := offer.Admit(nil)
	e.must(err, "admit")
	_, err = offer.Admit(nil)
	e.is(err, transport.ErrDecided, "second admit")
	e.is(offer.Refuse(transport.RefuseOther, "late"), transport.ErrDecided, "refuse after admit")
	o := <-opened
	e.must(o.err, "open")
	e.finishBoth(o.v, in)

	opened = start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, transport.Request{}) })
	offer, err = p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	e.must(offer.Refuse(transport.RefuseBusy, "full"), "refuse")
	_, err = offer.Admit(nil)
	e.is(err, transport.ErrDecided, "admit after refuse")
	o = <-opened
	e.is(o.err, transport.ErrBusy, "open")
	e.usable(p.A, p.B)
}

// admitDuplicate: a live id and part is refused before anybody is asked; the
// same id with another part is not; the other direction has its own ids.
func admitDuplicate(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	id := transport.NewID()
	first := transport.Request{ID: id, Part: 0, Parts: 2, Replayable: true}
	out, in := e.open(p.A, p.B, first)
	_, err := p.A.Open(e.ctx, first)
	e.is(err, transport.ErrDuplicate, "open a live id and part")
	second := first
	second.Part = 1
	out2, in2 := e.open(p.A, p.B, second)
	back, backIn := e.open(p.B, p.A, first)
	_, err = p.A.Open(e.ctx, second)
	e.is(err, transport.ErrDuplicate, "open a live id and part")
	offer, err := p.B.Accept(e.deadline())
	if err == nil {
		e.Errorf("a duplicate reached Accept: %+v", offer.Request())
	}
	e.finishBoth(out, in)
	out, in = e.open(p.A, p.B, first)
	e.finishBoth(out, in)
	e.finishBoth(out2, in2)
	e.finishBoth(back, backIn)
}

// admitLarge: a request above a limit fails here, and nothing is sent.
func admitLarge(e *env) {
	const limit = 5000
	p := e.pair(session.Options{MaxMeta: limit}, session.Options{})
	for what, r := range map[string]transport.Request{
		"meta of the agreed limit and 1": {Meta: make([]byte, limit+1)},
		"meta of MaxMeta and 1":          {Meta: make([]byte, transport.MaxMeta+1)},
		"kind":                           {Kind: strings.Repeat("k", transport.MaxKind+1)},
	} {
		_, err := p.A.Open(e.ctx, r)
		e.is(err, transport.ErrTooLarge, "open with too large a "+what)
	}
	_, err := p.B.Accept(e.deadline())
	e.is(err, context.DeadlineExceeded, "accept after requests that were too large")

	opened := start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, transport.Request{}) })
	offer, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	_, err = offer.Admit(make([]byte, limit+1))
	e.is(err, transport.ErrTooLarge, "answer above the largest meta")
	in, err := offer.Admit(make([]byte, limit))
	e.must(err, "admit with an answer of the largest meta")
	o := <-opened
	e.must(o.err, "open")
	if n := len(o.v.Answer()); n != limit {
		e.Errorf("answer of %d bytes, want %d", n, limit)
	}
	e.finishBoth(o.v, in)
}

// admitCopied: the opener may change its Meta once Open returned, and the
// admitter its answer.
func admitCopied(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	meta, answer := []byte("meta"), []byte("answer")
	opened := start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, transport.Request{Meta: meta}) })
	offer, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	in, err := offer.Admit(answer)
	e.must(err, "admit")
	copy(answer, "xxxxxx")
	o := <-opened
	e.must(o.err, "open")
	copy(meta, "xxxx")
	e.finishBoth(o.v, in)
	if string(in.Request().Meta) != "meta" || string(o.v.Answer()) != "answer" {
		e.Errorf("meta %q and answer %q changed with the caller's memory", in.Request().Meta, o.v.Answer())
	}
}

// admitDrawn: a request without an id gets one, and Parts 0 means 1.
func admitDrawn(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	seen := map[transport.ID]bool{{}: true}
	for range 3 {
		out, in := e.open(p.A, p.B, transport.Request{})
		r := in.Request()
		if seen[r.ID] || r.Part != 0 || r.Parts != 1 {
			e.Errorf("request without id and parts arrived as %v part %d of %d", r.ID, r.Part, r.Parts)
		}
		seen[r.ID] = true
		e.finishBoth(out, in)
	}
}

// listen makes a link's two ends and a listener.
func (e *env) listen() (transport.Link, transport.Listener) {
	e.Helper()
	dial, listen, addr := e.h.Links(e, e.fill(session.Options{}), e.fill(session.Options{}))
	l, err := listen.Listen(e.ctx, addr)
	e.must(err, "listen")
	e.Cleanup(func() { l.Close() }) //nolint:errcheck // closed by the check already
	return dial, l
}

// linkClose: Close of a listener ends Accept, is idempotent, and drops what
// nobody accepted.
func linkClose(e *env) {
	dial, l := e.listen()
	accepting := call(func() error { _, err := l.Accept(e.ctx); return err })
	e.blocks(accepting, "accept without a peer")
	e.must(l.Close(), "close listener")
	e.ends(accepting, transport.ErrClosed, "accept")
	e.must(l.Close(), "close listener again")
	_, err := l.Accept(e.ctx)
	e.is(err, transport.ErrClosed, "accept after close")
	if conn, err := dial.Dial(e.ctx, l.Addr()); err == nil {
		conn.Close() //nolint:errcheck // must not exist
		e.Errorf("dial to a closed listener succeeded")
	}

	dial, l = e.listen()
	conn, err := dial.Dial(e.ctx, l.Addr())
	e.must(err, "dial a listener that does not accept")
	opening := call(func() error { _, err := conn.Open(e.ctx, transport.Request{}); return err })
	e.blocks(opening, "open to nobody")
	e.must(l.Close(), "close listener")
	e.closed(opening, false, "open on a dropped connection")
	e.must(conn.Close(), "close")
}

// linkLiveOn: closing the listener leaves accepted connections alone.
func linkLiveOn(e *env) {
	dial, l := e.listen()
	accepting := start(func() (transport.Conn, error) { return l.Accept(e.ctx) })
	conn, err := dial.Dial(e.ctx, l.Addr())
	e.must(err, "dial")
	r := <-accepting
	e.must(r.err, "accept")
	p := newPair(conn, r.v)
	e.Cleanup(p.Close)
	e.must(l.Close(), "close listener")
	e.usable(p.A, p.B)
	e.usable(p.B, p.A)
}

// linkNobody: dialling an address where nobody listens fails within its
// deadline, with an error that is not about this end.
func linkNobody(e *env) {
	dial, l := e.listen()
	addr := l.Addr()
	e.must(l.Close(), "close listener")
	ctx, cancel := context.WithTimeout(e.ctx, e.h.soon())
	defer cancel()
	conn, err := dial.Dial(ctx, addr)
	if err == nil {
		conn.Close() //nolint:errcheck // must not exist
		e.Fatalf("dial to nobody succeeded")
	}
	if errors.Is(err, transport.ErrClosed) {
		e.Errorf("dial to nobody: %v is %q", err, transport.ErrClosed)
	}
}

// linkMany: one listener takes several peers at a time, each connection its
// own.
func linkMany(e *env) {
	const n = 6
	dial, l := e.listen()
	for range n {
		accepting := start(func() (transport.Conn, error) { return l.Accept(e.ctx) })
		conn, err := dial.Dial(e.ctx, l.Addr())
		e.must(err, "dial")
		r := <-accepting
		e.must(r.err, "accept")
		p := newPair(conn, r.v)
		e.Cleanup(p.Close)
		e.usable(p.A, p.B)
	}
	if len(l.Addr()) == 0 {
		e.Errorf("listener without an address")
	}
}

// linkDeadline: Accept of a listener ends with its context and works again
// afterwards.
func linkDeadline(e *env) {
	dial, l := e.listen()
	e.inTime("accept", func(ctx context.Context) error { _, err := l.Accept(ctx); return err })
	accepting := start(func() (transport.Conn, error) { return l.Accept(e.ctx) })
	conn, err := dial.Dial(e.ctx, l.Addr())
	e.must(err, "dial")
	r := <-accepting
	e.must(r.err, "accept")
	p := newPair(conn, r.v)
	e.Cleanup(p.Close)
	e.usable(p.A, p.B)
}
