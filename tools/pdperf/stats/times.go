package stats

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Limits of a Times: an hour, and three significant digits, so that a value is right
// to a thousandth. It takes about 300 KB whatever is recorded.
const (
	longest = int64(time.Hour)
	digits  = 3
)

// Times is a histogram of durations (HDR: constant relative precision). The zero value
// is not usable. Not safe for concurrent use.
type Times struct {
	h     *hdrhistogram.Histogram
	least time.Duration // exact
	most  time.Duration
}

// NewTimes returns an empty histogram.
func NewTimes() *Times { return &Times{h: hdrhistogram.New(1, longest, digits)} }

// Record adds a duration. Those beyond an hour count as an hour, those below a
// nanosecond as one.
func (t *Times) Record(d time.Duration) {
	if t.h.TotalCount() == 0 || d < t.least {
		t.least = d
	}
	t.most = max(t.most, d)
	t.h.RecordValue(min(max(int64(d), 1), longest)) //nolint:errcheck // it is in range
}

// Merge adds what another histogram recorded.
func (t *Times) Merge(o *Times) {
	if o == nil || o.N() == 0 {
		return
	}
	if t.N() == 0 || o.least < t.least {
		t.least = o.least
	}
	t.most = max(t.most, o.most)
	t.h.Merge(o.h)
}

// N is how many durations were recorded.
func (t *Times) N() int64 { return t.h.TotalCount() }

// Percentile is the duration that at least p percent (0..100) of those recorded do not
// exceed, right to a thousandth and never outside of what was recorded; 0 for none.
func (t *Times) Percentile(p float64) time.Duration {
	if t.N() == 0 {
		return 0
	}
	v := time.Duration(t.h.ValueAtPercentile(min(max(p, 0), 100)))
	return min(max(v, t.least), t.most)
}

// Max is the longest, exact; 0 for none.
func (t *Times) Max() time.Duration { return t.most }
