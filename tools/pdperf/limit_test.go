package main

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/why"
	"pdlink/transport/session"
)

// TestLimitOfRDMA: the only socket of such a connection is the control's, which has
// nothing to do; what it counts says nothing of the frames.
func TestLimitOfRDMA(t *testing.T) {
	control := socketFacts{Sent: 200e3, Received: 100e3, Flow: flow.Counters{Sent: 200e3, Busy: 20 * time.Millisecond, SegmentsOut: 900, SendWindow: 1 << 20}}
	row := func(inFlight int, w waitFacts) *result {
		r := fixed(1)
		r.Link, r.Blocks, r.Bytes, r.InFlight = "rdma", 600, 10e9, inFlight
		r.Sender = endResult{Cores: 2, CPU: &cpuUse{User: 2}, Sockets: []socketFacts{control}, Waits: &w}
		r.Receiver = endResult{Cores: 2, CPU: &cpuUse{User: 2}}
		r.conclude()
		return r
	}
	for name, c := range map[string]struct {
		r    *result
		want why.Cause
	}{
		"the device is at work":             {row(3, waitFacts{Device: 9.8, Grants: 8, Acks: 9}), why.Wire},
		"one block in flight":               {row(1, waitFacts{Device: 4, Acks: 9.9}), why.RoundTrip},
		"no room at the receiver":           {row(3, waitFacts{Device: 4, Grants: 8}), why.Leases},
		"slots come too slowly":             {row(3, waitFacts{Device: 4, Leases: 8}), why.Leases},
		"a device that nobody looked at":    {row(3, waitFacts{}), why.Unknown},
		"and one with a block in flight":    {row(1, waitFacts{Acks: 9.9}), why.Unknown},
		"an end of before that is not told": {func() *result { r := row(3, waitFacts{}); r.Sender.Waits = nil; r.conclude(); return r }(), why.Unknown},
	} {
		if got := c.r.Limited; got == nil || got.Cause != string(c.want) {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}

// TestLimitHasOneWindow: what was seen in another window than the measured one is in no
// sentence.
func TestLimitHasOneWindow(t *testing.T) {
	for way, want := range map[string]bool{push: true, pull: false} {
		r := fixed(1)
		r.Direction, r.Blocks, r.Bytes, r.Watched = way, 600, 10e9, &watched{ZeroWindows: 7, WindowClosed: 3}
		r.Sender = endResult{Cores: 2, CPU: &cpuUse{User: 2}, Sockets: []socketFacts{{Sent: 10e9, Flow: flow.Counters{Busy: 9 * time.Second, WindowLimited: 8 * time.Second}}}}
		r.Receiver = endResult{Cores: 2, CPU: &cpuUse{User: 2}}
		r.conclude()
		if r.Limited == nil || r.Limited.Cause != string(why.ReceiveWindow) || strings.Contains(r.Limited.Evidence, "closed its window 7 times") != want {
			t.Errorf("%s: %+v", way, r.Limited)
		}
	}
}

// TestOneInFlightIsNoLease: with one block at a time the source is never what is waited
// for, over the product's link and the bare one.
func TestOneInFlightIsNoLease(t *testing.T) {
	for _, args := range [][]string{quick("local", "--in-flight", "1"), quick("floor", "--in-flight", "1")} {
		r := measured(t, args...)
		sound(t, r)
		w := r.Sender.Waits
		if w == nil || w.Acks <= 0 || w.Acks > r.Seconds+1 || w.Device != 0 || r.Receiver.Waits != nil {
			t.Errorf("%s: waited %+v in %v s", r.Program, w, r.Seconds)
		}
		if r.Limited == nil || r.Limited.Cause == string(why.Leases) {
			t.Errorf("%s: limited by %+v, waited %+v", r.Program, r.Limited, w)
		}
	}
}

// TestPercentilesOfFewBlocks: those that are the longest block's by number only are left
// out.
func TestPercentilesOfFewBlocks(t *testing.T) {
	for blocks, want := range map[uint64]string{
		1:    "p50 1.00, max 5.00 ms (too few blocks for p90: 1); 3 in flight",
		20:   "p50 1.00, p90 2.00, max 5.00 ms (too few blocks for p99: 20); 3 in flight",
		999:  "p50 1.00, p90 2.00, p99 3.00, max 5.00 ms (too few blocks for p99.9: 999); 3 in flight",
		1000: "p50 1.00, p90 2.00, p99 3.00, p99.9 4.00, max 5.00 ms; 3 in flight",
	} {
		r := fixed(1)
		r.Blocks, r.BlockMs = blocks, blockTimes{1, 2, 3, 4, 5}
		if got := timesText(r); got != want {
			t.Errorf("%d: %q, want %q", blocks, got, want)
		}
		line, row := benchLine(r), (&series{key: keyOf(r), all: []*result{r}, last: r}).row(nil)
		if few := blocks < 100; strings.Contains(line, "p99-ms") == few || (row[10] == none) != few || row[8] != "1.00" {
			t.Errorf("%d: %q and %q", blocks, line, row)
		}
		if r.Direction = both; math.IsNaN(r.blockMs(99.9)) != (blocks < 2000) || !math.IsNaN(r.blockMs(1)) {
			t.Errorf("%d of both directions: %v", blocks, r.blockMs(99.9))
		}
		r.Blocks, r.Fewer = 3000, blocks
		if got := timesText(r); got != want {
			t.Errorf("%d in one of both directions: %q, want %q", blocks, got, want)
		}
	}
}

// TestFloorIsOneWay: what both directions move together is no multiple of it.
func TestFloorIsOneWay(t *testing.T) {
	bare := fixed(2)
	bare.Program = floorLink
	for way, want := range map[string]string{push: "0.50", pull: "0.50", both: none} {
		r := fixed(1)
		r.Direction = way
		list := grouped([]*result{r, bare})
		if row := list[0].row(list); row[6] != want {
			t.Errorf("%s: %q of the floor, want %q", way, row[6], want)
		}
	}
}

// queues is a driver that moves frames by itself.
type queues struct {
	session.Driver
	done  []func()
	quick bool // it copies frames
	err   error
}

func (q *queues) QueueFrame(_ int, _, _ []byte, done func()) error {
	switch {
	case q.err != nil:
	case q.quick:
		time.Sleep(time.Millisecond)
		done()
	default:
		q.done = append(q.done, done)
	}
	return q.err
}

// TestDeviceTime: a device is at work from the first frame that is queued to the last one
// that is done.
func TestDeviceTime(t *testing.T) {
	type plain struct{ session.Driver }
	device := newDeviceTime()
	if d := (&plain{}); device.intercept(d) != session.Driver(d) {
		t.Error("a link of sockets is not left as it is")
	}
	driver, called := new(queues), 0
	q, ok := device.intercept(driver).(session.Queuer)
	if !ok {
		t.Fatal("frames can no longer be queued")
	}
	for range 2 {
		if err := q.QueueFrame(0, nil, nil, func() { called++ }); err != nil {
			t.Fatal(err)
		}
	}
	driver.done[1]()
	if a := device.so(); a <= 0 || device.so() < a {
		t.Errorf("%v, then %v while a frame is on its way", a, device.so())
	}
	driver.done[0]()
	if a := device.so(); a <= 0 || device.so() != a || called != 2 {
		t.Errorf("%v, then %v when none is; %d of 2 told", a, device.so(), called)
	}
	driver.quick = true
	before := device.so()
	if err := q.QueueFrame(0, nil, nil, func() { called++ }); err != nil {
		t.Fatal(err)
	}
	if a := device.so(); a != before || called != 3 {
		t.Errorf("%v, then %v of a frame that was copied; %d of 3 told", before, a, called)
	}
	driver.err = errors.New("gone")
	if err := q.QueueFrame(0, nil, nil, nil); !errors.Is(err, driver.err) {
		t.Errorf("%v", err)
	}
	if after := device.so(); after != before {
		t.Errorf("%v, then %v when a frame was not queued", before, after)
	}
	if (*period)(nil).so() != 0 {
		t.Error("nobody looked and there is a time")
	}
}

// TestSickDevice: frames that a device never lets go of are not the next run's, and what it
// says of them later is of no run.
func TestSickDevice(t *testing.T) {
	device, driver := newDeviceTime(), new(queues)
	q, ok := device.intercept(driver).(session.Queuer)
	if !ok {
		t.Fatal("frames can no longer be queued")
	}
	queue := func() {
		if err := q.QueueFrame(0, nil, nil, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	queue()
	device.reset()
	idle := device.so()
	time.Sleep(time.Millisecond)
	if device.so() != idle {
		t.Error("the next run has the time of a frame that is stuck")
	}
	queue()
	driver.done[0]()
	busy := device.so()
	time.Sleep(time.Millisecond)
	if device.so() <= busy {
		t.Error("a frame of before ended the time of this one")
	}
	driver.done[1]()
	if end := device.so(); end <= idle || device.so() != end {
		t.Errorf("%v, then %v when none is on its way", idle, end)
	}
	(*period)(nil).reset()
}
