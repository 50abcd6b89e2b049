package failover

import (
	"math/rand/v2"
	"time"
)

// route is a Route and how it fares. The dialler's mutex guards it.
type route struct {
	Route
	use Use

	barred  error                   // why it is of no use for good; nil: it may be
	err     error                   // the last failure or loss
	tries   int                     // dials that failed since the last connection, and losses that prove nothing
	failed  [tripFailures]time.Time // the last failures and losses, a ring
	at      int                     // the oldest of them
	tripped time.Time               // until when it is the last choice
	next    time.Time               // when it may be dialled
}

// fail notes a failure now. It reports whether the route has just become the
// last choice.
func (r *route) fail(now time.Time, err error) (trips bool) {
	r.err, r.use.Reason = err, err.Error()
	r.tries++
	r.next = now.Add(pause(r.tries))
	return r.count(now)
}

// count is the part of fail that an unlucky route shares with a bad one.
func (r *route) count(now time.Time) (trips bool) {
	r.failed[r.at] = now
	r.at = (r.at + 1) % tripFailures
	oldest := r.failed[r.at]
	if oldest.IsZero() || now.Sub(oldest) > tripSpan || now.Before(r.tripped) {
		return false
	}
	r.trip(now)
	return true
}

// trip makes the route the last choice for a while.
func (r *route) trip(now time.Time) {
	r.tripped = now.Add(tripFor)
	r.failed = [tripFailures]time.Time{}
	r.use.Trips++
}

// pause is how long to wait after so many failures: a random part of what
// doubles each time, but at least half of it, so that the senders that one
// receiver lost do not all come back in the same moment.
func pause(failures int) time.Duration {
	d := backoffMax
	if failures >= 1 && failures < 16 {
		d = min(d, backoffFirst<<(failures-1))
	}
	return d/2 + rand.N(d/2+1)
}
