//go:build faults

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The soak's environment and shape.
const (
	soakMinutesEnv = "PDLINK_SOAK_MINUTES"
	soakSeedEnv    = "PDLINK_SOAK_SEED"

	soakMinutes   = 1 // without the variable
	soakSenders   = 8 // at a time, half of them sealed
	soakFaultEach = 5 * time.Second
	soakLookEach  = time.Second
	soakReport    = time.Minute

	// What may grow between the second and the last quarter of a soak, for the
	// allocator's mood and for the transfers that happen to be open.
	soakGrowBytes = 12 << 20
	soakGrowPart  = 0.1
	soakGrowFiles = 16
)

// soak is some senders that send again and again to two receivers, one of them
// sealed, while faults strike.
type soak struct {
	*testing.T
	rng       *rand.Rand
	keys      [2]string
	receivers []*matrixReceiver
	loops     []*soakLoop
	over      chan struct{} // closed when no further transfer begins
	faults    map[string]int
	samples   map[string][]soakSample // by process
}

type soakSample struct {
	bytes int64
	files int
}

// soakLoop is one sender.
type soakLoop struct {
	s        *soak
	n        int
	want     *expectation
	dir      string
	receiver *matrixReceiver
	store    string
	link     *relay

	mu      sync.Mutex // guards what follows
	p       *process
	stdin   *os.File
	killed  int
	states  map[string]int
	payload uint64
}

// TestSoak sends for PDLINK_SOAK_MINUTES. Nothing wrong becomes visible, and neither
// memory nor descriptors grow.
func TestSoak(t *testing.T) {
	seed := envNumber(t, soakSeedEnv, rand.Uint64()>>32)
	length := time.Duration(envNumber(t, soakMinutesEnv, soakMinutes)) * time.Minute
	t.Logf("%s=%d, %v", soakSeedEnv, seed, length)
	s := &soak{
		T: t, rng: rand.New(rand.NewPCG(seed, 2)), over: make(chan struct{}),
		faults: map[string]int{}, samples: map[string][]soakSample{},
	}
	b := &matrixBench{}
	b.pair(t)
	s.keys = b.keys
	stores := []string{t.TempDir(), t.TempDir()}
	for i, store := range stores {
		r := &matrixRun{tape: &tape{T: t}, bench: b, cell: matrixCell{sealed: i == 1}, store: store, ring: roomyRing, long: true}
		r.startReceiver()
		s.receivers = append(s.receivers, r.receiver)
	}
	var loops sync.WaitGroup
	for n := range soakSenders {
		l := s.newLoop(n, stores[n%2])
		s.loops = append(s.loops, l)
		loops.Go(l.run)
	}
	s.disturb(length)
	close(s.over)
	loops.Wait()
	s.report()
	for i, m := range s.receivers {
		m.end(t)
		(&expectation{}).check(t, stores[i]) // whatever is left does not belong there
	}
}

func (s *soak) newLoop(n int, store string) *soakLoop {
	dir := filepath.Join(s.TempDir(), "made")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.Fatal(err)
	}
	makeCase(s, dir, uint64(100+n))
	m := s.receivers[n%2]
	return &soakLoop{
		s: s, n: n, dir: dir, want: expectOf(s, dir, "5"), receiver: m, store: store,
		link: newRelay(s, m.addr, 0), states: map[string]int{},
	}
}

// start starts the loop's process.
func (l *soakLoop) start() {
	args := []string{
		"--to", "tcp://" + l.link.addr(), "--chunk", strconv.Itoa(8 + 8*l.n), "--json", "--timeout", processLimit.String(), l.dir,
	}
	if l.n%2 == 1 {
		args = append(args, "--keys", l.s.keys[0])
	}
	in, out, err := os.Pipe()
	if err != nil {
		l.s.Error(err)
		return
	}
	defer in.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stdin != nil {
		l.stdin.Close()
	}
	l.p, l.stdin = startLong(l.s, looperMode, in, args...), out
}

// run sends, looks at what arrived, takes it away and sends again.
func (l *soakLoop) run() {
	l.start()
	for {
		select {
		case <-l.s.over:
			l.stdin.Close()
			<-l.p.done
			return
		default:
		}
		if !l.once() {
			continue
		}
		for k := range l.want.hashes {
			if err := os.Remove(l.want.path(l.store, k)); err != nil {
				l.s.Errorf("sender %d: %v", l.n, err)
			}
		}
	}
}

// once has the process send once, counts how that ended and reports whether all
// blocks are there. Else the receiver may be at work still.
func (l *soakLoop) once() bool {
	l.p.out.reset()
	fmt.Fprintln(l.stdin, "send")
	said := func() bool { return strings.HasSuffix(l.p.out.String(), "\n") }
	if !eventually(2*processLimit, func() bool { return said() || l.p.ended() }) {
		l.s.Errorf("sender %d hangs: %v", l.n, l.p)
	}
	if !said() {
		l.count("killed", replayResult{})
		if why := l.p.crashed(); why != "" {
			l.s.Error(why)
		}
		l.check(0)
		l.start()
		return false
	}
	var res replayResult
	if err := json.Unmarshal([]byte(l.p.out.String()), &res); err != nil {
		l.s.Errorf("sender %d: %v: %v", l.n, err, l.p)
	}
	l.count(string(res.State), res)
	l.check(res.Blocks)
	if res.State != "complete" {
		l.s.Errorf("sender %d gave up although everybody came back: %s: %v", l.n, res.Verdict, l.p)
	}
	l.p.err.reset()
	return res.State == "complete"
}

func (l *soakLoop) count(state string, res replayResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states[state]++
	l.payload += res.Bytes
}

// check looks at the blocks of this sender: those that are visible are right, and at
// least so many.
func (l *soakLoop) check(least int) {
	visible := 0
	for k := len(l.want.hashes) - 1; k >= 0; k-- { // the receiver may be at work: what was there before k is there after it
		if _, err := os.Lstat(l.want.path(l.store, k)); err == nil {
			visible++
			l.want.identical(l.s, l.store, k)
		} else if visible > 0 {
			l.s.Errorf("sender %d: block %d is not visible and %d behind it are: %v", l.n, k, visible, err)
		}
	}
	if visible < least {
		l.s.Errorf("sender %d: %d blocks are visible, the verdict says %d", l.n, visible, least)
	}
}

// disturb has a fault strike each few seconds, and takes samples in between.
func (s *soak) disturb(length time.Duration) {
	end := time.Now().Add(length)
	look, fault, report := time.NewTicker(soakLookEach), time.NewTicker(soakFaultEach), time.NewTicker(soakReport)
	defer look.Stop()
	defer fault.Stop()
	defer report.Stop()
	for time.Now().Before(end) && !s.Failed() {
		select {
		case <-look.C:
			s.sample()
		case <-fault.C:
			s.strike()
		case <-report.C:
			fmt.Fprintf(os.Stderr, "soak: %v left, %s\n", time.Until(end).Round(time.Second), s.verdicts())
		}
	}
}

// strike has one of the matrix's faults hit a sender's connection or process.
func (s *soak) strike() {
	l := s.loops[s.rng.IntN(len(s.loops))]
	kinds := []string{"cut", "reset", "half-close", "black hole", "corrupt", "duplicate", "truncate", "loss", "kill sender", "slow disk"}
	kind := kinds[s.rng.IntN(len(kinds))]
	s.faults[kind]++
	r := &matrixRun{tape: &tape{T: s.T}, rng: rand.New(rand.NewPCG(s.rng.Uint64(), 0)), relays: []*relay{l.link}, receiver: l.receiver}
	for _, f := range matrixFaults() {
		switch {
		case f.name != kind:
		case kind == "kill sender":
			l.mu.Lock()
			l.killed++
			l.p.cmd.Process.Kill()
			l.mu.Unlock()
		case f.bytes != nil:
			r.fault = f
			l.link.arm(0, r.strike)
		case kind == "loss":
			l.link.lose(s.T, 8)
			time.AfterFunc(soakFaultEach, func() { l.link.lose(s.T, 0) })
		case kind == "slow disk":
			l.receiver.say(r, saySlow)
			time.AfterFunc(soakFaultEach/2, func() { fmt.Fprintln(l.receiver.stdin, sayFast) })
			l.receiver.saidN++ // of the answer to that
		default:
			f.now(r)
		}
	}
}

func (s *soak) sample() {
	for i, m := range s.receivers {
		s.add("receiver "+strconv.Itoa(i), m.cmd.Process.Pid)
	}
	for _, l := range s.loops {
		l.mu.Lock()
		pid := 0
		if l.p != nil {
			pid = l.p.cmd.Process.Pid
		}
		l.mu.Unlock()
		if pid != 0 {
			s.add("senders", pid)
		}
	}
	s.add("here", os.Getpid())
}

func (s *soak) add(name string, pid int) {
	if x := (soakSample{residentBytes(pid), fdCount(pid)}); x.bytes > 0 {
		s.samples[name] = append(s.samples[name], x)
	}
}

func (s *soak) verdicts() string {
	sum, payload, killed := map[string]int{}, uint64(0), 0
	for _, l := range s.loops {
		l.mu.Lock()
		for state, n := range l.states {
			sum[state] += n
		}
		payload += l.payload
		killed += l.killed
		l.mu.Unlock()
	}
	return fmt.Sprintf("%v, %d senders killed, %.2f GB", sum, killed, float64(payload)/1e9)
}

// report prints the figures and judges them.
func (s *soak) report() {
	s.Logf("transfers: %s", s.verdicts())
	s.Logf("faults: %v", s.faults)
	for name, all := range s.samples {
		quarter := len(all) / 4
		if quarter == 0 {
			continue
		}
		early, late := middle(all[quarter:2*quarter]), middle(all[3*quarter:])
		s.Logf("%s: %.1f MB and %d descriptors in the second quarter, %.1f MB and %d in the last; %d samples",
			name, float64(early.bytes)/1e6, early.files, float64(late.bytes)/1e6, late.files, len(all))
		if name != "here" && (late.bytes > early.bytes+max(soakGrowBytes, int64(soakGrowPart*float64(early.bytes))) ||
			late.files > early.files+soakGrowFiles) {
			s.Errorf("%s grows", name)
		}
	}
}

// middle is the median of both figures.
func middle(all []soakSample) (m soakSample) {
	bytes, files := make([]int64, len(all)), make([]int, len(all))
	for i, x := range all {
		bytes[i], files[i] = x.bytes, x.files
	}
	slices.Sort(bytes)
	slices.Sort(files)
	return soakSample{bytes[len(bytes)/2], files[len(files)/2]}
}
