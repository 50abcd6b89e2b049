//go:build rdmavm

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Environment of the faults: how many, the number of the first one, and the seed that
// draws them. Fault n of a seed is the same whichever was the first.
const (
	faultsEnv = "RDMA_FAULTS"
	firstEnv  = "RDMA_FIRST"
	seedEnv   = "RDMA_SEED"
)

// defaultFaults meet each kind twice or so.
const defaultFaults = 20

// patience bounds every wait for something that comes by itself. Processes may have
// long to start on emulated processors.
const patience = 2 * time.Minute

// number is what the environment says.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	n, err := numberOf(name, os.Getenv(name), otherwise)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// until waits for something. It reports whether that came.
func until(is func() bool) bool {
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// TestVMFaults sends a prefill again and again while something happens to it. Every
// transfer ends complete, over whatever is left, with the bytes that it has without a
// fault; and nothing of verbs is left behind, neither in the receiver nor at the end.
func TestVMFaults(t *testing.T) {
	loaded(t)
	before := resources(t)
	slow(t)
	e := &endurance{idle: before, links: map[string]int{}}
	e.a, e.b = paired(t)
	e.want = reference(t, made()...)
	seed, first := number(t, seedEnv, uint64(time.Now().UnixNano())%1e6), number(t, firstEnv, 0)
	tries := number(t, faultsEnv, defaultFaults)
	t.Logf("%s=%d %s=%d %s=%d", seedEnv, seed, firstEnv, first, faultsEnv, tries)
	all := faults()
	for i := first; i < first+tries; i++ {
		draw := rand.New(rand.NewPCG(seed, i))
		f := all[draw.IntN(len(all))]
		f.after, f.d = draw.Float64(), time.Duration(draw.Int64N(int64(2*time.Second)))
		// Each other transfer has no way but RDMA.
		f.alone = i%2 == 0
		name := fmt.Sprintf("%d, %s after %.2f for %v, alone %v", i, f.name, f.after, f.d.Round(time.Millisecond), f.alone)
		t.Run(name, func(t *testing.T) { e.endure(t, &f) })
	}
	t.Logf("transfers over each link: %v; senders started again: %d; connections made again: %d", e.links, e.again, e.reconnects)
	if e.links["rdma"] == 0 {
		t.Error("nothing went over RDMA")
	}
	if after := resources(t); after != before {
		t.Errorf("resources before:\n%safter:\n%s", before, after)
	}
}

// slow makes the link so slow that what happens, happens in the middle, and able to lose
// packets.
func slow(t *testing.T) {
	t.Helper()
	for _, n := range []string{"RDMA_NET_A", "RDMA_NET_B"} {
		shell(t, "tc qdisc add dev $"+n+" root handle 1: tbf rate 200mbit burst 64kb latency 400ms; tc qdisc add dev $"+n+" parent 1:1 handle 2: netem loss 0%")
	}
	t.Cleanup(func() {
		for _, n := range []string{"RDMA_NET_A", "RDMA_NET_B"} {
			if out, err := exec.Command("tc", "qdisc", "del", "dev", os.Getenv(n), "root").CombinedOutput(); err != nil {
				t.Errorf("remove the shaping: %v: %s", err, out)
			}
		}
	})
}

// made is a prompt of two blocks, some 40 frames, which take a second or two on the
// slow link.
func made() []string { return []string{"--synthetic", "deepseek-v4-flash", "--tokens", "4097"} }

// madeBytes is about what a sender of made puts on the wire.
const madeBytes = 40 << 20

// endurance is what the transfers have in common, and what they came to.
type endurance struct {
	a, b       string // keys
	want       string // store
	idle       string // resources without a connection
	links      map[string]int
	again      int
	reconnects int
}

// endure is one transfer with its fault.
func (e *endurance) endure(t *testing.T, f *fault) {
	ip := os.Getenv("RDMA_IP_A")
	store := t.TempDir()
	r := &receiver{t: t, log: &output{}, args: []string{"decode", "--json", "--listen", "rdma://" + ip + ":7411", "--store", store, "--ring", "16", "--keys", e.a, "--encrypt", "off"}}
	r.start()
	r.listen()
	defer func() {
		r.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("receiver: %s", r.log)
		}
	}()
	args := append(made(), "--to", "rdma://"+ip+":7411", "--keys", e.b, "--encrypt", "off", "--timeout", "10m", "--retry", patience.String())
	if f.alone {
		args = append(args, "--require", "rdma")
	} else {
		args = append(args, "--to", "tcp://"+ip+":7411")
	}
	for try := 0; e.send(t, r, f, args, try == 0); try++ {
		if try == 3 {
			t.Fatal("the transfer did not end")
		}
		e.again++
		r.listen() // before it is tried again
	}
	identical(t, e.want, store)
	// The receiver is there still, and has nothing any more of connections that ended.
	var have string
	if !until(func() bool { have = resources(t); return have == e.idle }) {
		t.Errorf("resources that are left while the receiver runs:\n%s", have)
	}
}

// send runs the sender once, the first time with the fault. It reports whether another
// one has to send the rest.
func (e *endurance) send(t *testing.T, r *receiver, f *fault, args []string, first bool) (more bool) {
	s := startSender(t, append([]string{"replay", "--json"}, args...))
	if first {
		s.reach(f.after)
		f.do(t, r, s, f.d)
	}
	<-s.ended
	var v verdict
	jerr := json.Unmarshal([]byte(s.out.String()), &v)
	for _, l := range v.Links {
		e.links[l.Link]++
	}
	switch {
	case jerr == nil && s.err == nil:
		if v.State != "complete" || v.Total == 0 || v.Blocks != v.Total {
			t.Errorf("%+v\n%s", v, s.log.String())
		}
		e.reconnects += v.Reconnects
		t.Logf("%s over %+v\n%s", v.Verdict, v.Links, s.log.String())
		return false
	case first && s.cmd.ProcessState.ExitCode() == -1 && f.kills:
		return true
	case first && jerr == nil && v.State == "failed" && v.Bytes == 0 && strings.Contains(v.Reason, "connection refused"):
		return true // it came while the receiver was away, and said so
	}
	t.Fatalf("%v, %v\n%s%s", s.err, jerr, s.out.String(), s.log.String())
	return false
}

// sender is a `pdlink replay`.
type sender struct {
	cmd      *exec.Cmd
	out, log output
	from     uint64 // what its interface had sent before
	ended    chan struct{}
	err      error // how it ended
}

func startSender(t *testing.T, args []string) *sender {
	t.Helper()
	s := &sender{cmd: exec.CommandContext(t.Context(), pdlink, args...), from: transmitted(), ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s
}

// transmitted is how many bytes the sender's interface has sent.
func transmitted() uint64 {
	text, err := os.ReadFile("/sys/class/net/" + os.Getenv("RDMA_NET_B") + "/statistics/tx_bytes")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// reach waits until that share of the bytes is on its way, or the sender has ended.
func (s *sender) reach(share float64) {
	until(func() bool {
		select {
		case <-s.ended:
			return true
		default:
			return float64(transmitted()-s.from) >= share*madeBytes
		}
	})
}
