package faultproxy

import (
	"math/rand/v2"
	"sync"
	"time"
)

// damage decides what happens to bytes, for all connections of a proxy.
type damage struct {
	o Options

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	passed int64 // bytes in all
	cutAt  int64 // of passed; 0: no more
	cuts   int   // left; negative: no end
	flipAt int64 // of passed; negative: never
	free   [2]time.Time
	stats  Stats
}

func newDamage(o Options) *damage {
	d := &damage{o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x70647065)), cuts: o.Cuts, flipAt: -1}
	if d.cuts == 0 {
		d.cuts = 1
	}
	if o.CutAfter > 0 {
		d.cutAt = o.CutAfter
	}
	if o.CorruptEvery > 0 {
		d.flipAt = d.gap()
	}
	return d
}

// gap is the distance to the next flip.
func (d *damage) gap() int64 { return d.rng.Int64N(2 * d.o.CorruptEvery) }

// due is when a chunk of n bytes that was read now may be forwarded.
func (d *damage) due(n int, fromDialler bool, now time.Time) time.Time {
	if d.o.Rate > 0 {
		d.mu.Lock()
		free := &d.free[direction(fromDialler)]
		if free.Before(now) {
			*free = now
		}
		*free = free.Add(time.Duration(float64(n) / float64(d.o.Rate) * float64(time.Second)))
		now = *free
		d.mu.Unlock()
	}
	return now.Add(d.o.Delay)
}

func direction(fromDialler bool) int {
	if fromDialler {
		return 0
	}
	return 1
}

// apply damages b, the next bytes of a direction, in place. It returns how many
// of them still pass, whether the cut comes behind those, and where bits were
// flipped.
func (d *damage) apply(b []byte, fromDialler bool) (keep int, cut bool, at int64, flips []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	keep = len(b)
	if d.cutAt > 0 && d.passed+int64(keep) >= d.cutAt {
		keep, cut = int(d.cutAt-d.passed), true
	}
	begin := d.passed
	d.passed += int64(keep)
	for d.flipAt >= 0 && d.flipAt < d.passed {
		b[d.flipAt-begin] ^= 1 << d.rng.IntN(8)
		flips = append(flips, d.flipAt)
		d.flipAt += 1 + d.gap()
	}
	if cut {
		d.cutAt = 0
		if d.cuts--; d.cuts != 0 {
			d.cutAt = d.passed + d.o.CutAfter
		}
		d.stats.Cuts++
	}
	if fromDialler {
		d.stats.FromDialler += int64(keep)
	} else {
		d.stats.FromTarget += int64(keep)
	}
	d.stats.Corruptions += len(flips)
	return keep, cut, d.passed, flips
}
