package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress tells whoever waits what is being measured: a line for each measurement of
// several, and on a terminal how far the current one is.
type progress struct {
	io       streams
	lines    bool
	terminal bool
	done, of int
	left     time.Duration // of what was not begun
	reps     int
}

func newProgress(io streams, list []point, reps int, lines bool) *progress {
	f, ok := io.err.(*os.File)
	return &progress{
		io: io, lines: lines, terminal: ok && term.IsTerminal(int(f.Fd())), of: len(list) * reps, left: total(list, reps), reps: reps,
	}
}

// progressEvery is how often the line on a terminal changes.
const progressEvery = time.Second

// begin tells that a point is measured; stop takes the line away.
func (b *progress) begin(p point) (stop func()) {
	b.done++
	length := p.o.warmup + p.o.time
	b.left -= length
	if !b.terminal {
		return func() {}
	}
	end := make(chan struct{})
	var telling sync.WaitGroup
	start := time.Now()
	telling.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				gone := min(time.Since(start), length)
				b.io.notef("\r\x1b[K[%d/%d] %s: %.0f of %.0f s, %v left in all", b.done, b.of, p.text(), gone.Seconds(), length.Seconds(),
					(b.left + length - gone).Round(time.Second))
			case <-end:
				b.io.notef("\r\x1b[K")
				return
			}
		}
	})
	return func() {
		close(end)
		telling.Wait()
	}
}

// end tells what came of it.
func (b *progress) end(p point, r *result) {
	if !b.lines {
		return
	}
	what := fmt.Sprintf("%.3f GB/s", r.Goodput)
	if !r.OK {
		what = "FAILED: " + r.Why
	}
	if len(r.Disturbed) > 0 {
		what += " (disturbed)"
	}
	b.io.notef("[%d/%d] %s #%d: %s\n", b.done, b.of, p.text(), r.Rep+1, what)
}
