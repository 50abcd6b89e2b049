package prefill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

var errTest = errors.New("out of luck")

// quietTB is a testing.TB for what runs in a process of its own: its failures end
// the process.
type quietTB struct{ testing.TB }

func (quietTB) Helper() {}
func (quietTB) Fatal(args ...any) {
	fmt.Println(append([]any{"failed:"}, args...)...)
	os.Exit(1)
}
func (quietTB) Fatalf(format string, args ...any) {
	fmt.Printf("failed: "+format+"\n", args...)
	os.Exit(1)
}
func (quietTB) Cleanup(func())           {}
func (quietTB) Context() context.Context { return context.Background() }

// child is a process of the tests.
type child struct {
	tb   testing.TB
	cmd  *exec.Cmd
	said *bufio.Reader
}

// start runs this program again in a role, which says a line when it is ready.
func start(tb testing.TB, role string, env ...string) *child {
	tb.Helper()
	c := &child{tb: tb, cmd: exec.Command(os.Args[0], "-test.run=^$")}
	c.cmd.Env = append(os.Environ(), append(env, "PREFILL_TEST_ROLE="+role)...)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe() // its end is the child's end, whatever happens here
	must(tb, err)
	out, err := c.cmd.StdoutPipe()
	must(tb, err)
	must(tb, c.cmd.Start())
	c.said = bufio.NewReader(out)
	tb.Cleanup(func() {
		in.Close()
		c.kill()
	})
	return c
}

func (c *child) hear(want string) {
	c.tb.Helper()
	line, err := c.said.ReadString('\n')
	if strings.TrimSpace(line) != want {
		c.tb.Fatalf("the child said %q, %v; want %q", line, err, want)
	}
}

func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGKILL)
	c.cmd.Wait()
}

// play is what a child does until its input ends.
func play(role string) int {
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}()
	tb := quietTB{}
	switch role {
	case "holder":
		playHolder(tb)
	case "waiter":
		playWaiter(tb)
	case "sidecar":
		playSidecar(tb)
	default:
		return 2
	}
	return 0
}

// playHolder is a worker that has leases and dies with them. With CLOSE it closes
// its connection first and lives on.
func playHolder(tb testing.TB) {
	id, err := transport.ParseID(os.Getenv("TRANSFER"))
	must(tb, err)
	c := &client{tb: tb}
	must(tb, c.open(os.Getenv("SOCKET"), helloOf(0, 1, 1), nil))
	h, why, _, _ := c.begin(begin{Transfer: id, PromptTokens: 1000, Mode: modePieces, DType: dtypeBF16})
	if why != codeOK {
		tb.Fatalf("begin: %v", why)
	}
	for range 5 {
		if _, why := c.lease(h, 0, time.Second); why != codeOK {
			tb.Fatalf("lease: %v", why)
		}
	}
	if os.Getenv("CLOSE") != "" {
		c.conn.Close()
	}
	fmt.Println("ready")
	select {}
}

// TestKilledWorkerGivesItsLeasesBack: with kill -9, in the middle of leases.
func TestKilledWorkerGivesItsLeasesBack(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{waits: waits{back: 30 * time.Millisecond}})
	p := d.newPrompt(t, "p", 4)
	r := h.run(p)
	w := start(t, "holder", "SOCKET="+h.socket, "TRANSFER="+p.id.String())
	w.hear("ready")
	if n := h.Ring().InUse(); n != 5 {
		t.Errorf("%d slots in use, want 5", n)
	}
	w.kill()
	res := r.result()
	if r.err != nil || res.State != bridge.Partial || res.Blocks != 0 || !strings.Contains(res.Why, "the connection ended") || len(res.Reports) != 1 || res.Reports[0].Fault == "" {
		t.Errorf("%v, %+v", r.err, res)
	}
	eventually(t, "the leases are free", func() bool { return h.Ring().InUse() == 0 })
	eventually(t, "the worker is forgotten", func() bool { return h.count() == 0 })
}

// TestLeasesStayWithALivingProcess: a process that lost its connection may still
// write to its slots, so nobody else gets them.
func TestLeasesStayWithALivingProcess(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{waits: waits{back: 20 * time.Millisecond, orphan: 20 * time.Millisecond}})
	p := d.newPrompt(t, "p", 4)
	r := h.run(p)
	w := start(t, "holder", "CLOSE=1", "SOCKET="+h.socket, "TRANSFER="+p.id.String())
	w.hear("ready")
	r.result() // its part counts as ended
	time.Sleep(100 * time.Millisecond)
	if n := h.Ring().InUse(); n != 5 {
		t.Errorf("%d slots in use while their worker lives, want 5", n)
	}
	w.kill()
	eventually(t, "the leases are free", func() bool { return h.Ring().InUse() == 0 })
}

// restarted is the transfer of the restart tests, with the same blocks in both
// processes.
func restarted(tb testing.TB, d *decoder) *prompt {
	p := d.newPrompt(tb, "restart", 6)
	p.id = seqID(9)
	return p
}

// playSidecar is a sidecar whose receiver never makes a block durable, so that
// everything stays in the ring.
func playSidecar(tb testing.TB) {
	d := newDecoder(tb)
	p := restarted(tb, d)
	p.stock.gate = make(chan struct{})
	s, err := Listen(context.Background(), Options{Socket: os.Getenv("SOCKET"), Slots: 32, SlotSize: 64<<10 + transport.HeaderRoom, MemFloor: -1})
	must(tb, err)
	conn, err := d.link.With(mem.Options{Session: session.Options{SendRing: s.Ring()}}).Dial(context.Background(), "decoder")
	must(tb, err)
	t, err := s.Open(p.job(tb, conn))
	must(tb, err)
	fmt.Println("ready")
	t.Run(context.Background())
}

// TestRestartedSidecarFindsTheRing: the sidecar is killed while the ring has
// committed slots, a lease, and a lease whose COMMIT it never saw. The worker
// brings the ring to the next one, which sends all of it.
func TestRestartedSidecarFindsTheRing(t *testing.T) {
	socket := t.TempDir() + "/engine.sock"
	old := start(t, "sidecar", "SOCKET="+socket)
	old.hear("ready")
	d := newDecoder(t)
	p := restarted(t, d)
	who := helloOf(0, 1, 1)
	c := connect(t, socket, who)
	handle, _, arrays := c.beginPieces(p)
	for b := range 3 {
		c.put(p, handle, headRuns(b, arrays, 0, 1)...)
	}
	state := func(slot uint32) uint32 { return u32(c.mem[pageSize+int(slot)*recordSize:]) }
	eventually(t, "three slots are taken", func() bool {
		n := 0
		for i := range c.ring.Slots {
			if state(i) == stateTaken {
				n++
			}
		}
		return n == 3
	})
	var held []leased
	for range 3 {
		l, why := c.lease(handle, 3, time.Second)
		if why != codeOK {
			t.Fatal(why)
		}
		held = append(held, l)
	}
	lost := c.filled(p, held[0], headRuns(3, arrays, 0, 1)...) // the sidecar dies before it hears of it
	old.kill()

	// The worker tries until the next one listens, which waits for it.
	next := &client{tb: t, last: 40}
	t.Cleanup(next.close)
	came := make(chan error, 1)
	go func() {
		var err error
		for range 100 {
			if err = next.open(socket, who, c.file); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		came <- err
	}()
	h := newHost(t, d, Options{Socket: socket, Reclaim: 10 * time.Second})
	must(t, <-came)
	if !next.kept || next.ring.Ring != c.ring.Ring {
		t.Fatal("the ring was not taken over")
	}
	if ids := h.Recovered(); len(ids) != 1 || ids[0] != p.id {
		t.Errorf("recovered %v", ids)
	}
	if n := h.Ring().InUse(); n != 6 {
		t.Errorf("%d slots in use, want 3 that were committed and 3 leases", n)
	}
	for i, l := range append(held, leased{Slot: held[0].Slot, Generation: held[0].Generation + 1}) {
		next.say(typeReclaim, 0, &reclaim{Transfer: p.id, Seq: uint64(i), Slot: l.Slot, Generation: l.Generation})
		m := next.hear(typeLeased)
		if want := []code{codeOK, codeOK, codeOK, codeStale}[i]; m.code != want {
			t.Errorf("reclaim %d: %v, want %v", i, m.code, want)
		}
	}
	r := h.run(p)
	handle, _, arrays = next.beginPieces(p)
	next.say(typeCommit, handle, &lost)
	cm := next.filled(p, held[1], headRuns(4, arrays, 0, 1)...)
	next.say(typeCommit, handle, &cm)
	next.say(typeReturn, 0, &commit{Slot: held[2].Slot, Generation: held[2].Generation})
	next.put(p, handle, headRuns(5, arrays, 0, 1)...)
	next.end(handle, p.tokens())
	res := r.result()
	if r.err != nil || res.State != bridge.Complete || res.Recovered != 3 {
		t.Errorf("%v, %+v", r.err, res)
	}
	p.stock.equal(t, p.blocks, 6)
}

// TestNobodyComesBack: what a restarted sidecar found and nobody asks for is freed.
func TestNobodyComesBack(t *testing.T) {
	socket := t.TempDir() + "/engine.sock"
	old := start(t, "sidecar", "SOCKET="+socket)
	old.hear("ready")
	d := newDecoder(t)
	p := restarted(t, d)
	c := connect(t, socket, helloOf(0, 1, 1))
	handle, _, arrays := c.beginPieces(p)
	c.put(p, handle, headRuns(0, arrays, 0, 1)...)
	if _, why := c.lease(handle, 1, time.Second); why != codeOK {
		t.Fatal(why)
	}
	eventually(t, "the slot is taken", func() bool {
		for i := range int(c.ring.Slots) {
			if u32(c.mem[pageSize+i*recordSize:]) == stateTaken {
				return true
			}
		}
		return false
	})
	old.kill()
	came := make(chan *client, 1)
	go func() {
		next := &client{tb: t}
		for range 100 {
			if next.open(socket, helloOf(0, 1, 1), c.file) == nil { // another process of the same engine
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		came <- next
	}()
	h := newHost(t, d, Options{Socket: socket, Reclaim: 10 * time.Second, waits: waits{orphan: 50 * time.Millisecond}})
	next := <-came
	defer next.close()
	eventually(t, "the slots are free", func() bool { return h.Ring().InUse() == 0 })
	if ids := h.Recovered(); len(ids) != 0 {
		t.Errorf("recovered %v", ids)
	}
	for i := range h.geometry.slots {
		if s := h.table.record(i).state(); s != stateFree {
			t.Errorf("slot %d has state %d", i, s)
		}
	}
}

// TestWorkerComesBackToTheSameSidecar: a broken connection costs nothing where both
// processes live, also when the worker is faster than the news of it.
func TestWorkerComesBackToTheSameSidecar(t *testing.T) {
	for _, closed := range []bool{true, false} {
		comeBack(t, closed)
	}
}

func comeBack(t *testing.T, closed bool) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	p := d.newPrompt(t, "p", 2)
	r := h.run(p)
	who := helloOf(0, 1, 1)
	c := connect(t, h.socket, who)
	handle, _, arrays := c.beginPieces(p)
	c.put(p, handle, headRuns(0, arrays, 0, 1)...)
	l, why := c.lease(handle, 1, time.Second)
	if why != codeOK {
		t.Fatal(why)
	}
	cm := c.filled(p, l, headRuns(1, arrays, 0, 1)...)
	if closed {
		c.conn.Close()
		eventually(t, "the connection is gone", func() bool { return h.count() == 0 })
	}
	stranger := connect(t, h.socket, helloOf(0, 1, 1))
	stranger.say(typeReclaim, 0, &reclaim{Transfer: p.id, Seq: 1, Slot: l.Slot, Generation: l.Generation})
	if m := stranger.hear(typeLeased); m.code != codeStale {
		t.Errorf("another process reclaimed the lease: %v", m.code)
	}
	stranger.close()
	eventually(t, "the stranger is gone", func() bool { return h.count() < 2 && (!closed || h.count() == 0) })
	next := &client{tb: t}
	must(t, next.open(h.socket, who, c.file))
	if n := h.count(); n != 1 {
		t.Errorf("%d workers", n)
	}
	t.Cleanup(next.close)
	if !next.kept {
		t.Fatal("the ring is the same")
	}
	next.say(typeReclaim, 0, &reclaim{Transfer: p.id, Seq: 1, Slot: l.Slot, Generation: l.Generation})
	if m := next.hear(typeLeased); m.code != codeOK {
		t.Fatal(m.code)
	}
	handle, _, _ = next.beginPieces(p)
	next.say(typeCommit, handle, &cm)
	next.end(handle, p.tokens())
	if res := r.result(); res.State != bridge.Complete || res.Why != "" {
		t.Errorf("%+v", res)
	}
	p.stock.equal(t, p.blocks, 2)
}
