//go:build rdmavm

package verbs

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The tests with this tag run in the machine of rdma/vmtest, on two real devices.

// long bounds every wait; nothing that works takes a hundredth of it.
const long = 30 * time.Second

func closed(t *testing.T, what string, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Errorf("close %s: %v", what, err)
	}
}

func openNode(t *testing.T, name string) Device {
	t.Helper()
	d := must(must(Load(Options{}))(t).Open(name))(t)
	t.Cleanup(func() { closed(t, name, d.Close) })
	return d
}

func names() (a, b string) { return os.Getenv("RDMA_A"), os.Getenv("RDMA_B") }

// end is one end of a connection with all that it needs.
type end struct {
	t    *testing.T
	dev  Device
	pd   PD
	ch   Channel
	send CQ
	recv CQ
	qp   QP
	mem  []byte
	mr   MR
	gid  GIDEntry
	port PortAttr
}

const depth = 64

func newEnd(t *testing.T, name string, o QPOptions, size int, access Access) *end {
	t.Helper()
	e := &end{t: t, dev: openNode(t, name)}
	e.pd = must(e.dev.NewPD())(t)
	t.Cleanup(func() { closed(t, "domain", e.pd.Close) })
	e.ch = must(e.pd.NewChannel())(t)
	t.Cleanup(func() { closed(t, "channel", e.ch.Close) })
	room := max(2*depth, o.MaxSend, o.MaxRecv)
	e.send = must(e.pd.NewCQ(room, e.ch))(t)
	t.Cleanup(func() { closed(t, "send queue", e.send.Close) })
	e.recv = must(e.pd.NewCQ(room, e.ch))(t)
	t.Cleanup(func() { closed(t, "receive queue", e.recv.Close) })
	mem, unmap, err := Map(size)
	if err != nil {
		t.Fatal(err)
	}
	e.mem = mem
	t.Cleanup(func() { closed(t, "memory", unmap) })
	e.mr = must(e.pd.Register(mem, access))(t)
	t.Cleanup(func() { closed(t, "registration", e.mr.Deregister) })
	e.port = must(e.dev.Port(1))(t)
	e.gid = roce(t, e.dev)
	e.newQP(o)
	return e
}

func (e *end) newQP(o QPOptions) {
	e.t.Helper()
	o.SendCQ, o.RecvCQ = e.send, e.recv
	if o.MaxSend == 0 {
		o.MaxSend, o.MaxRecv, o.SendSegments = depth, depth, 2
	}
	e.qp = must(e.pd.NewQP(o))(e.t)
	qp := e.qp
	e.t.Cleanup(func() { closed(e.t, "queue pair", qp.Close) })
}

// roce is the GID of RoCE v2 that maps an IPv4 address.
func roce(t *testing.T, d Device) GIDEntry {
	t.Helper()
	for _, g := range must(d.GIDs(1))(t) {
		if g.Kind == GIDRoCEv2 && g.GID.Addr().Is4() {
			return g
		}
	}
	t.Fatal("no GID of RoCE v2 with an IPv4 address")
	return GIDEntry{}
}

func (e *end) attr(peer *end) QPAttr {
	return QPAttr{
		Port: 1, Access: AccessRemoteWrite | AccessRemoteRead, PathMTU: min(e.port.ActiveMTU, peer.port.ActiveMTU),
		RemoteQP: peer.qp.Info().Number, RemotePSN: peer.qp.Info().Number & 0xfff, LocalPSN: e.qp.Info().Number & 0xfff,
		RemoteGID: peer.gid.GID, GIDIndex: uint8(e.gid.Index), HopLimit: 64, MaxReadIn: 1, MaxReadOut: 1,
		MinRNRTimer: 12, Timeout: 14, Retries: 7, RNRRetries: 6,
	}
}

func (e *end) move(peer *end, states ...QPState) {
	e.t.Helper()
	for _, s := range states {
		if err := e.qp.Modify(s, e.attr(peer)); err != nil {
			e.t.Fatal(err)
		}
	}
}

// connected is a pair of ends, ready to send, each with its memory.
func connected(t *testing.T, size int, o QPOptions) (a, b *end) {
	t.Helper()
	const access = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead
	na, nb := names()
	a, b = newEnd(t, na, o, size, access), newEnd(t, nb, o, size, access)
	a.move(b, StateInit, StateRTR, StateRTS)
	b.move(a, StateInit, StateRTR, StateRTS)
	return a, b
}

// segment is a range of the end's memory.
func (e *end) segment(from, size int) Segment {
	return Segment{Addr: e.mr.Info().Addr + uint64(from), Length: uint32(size), Key: e.mr.Info().Local}
}

// one is a list of one segment.
func one(s Segment) [MaxSegments]Segment { return [MaxSegments]Segment{s} }

// next waits for completions of a queue, in the netpoller when there are none.
func (e *end) next(q CQ, out []Completion) []Completion {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), long)
	defer cancel()
	for {
		for range 2 { // again after arming: what came before gives no event
			if n := must(q.Poll(out))(e.t); n > 0 {
				return out[:n]
			}
			if err := q.Arm(); err != nil {
				e.t.Fatal(err)
			}
		}
		if err := e.ch.Wait(ctx); err != nil {
			e.t.Fatalf("wait for a completion: %v", err)
		}
	}
}

// good waits for n completions, all of them successes.
func (e *end) good(q CQ, n int) []Completion {
	e.t.Helper()
	var all []Completion
	var out [8]Completion
	for len(all) < n {
		for _, c := range e.next(q, out[:]) {
			if err := c.Err(); err != nil {
				e.t.Fatal(err)
			}
			all = append(all, c)
		}
	}
	return all
}

func (e *end) post(list ...SendWR) {
	e.t.Helper()
	if n, err := e.qp.PostSend(list); n != len(list) || err != nil {
		e.t.Fatalf("posted %d of %d: %v", n, len(list), err)
	}
}

func (e *end) postRecv(list ...RecvWR) {
	e.t.Helper()
	if n, err := e.qp.PostRecv(list); n != len(list) || err != nil {
		e.t.Fatalf("posted %d of %d receives: %v", n, len(list), err)
	}
}

// fill writes a pattern of its own for each seed; same compares with it.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 | 1
	for ; len(b) >= 8; b = b[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
	}
}

func same(b []byte, seed uint64) error {
	x := seed*0x9e3779b97f4a7c15 | 1
	for i := 0; len(b)-i >= 8; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		if got := binary.LittleEndian.Uint64(b[i:]); got != x {
			return fmt.Errorf("pattern %d differs at byte %d: %#x, want %#x", seed, i, got, x)
		}
	}
	return nil
}

// output runs a program of the machine.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
