package why

import (
	"fmt"
	"time"
)

// rate is the payload's, in bytes a second.
func (in Input) rate() float64 { return float64(in.Bytes) / in.Seconds }

// share is seconds of the threads that move bytes as a share of what they have in the
// given time, at most 1.
func (e End) share(of, seconds float64) float64 {
	return min(1, of/(seconds*float64(max(1, e.Threads))))
}

// busy is the share of the time in which the threads that move bytes were at work, or
// ready to be.
func (e End) busy(seconds float64) float64 { return e.share(e.Run+e.Ready, seconds) }

// backlog is the share of the time in which bytes waited for their reader, where that
// is known.
func (e End) backlog() (share float64, ok bool) {
	b := e.Backlog
	if b.Samples < minSamples || b.Waiting < 0 || b.Waiting > b.Samples {
		return 0, false
	}
	return float64(b.Waiting) / float64(b.Samples), true
}

// work is what an end's processors did, in words that follow a noun. Threads that have
// other things to do wait for cores too: no more is told than there was time for.
func (e End) work(seconds float64) string {
	run := e.share(e.Run, seconds)
	ready := min(e.share(e.Ready, seconds), 1-run)
	text := fmt.Sprintf("was at work %s", percent(run))
	if ready >= 0.05 {
		text += fmt.Sprintf(" and waited for a core %s", percent(ready))
	}
	return text
}

func percent(share float64) string {
	return fmt.Sprintf("%.0f %% of the time", 100*max(0, min(1, share)))
}

// rate is bytes a second as people read them, in the units of pdperf's tables.
func rate(bytes float64) string {
	if bytes < 1e8 {
		return fmt.Sprintf("%.1f MB/s", bytes/1e6)
	}
	return fmt.Sprintf("%.3g GB/s", bytes/1e9)
}

// size is bytes as people read them.
func size(n uint64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// span is seconds as people read them.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
