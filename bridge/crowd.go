package bridge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// clock is the time that what all transfers share is measured by: nanoseconds since
// the receiver was made, at least 1.
func (r *Receiver) clock() int64 { return max(1, int64(time.Since(r.began))) }

// moves notes that the target took bytes.
func (a *assembly) moves() {
	if a.stuck.Load() != 0 {
		a.stuck.Store(0)
	}
}

// waits notes that the target takes no further block. It reports whether the
// transfer has to make room: an older one waits for the same, and neither gets on.
func (a *assembly) waits() (yield bool) {
	now := a.r.clock()
	a.stuck.CompareAndSwap(0, now)
	if a.needs.Load() != 0 {
		a.needs.Store(now + int64(roomFor))
	}
	return now-max(a.stuck.Load(), a.r.eased.Load()) >= int64(stuckFor) && a.r.yields(a, now)
}

// yields reports whether a is the youngest of several transfers that wait for each
// other's open blocks, and reserves what comes free for the others. Each of them
// may fit where all together do not.
func (r *Receiver) yields(a *assembly, now int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var older []*assembly
	for _, b := range r.live {
		if b.frees() {
			return false
		}
		switch since := b.stuck.Load(); {
		case b == a || since == 0 || now-since < int64(stuckFor):
		case b.age > a.age:
			return false
		default:
			older = append(older, b)
		}
	}
	for _, b := range older {
		b.needs.Store(now + int64(roomFor))
	}
	return len(older) > 0
}

// frees reports whether blocks of the transfer are about to be closed.
func (a *assembly) frees() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed != nil || a.sealing > 0 || a.publishing
}

// crowded reports whether a transfer needs all blocks that may be open. It is called
// with r.mu held.
func (r *Receiver) crowded() bool {
	now := r.clock()
	for _, a := range r.live {
		if now < a.needs.Load() {
			return true
		}
	}
	return false
}

// relieve ends a transfer whose blocks arrive in too many separate ranges: of the
// host whose transfers have most of them, of its connection that brought most, the
// one that has most. So one long prompt does not pay for somebody else's many short
// ones. One that is ending already gives its memory back soon.
func (r *Receiver) relieve() {
	r.mu.Lock()
	hosts, conns := map[string]int64{}, map[uint64]int64{}
	live := make([]*assembly, 0, len(r.live))
	for _, a := range r.live {
		n := a.ranges.Load()
		hosts[a.via.host()] += n
		conns[a.via.number] += n
		live = append(live, a)
	}
	r.mu.Unlock()
	if len(live) == 0 {
		return
	}
	worst := slices.MaxFunc(live, func(a, b *assembly) int {
		return cmp.Or(
			cmp.Compare(hosts[a.via.host()], hosts[b.via.host()]),
			cmp.Compare(conns[a.via.number], conns[b.via.number]),
			cmp.Compare(a.ranges.Load(), b.ranges.Load()))
	})
	worst.fail(fmt.Errorf("%w: its blocks arrive in too many separate ranges: all transfers together have more than %d", ErrPlan, maxAllRanges))
}

// host is where a connection comes from, whatever its peer calls itself.
func (v via) host() string {
	if port := strings.LastIndexByte(v.facts.Remote, ':'); port > 0 {
		return v.facts.Remote[:port]
	}
	return v.facts.Remote
}
