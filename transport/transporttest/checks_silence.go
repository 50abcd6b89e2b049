package transporttest

import (
	"fmt"
	"strings"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

func silenceChecks() []check {
	return []check{
		{name: "deadline/silent peer", run: silentPeer},
		{name: "deadline/slow but living receiver", run: slowReceiver},
	}
}

// attentive is options with which silence is noticed soon.
func (e *env) attentive() session.Options {
	return session.Options{
		PingEvery: e.h.soon() / 160, LostAfter: e.h.soon() / 16,
		IdlePingEvery: e.h.soon() / 160, IdleLostAfter: e.h.soon() / 16,
	}
}

// silentPeer: when nothing passes any more, or nothing in one direction, both ends
// lose the connection, within a few times what the options allow. The end that
// hears nothing says for how long; where both do, the other may see it close
// before its own time is over.
func silentPeer(e *env) {
	const says = "nothing was heard for "
	type silence struct {
		fault    string
		there    bool // the dialling end hears, so that the other one is first
		sends    [2]<-chan outcome[struct{}]
		receives [2]<-chan outcome[struct{}]
	}
	begin := func(fault string, there bool, do func(*Faults)) silence {
		p, f := e.broken(e.attentive(), e.attentive())
		out, in := e.open(p.A, p.B, transport.Request{})
		do(f)
		e.must(e.send(out, piece{0, 0, 1000}), "send")
		accept := func(c transport.Conn) <-chan outcome[struct{}] {
			return call(func() error { _, err := c.Accept(e.ctx); return err })
		}
		return silence{
			fault: fault, there: there,
			sends:    [2]<-chan outcome[struct{}]{accept(p.A), call(func() error { return out.Flush(e.ctx) })},
			receives: [2]<-chan outcome[struct{}]{accept(p.B), call(func() error { return e.drain(in) })},
		}
	}
	from := time.Now()
	for _, s := range []silence{
		begin("black hole", false, (*Faults).BlackHole),
		begin("deaf peer", true, (*Faults).Deafen),
	} {
		a, flush, b, receive := <-s.sends[0], <-s.sends[1], <-s.receives[0], <-s.receives[1]
		e.is(a.err, transport.ErrLost, s.fault+": accept")
		e.is(flush.err, transport.ErrLost, s.fault+": flush")
		e.is(b.err, transport.ErrLost, s.fault+": accept at the peer")
		e.is(receive.err, transport.ErrLost, s.fault+": receive")
		if text := fmt.Sprint(b.err); !strings.Contains(text, says) && (s.there || !strings.Contains(fmt.Sprint(a.err), says)) {
			e.Errorf("%s: the end that hears nothing does not say for how long nothing was heard; errors %v and, at the peer, %v", s.fault, a.err, b.err)
		}
	}
	if took := time.Since(from); took > e.h.soon()/2 {
		e.Errorf("the last end lost its connection after %v, silence may last %v", took, e.attentive().LostAfter)
	}
}

// slowReceiver: a receiver that takes longer over a frame than a peer may be
// silent is alive, and so is a sender that has nothing to send.
func slowReceiver(e *env) {
	p := e.pair(e.attentive(), e.attentive())
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.stall(out)
	d := e.frame(in)
	time.Sleep(e.h.soon() / 8)
	d.Release()
	receiving := call(func() error { return e.drain(in) })
	time.Sleep(e.h.soon() / 16)
	e.must(e.send(out, piece{0, 0, 1000}), "send to a receiver that was slow")
	out.Cancel("that is all")
	e.ends(receiving, transport.ErrCancelled, "receive")
	e.usable(p.A, p.B)
	e.usable(p.B, p.A)
}
