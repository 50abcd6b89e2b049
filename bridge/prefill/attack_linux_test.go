package prefill

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/bridge"
	"pdlink/transport"
)

// openFiles is how many files this process has open.
func openFiles(tb testing.TB) int {
	tb.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(tb, err)
	return len(names)
}

// settled waits until as many files are open as before.
func settled(tb testing.TB, before int) {
	tb.Helper()
	eventually(tb, fmt.Sprintf("%d files are open", before), func() bool { return openFiles(tb) <= before })
}

// unsealed is memory of a size that anybody may change.
func unsealed(tb testing.TB, size int) *os.File {
	tb.Helper()
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(tb, err)
	f := os.NewFile(uintptr(fd), "unsealed")
	must(tb, f.Truncate(int64(size)))
	tb.Cleanup(func() { f.Close() })
	return f
}

// strange are files that are no ring of this size.
func strange(t *testing.T, size int) map[string]*os.File {
	t.Helper()
	half := unsealed(t, size)
	_, err := unix.FcntlInt(half.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	must(t, err)
	small := unsealed(t, size-1)
	_, err = unix.FcntlInt(small.Fd(), unix.F_ADD_SEALS, seals)
	must(t, err)
	readOnly := unsealed(t, size)
	_, err = unix.FcntlInt(readOnly.Fd(), unix.F_ADD_SEALS, seals|unix.F_SEAL_WRITE)
	must(t, err)
	dir, err := os.Open(t.TempDir())
	must(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() {
		for _, f := range []*os.File{dir, null, r, w} {
			f.Close()
		}
	})
	return map[string]*os.File{
		"not sealed": unsealed(t, size), "may shrink": half, "too small": small, "not to be written": readOnly,
		"directory": dir, "device": null, "pipe": r,
	}
}

// TestStrangeRings: a sidecar that waits for its ring takes none of them and makes its
// own, one that has a ring goes on with it, and neither keeps what it was given.
func TestStrangeRings(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	files := strange(t, h.geometry.size())
	before := openFiles(t)
	for name, f := range files {
		c := &client{tb: t}
		must(t, c.open(h.socket, helloOf(0, 1, 1), f))
		if c.kept || c.ring.Ring != h.table.id {
			t.Errorf("%s: kept %v, ring %v", name, c.kept, c.ring.Ring)
		}
		c.close()
		if _, _, err := mapMemory(f, h.geometry.size()); err == nil {
			t.Errorf("%s: it can be mapped", name)
		}
	}
	settled(t, before)
}

// TestStrangeRingsAfterARestart: as above, as the first things that a new sidecar is
// brought. It waits on for the one that it left behind.
func TestStrangeRingsAfterARestart(t *testing.T) {
	d := newDecoder(t)
	old := newHost(t, d, Options{})
	good := connect(t, old.socket, helloOf(0, 1, 1))
	must(t, old.conn.Close())
	must(t, old.Close()) // the worker is there, so the name stays
	told, came := &faults{}, make(chan *Server, 1)
	go func() {
		s, err := Listen(t.Context(), Options{
			Socket: old.socket, Slots: old.o.Slots, SlotSize: old.o.SlotSize, MemFloor: -1, Reclaim: time.Minute, OnFault: told.add,
		})
		if err != nil {
			t.Error(err)
		}
		came <- s
	}()
	var others []*client
	for name, f := range strange(t, old.geometry.size()) {
		c := &client{tb: t}
		eventually(t, "the new one listens", func() bool {
			var err error
			c.conn, err = dialSocket(old.socket)
			return err == nil
		})
		t.Cleanup(c.close)
		others = append(others, c)
		hi := helloOf(0, 1, 1)
		m := pack(typeHello, flagRing, 0, &hi)
		must(t, send(c.conn, m.appendTo(nil), f))
		eventually(t, name+": the fault is told", func() bool {
			told.mu.Lock()
			defer told.mu.Unlock()
			return len(told.list) == len(others) && strings.Contains(told.list[len(others)-1].Error(), "brought a ring")
		})
	}
	c := &client{tb: t}
	must(t, c.open(old.socket, helloOf(0, 1, 1), good.file))
	defer c.close()
	s := <-came
	if s == nil {
		t.FailNow()
	}
	if !c.kept || c.ring.Ring != good.ring.Ring {
		t.Error("the ring was not taken over")
	}
	for _, o := range others {
		m := o.hear(typeWelcome)
		if o.ring.get(&m.body); m.code&flagRing != 0 || o.ring.Ring != c.ring.Ring {
			t.Errorf("flags %d, ring %v", m.code, o.ring.Ring)
		}
	}
	must(t, s.Close())
}

// TestFloodOfFiles: however many come with a packet, at whatever moment, and whatever
// the packet says, none stays open.
func TestFloodOfFiles(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	hi := helloOf(0, 1, 1)
	hello := pack(typeHello, flagRing, 0, &hi)
	facts := pack(typeFacts, 0, 0, &factsBody{Size: 100, Form: factsForm})
	lease := pack(typeLease, 0, 1, &lease{})
	before := openFiles(t)
	for name, x := range map[string]struct {
		p     []byte
		after bool // an introduction
	}{
		"hello": {hello.appendTo(nil), false}, "nonsense": {[]byte("x"), false}, "facts": {facts.appendTo(nil), true},
		"lease": {lease.appendTo(nil), true}, "long": {bytes.Repeat([]byte("x"), 999), true},
	} {
		for _, n := range []int{2, 12, 13, 253} { // what the sidecar has room for is 12, what the kernel takes is 253
			c := &client{tb: t}
			if x.after {
				must(t, c.open(h.socket, helloOf(0, 1, 1), nil))
			} else if c.conn, err = dialSocket(h.socket); err != nil {
				t.Fatal(err)
			}
			fds := make([]int, n)
			for i := range fds {
				fds[i] = int(null.Fd())
			}
			for range 3 { // the last ones come when the first was refused
				_, _, err := c.conn.WriteMsgUnix(x.p, unix.UnixRights(fds...), nil)
				if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ETOOMANYREFS) {
					t.Fatalf("%s, %d files: %v", name, n, err)
				}
			}
			must(t, c.conn.SetReadDeadline(time.Now().Add(30*time.Second)))
			for { // it is refused, or its end is seen
				if got, files, err := receive(c.conn, make([]byte, messageSize)); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("%s, %d files: the connection goes on", name, n)
				} else if got == 0 || err != nil || len(files) > 0 {
					break
				}
			}
			c.close()
		}
	}
	settled(t, before)
	p := d.newPrompt(t, "after", 1)
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, _, arrays := c.beginPieces(p)
	c.put(p, handle, headRuns(0, arrays, 0, 1)...)
	c.end(handle, 21)
	if res := r.result(); res.Blocks != 1 {
		t.Errorf("%+v", res)
	}
}

// TestStrangeFacts: a document comes as a file, which is not waited for and not believed.
func TestStrangeFacts(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	files := strange(t, 4096)
	before := openFiles(t)
	for name, f := range files {
		c := &client{tb: t}
		must(t, c.open(h.socket, helloOf(0, 1, 1), nil))
		m := pack(typeFacts, 0, 0, &factsBody{Size: 4096, Form: factsForm})
		must(t, send(c.conn, m.appendTo(nil), f))
		if m := c.hear(typeRefuse); m.code != codeInvalid {
			t.Errorf("%s: %v", name, m.code)
		}
		c.close()
	}
	settled(t, before)
	eventually(t, "the workers are gone", func() bool { return h.count() == 0 })
}

// TestKilledWhileItWaits: kill -9 of a worker whose LEASE has not been answered, because
// another one has all slots: the next slot is not given to a ghost.
func TestKilledWhileItWaits(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 8, LeaseWait: maxLeaseWait, waits: waits{back: 30 * time.Millisecond}})
	var rich []*client
	var held []leased
	var runs []*running
	for i := range 4 { // a request has at most a quarter of the slots
		p := d.newPrompt(t, fmt.Sprint(i), 2)
		runs = append(runs, h.run(p))
		c := connect(t, h.socket, helloOf(0, 1, 1))
		handle, _, _ := c.beginPieces(p)
		for range 2 {
			l, why := c.lease(handle, 0, time.Second)
			if why != codeOK {
				t.Fatal(why)
			}
			rich, held = append(rich, c), append(held, l)
		}
	}
	p := d.newPrompt(t, "poor", 2)
	r := h.run(p)
	w := start(t, "waiter", "SOCKET="+h.socket, "TRANSFER="+p.id.String())
	w.hear("ready")
	var poor *worker
	eventually(t, "the lease waits", func() bool {
		h.mu.Lock()
		all := slices.Collect(maps.Keys(h.workers))
		h.mu.Unlock()
		for _, x := range all {
			x.mu.Lock()
			for _, q := range x.requests {
				if q.t == r.Transfer && q.asked > 0 {
					poor = x
				}
			}
			x.mu.Unlock()
		}
		return poor != nil
	})
	w.kill()
	if res := r.result(); res.State != bridge.Partial || res.Blocks != 0 || !strings.Contains(res.Why, "the connection ended") {
		t.Errorf("%v, %+v", r.err, res)
	}
	<-poor.left
	if n := len(poor.held); n != 0 {
		t.Errorf("the dead has %d slots", n)
	}
	for i, c := range rich {
		c.say(typeReturn, 0, &commit{Slot: held[i].Slot, Generation: held[i].Generation})
	}
	eventually(t, "every slot is free", func() bool { return h.Ring().InUse() == 0 })
	for _, r := range runs {
		r.Cancel("enough")
		r.result()
	}
}

// playWaiter is a worker that asks for a slot that it does not get.
func playWaiter(tb testing.TB) {
	id, err := transport.ParseID(os.Getenv("TRANSFER"))
	must(tb, err)
	c := &client{tb: tb}
	must(tb, c.open(os.Getenv("SOCKET"), helloOf(0, 1, 1), nil))
	handle, why, _, _ := c.begin(begin{Transfer: id, PromptTokens: 1000, Mode: modePieces, DType: dtypeBF16})
	if why != codeOK {
		tb.Fatalf("begin: %v", why)
	}
	c.say(typeLease, handle, &lease{Seq: 1, WaitMS: uint32(maxLeaseWait.Milliseconds())})
	fmt.Println("ready")
	select {}
}

// TestManyWorkers: one too many is told so, costs no queues, and finds room when another
// one has gone.
func TestManyWorkers(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 2, SlotSize: minSlot})
	workers := make([]*client, maxWorkers)
	for i := range workers {
		workers[i] = connect(t, h.socket, helloOf(0, 1, 1))
	}
	before := openFiles(t)
	refused := func() {
		conn, err := dialSocket(h.socket)
		must(t, err)
		c := &client{tb: t, conn: conn}
		hi := helloOf(0, 1, 1)
		m := pack(typeHello, 0, 0, &hi)
		must(t, send(conn, m.appendTo(nil), nil))
		if m := c.hear(typeRefuse); m.code != codeBusy {
			t.Errorf("refused with %v", m.code)
		}
		c.close()
	}
	const floods = 100
	refused()
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	for range floods {
		refused()
	}
	runtime.ReadMemStats(&b)
	if each := (b.TotalAlloc - a.TotalAlloc) / floods; each > 64<<10 {
		t.Errorf("each costs %d bytes", each)
	}
	settled(t, before)
	workers[7].close()
	c := &client{tb: t}
	eventually(t, "there is room for one", func() bool {
		err := c.open(h.socket, helloOf(0, 1, 1), nil)
		if err != nil {
			c.close()
		}
		return err == nil
	})
	c.close()
}
