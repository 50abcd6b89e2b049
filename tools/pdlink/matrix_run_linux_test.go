//go:build faults

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// smallRing is a receiver's memory in MiB that holds two frames for each sender,
	// so that little is under way when a fault strikes; roomyRing is the usual more.
	smallRing = 3
	roomyRing = 16
	fewFrames = 3 // of a sender are under way at a time with a small ring, and one that a sender is about to send

	// windowSlack is what a connection costs beside its frames, in bytes: opening
	// the transfer again, grants, pings, answers.
	windowSlack = 24 << 10

	// socketsEach is how many a connection has: control and one lane.
	socketsEach = 2

	// comeBack is how long those wait who can expect the other end back, and
	// goneWait how long those who cannot; with otherWait another sender is awaited
	// that has not been started.
	comeBack  = 50 * time.Second
	goneWait  = 600 * time.Millisecond
	otherWait = 3 * time.Second

	// mostReruns is how often the world starts a sender again that gave up.
	mostReruns = 4

	// quietFor is how long nothing passes before a sender counts as idle: less
	// than the time between two pings.
	quietFor = 150 * time.Millisecond

	// mostHeap is what a receiver may have on its heap at its end.
	mostHeap = 32 << 20
)

// matrixCell is a fault, the moment and the kind of link.
type matrixCell struct {
	fault, phase string
	sealed       bool
}

func (c matrixCell) String() string {
	return c.fault + "/" + c.phase + "/" + map[bool]string{true: "sealed", false: "clear"}[c.sealed]
}

// matrixResult is what one run came to.
type matrixResult struct {
	Cell    string  `json:"cell"`
	Seed    uint64  `json:"seed"`
	Failed  bool    `json:"failed"`
	Text    string  `json:"text"`    // for people
	Missed  bool    `json:"missed"`  // the transfer was over before the fault
	Partial bool    `json:"partial"` // it was not complete before somebody ran it again
	Reruns  int     `json:"reruns"`  // senders that gave up and were started again
	Again   int64   `json:"again"`   // connections beside the first ones
	Extra   int64   `json:"extra"`   // bytes from senders that a run without fault would not have sent
	Allowed int64   `json:"allowed"` // the most that they may be
	Seconds float64 `json:"seconds"`
}

// matrixRun is one transfer with a fault in it.
type matrixRun struct {
	*tape
	bench *matrixBench
	cell  matrixCell
	fault matrixFault
	rng   *rand.Rand
	plan  matrixPlan
	clean cleanTransfer
	ring  int
	store string
	parts int
	long  bool // the receiver may run for longer than a process of a test does

	receiver *matrixReceiver
	relays   []*relay // one for each sender
	senders  []*process
	lost     int64 // what receivers had of blocks that were not visible when they went, in bytes
	result   matrixResult
}

// matrixReceiver is a receiver whose disk can be told to go bad.
type matrixReceiver struct {
	*receiver
	stdin *os.File
	saidN int
}

// startReceiver starts a receiver of the run's store and has the relays send there.
func (r *matrixRun) startReceiver() {
	r.Helper()
	wait := comeBack
	switch {
	case r.fault.gone && r.parts > 1:
		wait = otherWait
	case r.fault.gone:
		wait = goneWait
	}
	args := []string{
		strconv.Itoa(r.ring), "--json", "--listen", "tcp://127.0.0.1:0", "--store", r.store, "--part-wait", wait.String(),
	}
	if r.cell.sealed {
		args = append(args, "--keys", r.bench.keys[1])
	}
	in, out, err := os.Pipe()
	if err != nil {
		r.Fatal(err)
	}
	begin := startAs
	if r.long {
		begin = startLong
	}
	m := &matrixReceiver{stdin: out, receiver: &receiver{process: begin(r, receiverMode, in, args...)}}
	in.Close()
	r.Cleanup(func() { out.Close() })
	var e listening
	if !eventually(processLimit, func() bool { return len(m.out.events("listening")) > 0 || m.ended() }) || m.ended() {
		r.Fatalf("receiver does not listen: %v", m)
	}
	if err := json.Unmarshal(m.out.events("listening")[0], &e); err != nil {
		r.Fatal(err)
	}
	m.addr = strings.TrimPrefix(e.Listen, "tcp://")
	r.receiver = m
	for _, link := range r.relays {
		link.retarget(m.addr)
	}
}

// say tells a receiver's disk what to do and waits until it does.
func (m *matrixReceiver) say(r *matrixRun, word string) {
	m.saidN++
	fmt.Fprintln(m.stdin, word)
	if !eventually(processLimit, func() bool { return len(m.out.events("disk")) == m.saidN || m.ended() }) {
		r.Errorf("the receiver's disk does not obey: %v", m)
		return
	}
	if all := m.out.events("disk"); len(all) > 0 && strings.Contains(string(all[len(all)-1]), `"err"`) {
		r.Errorf("the receiver's disk cannot obey: %s", all[len(all)-1])
	}
}

// endReceiver ends the receiver in order and looks at what it leaves and said.
func (r *matrixRun) endReceiver() {
	if !r.receiver.end(r) {
		return
	}
	c := r.plan.want.check(r, r.store)
	if c.parts > 0 {
		r.Errorf("%d temporary files left after an orderly end", c.parts)
	}
	for _, v := range r.receiver.verdicts(r) {
		if v.Blocks > c.visible || v.Total != len(r.plan.want.hashes) || (v.State == "complete") != (v.Blocks == v.Total) ||
			(v.State != "complete" && v.Reason == "") {
			r.Errorf("verdict of the receiver is %+v, %d blocks are visible", v, c.visible)
		}
	}
}

// end ends a receiver in order and looks for what it did not give back. It reports
// false if the receiver had been killed.
func (m *matrixReceiver) end(tb testing.TB) bool {
	tb.Helper()
	m.signal()
	m.wait()
	if why := m.crashed(); why != "" {
		tb.Error(why)
		return false
	}
	if m.cmd.ProcessState.ExitCode() < 0 {
		return false
	}
	var left leftEvent
	lines := m.out.events("left")
	if len(lines) != 1 || json.Unmarshal(lines[0], &left) != nil {
		tb.Errorf("receiver ended with status %d: %v", m.wait(), m)
		return false
	}
	if why := left.leak(); why != "" {
		tb.Errorf("receiver leaks %s", why)
	}
	if left.HeapBytes > mostHeap {
		tb.Errorf("receiver has %d bytes on its heap at its end", left.HeapBytes)
	}
	return true
}

// startSender starts one of the run's senders.
func (r *matrixRun) startSender(link *relay, part int) *process {
	args := []string{
		"replay", r.plan.dir, "--to", "tcp://" + link.addr(), "--format", r.plan.format, "--chunk", strconv.Itoa(r.plan.chunk),
		"--json", "--timeout", patience.String(),
	}
	if r.parts > 1 {
		args = append(args, "--part", fmt.Sprintf("%d/%d", part+1, r.parts))
	}
	if r.cell.sealed {
		args = append(args, "--keys", r.bench.keys[0])
	}
	retry := comeBack
	if r.fault.gone {
		retry = goneWait
	}
	args = append(args, "--retry", retry.String())
	if r.fault.long {
		args = append(args, "--timeout", processLimit.String())
	}
	return startAs(r, senderMode, nil, args...)
}

// newMatrixRun picks what is random about a run.
func newMatrixRun(t *tape, b *matrixBench, c matrixCell, seed uint64) *matrixRun {
	r := &matrixRun{tape: t, bench: b, cell: c, rng: rand.New(rand.NewPCG(seed, 0x6b35)), parts: 1}
	for _, f := range matrixFaults() {
		if f.name == c.fault {
			r.fault = f
		}
	}
	if r.fault.name == "" {
		t.Fatalf("no fault is called %q", c.fault)
	}
	r.plan = b.plans[r.rng.IntN(len(b.plans))]
	if c.phase == whenIdle {
		r.parts = 2
	}
	r.ring = smallRing * r.parts
	if r.rng.IntN(4) == 0 || r.fault.delay > 0 {
		r.ring = roomyRing
	}
	r.result = matrixResult{Cell: c.String(), Seed: seed}
	return r
}

// run lets the fault happen and checks everything, then runs what is not complete
// again without.
func (r *matrixRun) run() {
	begin := time.Now()
	r.clean = r.bench.measure(r)
	r.store = r.TempDir()
	if r.fault.harm != nil {
		r.fault.harm(r)
	}
	r.startReceiver()
	for range r.parts {
		r.relays = append(r.relays, newRelay(r, r.receiver.addr, r.fault.delay))
	}
	unwatch := r.watch()
	r.strikeAndSend()
	r.settle()
	unwatch()
	c := r.plan.want.check(r, r.store)
	r.honest(c.visible)
	r.count()
	if r.result.Partial = c.visible != len(r.plan.want.hashes); r.result.Partial {
		if !r.fault.gone {
			r.Errorf("%d of %d blocks although everybody came back: %v", c.visible, len(r.plan.want.hashes), r.senders)
		}
		r.again()
	}
	r.endReceiver()
	r.result.Seconds = time.Since(begin).Seconds()
}

// watch looks at the store all the time: no wrong block is ever visible, and none
// without those before it.
func (r *matrixRun) watch() (end func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r.plan.want.check(r, r.store)
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return sync.OnceFunc(func() { close(stop); wg.Wait() })
}

// strikeAndSend starts the senders and has the fault strike at its moment.
func (r *matrixRun) strikeAndSend() {
	link := r.relays[0]
	if r.cell.phase != whenIdle {
		link.arm(r.moment(), r.strike)
	}
	r.senders = append(r.senders, nil)
	r.senders[0] = r.startSender(link, 0)
	if r.cell.phase == whenIdle {
		r.awaitIdle(link)
		if r.fault.now != nil {
			r.fault.now(r)
			link.strikes()
		} else {
			link.arm(0, r.strike)
		}
	}
	select {
	case <-link.struck:
	case <-r.senders[0].done:
		r.result.Missed = !link.hit()
	}
	if !r.result.Missed {
		<-link.struck
		if r.fault.after != nil {
			r.fault.after(r)
		}
	}
	for part := 1; part < r.parts; part++ {
		r.senders = append(r.senders, r.startSender(r.relays[part], part))
	}
}

// strike is the fault, as the relay wants it.
func (r *matrixRun) strike(l *leg, b []byte) ([]byte, bool) {
	if r.fault.now == nil {
		return r.fault.bytes(r, l, b)
	}
	r.fault.now(r)
	return b, !r.fault.ends
}

// moment is the byte at which the fault strikes.
func (r *matrixRun) moment() int64 {
	c := r.clean
	last := c.all - (c.all-c.handshake)/int64(len(r.plan.want.hashes))
	switch r.cell.phase {
	case inHandshake:
		return r.rng.Int64N(c.handshake)
	case inLast:
		return last + r.rng.Int64N(c.all-last)
	}
	return c.handshake + r.rng.Int64N(last-c.handshake)
}

// awaitIdle waits until the first sender has sent its share.
func (r *matrixRun) awaitIdle(link *relay) {
	some := r.clean.handshake + (r.clean.all-r.clean.handshake)/8 // its share is more
	last, since := int64(0), time.Now()
	if !eventually(processLimit, func() bool {
		if n := link.passed.Load(); n != last {
			last, since = n, time.Now()
		}
		return last > some && time.Since(since) >= quietFor || r.senders[0].ended()
	}) {
		r.Errorf("the first sender does not come to rest: %v", r.senders[0])
	}
}
