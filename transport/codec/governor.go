package codec

import (
	"slices"
	"sync"
	"time"
)

// Governor decides, for one direction of a connection, whether payloads are coded.
// With a mode that names a codec all are. With Auto it goes by what it measures, and
// by nothing that anybody claims:
//
//   - It watches for a period what the lanes carry. Only where they spend most of their
//     time waiting for the link (not for the source, or for grants), and at less than
//     maxRate, something can be gained.
//   - Then one payload is tried with each codec: what it saves, and how long that takes
//     on this host as it is now. The codec is taken that promises the greatest rate,
//     if that is greater by onGain and the cores would be left with time to spare.
//   - From then on the rate has to show it: where coded payloads do not arrive faster
//     than plain ones did, whatever the reason (the receiver's cores, say), coding ends.
//   - From time to time a period of plain payloads tells what the link does now.
//
// What did not pay is tried again later and later. It may be used concurrently.
type Governor struct {
	forced ID   // of a mode that names a codec
	ids    []ID // Auto's choice; empty: nothing is ever coded
	lanes  int
	cores  int

	mu     sync.Mutex // guards the fields below
	state  state
	id     ID            // with coding
	plain  float64       // bytes a second without coding, as last measured
	pause  time.Duration // from the next failure to the next try
	next   time.Time     // of the next try, or the next plain period
	losing int           // periods in a row that coding was no gain
	proven bool          // it was one, since it began
	p      period
	tries  []try
	trying bool // a lane is at it
}

// state is what payloads go as.
type state uint8

const (
	watching state = iota // plain
	due                   // plain; the next one is tried
	coding
)

// period is what lanes did since a moment.
type period struct {
	since, last time.Time
	frames      int
	raw, stored int64
	coding      time.Duration // of all lanes
	writing     time.Duration // of all lanes
}

// try is what one codec made of one payload.
type try struct {
	id          ID
	raw, stored int
	took        time.Duration
}

// NewGovernor makes the governor of a connection with so many lanes, on a host with so
// many cores for this process, whose peer takes the codecs in peer. Auto on a link
// that is no wire (loopback) is for the caller to make Off.
func NewGovernor(m Mode, peer []ID, lanes, cores int) *Governor {
	ids := slices.DeleteFunc(m.codecs(), func(id ID) bool { return !slices.Contains(peer, id) })
	g := &Governor{lanes: lanes, cores: cores, pause: firstPause}
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

// Next returns the codec of a payload of n bytes, None for a plain one. With a list
// of codecs to try, the caller measures them on the payload, says so by Tried, and
// uses what that returns.
func (g *Governor) Next(n int) (id ID, try []ID) {
	if g.forced != None || n < minFrame {
		return g.forced, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.state == coding:
		return g.id, nil
	case g.state == due && !g.trying:
		g.trying = true
		g.tries = g.tries[:0]
		return None, g.ids
	}
	return None, nil
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
	best, gain := None, onGain
	for _, t := range g.tries {
		if v := g.gain(t); v >= gain {
			best, gain = t.id, v
		}
	}
	g.trying, g.p = false, period{}
	if best == None {
		g.fail(now)
		return None
	}
	g.state, g.id, g.losing, g.proven, g.next = coding, best, 0, false, now.Add(plainEvery)
	return best
}

// gain is how many times the plain rate a codec promises, 0 where the cores have no
// time for it. The caller holds mu.
func (g *Governor) gain(t try) float64 {
	if t.stored == 0 || t.took <= 0 {
		return 0
	}
	ratio := float64(t.raw) / float64(t.stored)
	workers := float64(max(1, min(g.lanes, g.cores-1)))
	rate := float64(t.raw) / t.took.Seconds() * workers
	if rate < spare*ratio*g.plain {
		return 0
	}
	return ratio
}

// fail goes back to plain payloads, for a while that doubles. The caller holds mu.
func (g *Governor) fail(now time.Time) {
	g.state, g.id, g.next = watching, None, now.Add(g.pause)
	g.pause = min(2*g.pause, lastPause)
}

// Wrote tells of a payload that a lane has written at now: its bytes, those of its
// form on the wire, and how long it took to code and to write it.
func (g *Governor) Wrote(raw, stored int, coded, wrote time.Duration, now time.Time) {
	if g.Idle() || g.forced != None {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.p
	if p.frames == 0 || now.Sub(p.last)-coded-wrote > maxGap {
		*p = period{since: now.Add(-coded - wrote)}
	}
	p.last = now
	p.frames++
	p.raw += int64(raw)
	p.stored += int64(stored)
	p.coding += coded
	p.writing += wrote
	if p.frames < minFrames || now.Sub(p.since) < minPeriod {
		return
	}
	done := *p
	*p = period{}
	g.judge(done, now)
}

// judge looks at a period that is over. The caller holds mu.
func (g *Governor) judge(p period, now time.Time) {
	took := p.last.Sub(p.since)
	rate := float64(p.raw) / took.Seconds()
	lanes := float64(g.lanes) * took.Seconds()
	switch g.state {
	case watching:
		if p.writing.Seconds() < minWaiting*lanes || rate >= maxRate {
			return
		}
		g.plain = rate
		if !now.Before(g.next) {
			g.state = due
		}
	case coding:
		switch {
		case (p.writing + p.coding).Seconds() < minWaiting*lanes:
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
			g.state, g.id, g.next = watching, None, now
		}
	}
}
