package codec_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pdlink/transport/codec"
)

// shared is a link that the lanes of several connections share, byte by byte, with a
// clock of its own. Payloads are numbers, which bf16 makes 1.5 times smaller.
type shared struct {
	rate  float64 // bytes on the wire a second
	frame int     // bytes
	every float64 // seconds from a lane's frame to its next; 0: at once
	now   time.Time
	lanes []*way
}

// way is a lane: a writer that always has a payload, and the buffer of its socket.
type way struct {
	g     *codec.Governor
	c     *sender
	size  float64 // of the buffer
	queue float64 // bytes in it
	todo  float64 // of the frame at hand, those that are not in it yet

	begin, ready time.Time // of the frame at hand: when it was begun, and is coded
	stored       int
	coding       bool
	coded, plain float64 // bytes of whole frames
	wait         time.Duration
}

// sender is a connection.
type sender struct{ delivered float64 }

const tick = 500 * time.Microsecond

// add makes a connection, whose kernel may count, that begins after a time.
func (s *shared) add(lanes int, size float64, m *codec.Meter, counts bool, wait time.Duration) *codec.Governor {
	c := &sender{}
	at := codec.Place{Lanes: lanes, Cores: 8, Meter: m}
	if counts {
		at.Delivered = func() (uint64, bool) { return uint64(c.delivered), true }
	}
	g := codec.NewGovernor(codec.Auto, codec.All(), at)
	for range lanes {
		s.lanes = append(s.lanes, &way{g: g, c: c, size: size, wait: wait})
	}
	return g
}

// run lets everybody send for a time and returns what part of the bytes was coded.
func (s *shared) run(long time.Duration) float64 {
	begin := s.now
	for ; s.now.Sub(begin) < long; s.now = s.now.Add(tick) {
		s.carry(s.rate * tick.Seconds())
		for _, l := range s.lanes {
			if s.now.Sub(begin) >= l.wait {
				l.work(s)
			}
		}
	}
	var coded, all float64
	for _, l := range s.lanes {
		coded, all = coded+l.coded, all+l.coded+l.plain
	}
	return coded / all
}

// carry empties buffers, each by the same amount while it lasts.
func (s *shared) carry(bytes float64) {
	for bytes > 1 {
		var full []*way
		for _, l := range s.lanes {
			if l.queue > 0 {
				full = append(full, l)
			}
		}
		if len(full) == 0 {
			return
		}
		each := bytes / float64(len(full))
		for _, l := range full {
			n := min(each, l.queue)
			l.queue -= n
			l.c.delivered += n
			bytes -= n
		}
	}
}

// work goes on writing until the buffer is full.
func (l *way) work(s *shared) {
	for !s.now.Before(l.ready) {
		if l.stored > 0 {
			n := min(l.todo, l.size-l.queue)
			l.queue += n
			if l.todo -= n; l.todo > 0 {
				return
			}
			took := l.ready.Sub(l.begin)
			l.g.Wrote(s.frame, l.stored, took, s.now.Sub(l.ready), s.now)
			if l.coding {
				l.coded += float64(s.frame)
			} else {
				l.plain += float64(s.frame)
			}
		}
		l.next(s)
	}
}

// next begins a frame.
func (l *way) next(s *shared) {
	if l.g.Resting() {
		l.g.Rest(s.now)
	}
	took := secs(float64(s.frame) / 900e6)
	id, try := l.g.Next(s.frame)
	l.begin, l.stored = s.now.Add(secs(s.every)), s.frame
	l.ready = l.begin
	for _, t := range try {
		n := 0
		if t == codec.BF16 {
			n = s.frame * 2 / 3
		}
		l.g.Try(t, s.frame, n, took)
		l.ready = l.ready.Add(took)
	}
	if len(try) > 0 {
		id = l.g.Tried(l.ready)
	}
	if l.coding = id != codec.None; l.coding {
		l.ready, l.stored = l.ready.Add(took), s.frame*2/3
	}
	l.todo = float64(l.stored)
}

func newShared(mbit float64, frame int) *shared {
	return &shared{rate: mbit * 1e6 / 8 * 0.94, frame: frame, now: time.Unix(1e9, 0)}
}

// TestGovernorBegins: what buffers swallow as a transfer begins is not the rate of the
// link, whatever that is, and whether the kernel counts or not.
func TestGovernorBegins(t *testing.T) {
	for _, mbit := range []float64{50, 100, 300, 1000, 2500} {
		for _, buffer := range []float64{1 << 20, 4 << 20, 16 << 20} {
			for _, counts := range []bool{true, false} {
				if !counts && buffer > 4<<20 {
					continue // more than what a system gives by itself
				}
				s := newShared(mbit, frame)
				s.add(1, buffer, nil, counts, 0)
				if got := s.run(30 * time.Second); got < 0.9 {
					t.Errorf("%v Mbit/s, buffer of %v MiB, counted %v: %.3f of the bytes were coded", mbit, buffer/(1<<20), counts, got)
				}
			}
		}
	}
}

// TestGovernorLanes: however many lanes a slow link has, and however large their
// frames, they find out that coding pays, and those of a fast one that it does not.
func TestGovernorLanes(t *testing.T) {
	for _, lanes := range []int{1, 2, 4, 5, 8, 16} {
		for _, size := range []int{256 << 10, frame, 4 << 20} {
			s := newShared(1000, size)
			s.add(lanes, buffer, nil, true, 0)
			if got := s.run(10 * time.Second); got < 0.8 {
				t.Errorf("1 Gbit/s, %d lanes, frames of %d: %.3f of the bytes were coded", lanes, size, got)
			}
			s = newShared(1000, size)
			s.every = float64(size*lanes) / 40e6
			s.add(lanes, buffer, nil, true, 0)
			if got := s.run(20 * time.Second); got > 0 {
				t.Errorf("1 Gbit/s and a slow source, %d lanes, frames of %d: %.3f of the bytes were coded", lanes, size, got)
			}
			s = newShared(10000, size)
			s.add(lanes, buffer, nil, true, 0)
			if got := s.run(10 * time.Second); got > 0 {
				t.Errorf("10 Gbit/s, %d lanes, frames of %d: %.3f of the bytes were coded", lanes, size, got)
			}
		}
	}
}

// TestGovernorShares: the rate that counts is the link's, not the part of it that one
// of several connections gets.
func TestGovernorShares(t *testing.T) {
	for _, tt := range []struct {
		mbit        float64
		senders     int
		hosts       bool // each is a host of its own, which sends a part of the transfer
		least, most float64
	}{
		{10000, 2, false, 0, 0},
		{10000, 4, false, 0, 0},
		{10000, 8, false, 0, 0},
		{10000, 4, true, 0, 0},
		{10000, 8, true, 0, 0},
		{1000, 2, false, 0.85, 1},
		{1000, 4, false, 0.85, 1},
		{1000, 4, true, 0.85, 1},
		{2500, 2, true, 0.85, 1},
	} {
		for _, apart := range []time.Duration{0, 400 * time.Millisecond} {
			s := newShared(tt.mbit, frame)
			var m codec.Meter
			for i := range tt.senders {
				begins := apart * time.Duration(i)
				if !tt.hosts {
					s.add(1, buffer, &m, true, begins)
					continue
				}
				s.add(1, buffer, new(codec.Meter), true, 0).Share(tt.senders)
			}
			what := fmt.Sprintf("%v Mbit/s, %d senders, hosts %v, %v apart", tt.mbit, tt.senders, tt.hosts, apart)
			if got := s.run(30 * time.Second); got < tt.least || got > tt.most {
				t.Errorf("%s: %.3f of the bytes were coded, want %v to %v", what, got, tt.least, tt.most)
			}
		}
	}
}

// TestGovernorIsShared: lanes of several connections call all of it at the same time, in
// every state.
func TestGovernorIsShared(t *testing.T) {
	var m codec.Meter
	var wg sync.WaitGroup
	for range 2 {
		g := codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 4, Cores: 8, Meter: &m})
		for lane := range 4 {
			wg.Go(func() {
				now := time.Unix(1e9, 0)
				for i := range 3000 {
					rate := 100e6 // then 1e9, then 100e6
					if i/1000 == 1 {
						rate = 1e9
					}
					if g.Resting() {
						g.Rest(now)
					}
					took := secs(4 * frame / rate)
					id, try := g.Next(frame)
					for _, t := range try {
						g.Try(t, frame, frame*2/3, time.Millisecond)
					}
					if len(try) > 0 {
						id = g.Tried(now)
					}
					if id != codec.None && id != codec.BF16 {
						t.Errorf("coded by %v", id)
						return
					}
					g.Share(lane)
					now = now.Add(took)
					g.Wrote(frame, frame, 0, took, now)
				}
			})
		}
	}
	wg.Wait()
}
