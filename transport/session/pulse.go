package session

import (
	"fmt"
	"sync/atomic"
	"time"

	"pdlink/transport/wire"
)

// pulse is how a connection notices a peer that is gone without a word (section
// 4.4 of the protocol). Readers count what they hear and the control writer
// says what is asked for; one goroutine looks once in an interval. All fields may
// be used concurrently.
type pulse struct {
	heard  atomic.Uint64 // messages and frames that have arrived
	ask    atomic.Uint64 // token of the ping that is to be said; 0: none
	answer atomic.Uint64 // token of the pong that is to be said; 0: none
	drawn  atomic.Uint64 // token of the last ping that was asked for
	said   atomic.Uint64 // token of the last ping that the driver took
}

// ping asks the control writer for another ping and returns its token. One that
// was not said yet is replaced.
func (c *conn) ping() uint64 {
	token := c.pulse.drawn.Add(1)
	c.pulse.ask.Store(token)
	signal(c.out.wake)
	return token
}

// onPing takes the peer's question. Answers that were not said yet merge: the
// last token answers all before it.
func (c *conn) onPing(m *wire.Ping) error {
	if !c.pings {
		return wire.Violation("ping, which was not agreed")
	}
	c.pulse.answer.Store(m.Token)
	signal(c.out.wake)
	return nil
}

// onPong takes the peer's answer. That it came is all that counts.
func (c *conn) onPong(m *wire.Pong) error {
	switch last := c.pulse.drawn.Load(); {
	case !c.pings:
		return wire.Violation("pong, which was not agreed")
	case m.Token > last:
		return wire.Violation("pong to ping %d, the last one was %d", m.Token, last)
	}
	return nil
}

// watch ends the connection when nothing is heard of the peer although it was
// asked, and returns when the connection has ended.
func (c *conn) watch() {
	v := newVigil(&c.o, time.Now())
	if !c.pings || v.every <= 0 {
		return
	}
	// A timer that is set again after each look, unlike a ticker, leaves a whole
	// interval between two looks whatever kept this goroutine from running.
	t := time.NewTimer(v.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-c.down:
			return
		}
		now := time.Now()
		switch v.look(now, c.pulse.heard.Load(), c.pulse.said.Load(), c.busy()) {
		case waits:
		case asks:
			v.asked(c.ping())
		case lost:
			silence := now.Sub(v.alive).Round(time.Millisecond)
			c.end(c.lostError("pings are not answered", fmt.Errorf("%w for %v", errSilent, silence)), true)
			return
		}
		t.Reset(v.every)
	}
}

// busy reports whether a transfer is open or on offer in either direction.
func (c *conn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.outs)+len(c.ins) > 0
}

// rhythm is how silence is answered, in looks.
type rhythm struct {
	every int // of silence before a ping; 0: never
	lost  int // of silence before the connection is lost; 0: never
}

// vigil judges the silence of a peer by looks that are an interval apart. It
// counts looks and not time: a process that did not run has not listened.
type vigil struct {
	every      time.Duration // between two looks; not positive: nobody looks
	live, idle rhythm

	before time.Time // of the last look
	alive  time.Time // of the last look that found life, or of the first
	count  uint64    // what was heard then
	quiet  quiet     // since then
}

// quiet is one silence.
type quiet struct {
	looks int    // since something was heard
	since int    // since then or since the last ping
	first uint64 // token of the first ping; 0: none
	tried int    // looks since that ping was asked for
	open  int    // looks since it went out
}

func newVigil(o *Options, now time.Time) *vigil {
	every := o.PingEvery // not above IdlePingEvery
	if every < 0 {
		every = o.IdlePingEvery
	}
	looks := func(d time.Duration) int {
		if d < 0 {
			return 0
		}
		return int((d + every - 1) / every)
	}
	return &vigil{
		every: every, before: now, alive: now,
		live: rhythm{looks(o.PingEvery), looks(o.LostAfter)},
		idle: rhythm{looks(o.IdlePingEvery), looks(o.IdleLostAfter)},
	}
}

// verdict is what a look found.
type verdict int

const (
	waits verdict = iota // nothing to do
	asks                 // a ping is due; asked is to be called with its token
	lost                 // the peer is gone
)

// look judges one more interval, which ended now. count and said are the pulse's
// counts; busy tells which rhythm counts.
func (v *vigil) look(now time.Time, count, said uint64, busy bool) verdict {
	late := now.Sub(v.before) > lateLooks*v.every
	v.before = now
	if count != v.count {
		v.alive, v.count, v.quiet = now, count, quiet{}
		return waits
	}
	r := v.idle
	if busy {
		r = v.live
	}
	if late || r.every == 0 {
		return waits
	}
	q := &v.quiet
	q.looks++
	q.since++
	if q.first != 0 {
		q.tried++
		if said >= q.first {
			q.open++
		}
	}
	switch {
	case r.lost > 0 && q.looks >= r.lost && q.unanswered(r):
		return lost
	case q.since >= r.every:
		return asks
	}
	return waits
}

// unanswered reports whether the peer had as long to answer as it may be silent
// but for the part before the first ping. Where that ping cannot be written the
// peer may be slow to read what comes before it, and gets longer.
func (q *quiet) unanswered(r rhythm) bool {
	return q.open >= r.lost-r.every || q.tried >= stuckLosses*r.lost
}

// asked tells of the ping that a look made due.
func (v *vigil) asked(token uint64) {
	v.quiet.since = 0
	if v.quiet.first == 0 {
		v.quiet.first = token
	}
}
