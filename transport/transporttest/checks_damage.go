package transporttest

import (
	"bytes"
	"errors"
	"strings"
	"sync"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// damage is one kind of control message that is damaged on its way between A,
// which opens transfers, and B.
type damage struct {
	kind wire.Type
	says end // the other one reads it

	// provoke has the message said. It checks that calls which the message
	// would have ended are ended by the breach instead: with ErrProtocol at
	// the end that reads it, with ErrLost at the other.
	provoke func(e *env, p Pair, f *Faults)
}

// end names one end of a Pair.
type end int

const (
	endA end = iota
	endB
)

func damages() []damage {
	return []damage{
		{wire.TypeOpen, endA, damagedOpen},
		{wire.TypeAdmit, endB, damagedAdmit},
		{wire.TypeRefuse, endB, damagedRefuse},
		{wire.TypeGrant, endB, damagedGrant},
		{wire.TypeAck, endB, damagedAck},
		{wire.TypeNack, endB, damagedNack},
		{wire.TypeFlush, endA, damagedFlush},
		{wire.TypeFlushed, endB, damagedFlushed},
		{wire.TypeFinish, endA, damagedFinish},
		{wire.TypeResult, endB, damagedResult},
		{wire.TypeCancel, endA, damagedCancel},
		{wire.TypeCancel, endB, damagedCancelBack},
		{wire.TypeBye, endA, damagedBye},
		{wire.TypeBye, endB, damagedByeBack},
	}
}

// damageChecks is one check for each kind of message.
func damageChecks() []check {
	kinds := damages()
	list := make([]check, 0, len(kinds))
	for _, d := range kinds {
		by := " by the dialling end"
		if d.says == endB {
			by = " by the accepting end"
		}
		list = append(list, check{name: "damage/" + d.kind.String() + by, run: d.everyByte})
	}
	return list
}

// ends are the end that says the message and the one that reads it.
func (d damage) ends(p Pair) (says, reads transport.Conn) {
	if d.says == endA {
		return p.A, p.B
	}
	return p.B, p.A
}

// everyByte damages one byte of the message after another, on a connection of
// its own each: the end that reads it ends the connection for a protocol
// violation that names the checksum, the other loses it, and the message has no
// effect.
func (d damage) everyByte(e *env) {
	a, b := e.fill(session.Options{}), e.fill(session.Options{})
	damaged := 0
	defer func() {
		if e.Failed() {
			e.Logf("byte %d of the message was damaged", damaged)
		}
	}()
	for at, size := 0, 1; at < size && !e.Failed(); at++ {
		damaged = at
		f := NewFaults(e.rng.Uint64())
		s := &spoiler{kind: d.kind, at: at, bit: e.rng.IntN(8)}
		if d.says == endA {
			f.Hook(Hooks{SendControl: s.spoil})
		} else {
			f.Hook(Hooks{TakeControl: s.spoil})
		}
		a.Intercept = f.Intercept
		p := e.pair(a, b)
		d.provoke(e, p, f)
		d.fate(e, p)
		p.Close()
		if size = s.seen(); size == 0 {
			e.Fatalf("no %v message was said", d.kind)
		}
		for _, r := range []*transport.Ring{a.SendRing, a.RecvRing, b.SendRing, b.RecvRing} {
			idle(e, r)
		}
	}
}

// fate checks how the connection ended.
func (d damage) fate(e *env, p Pair) {
	e.Helper()
	says, reads := d.ends(p)
	_, err := reads.Accept(e.ctx)
	e.is(err, transport.ErrProtocol, "accept at the end that reads a damaged message")
	e.is(err, transport.ErrLost, "accept at the end that reads a damaged message")
	if err != nil && !strings.Contains(err.Error(), "checksum") {
		e.Errorf("the end that reads a damaged message says %q, nothing of a checksum", err)
	}
	_, err = says.Accept(e.ctx)
	if d.kind == wire.TypeBye {
		e.is(err, transport.ErrClosed, "accept at the end that closed")
		return
	}
	e.is(err, transport.ErrLost, "accept at the end whose message was damaged")
}

// spoiler flips a bit of the first message of a kind.
type spoiler struct {
	kind    wire.Type
	at, bit int

	mu   sync.Mutex // guards what follows
	size int        // of the message, once it has passed
}

// spoil is a hook.
func (s *spoiler) spoil(msg []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size > 0 || wire.Type(msg[4]) != s.kind {
		return msg
	}
	s.size = len(msg)
	msg = bytes.Clone(msg)
	msg[s.at%len(msg)] ^= 1 << s.bit
	return msg
}

// seen is the length of the message that was damaged; 0: none was.
func (s *spoiler) seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size
}

// opening starts to open a transfer from A.
func (e *env) opening(p Pair) <-chan outcome[struct{}] {
	return call(func() error {
		_, err := p.A.Open(e.ctx, transport.Request{Kind: "kind", Meta: []byte("plan"), Replayable: true})
		return err
	})
}

// lost checks that a transfer brings nothing more to its receiver, which loses
// it, and returns how many frames came before.
func (e *env) lost(in transport.Incoming) (frames int) {
	e.Helper()
	for {
		d, err := in.Recv(e.ctx)
		switch {
		case err != nil:
			e.is(err, transport.ErrLost, "receive after this end's message was damaged")
			return frames
		case d.Mark():
			d.Flushed(nil) //nolint:errcheck // nobody may be left to hear it
		default:
			d.Release()
			frames++
		}
	}
}

// breached checks that a call at the end that read a damaged message was ended
// by that and by nothing that the message said.
func (e *env) breached(err error, what string) {
	e.Helper()
	e.is(err, transport.ErrProtocol, what)
	for _, not := range []error{transport.ErrCancelled, transport.ErrRefused, transport.ErrMissing} {
		if errors.Is(err, not) {
			e.Errorf("%s: error %q is %q too", what, err, not)
		}
	}
}

// unheard checks that the receiver hears nothing but the breach.
func (e *env) unheard(in transport.Incoming, what string) {
	e.Helper()
	d, err := in.Recv(e.ctx)
	if err == nil {
		e.Fatalf("receive after %s: received a delivery (mark %v)", what, d.Mark())
	}
	e.breached(err, "receive after "+what)
}

func damagedOpen(e *env, p Pair, _ *Faults) {
	opening := e.opening(p)
	if o, err := p.B.Accept(e.ctx); err == nil {
		e.Fatalf("an offer whose message was damaged was accepted: %+v", o.Request())
	}
	e.ends(opening, transport.ErrLost, "open with a damaged message")
}

func damagedAdmit(e *env, p Pair, _ *Faults) {
	opening := e.opening(p)
	o, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	in, err := o.Admit([]byte("answer"))
	e.must(err, "admit")
	e.breached((<-opening).err, "open with a damaged answer")
	e.lost(in)
}

func damagedRefuse(e *env, p Pair, _ *Faults) {
	opening := e.opening(p)
	o, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	e.must(o.Refuse(transport.RefuseBusy, "reason"), "refuse")
	e.breached((<-opening).err, "open with a damaged refusal")
}

func damagedGrant(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	sending := call(func() error {
		for {
			if err := e.send(out, piece{0, 0, 100}); err != nil {
				return err
			}
		}
	})
	if n := e.lost(in); n > testWindow {
		e.Errorf("%d frames came by a window of %d and a damaged grant", n, testWindow)
	}
	e.breached((<-sending).err, "send with a damaged grant")
}

func damagedAck(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{})
	e.must(e.send(out, piece{0, 0, 100}), "send")
	e.frame(in).Release()
	e.must(in.Ack(0), "acknowledge")
	e.breached(out.Flush(e.ctx), "flush after a damaged ack")
	e.lost(in)
}

func damagedNack(e *env, p Pair, f *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	f.Corrupt(SentPayload, 0, -1)
	e.must(e.send(out, piece{0, 0, 100}), "send")
	e.breached(out.Flush(e.ctx), "flush after a damaged nack")
	e.lost(in)
}

func damagedFlush(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	flushing := call(func() error { return out.Flush(e.ctx) })
	e.unheard(in, "a damaged flush")
	e.ends(flushing, transport.ErrLost, "flush with a damaged message")
}

func damagedFlushed(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	flushing := call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(asPieces(piece{1, 2, 3})), "answer the mark")
	e.breached((<-flushing).err, "flush with a damaged answer")
	e.lost(in)
}

func damagedFinish(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	finishing := call(func() error { _, err := out.Finish(e.ctx); return err })
	e.must(e.mark(in).Flushed(nil), "answer the mark")
	e.unheard(in, "a damaged finish")
	e.ends(finishing, transport.ErrLost, "finish with a damaged message")
}

func damagedResult(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.must(in.Finish([]byte("result")), "finish early")
	o, err := out.Finish(e.ctx)
	e.breached(err, "finish with a damaged result")
	if len(o.Result) != 0 {
		e.Errorf("damaged result %q was returned", o.Result)
	}
}

func damagedCancel(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	out.Cancel("reason")
	e.unheard(in, "a damaged cancel")
}

func damagedCancelBack(e *env, p Pair, _ *Faults) {
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	in.Cancel("reason")
	e.breached(out.Flush(e.ctx), "flush after a damaged cancel")
}

func damagedBye(e *env, p Pair, _ *Faults) {
	_, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	receiving := call(func() error { return e.drain(in) })
	e.must(p.A.Close(), "close")
	e.breached((<-receiving).err, "receive after a damaged farewell")
}

func damagedByeBack(e *env, p Pair, _ *Faults) {
	out, _ := e.open(p.A, p.B, transport.Request{Replayable: true})
	flushing := call(func() error { return out.Flush(e.ctx) })
	e.must(p.B.Close(), "close")
	e.breached((<-flushing).err, "flush after a damaged farewell")
}
