package codec

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Governor decides, for one direction of a connection, whether payloads are coded.
// With a mode that names a codec all are. With Auto it goes by what it measures, and
// by nothing that anybody claims:
//
//   - It watches for a period what the lanes carry, which is what has left their
//     buffers (Place.Delivered), not what was written into them. Where the link
//     carries maxRate it codes nothing, and rests.
//   - Only where the lanes spend most of their time waiting for the link (not for the
//     source, or for grants), or their buffers fill up, something can be gained. Then one payload is tried with
//     each codec: what it saves, and how long that takes on this host as it is now. The
//     codec is taken that promises the greatest rate, if that is greater by onGain and
//     the cores would be left with time to spare.
//   - From then on the rate has to show it: where coded payloads do not arrive faster
//     than plain ones did, whatever the reason (the receiver's cores, say), coding ends.
//   - From time to time a period of plain payloads tells what the link does now.
//
// The rate of the link is that of all governors with one Meter, times the senders that
// share a transfer while it is open (Share): four hosts that get a quarter of 10 Gbit/s
// each code nothing, since the receiver would have to decode the sum. Of hosts that send
// transfers of their own to the same receiver nobody here knows; there the third rule
// decides alone.
//
// What did not pay is tried again later and later. In between the governor rests:
// lanes need not ask it then, nor tell it anything (Resting). It may be used
// concurrently. Whoever made it with a Meter closes it.
type Governor struct {
	forced ID            // of a mode that names a codec
	ids    []ID          // Auto's choice; empty: nothing is ever coded
	word   atomic.Uint32 // state and codec; written with mu held

	mu     sync.Mutex        // guards the fields below
	at     Place             // without Meter and Delivered once it is closed
	shares [maxParts + 1]int // open transfers by how many senders share them; those of one are not counted
	plain  float64           // bytes a second without coding, as last measured
	host   float64           // the same of all governors of the Meter
	pause  time.Duration     // from the next failure to the next try
	next   time.Time         // when the rest ends, or with coding the next plain period begins
	turned time.Time         // when payloads began to go as they do
	losing int               // periods in a row that coding was no gain
	proven bool              // it was one, since it began
	waited bool              // for others with the Meter to have measured, too
	p      period
	tries  []try
	trying bool // a lane is at it
}

// Place is where a Governor works.
type Place struct {
	Lanes int // of the connection
	Cores int // of this host, for this process

	// Meter is shared by the governors whose connections may share a link. Nil: this
	// one's has a link of its own.
	Meter *Meter

	// Delivered returns how many bytes have left the buffers of the connection's lanes
	// so far, as the kernel counts them; false: it does not know. It is called a few
	// times a second, by one goroutine at a time, and must not wait. Nil: nobody knows;
	// then what a buffer may hold is left out of what is measured.
	Delivered func() (uint64, bool)
}

// state is what payloads go as.
type state uint8

const (
	watching state = iota // plain
	resting               // plain, and nobody looks
	due                   // plain; the next one is tried
	coding
)

// period is what lanes did since a moment.
type period struct {
	open        bool
	since, last time.Time
	frames      int
	raw, stored int64
	working     time.Duration // coding and writing, of all lanes
	fill        int64         // bytes to come that only fill buffers
	from        uint64        // delivered at since
	counted     bool          // from is known
}

// try is what one codec made of one payload.
type try struct {
	id          ID
	raw, stored int
	took        time.Duration
}

// NewGovernor makes the governor of a connection at a place, whose peer takes the
// codecs in peer. Auto on a link that is no wire (loopback) is for the caller to make
// Off.
func NewGovernor(m Mode, peer []ID, at Place) *Governor {
	ids := slices.DeleteFunc(m.codecs(), func(id ID) bool { return !slices.Contains(peer, id) })
	at.Lanes, at.Cores = max(1, at.Lanes), max(1, at.Cores)
	g := &Governor{at: at, pause: firstPause}
	switch {
	case len(ids) == 0:
	case m == Auto:
		g.ids = ids
	default:
		g.forced = ids[0]
	}
	return g
}

// Idle reports whether nothing will ever be coded, so that nobody need ask.
func (g *Governor) Idle() bool { return g.forced == None && len(g.ids) == 0 }

// Resting reports whether payloads go plain, and Wrote has no use for what became of
// them. It costs an atomic load. Whoever heeds it calls Rest from time to time, since
// nothing else ends the rest.
func (g *Governor) Resting() bool { return state(g.word.Load()>>8) == resting }

// Rest ends the rest where it is over, and reports whether it goes on.
func (g *Governor) Rest(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state() == resting && !now.Before(g.next) {
		g.turn(watching, None, now)
	}
	return g.state() == resting
}

// Share says that a transfer that has begun on the connection is sent by so many senders,
// this one included, until end is called; more than once is as once. Of the transfers
// that are open the one with the most senders counts. It is for when the peer has taken
// the transfer, before its first payload: a period that was under way is judged by it too.
func (g *Governor) Share(parts int) (end func()) {
	n := min(parts, maxParts)
	if n < 2 {
		return func() {}
	}
	g.share(n, 1)
	return sync.OnceFunc(func() { g.share(n, -1) })
}

func (g *Governor) share(parts, change int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shares[parts] += change
}

// parts is how many senders share the link now. The caller holds mu.
func (g *Governor) parts() int {
	for n := maxParts; n > 1; n-- {
		if g.shares[n] > 0 {
			return n
		}
	}
	return 1
}

// Close takes the governor out of its Meter: what it measured counts no more for others,
// and Meter and Delivered are let go. It may be called at any time and more than once.
// Lanes that are still at a frame may go on to use the governor, which then knows of no
// others.
func (g *Governor) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at.Meter.drop(g)
	g.at.Meter, g.at.Delivered = nil, nil
}

// state returns what payloads go as. The caller holds mu.
func (g *Governor) state() state { return state(g.word.Load() >> 8) }

// turn changes it, and begins to measure anew. The caller holds mu.
func (g *Governor) turn(s state, id ID, now time.Time) {
	g.p, g.turned, g.waited = period{}, now, false
	g.word.Store(uint32(s)<<8 | uint32(id))
}

// Next returns the codec of a payload of n bytes, None for a plain one. With a list
// of codecs to try, the caller measures them on the payload, says so by Try, and
// uses what Tried returns.
func (g *Governor) Next(n int) (id ID, try []ID) {
	if g.forced != None || n < minFrame {
		return g.forced, nil
	}
	word := g.word.Load()
	if state(word>>8) != due {
		return ID(word & 0xff), nil // None but with coding
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state() != due || g.trying {
		return None, nil
	}
	g.trying = true
	g.tries = g.tries[:0]
	return None, g.ids
}

// Try says what a codec made of the payload that is tried: stored bytes of raw (0:
// it was not smaller), in that time.
func (g *Governor) Try(id ID, raw, stored int, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tries = append(g.tries, try{id, raw, stored, took})
}

// Tried ends a try and returns the codec of the payload.
func (g *Governor) Tried(now time.Time) ID {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state() != due { // the link has turned out to be fast meanwhile
		g.trying = false
		return None
	}
	best, gain := None, 0.0
	for _, t := range g.tries { // of equals the first one
		if v := g.gain(t); v >= onGain && v > gain {
			best, gain = t.id, v
		}
	}
	g.trying = false
	if best == None {
		g.fail(now)
		return None
	}
	g.losing, g.proven, g.next = 0, false, now.Add(plainEvery)
	g.turn(coding, best, now)
	return best
}

// gain is how many times the plain rate a codec promises, 0 where the cores have no
// time for it. The caller holds mu.
func (g *Governor) gain(t try) float64 {
	if t.stored == 0 || t.took <= 0 {
		return 0
	}
	ratio := float64(t.raw) / float64(t.stored)
	workers := float64(max(1, min(g.at.Lanes, g.at.Cores-1)))
	rate := float64(t.raw) / t.took.Seconds() * workers
	if rate < spare*ratio*g.host {
		return 0
	}
	return ratio
}

// fail goes back to plain payloads, for a while that doubles. The caller holds mu.
func (g *Governor) fail(now time.Time) {
	g.rest(now, g.pause)
	g.pause = min(2*g.pause, lastPause)
}

// rest ends coding and measuring for a while. The caller holds mu.
func (g *Governor) rest(now time.Time, long time.Duration) {
	g.next = now.Add(long)
	g.turn(resting, None, now)
}

// Wrote tells of a payload that a lane has written at now: its bytes, those of its
// form on the wire, and how long it took to code and to write it.
func (g *Governor) Wrote(raw, stored int, coded, wrote time.Duration, now time.Time) {
	if len(g.ids) == 0 || g.Resting() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.p
	switch {
	case g.state() == resting:
		return
	case now.Add(-coded - wrote).Before(g.turned):
		// It was on its way already. So a period begins when the last such one is written.
		*p = period{}
		return
	case !p.open || now.Sub(p.last)-coded-wrote > maxGap:
		// The first payload is where the period begins, no part of it: of the writes that
		// go on then and at the end, as many count as do not.
		g.at.Meter.add(g, unknown, now, now.Add(rateLasts))
		g.begin(now)
		if !p.counted {
			p.fill = int64(g.at.Lanes) * bufferBytes
		}
		return
	case p.fill > 0:
		p.fill -= int64(stored)
		p.since, p.last = now, now
		return
	}
	p.last = now
	p.frames++
	p.raw += int64(raw)
	p.stored += int64(stored)
	p.working += coded + wrote
	if p.frames < minFrames || now.Sub(p.since) < minPeriod {
		return
	}
	done := *p
	g.begin(now)
	if wire := done.rate(p); wire > 0 {
		g.judge(done, wire, now)
	}
}

// begin begins a period. The caller holds mu.
func (g *Governor) begin(now time.Time) {
	g.p = period{open: true, since: now, last: now}
	if g.at.Delivered != nil {
		g.p.from, g.p.counted = g.at.Delivered()
	}
}

// rate is how many bytes a second were on the wire in p, at whose end next begins.
func (p *period) rate(next *period) float64 {
	bytes := float64(p.stored)
	if p.counted && next.counted {
		bytes = float64(next.from) - float64(p.from)
	}
	return bytes / p.last.Sub(p.since).Seconds()
}

// judge looks at a period that is over, with so many bytes a second on the wire. The
// caller holds mu.
func (g *Governor) judge(p period, wire float64, now time.Time) {
	host, sure := g.at.Meter.add(g, wire, now, now.Add(rateLasts))
	if host*float64(g.parts()) >= maxRate {
		g.rest(now, fastPause)
		g.at.Meter.add(g, wire, now, g.next.Add(rateLasts))
		return
	}
	took := p.last.Sub(p.since).Seconds()
	waits := p.working.Seconds() >= minWaiting*float64(g.at.Lanes)*took || float64(p.stored) >= minFilling*wire*took
	switch g.state() {
	case watching:
		switch {
		case !waits:
		case !sure && !g.waited: // a period longer, but not for one that measures nothing
			g.waited = true
		default:
			g.plain, g.host = wire, host
			g.turn(due, None, now)
		}
	case coding:
		switch rate := wire * float64(p.raw) / float64(p.stored); {
		case !waits:
			// The source is what is slow now; that says nothing of the link.
		case rate < keepGain*g.plain:
			if g.losing++; !g.proven || g.losing == maxLosing {
				g.fail(now)
				return
			}
		default:
			g.losing, g.proven = 0, true
			g.pause = firstPause
		}
		if !now.Before(g.next) {
			g.turn(watching, None, now)
		}
	}
}
