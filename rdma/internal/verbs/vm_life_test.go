//go:build rdmavm

package verbs

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
)

// TestVMOrder closes in the wrong order first.
func TestVMOrder(t *testing.T) {
	name, _ := names()
	d := must(must(Load(Options{}))(t).Open(name))(t)
	pd := must(d.NewPD())(t)
	ch := must(pd.NewChannel())(t)
	cq := must(pd.NewCQ(8, ch))(t)
	qp := must(pd.NewQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}))(t)
	for what, f := range map[string]func() error{"device": d.Close, "domain": pd.Close, "channel": ch.Close, "queue": cq.Close} {
		if err := f(); !errors.Is(err, ErrBusy) {
			t.Errorf("close of a %s in use: %v", what, err)
		}
	}
	waiting := make(chan error, 1)
	go func() { waiting <- ch.Wait(context.Background()) }()
	for _, f := range []func() error{qp.Close, qp.Close, cq.Close, cq.Close, ch.Close, ch.Close, pd.Close, pd.Close, d.Close, d.Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-waiting:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("wait that close ended: %v", err)
		}
	case <-time.After(long):
		t.Fatal("close does not end a wait")
	}
	for what, err := range map[string]error{
		"poll": second(cq.Poll(make([]Completion, 1))), "arm": cq.Arm(), "modify": qp.Modify(StateInit, QPAttr{Port: 1}),
		"send": second(qp.PostSend(make([]SendWR, 1))), "receive": second(qp.PostRecv(make([]RecvWR, 1))),
		"register": second(pd.Register(make([]byte, 1), 0)), "channel": second(pd.NewChannel()), "queue": second(pd.NewCQ(1, nil)),
		"wait": ch.Wait(t.Context()), "queue pair": second(pd.NewQP(QPOptions{SendCQ: cq, RecvCQ: cq})),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	ch.Wake()
}

// TestVMForeignQueues mixes objects of two devices.
func TestVMForeignQueues(t *testing.T) {
	na, nb := names()
	a, b := newEnd(t, na, QPOptions{}, 4096, 0), newEnd(t, nb, QPOptions{}, 4096, 0)
	if _, err := a.pd.NewQP(QPOptions{SendCQ: a.send, RecvCQ: b.recv}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("queue pair with another device's queue: %v", err)
	}
	if _, err := a.pd.NewQP(QPOptions{SendCQ: a.send}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("queue pair with one queue: %v", err)
	}
	if _, err := a.pd.NewCQ(1, b.ch); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("queue with another device's channel: %v", err)
	}
	if _, err := a.pd.NewQP(QPOptions{SendCQ: a.send, RecvCQ: a.recv, MaxSend: 1 << 24}); err == nil {
		t.Error("a queue pair of 2^24 requests was made")
	}
}

// resources is what the kernel counts, of all processes.
func resources(t *testing.T) string {
	t.Helper()
	a, b := names()
	return output(t, "rdma", "resource", "show", a) + output(t, "rdma", "resource", "show", b)
}

// TestVMLeaks opens, uses and closes everything again and again.
func TestVMLeaks(t *testing.T) {
	before := resources(t)
	open := func() int { return len(must(os.ReadDir("/proc/self/fd"))(t)) }
	files := -1
	for i := range 20 {
		t.Run("", func(t *testing.T) {
			a, b := connected(t, 1<<16, QPOptions{})
			if i == 0 && !strings.Contains(resources(t), "qp ") {
				t.Error("rdma resource does not count")
			}
			if resources(t) == before {
				t.Errorf("nothing is counted: %s", before)
			}
			a.postRecv(RecvWR{ID: 1})
			b.post(SendWR{Op: OpSend, Flags: FlagSignalled})
			a.good(a.recv, 1)
			if i%2 == 0 { // an event that nobody fetched, and a completion that nobody polled
				_ = b.send.Arm()
				a.postRecv(RecvWR{ID: 2})
				b.post(SendWR{Op: OpSend, Flags: FlagSignalled})
				a.good(a.recv, 1)
			}
		})
		if i == 1 {
			files = open()
		}
	}
	if after := resources(t); after != before {
		t.Errorf("resources before:\n%safter:\n%s", before, after)
	}
	if now := open(); now != files {
		t.Errorf("%d open files, %d after two rounds", now, files)
	}
}

func TestVMNoAllocations(t *testing.T) {
	a, b := connected(t, 1<<16, QPOptions{})
	sends := []SendWR{
		{Op: OpWrite, RemoteAddr: a.mr.Info().Addr, RemoteKey: a.mr.Info().Remote, Local: one(b.segment(0, 4096))},
		{Op: OpSend, Flags: FlagSignalled, Local: one(b.segment(0, 32))},
	}
	recvs := []RecvWR{{Local: a.segment(8192, 64)}}
	var out [4]Completion
	got := testing.AllocsPerRun(50, func() {
		if _, err := a.qp.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		if err := a.recv.Arm(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.qp.PostSend(sends); err != nil {
			t.Fatal(err)
		}
		for done := 0; done < 2; {
			q, n, err := Spin(out[:], 1000, time.Millisecond, a.recv, b.send)
			if err != nil || n > 0 && out[0].Status != StatusOK {
				t.Fatal(q, out[0].Status, err)
			}
			done += n
		}
	})
	if got != 0 {
		t.Errorf("%v allocations a write and notice", got)
	}
}

// collecting collects garbage again and again until stop is called.
func collecting() (stop func()) {
	end := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				runtime.GC()
			}
		}
	})
	return func() {
		close(end)
		noise.Wait()
	}
}

// TestVMTogether uses one pair from many goroutines, beside garbage collections.
func TestVMTogether(t *testing.T) {
	const writers, each = 4, 50
	a, b := connected(t, 1<<16, QPOptions{MaxSend: writers * each, MaxRecv: depth})
	var wg sync.WaitGroup
	stop := collecting()
	defer stop()
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				at := (w*each + i) * 64
				fill(b.mem[at:at+64], uint64(at))
				b.post(SendWR{ID: uint64(at), Op: OpWrite, Flags: FlagSignalled, RemoteAddr: a.mr.Info().Addr + uint64(at),
					RemoteKey: a.mr.Info().Remote, Local: one(b.segment(at, 64))})
			}
		})
	}
	seen := map[uint64]bool{}
	var mu sync.Mutex
	for range 2 {
		wg.Go(func() {
			var out [8]Completion
			for deadline := time.Now().Add(long); time.Now().Before(deadline); {
				n, err := b.send.Poll(out[:])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, c := range out[:n] {
					if c.Status != StatusOK || seen[c.ID] {
						t.Errorf("completion %+v", c)
					}
					seen[c.ID] = true
				}
				all := len(seen) == writers*each
				mu.Unlock()
				if all {
					return
				}
			}
			t.Error("not all completed")
		})
	}
	wg.Wait()
	for at := 0; at < writers*each*64; at += 64 {
		if err := same(a.mem[at:at+64], uint64(at)); err != nil {
			t.Error(err)
		}
	}
}

// TestVMSteps says what making a connection costs, step by step.
func TestVMSteps(t *testing.T) {
	const ring = 64 << 20
	name, _ := names()
	begun := time.Now()
	step := func(what string) {
		t.Logf("%8.1f ms  %s", float64(time.Since(begun).Microseconds())/1e3, what)
		begun = time.Now()
	}
	p := must(Load(Options{}))(t)
	step("load the library")
	must(p.Devices())(t)
	step("list devices")
	d := must(p.Open(name))(t)
	step("open one")
	must(d.GIDs(1))(t)
	step("list its addresses")
	mem, unmap, err := Map(ring)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(mem); i += pageSize {
		mem[i] = 1
	}
	step("touch a ring of 64 MiB")
	pd := must(d.NewPD())(t)
	mr := must(pd.Register(mem, AccessLocalWrite|AccessRemoteWrite))(t)
	step("register it")
	cq := must(pd.NewCQ(128, nil))(t)
	qp := must(pd.NewQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxSend: 128, MaxRecv: 128}))(t)
	step("make a completion queue and a queue pair")
	for _, f := range []func() error{qp.Close, cq.Close, mr.Deregister, pd.Close, d.Close, unmap} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	step("close all")
}
