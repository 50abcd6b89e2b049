//go:build rdmavm

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Environment of the faults: how many, and the seed that draws them.
const (
	faultsEnv = "RDMA_FAULTS"
	seedEnv   = "RDMA_SEED"

	// roundsEnv is how often each figure is taken.
	roundsEnv = "RDMA_ROUNDS"
)

// defaultFaults take a minute.
const defaultFaults = 12

// receiver is a `pdlink decode` on device A that can be killed and started again.
type receiver struct {
	t     *testing.T
	args  []string
	cmd   *exec.Cmd
	log   *output
	ended chan struct{}
}

// output gathers what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write adds to it.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String is all of it.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// listen waits until the receiver can be reached for the first time.
func (r *receiver) listen() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(r.log.String(), `"listening"`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("the receiver does not listen: %s", r.log)
		}
	}
}

func (r *receiver) start() {
	r.t.Helper()
	r.cmd = exec.CommandContext(context.WithoutCancel(r.t.Context()), pdlink, r.args...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // it is killed or stopped
		close(ended)
	}(r.cmd, r.ended)
}

func (r *receiver) stop(with syscall.Signal) {
	_ = r.cmd.Process.Signal(with) // it may have ended
	select {
	case <-r.ended:
	case <-time.After(time.Minute):
		_ = r.cmd.Process.Kill()
		r.t.Error("the receiver does not end")
		<-r.ended
	}
}

// fault is something that befalls a transfer; d is how long.
type fault struct {
	name string
	do   func(t *testing.T, r *receiver, sender *exec.Cmd, d time.Duration)
}

// faults are those that can come from outside of the processes.
func faults() []fault {
	nets := []string{os.Getenv("RDMA_NET_A"), os.Getenv("RDMA_NET_B")}
	loss := func(percent string) func(*testing.T, *receiver, *exec.Cmd, time.Duration) {
		return func(t *testing.T, _ *receiver, _ *exec.Cmd, d time.Duration) {
			for _, n := range nets {
				shell(t, "tc qdisc change dev "+n+" parent 1:1 handle 2: netem loss "+percent)
			}
			time.Sleep(d)
			for _, n := range nets {
				shell(t, "tc qdisc change dev "+n+" parent 1:1 handle 2: netem loss 0%")
			}
		}
	}
	return []fault{
		{"nothing", func(*testing.T, *receiver, *exec.Cmd, time.Duration) {}},
		{"receiver killed and started again", func(_ *testing.T, r *receiver, _ *exec.Cmd, d time.Duration) {
			r.stop(syscall.SIGKILL)
			time.Sleep(d / 4)
			r.start()
		}},
		{"receiver ended and started again", func(_ *testing.T, r *receiver, _ *exec.Cmd, _ time.Duration) {
			r.stop(syscall.SIGTERM)
			r.start()
		}},
		{"sender killed", func(_ *testing.T, _ *receiver, sender *exec.Cmd, _ time.Duration) { _ = sender.Process.Kill() }},
		{"receiver stopped for a while", func(_ *testing.T, r *receiver, _ *exec.Cmd, d time.Duration) {
			_ = r.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(d)
			_ = r.cmd.Process.Signal(syscall.SIGCONT)
		}},
		{"a port down", func(t *testing.T, _ *receiver, _ *exec.Cmd, d time.Duration) {
			i := int(d) % 2
			shell(t, "ip link set "+nets[i]+" down")
			time.Sleep(d / 4)
			restore(t)
		}},
		{"packets lost", loss("20%")},
		{"no packet through", loss("100%")},
	}
}

// restore brings both interfaces up, with what the kernel forgot meanwhile.
func restore(t *testing.T) {
	t.Helper()
	shell(t, `ip link set $RDMA_NET_A up; ip link set $RDMA_NET_B up
		ip route replace $RDMA_IP_A dev $RDMA_NET_B src $RDMA_IP_B table 101; ip route replace $RDMA_IP_B dev $RDMA_NET_A src $RDMA_IP_A table 102
		ip neigh replace $RDMA_IP_B lladdr 02:00:00:77:00:02 dev $RDMA_NET_A nud permanent
		ip neigh replace $RDMA_IP_A lladdr 02:00:00:77:00:01 dev $RDMA_NET_B nud permanent`)
}

func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// TestVMFaults sends a recorded prefill again and again while something happens to
// it. Every transfer ends complete, over whatever is left, with the decoder's own
// bytes; and nothing of verbs is left behind.
func TestVMFaults(t *testing.T) {
	loaded(t)
	before := resources(t)
	// So slow that what happens, happens in the middle.
	for _, n := range []string{"RDMA_NET_A", "RDMA_NET_B"} {
		shell(t, "tc qdisc add dev $"+n+" root handle 1: tbf rate 200mbit burst 64kb latency 400ms; tc qdisc add dev $"+n+" parent 1:1 handle 2: netem loss 0%")
	}
	defer shell(t, "tc qdisc del dev $RDMA_NET_A root; tc qdisc del dev $RDMA_NET_B root")
	a, b := paired(t)
	want := reference(t, made()...)
	seed := number(seedEnv, uint64(time.Now().UnixNano())%1e6)
	draw := rand.New(rand.NewPCG(seed, 0))
	t.Logf("%s=%d", seedEnv, seed)
	all := faults()
	used := map[string]int{}
	for i := range number(faultsEnv, defaultFaults) {
		f := all[draw.IntN(len(all))]
		after, d := time.Duration(draw.Int64N(int64(2*time.Second))), time.Duration(draw.Int64N(int64(2*time.Second)))
		// Each other transfer has no way but RDMA. One that has another is quick to take
		// it where connections take as long to make as they do on emulated processors.
		alone := i%2 == 0
		t.Run(fmt.Sprintf("%d, %s after %v, alone %v", i, f.name, after.Round(time.Millisecond), alone), func(t *testing.T) {
			for link, n := range endure(t, a, b, want, f, alone, after, d) {
				used[link] += n
			}
		})
	}
	t.Logf("transfers over each link: %v", used)
	if used["rdma"] == 0 {
		t.Error("nothing went over RDMA")
	}
	if after := resources(t); after != before {
		t.Errorf("resources before:\n%safter:\n%s", before, after)
	}
}

// made is a prompt whose blocks take a second or two on the slow link.
func made() []string { return []string{"--synthetic", "deepseek-v4-flash", "--tokens", "4097"} }

// endure is one transfer with its fault. It returns the links that carried bytes.
func endure(t *testing.T, a, b, want string, f fault, alone bool, after, d time.Duration) map[string]int {
	ip := os.Getenv("RDMA_IP_A")
	store := t.TempDir()
	r := &receiver{t: t, log: &output{}, args: []string{"decode", "--json", "--listen", "rdma://" + ip + ":7411", "--store", store, "--ring", "16", "--keys", a, "--encrypt", "off"}}
	r.start()
	r.listen()
	defer func() {
		r.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("receiver: %s", r.log)
		}
	}()
	args := append(made(), "--to", "rdma://"+ip+":7411", "--keys", b, "--encrypt", "off", "--timeout", "2m")
	if alone {
		args = append(args, "--require", "rdma")
	} else {
		args = append(args, "--to", "tcp://"+ip+":7411")
	}
	links := map[string]int{}
	for try := range 4 {
		sender := exec.CommandContext(t.Context(), pdlink, append([]string{"replay", "--json"}, args...)...)
		var out, log bytes.Buffer
		sender.Stdout, sender.Stderr = &out, &log
		if err := sender.Start(); err != nil {
			t.Fatal(err)
		}
		if try == 0 {
			time.Sleep(after)
			f.do(t, r, sender, d)
		}
		err := sender.Wait()
		var v verdict
		jerr := json.Unmarshal(out.Bytes(), &v)
		for _, l := range v.Links {
			links[l.Link]++
		}
		switch {
		case jerr == nil && err == nil:
			if v.State != "complete" || v.Total == 0 || v.Blocks != v.Total {
				t.Errorf("%+v\n%s", v, log.String())
			}
			identical(t, want, store)
			t.Logf("%s over %+v\n%s", v.Verdict, v.Links, log.String())
			return links
		case sender.ProcessState.ExitCode() == -1 && strings.Contains(f.name, "sender"):
			// Killed, as it should be; the next one sends the rest.
		case jerr == nil && v.State == "failed" && v.Bytes == 0 && strings.Contains(v.Reason, "connection refused"):
			// It came while the receiver was away, and said so.
			time.Sleep(100 * time.Millisecond)
		default:
			t.Errorf("%v, %v\n%s%s", err, jerr, out.String(), log.String())
			return links
		}
	}
	t.Error("the transfer did not end")
	return links
}
