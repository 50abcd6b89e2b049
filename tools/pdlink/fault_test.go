package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/transport/transporttest"
)

const (
	// defaultTries is how many faults a plain run of the tests injects: each
	// kind once, in under 20 s on two cores.
	defaultTries = 16

	// enoughTries is from where on the share of faults that hit a transfer
	// in its middle means something, and minMiddle is what it must be: on a busy
	// machine many hit before the first block is visible.
	enoughTries = 100
	minMiddle   = 0.1

	// pace is the longest pause of the proxy before it forwards something. It
	// stretches a transfer of 30 ms to 100 ms and more, so that a moment in it
	// can be hit.
	pace = 4 * time.Millisecond

	// smallestKept is the smallest chunk whose frames can all be kept: a block
	// of 512 tokens has to fit into the ring.
	smallestKept = 9

	// patience is the --timeout of senders, longer than --retry. Who needs it hangs.
	patience = 45 * time.Second

	// partWait is how long receivers wait for lost senders.
	partWait = 300 * time.Millisecond

	// deadRetry is the --retry of senders whose receiver does not come back,
	// aliveRetry that of the others.
	deadRetry  = 200 * time.Millisecond
	aliveRetry = 10 * time.Second

	// settleLimit is how long a receiver may take to give a transfer up, on a
	// busy machine.
	settleLimit = 20 * time.Second
)

// fault is one kind of fault. inject makes it happen while the senders run, and
// returns when it has happened or can no longer.
type fault struct {
	name   string
	inject func(*attempt)

	senders  int           // at least so many
	timeout  time.Duration // of the senders; 0: patience
	proxy    func(*attempt, *transporttest.ProxyOptions)
	recovers bool // the transfer must become complete in spite of it
	dead     bool // the receiver is gone afterwards
	orderly  bool // of those that are gone: it ended by itself and leaves no temporary files
	rivals   bool // a second receiver with its own senders works on the same store
}

func faults() []fault {
	killReceiver := func(a *attempt) { a.receiver.kill() }
	return []fault{
		{name: "kill sender", inject: func(a *attempt) { a.victim().kill() }},
		{name: "kill one of several senders", senders: 2, inject: func(a *attempt) { a.victim().kill() }},
		{name: "restart receiver", recovers: true, inject: (*attempt).restartReceiver},
		{name: "restart sender", recovers: true, inject: (*attempt).restart},
		{name: "stop sender", inject: func(a *attempt) { a.victim().signal() }},
		{name: "kill receiver", dead: true, inject: killReceiver},
		{name: "kill both", dead: true, inject: (*attempt).killAll},
		{name: "stop receiver", dead: true, orderly: true, inject: func(a *attempt) { a.receiver.signal(); a.receiver.wait() }},
		{name: "reset", recovers: true, proxy: func(a *attempt, o *transporttest.ProxyOptions) {
			o.CutAfter, o.Once, o.Reset = a.position(), true, true
		}},
		{name: "truncate", recovers: true, proxy: func(a *attempt, o *transporttest.ProxyOptions) { o.CutAfter, o.Once = a.position(), true }},
		{name: "half close", recovers: true, proxy: func(a *attempt, o *transporttest.ProxyOptions) {
			o.CutAfter, o.Once, o.HalfClose = a.position(), true, true
		}},
		{name: "reset for good", proxy: func(a *attempt, o *transporttest.ProxyOptions) { o.CutAfter, o.Reset = a.position(), true }},
		{name: "corrupt", proxy: func(a *attempt, o *transporttest.ProxyOptions) { o.CorruptEvery = a.position() }},
		{name: "stall", inject: func(a *attempt) { a.proxies[a.hit].Swallow() }, timeout: 2 * time.Second},
		{name: "two receivers", rivals: true, recovers: true},
		{name: "two receivers, one killed", rivals: true, inject: killReceiver, dead: true},
	}
}

// attempt is one transfer with a fault in it.
type attempt struct {
	*testing.T
	fault fault
	rng   *rand.Rand
	want  *expectation
	chunk int
	keep  bool
	parts int  // connections
	split bool // a process for each, else one process for all

	store    string
	clean    cleanRun
	receiver *receiver
	rival    *receiver // on the same store
	proxies  []*transporttest.Proxy
	senders  []*process
	rivals   []*process
	hit      int // which sender or proxy the fault hits
}

// cleanRun is what a transfer without fault takes, from its first byte on.
type cleanRun struct {
	time  time.Duration
	bytes int64 // through each proxy
}

// bench keeps what attempts share.
type bench struct {
	expected map[string]*expectation
	clean    map[string]cleanRun
}

// expect returns the reference of a case in a format.
func (b *bench) expect(tb testing.TB, name, format string) *expectation {
	key := name + " " + format
	if b.expected[key] == nil {
		b.expected[key] = expect(tb, name, format)
	}
	return b.expected[key]
}

// measure runs the attempt's transfer without a fault, unless a like one was
// measured already, and checks that it is right.
func (b *bench) measure(a *attempt) cleanRun {
	key := fmt.Sprint(a.want.name, a.want.format, min(a.chunk, 64)/8, a.parts)
	if c, ok := b.clean[key]; ok {
		return c
	}
	store := a.TempDir()
	r := startReceiver(a, store)
	var begin time.Time
	started := make(chan struct{})
	proxies := a.proxy(r, started, false)
	senders := a.send(proxies, patience)
	<-started
	begin = time.Now()
	for _, s := range senders {
		if status := s.wait(); status != exitOK {
			a.Fatalf("transfer without fault: status %d: %v", status, s)
		}
	}
	c := cleanRun{time: time.Since(begin), bytes: proxies[0].Passed()}
	if c := a.want.check(a, store); c.visible != len(a.want.hashes) {
		a.Fatalf("transfer without fault: %d of %d blocks", c.visible, len(a.want.hashes))
	}
	r.stop(a, a.want, store)
	b.clean[key] = c
	return c
}

// proxy puts one in front of a receiver for each connection's process. started
// is closed when the first byte comes from a sender.
func (a *attempt) proxy(r *receiver, started chan struct{}, damaged bool) []*transporttest.Proxy {
	var once sync.Once
	n := 1
	if a.split {
		n = a.parts
	}
	proxies := make([]*transporttest.Proxy, n)
	for i := range proxies {
		o := transporttest.ProxyOptions{Seed: a.rng.Uint64(), Delay: pace}
		o.Watch = func(bool, []byte) { once.Do(func() { close(started) }) }
		if damaged && a.fault.proxy != nil && i == a.hit {
			a.fault.proxy(a, &o)
		}
		proxies[i] = transporttest.NewProxy(a, r.addr, o)
	}
	return proxies
}

// send starts the attempt's senders, each through its proxy.
func (a *attempt) send(proxies []*transporttest.Proxy, timeout time.Duration) []*process {
	senders := make([]*process, len(proxies))
	for i, p := range proxies {
		senders[i] = a.sendPart(i, p.Addr(), timeout)
	}
	return senders
}

// sendPart starts one sender.
func (a *attempt) sendPart(i int, addr string, timeout time.Duration) *process {
	retry := deadRetry
	if a.fault.recovers {
		retry = aliveRetry
	}
	args := []string{
		"replay", filepath.Join(casesDir, a.want.name), "--to", "tcp://" + addr, "--format", a.want.format,
		"--chunk", strconv.Itoa(a.chunk), "--json", "--timeout", timeout.String(), "--retry", retry.String(),
	}
	if a.keep {
		args = append(args, "--keep")
	}
	if a.split {
		args = append(args, "--part", fmt.Sprintf("%d/%d", i+1, a.parts))
	} else {
		args = append(args, "--senders", strconv.Itoa(a.parts))
	}
	return start(a, args...)
}

func (a *attempt) victim() *process { return a.senders[a.hit] }

// position is a random byte of what passes the proxy in a run without fault.
func (a *attempt) position() int64 { return 1 + a.rng.Int64N(a.clean.bytes) }

// restart kills a sender and starts it again at once.
func (a *attempt) restart() {
	a.victim().kill()
	for range 200 { // the receiver may not know yet that the first one is gone
		s := a.sendPart(a.hit, a.proxies[a.hit].Addr(), patience)
		a.senders[a.hit] = s
		if s.wait() == exitOK || !declined(s) {
			return
		}
	}
}

// restartReceiver kills the receiver and starts it again at the same address. The
// senders wait for it.
func (a *attempt) restartReceiver() {
	a.receiver.kill()
	if c := a.want.check(a, a.store); c.visible < len(a.want.hashes) && a.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(a.rng.IntN(300)) * time.Millisecond)
	}
	a.receiver = startReceiver(a, a.store, "--listen", "tcp://"+a.receiver.addr, "--part-wait", patience.String())
}

func (a *attempt) killAll() {
	all := []*process{a.receiver.process}
	all = append(all, a.senders...)
	a.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all {
		p.kill()
	}
}

// declined reports a sender that came too early: what it replaces is not over.
func declined(s *process) bool {
	text := s.err.String()
	return strings.Contains(text, "is being sent already") || strings.Contains(text, "no room")
}

// run lets the fault happen and checks everything, then runs again without. It
// returns how many blocks were visible after the fault.
func (a *attempt) run(b *bench) (visible int) {
	a.store = a.TempDir()
	a.clean = b.measure(a)
	wait := partWait
	if a.fault.recovers {
		wait = patience
	}
	a.receiver = startReceiver(a, a.store, "--part-wait", wait.String())
	timeout := patience
	if a.fault.timeout > 0 {
		timeout = a.fault.timeout
	}
	started := make(chan struct{})
	a.proxies = a.proxy(a.receiver, started, true)
	if a.fault.rivals {
		a.rival = startReceiver(a, a.store, "--part-wait", wait.String())
		a.rivals = a.send(a.proxy(a.rival, make(chan struct{}), false), patience)
	}
	a.senders = a.send(a.proxies, timeout)
	<-started
	if a.fault.inject != nil {
		time.Sleep(time.Duration(a.rng.Float64() * 1.2 * float64(a.clean.time)))
		a.fault.inject(a)
	}
	visible = a.want.check(a, a.store).visible
	for _, s := range a.senders {
		s.wait()
	}
	for _, p := range a.proxies {
		p.Close() // what it swallowed or half closed is over too
	}
	if end := a.verdicts(); !a.fault.rivals { // the other receiver goes on
		visible = end
	}
	a.again()
	return visible
}

// verdicts checks what the processes say against what is there, and returns how
// many blocks are visible.
func (a *attempt) verdicts() (visible int) {
	receivers := []*receiver{a.receiver}
	if a.rival != nil {
		receivers = append(receivers, a.rival)
		for _, s := range a.rivals {
			if status := s.wait(); status != exitOK {
				a.Errorf("the other receiver's sender ended with status %d: %v", status, s)
			}
		}
	}
	c := a.want.check(a, a.store)
	for _, s := range append(a.rivals, a.senders...) {
		a.honest(s, c.visible)
	}
	for _, r := range receivers {
		if why := r.crashed(); why != "" {
			a.Error(why)
		}
		for _, v := range r.verdicts(a) {
			if v.Blocks > c.visible || v.Total != len(a.want.hashes) || (v.State == "complete") != (v.Blocks == v.Total) {
				a.Errorf("verdict of the receiver is %v, but %d of %d blocks are visible", v, c.visible, len(a.want.hashes))
			}
			if v.State != "complete" && v.Reason == "" {
				a.Errorf("verdict without a reason: %+v", v)
			}
		}
	}
	if a.fault.recovers && c.visible != len(a.want.hashes) {
		a.Errorf("%d of %d blocks after a fault that costs nothing: %v", c.visible, len(a.want.hashes), a.senders)
	}
	return c.visible
}

// honest checks a sender's exit status and verdict.
func (a *attempt) honest(s *process, visible int) {
	status := s.wait()
	if why := s.crashed(); why != "" {
		a.Error(why)
	}
	if a.fault.timeout == 0 && strings.Contains(s.err.String(), "--timeout") {
		a.Errorf("sender hung: %v", s)
	}
	if a.fault.recovers && status != exitOK && status != -1 {
		a.Errorf("sender failed because of a fault that costs nothing: status %d: %v", status, s)
	}
	text := s.out.String()
	if text == "" { // killed, stopped, or cut off from the verdict
		if (status != exitFailed && status != -1) || (status == exitFailed && s.err.String() == "") {
			a.Errorf("sender ended with status %d and no result: %v", status, s)
		}
		return
	}
	var res replayResult
	if err := json.Unmarshal([]byte(text), &res); err != nil {
		if status != -1 {
			a.Errorf("sender's result: %v: %v", err, s)
		}
		return
	}
	complete := res.Verdict == "complete"
	if status == -1 { // killed after it had said so
		status = map[bool]int{true: exitOK, false: exitFailed}[complete]
	}
	if res.Total != len(a.want.hashes) || res.Blocks > visible || complete != (res.Blocks == res.Total) || (status == exitOK) != complete {
		a.Errorf("sender says %q with status %d, %d of %d blocks are visible: %v", res.Verdict, status, visible, len(a.want.hashes), s)
	}
}

// again runs the transfer without fault after one with it: everything must
// become complete, and no temporary file may be left.
func (a *attempt) again() {
	if a.rival != nil {
		a.rival.stop(a, &expectation{}, a.TempDir())
	}
	switch {
	case a.fault.orderly:
		if status := a.receiver.wait(); status != exitOK {
			a.Errorf("receiver ended with status %d: %v", status, a.receiver)
		}
		if c := a.want.check(a, a.store); c.parts > 0 {
			a.Errorf("%d temporary files left after an orderly end", c.parts)
		}
	case !a.fault.dead && a.rng.IntN(2) == 0:
		if !eventually(settleLimit, func() bool { return a.want.check(a, a.store).parts == 0 }) {
			a.Errorf("the receiver does not give up a transfer whose senders are gone: %v", a.receiver)
		}
	}
	live := !a.fault.dead
	if !live {
		a.receiver = startReceiver(a, a.store)
		if c := a.want.check(a, a.store); c.parts > 0 {
			a.Errorf("%d temporary files of a dead receiver left after the next start", c.parts)
		}
	}
	deadline := time.Now().Add(settleLimit)
	for !a.sendAgain(live && time.Now().Before(deadline)) {
	}
	c := a.want.check(a, a.store)
	if c.visible != len(a.want.hashes) || c.parts > 0 {
		a.Errorf("after the second run %d of %d blocks and %d temporary files", c.visible, len(a.want.hashes), c.parts)
	}
	a.receiver.stop(a, a.want, a.store)
}

// sendAgain runs all senders once more, without a proxy that damages anything.
// It reports false if they came before the receiver had given the first run up, or
// not together, and early says that they may.
func (a *attempt) sendAgain(early bool) bool {
	var last []*process
	for i := range a.proxies {
		last = append(last, a.sendPart(i, a.receiver.addr, patience))
	}
	tooEarly, failed := false, false
	for _, s := range last {
		status := s.wait()
		failed = failed || status != exitOK
		late := strings.Contains(s.out.String(), "did not finish") // a busy machine starts the others slowly
		tooEarly = tooEarly || declined(s) || late
	}
	if failed && tooEarly && early {
		return false
	}
	if failed {
		a.Errorf("second run: %v", last)
	}
	return true
}

// newAttempt picks what is random about an attempt.
func newAttempt(t *testing.T, f fault, seed, number uint64, b *bench) *attempt {
	rng := rand.New(rand.NewPCG(seed, number))
	name := []string{"kv-qwen3", "kv-qwen3", "dsv4-a"}[rng.IntN(3)] // more blocks have more of a middle
	format := []string{"3", "5"}[rng.IntN(2)]
	a := &attempt{T: t, fault: f, rng: rng, want: b.expect(t, name, format)}
	a.chunk = 1 + rng.IntN(512)
	if rng.IntN(3) > 0 { // with large ones several blocks become visible at once
		a.chunk = 1 + rng.IntN(24)
	}
	a.keep = rng.IntN(4) == 0 && a.chunk >= smallestKept
	a.parts = max(1+rng.IntN(3), f.senders)
	a.split = rng.IntN(2) == 0 || f.senders > 1
	if a.split {
		a.hit = rng.IntN(a.parts)
	}
	return a
}

// envNumber reads a number from the environment.
func envNumber(tb testing.TB, name string, def uint64) uint64 {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestFaults injects faults at random moments into transfers between real
// processes. Whatever happens, what a decoder can see is a contiguous prefix of
// right blocks, verdicts are true, and a second run completes.
func TestFaults(t *testing.T) {
	seed := envNumber(t, "PDLINK_FAULT_SEED", rand.Uint64())
	tries := int(envNumber(t, "PDLINK_FAULT_TRIES", defaultTries))
	t.Logf("PDLINK_FAULT_SEED=%d", seed)
	b := &bench{expected: map[string]*expectation{}, clean: map[string]cleanRun{}}
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		for _, format := range []string{"3", "5"} {
			b.expect(t, name, format)
		}
	}
	kinds := faults()
	before, middle, after := 0, 0, 0
	for i := range tries {
		f := kinds[i%len(kinds)]
		t.Run(fmt.Sprintf("%03d %s", i, f.name), func(t *testing.T) {
			a := newAttempt(t, f, seed, uint64(i), b)
			visible := a.run(b)
			t.Logf("%s format %s, chunk %d, keep %v, parts %d, split %v: %d of %d blocks after the fault, clean run %v",
				a.want.name, a.want.format, a.chunk, a.keep, a.parts, a.split, visible, len(a.want.hashes), a.clean.time.Round(time.Millisecond))
			switch {
			case f.recovers: // says nothing about where it was hit
			case visible == 0:
				before++
			case visible < len(a.want.hashes):
				middle++
			default:
				after++
			}
		})
	}
	all := before + middle + after
	t.Logf("%d tries; of %d faults that can stop a transfer: %d before the first block was visible, %d in the middle, %d after the last",
		tries, all, before, middle, after)
	if all >= enoughTries && float64(middle) < minMiddle*float64(all) {
		t.Errorf("%d of %d faults hit the middle of a transfer, want a tenth: they do not test what they should", middle, all)
	}
}
