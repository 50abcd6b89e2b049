package prefill

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
)

// TestSlowReceiverSealsTheTransfer: when no slot becomes free the worker is told
// within its bound, the transfer is cut there, and what is whole is used.
func TestSlowReceiverSealsTheTransfer(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 4, LeaseWait: 80 * time.Millisecond})
	p := d.newPrompt(t, "p", 8)
	p.stock.gate = make(chan struct{})
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 2, 2))
	other := connect(t, h.socket, helloOf(1, 2, 2))
	handle, _, arrays := c.beginPieces(p)
	idle, _, _ := other.beginPieces(p)
	for b := range 4 {
		c.put(p, handle, headRuns(b, arrays, 0, 1)...)
	}
	for _, wait := range []time.Duration{30 * time.Millisecond, time.Hour} {
		begin := time.Now()
		l, why := c.lease(handle, 4, wait)
		took := time.Since(begin)
		if why != codeLate || l.Sealed != 4 {
			t.Fatalf("%v, %+v", why, l)
		}
		if wait == time.Hour {
			wait = 0 // it is sealed there now, so nothing is waited for
		}
		if took < wait || took > time.Minute {
			t.Errorf("answered after %v, want %v", took, wait)
		}
	}
	// Earlier blocks are still wanted, and each miss cuts further back.
	begin := time.Now()
	if l, why := c.lease(handle, 3, time.Hour); why != codeLate || l.Sealed != 3 {
		t.Fatalf("%v, %+v", why, l)
	}
	if took := time.Since(begin); took < 80*time.Millisecond || took > time.Minute {
		t.Errorf("answered after %v, want the sidecar's bound of 80 ms", took)
	}
	for _, want := range []sealed{4, 3} {
		m := other.hear(typeSealed)
		var got sealed
		if got.get(&m.body); got != want || m.code != codeLate || m.handle != idle {
			t.Errorf("the other worker was told %d, %v; want %d", got, m.code, want)
		}
	}
	close(p.stock.gate)
	c.end(handle, 64)
	other.end(idle, 64)
	res := r.result()
	if r.err != nil || res.State != bridge.Partial || res.Blocks != 4 || res.Sealed != 3 || res.Why != "sealed at block 4: no slot became free in time" {
		t.Errorf("%v, %+v", r.err, res)
	}
	p.stock.equal(t, p.blocks, 4)
}

// TestAWorkerThatDoesNotWait: with no time at all a free slot is still had.
func TestAWorkerThatDoesNotWait(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{LeaseWait: -1})
	p := d.newPrompt(t, "p", 1)
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, _, arrays := c.beginPieces(p)
	l, why := c.lease(handle, 0, 0)
	if why != codeOK {
		t.Fatal(why)
	}
	cm := c.filled(p, l, headRuns(0, arrays, 0, 1)...)
	c.say(typeCommit, handle, &cm)
	c.end(handle, 21)
	if res := r.result(); res.State != bridge.Complete {
		t.Errorf("%+v", res)
	}
}

// TestMemoryFloor: when the host runs short, nothing more is taken on, and what is
// whole before that is used.
func TestMemoryFloor(t *testing.T) {
	info := filepath.Join(t.TempDir(), "meminfo")
	write := func(text string) { must(t, os.WriteFile(info, []byte(text), 0o600)) }
	write("MemTotal: 9000 kB\nMemAvailable: 4096 kB\n")
	d := newDecoder(t)
	h := newHost(t, d, Options{MemInfo: info, MemFloor: 2 << 20})
	p := d.newPrompt(t, "p", 4)
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, _, arrays := c.beginPieces(p)
	c.put(p, handle, headRuns(0, arrays, 0, 1)...)
	c.put(p, handle, headRuns(1, arrays, 0, 1)...)
	held, why := c.lease(handle, 2, time.Second)
	if why != codeOK {
		t.Fatal(why)
	}
	write("MemTotal: 9000 kB\nMemAvailable: 2047 kB\n")
	time.Sleep(memInfoAge + 20*time.Millisecond)
	l, why := c.lease(handle, 3, time.Second)
	if why != codeMemory || l.Sealed != 3 {
		t.Fatalf("%v, %+v", why, l)
	}
	// What was leased before is still taken.
	cm := c.filled(p, held, headRuns(2, arrays, 0, 1)...)
	c.say(typeCommit, handle, &cm)
	c.end(handle, 48)
	res := r.result()
	if res.State != bridge.Partial || res.Blocks != 3 || res.Sealed != 3 || !strings.Contains(res.Why, "free memory is below the floor") {
		t.Errorf("%+v", res)
	}
	p.stock.equal(t, p.blocks, 3)
	q := d.newPrompt(t, "q2", 1)
	next := h.run(q)
	if _, why, _, _ := c.begin(begin{Transfer: q.id, PromptTokens: 21, Mode: modePieces, DType: dtypeBF16}); why != codeMemory {
		t.Errorf("begun at low memory: %v", why)
	}
	next.Cancel("enough")
	next.result()
}

// TestLeasesOutliveTheirRequest: a device may still write to a slot when its request
// ends, so it is the worker that gives it back.
func TestLeasesOutliveTheirRequest(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	for _, last := range []msgType{typeEnd, typeAbort} {
		p := d.newPrompt(t, "p", 1)
		r := h.run(p)
		c := connect(t, h.socket, helloOf(0, 1, 1))
		handle, _, _ := c.beginPieces(p)
		l, why := c.lease(handle, 0, time.Second)
		if why != codeOK {
			t.Fatal(why)
		}
		c.say(last, handle, nil)
		r.result()
		if n := h.Ring().InUse(); n != 1 {
			t.Errorf("%d slots in use, want the lease", n)
		}
		c.say(typeReturn, handle, &commit{Slot: l.Slot, Generation: l.Generation})
		eventually(t, "the slot is free", func() bool { return h.Ring().InUse() == 0 })
	}
}

// TestRowsLeaveRoom: rows wait for slots of what is made of them, so all of them
// together get half of the ring.
func TestRowsLeaveRoom(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 8, LeaseWait: 30 * time.Millisecond})
	p := d.newPrompt(t, "p", 2)
	r := h.run(p)
	got := 0
	for range 3 {
		c := connect(t, h.socket, helloOf(0, 1, 3))
		handle, why, g, _ := c.begin(begin{Transfer: p.id, PromptTokens: 37, Mode: modeRows, DType: dtypeBF16, RowBytes: 4 * 32 * 2})
		if why != codeOK || g.MaxLeases != 2 {
			t.Fatalf("%v, %+v", why, g)
		}
		for range g.MaxLeases {
			switch _, why := c.lease(handle, 0, time.Second); {
			case why == codeOK:
				got++
			case why != codeLate:
				t.Error(why)
			}
		}
	}
	if got != 4 {
		t.Errorf("%d slots of 8 for rows, want 4", got)
	}
	r.Cancel("enough")
	r.result()
}

// TestLeaseLimit: one request cannot take the whole ring.
func TestLeaseLimit(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 12})
	p := d.newPrompt(t, "p", 4)
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, g, _ := c.beginPieces(p)
	if g.MaxLeases != 3 {
		t.Fatalf("%d leases", g.MaxLeases)
	}
	var got []leased
	for range 3 {
		l, why := c.lease(handle, 0, time.Second)
		if why != codeOK {
			t.Fatal(why)
		}
		got = append(got, l)
	}
	c.say(typeReturn, handle, &commit{Slot: got[1].Slot, Generation: got[1].Generation})
	if _, why := c.lease(handle, 0, time.Second); why != codeOK {
		t.Errorf("after one was returned: %v", why)
	}
	c.say(typeLease, handle, &lease{Seq: 9})
	if m := c.hear(typeRefuse); m.code != codeInvalid {
		t.Errorf("a fourth: %v", m.code)
	}
	r.Cancel("enough")
	r.result()
	c.close() // this process lives on, so the leases stay with it
	if n := h.Ring().InUse(); n != 3 {
		t.Errorf("%d slots in use, want 3", n)
	}
}
