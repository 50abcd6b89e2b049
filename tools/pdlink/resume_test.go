package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"pdlink/bridge"
	"pdlink/transport/failover"
	"pdlink/transport/transporttest"
)

const (
	resumeChunk = 16 // tokens: a frame for each, so that a transfer has a middle

	// resumeFrame is the most that such a frame holds of kv-qwen3, and resumeWindow
	// how many of them may be under way when a connection is cut.
	resumeFrame  = 64 << 10
	resumeWindow = 16

	// soonerThanRetry is how long a sender may take, on a busy machine, to notice what
	// needs no waiting for --retry, whose default is longer.
	soonerThanRetry = failover.DefaultWindow * 2 / 3
)

// gate is the middle of a transfer, in which it stands still until it is opened: what
// a test does there is done in time however busy the machine is.
type gate struct {
	reached, opened chan struct{}
	reaching, opens sync.Once
	seen            atomic.Uint64 // bytes from the sender
}

// await waits until the transfer of a process has reached the gate.
func (g *gate) await(t *testing.T, p *process) {
	t.Helper()
	select {
	case <-g.reached:
	case <-p.done:
		t.Fatalf("it ended before its middle: %v", p)
	}
}

// open lets the transfer go on.
func (g *gate) open() { g.opens.Do(func() { close(g.opened) }) }

// slowProxy forwards to a receiver with pauses. When about half of a transfer's bytes
// have passed, no further ones of a sender do until the gate is opened.
func slowProxy(tb testing.TB, target string, total uint64) (*transporttest.Proxy, *gate) {
	tb.Helper()
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	p := transporttest.NewProxy(tb, target, transporttest.ProxyOptions{Delay: 2 * pace, Watch: func(from bool, b []byte) {
		if from && g.seen.Add(uint64(len(b))) > total/2 {
			g.reaching.Do(func() { close(g.reached) })
			<-g.opened
		}
	}})
	tb.Cleanup(g.open) // before the proxy waits for its goroutines
	return p, g
}

// resumeArgs is a replay whose transfers have a middle.
func resumeArgs(to string, kept bool) []string {
	args := []string{
		"replay", filepath.Join(casesDir, "kv-qwen3"), "--to", "tcp://" + to, "--chunk", strconv.Itoa(resumeChunk), "--json",
		"--timeout", patience.String(),
	}
	if kept {
		args = append(args, "--keep")
	}
	return args
}

// resumeTotal is the payload of the whole transfer.
func resumeTotal(t *testing.T, r *receiver) uint64 {
	t.Helper()
	other := startReceiver(t, t.TempDir())
	res := ended1(t, start(t, resumeArgs(other.addr, false)...), exitOK)
	if res.SentBytes == 0 || res.SentBytes != res.Bytes || res.Resent != 0 || res.Reconnects != 0 || len(res.SentLinks) != 1 {
		t.Fatalf("a transfer without fault: %+v", res)
	}
	return res.SentBytes
}

// ended1 waits for a replay and reads its result.
func ended1(t *testing.T, p *process, want int) (res replayResult) {
	t.Helper()
	if status := p.wait(); status != want {
		t.Fatalf("status %d, want %d: %v", status, want, p)
	}
	if err := json.Unmarshal([]byte(p.out.String()), &res); err != nil {
		t.Fatalf("result: %v: %v", err, p)
	}
	return res
}

// TestKilledReceiverIsWaitedFor kills the receiver with kill -9 in the middle and
// starts it again at the same address. The same sender completes the transfer.
func TestKilledReceiverIsWaitedFor(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("kept %v", kept), func(t *testing.T) {
			store := t.TempDir()
			r := startReceiver(t, store)
			total := resumeTotal(t, r)
			proxy, half := slowProxy(t, r.addr, total)
			p := start(t, append(resumeArgs(proxy.Addr(), kept), "--format", want.format)...)
			half.await(t, p)
			r.kill()
			half.open()
			had := want.check(t, store).visible
			r = startReceiver(t, store, "--listen", "tcp://"+r.addr)
			res := ended1(t, p, exitOK)
			if res.State != bridge.Complete || res.Reconnects < 1 || res.Present < had {
				t.Errorf("%+v, %d blocks were visible when the receiver was killed", res, had)
			}
			block := total / uint64(len(want.hashes))
			if most := total + 2*block + resumeWindow*resumeFrame; res.SentBytes > most || res.SentBytes-res.Resent != total {
				t.Errorf("sent %d bytes, %d of them twice, want at most %d of which %d once", res.SentBytes, res.Resent, most, total)
			}
			if c := want.check(t, store); c.visible != len(want.hashes) {
				t.Errorf("%d of %d blocks", c.visible, len(want.hashes))
			}
			if text := p.err.String(); !strings.Contains(text, "lost the connection over tcp") || !strings.Contains(text, "connected again over tcp") {
				t.Errorf("the sender said %q", text)
			}
			r.stop(t, want, store)
		})
	}
}

// TestKilledSenderContinues kills the sender with kill -9 in the middle and runs it
// again: only what is missing is sent.
func TestKilledSenderContinues(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	store := t.TempDir()
	r := startReceiver(t, store, "--part-wait", patience.String())
	total := resumeTotal(t, r)
	proxy, half := slowProxy(t, r.addr, total)
	args := append(resumeArgs(proxy.Addr(), false), "--format", want.format)
	first := start(t, args...)
	half.await(t, first)
	first.kill()
	half.open()
	res := ended1(t, start(t, args...), exitOK)
	if res.State != bridge.Complete || res.Reconnects != 0 || res.Resent != 0 {
		t.Errorf("%+v", res)
	}
	verdicts := r.verdicts(t)
	if len(verdicts) != 1 {
		t.Fatalf("the receiver ended %d transfers, want one that both senders fill: %v", len(verdicts), verdicts)
	}
	// What both sent and the receiver took: everything once, and what was under way
	// when the first one died.
	if v := verdicts[0]; v.Bytes < total || v.Bytes > total+resumeWindow*resumeFrame || res.SentBytes > total*3/4 || res.SentBytes < total/8 {
		t.Errorf("of %d bytes the second sender sent %d, the receiver took %d from both", total, res.SentBytes, v.Bytes)
	}
	if c := want.check(t, store); c.visible != len(want.hashes) {
		t.Errorf("%d of %d blocks", c.visible, len(want.hashes))
	}
	r.stop(t, want, store)
}

// TestRetryOff: without --retry the first loss ends the sender.
func TestRetryOff(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	store := t.TempDir()
	r := startReceiver(t, store)
	proxy, half := slowProxy(t, r.addr, resumeTotal(t, r))
	p := start(t, append(resumeArgs(proxy.Addr(), false), "--format", want.format, "--retry", "0")...)
	half.await(t, p)
	begin := time.Now()
	proxy.Cut(true)
	half.open()
	res := ended1(t, p, exitFailed)
	if took := time.Since(begin); res.State != stateFailed || res.Reconnects != 0 || took > soonerThanRetry {
		t.Errorf("%+v after %v", res, took)
	}
}

// TestCutConnectionsInOneProcess cuts TCP connections at random bytes between a
// sender and a receiver in this process, of transfers that can be read again and of
// such that are kept, in clear. Each becomes complete.
func TestCutConnectionsInOneProcess(t *testing.T) {
	seed := envNumber(t, transporttest.SeedVariable, rand.Uint64())
	t.Logf("%s=%d", transporttest.SeedVariable, seed)
	r := startReceiver(t, t.TempDir()) // for its byte count
	total := resumeTotal(t, r)
	var reconnects atomic.Int64
	var group errgroup.Group
	group.SetLimit(8) // they wait more than they work
	for i := range uint64(cutTries) {
		group.Go(func() error {
			reconnects.Add(int64(cutHere(t, i, total, rand.New(rand.NewPCG(seed, i)))))
			return nil
		})
	}
	group.Wait()
	if n := reconnects.Load(); n < cutTries*3/4 {
		t.Errorf("%d connections were replaced in %d transfers: the test shows too little", n, cutTries)
	}
}

// cutTries is how many connections TestCutConnectionsInOneProcess cuts.
const cutTries = 120

// cutHere is one transfer over a connection that is cut. It returns how often the
// sender connected again.
func cutHere(t *testing.T, i, total uint64, rng *rand.Rand) int {
	r := receiveHere(t, t.TempDir())
	proxy := transporttest.NewProxy(t, r.listener.Addr(), transporttest.ProxyOptions{
		CutAfter: 1 + rng.Int64N(int64(total)), Once: true, Reset: i%2 == 0, Seed: rng.Uint64(),
	})
	status, out, errOut := cli(t, resumeArgs(proxy.Addr(), i/2%2 == 0)...)
	proxy.Close()
	r.stop()
	var res replayResult
	if err := json.Unmarshal([]byte(out), &res); err != nil || status != exitOK || res.State != bridge.Complete {
		t.Errorf("cut %d: status %d, %v: %s%s", i, status, err, out, errOut)
	}
	if most := total + uint64(res.Reconnects)*resumeWindow*resumeFrame; res.SentBytes > most || res.SentBytes-res.Resent > total {
		t.Errorf("cut %d: %+v, want at most %d bytes of which %d once", i, res, most, total)
	}
	return res.Reconnects
}

// receiveHere starts a receiver on loopback in this process.
func receiveHere(t *testing.T, store string) *receiving {
	t.Helper()
	u := linkURL{scheme: schemeTCP, addr: "127.0.0.1:0"}
	std := newStreams(&output{}, &output{})
	f := replayFlags{store: store, noSync: true}
	r, err := startReceiving(t.Context(), u.open(linkOptions{}), u, func() (bridge.Options, error) { return f.receiver(std) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.stop() })
	return r
}
