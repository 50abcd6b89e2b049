package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stallingWriter takes one line and is stuck then.
type stallingWriter struct {
	first chan string
	stuck *stuckWriter
	some  atomic.Bool
}

func (w *stallingWriter) Write(p []byte) (int, error) {
	if w.some.CompareAndSwap(false, true) {
		w.first <- string(p)
		return len(p), nil
	}
	return w.stuck.Write(p)
}

// TestStuckReaderHoldsNothingUp: whoever reads decode's events has stopped to. All
// senders get their verdicts, and an interrupt ends the command, which says so.
func TestStuckReaderHoldsNothingUp(t *testing.T) {
	w := &stallingWriter{first: make(chan string, 1), stuck: newStuckWriter()}
	defer close(w.stuck.release)
	var said output
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"decode", "--json", "--discard", "--listen", "tcp://127.0.0.1:0"}, newStreams(w, &said))
	}()
	var e listening
	if err := json.Unmarshal([]byte(<-w.first), &e); err != nil {
		t.Fatal(err)
	}
	for range 20 { // more than wait in any other queue
		if status, out, errOut := cli(t, "replay", "bundled:kv-qwen3", "--to", e.Listen); status != exitOK {
			t.Fatalf("status %d: %s%s", status, out, errOut)
		}
	}
	stop()
	select {
	case status := <-ended:
		if status != exitFailed || !strings.Contains(said.String(), errNotRead.Error()) {
			t.Errorf("status %d: %s", status, said.String())
		}
	case <-time.After(printerFlush + processLimit):
		t.Error("it does not end")
	}
}

// TestThePrinterIsBounded: in events that wait, which are told of in their place,
// and in how long its end takes.
func TestThePrinterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var printed []string
		var steps []int64
		p := newPrinter(func(e any) { <-release; printed = append(printed, fmt.Sprint(e)) }, func(visible, _ int64) { steps = append(steps, visible) })
		p.say("0")
		synctest.Wait() // it is being printed
		for i := range printerRoom {
			if !p.say(fmt.Sprint(1 + i)) {
				t.Fatalf("no room for event %d", 1+i)
			}
		}
		if p.say("lost") || !p.say("lost too") {
			t.Error("the first event that is lost is not told of, or the second is")
		}
		for i := range 2 * printerSteps {
			p.advance(i, 100)
		}
		begin := time.Now()
		if err := p.close(); !errors.Is(err, errNotRead) || time.Since(begin) != printerFlush {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		close(release)
		synctest.Wait()
		if err := p.close(); !errors.Is(err, errNotRead) {
			t.Errorf("closed again: %v", err)
		}
		if n := len(printed); n != printerRoom+2 || printed[1] != "1" || printed[n-1] != fmt.Sprint(lostEvent{"lost", 2}) {
			t.Errorf("%d events are printed, the last %q", n, printed[n-1])
		}
		if len(steps) > printerSteps {
			t.Errorf("%d steps are drawn", len(steps))
		}
	})
}
