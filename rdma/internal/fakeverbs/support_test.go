package fakeverbs

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/rdma/internal/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end is one host with a domain, a region and the means to make queue pairs.
type end struct {
	tb   testing.TB
	h    *Host
	dev  verbs.Device
	pd   verbs.PD
	mem  []byte
	mr   verbs.MRInfo
	undo []func() error // in reverse
}

const memSize = 64 << 10

// bed is two hosts of one personality.
type bed struct {
	net  Net
	a, b *end
}

// newBed makes two ends that end with the test.
func newBed(tb testing.TB, p Personality) *bed {
	tb.Helper()
	b := &bed{}
	for i, to := range []**end{&b.a, &b.b} {
		h := b.net.Host(fmt.Sprintf("h%d", i), p, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 0)
		*to = newEnd(tb, h)
	}
	tb.Cleanup(func() {
		b.a.close()
		b.b.close()
		for _, e := range []*end{b.a, b.b} {
			c := e.h.Counts()
			if c.Writes, c.Sends, c.Reads, c.Immediates = 0, 0, 0, 0; c != (Counts{}) {
				tb.Errorf("objects are left: %+v", c)
			}
		}
	})
	return b
}

func newEnd(tb testing.TB, h *Host) *end {
	tb.Helper()
	e := &end{tb: tb, h: h}
	var err error
	if e.dev, err = h.Open(h.Device()); err != nil {
		tb.Fatal(err)
	}
	e.undo = append(e.undo, e.dev.Close)
	if e.pd, err = e.dev.NewPD(); err != nil {
		tb.Fatal(err)
	}
	e.undo = append(e.undo, e.pd.Close)
	mem, unmap, err := verbs.Map(memSize)
	if err != nil {
		tb.Fatal(err)
	}
	mr, err := e.pd.Register(mem, remoteAccess)
	if err != nil {
		tb.Fatal(err)
	}
	e.mem, e.mr = mem, mr.Info()
	e.undo = append(e.undo, unmap, mr.Deregister)
	return e
}

// close takes everything down, newest first; what is busy is tried again.
func (e *end) close() {
	for i := len(e.undo) - 1; i >= 0; i-- {
		err := e.undo[i]()
		for range 100 {
			if !errors.Is(err, verbs.ErrBusy) {
				break
			}
			time.Sleep(time.Millisecond)
			err = e.undo[i]()
		}
		if err != nil {
			e.tb.Errorf("tear down %d: %v", i, err)
		}
	}
	e.undo = nil
}

// segment is bytes from of the end's memory.
func (e *end) segment(from, n int) [verbs.MaxSegments]verbs.Segment {
	return [verbs.MaxSegments]verbs.Segment{{Addr: e.mr.Addr + uint64(from), Length: uint32(n), Key: e.mr.Local}}
}

// pairOf makes a queue pair with queues of its own.
func (e *end) pairOf(o verbs.QPOptions) (verbs.QP, verbs.CQ, verbs.CQ, error) {
	if o.MaxSend == 0 {
		o.MaxSend, o.MaxRecv = 8, 8
	}
	send, err := e.pd.NewCQ(min(o.MaxSend, 31), nil)
	if err != nil {
		return nil, nil, nil, err
	}
	e.undo = append(e.undo, send.Close)
	recv, err := e.pd.NewCQ(min(o.MaxRecv, 31), nil)
	if err != nil {
		return nil, nil, nil, err
	}
	e.undo = append(e.undo, recv.Close)
	o.SendCQ, o.RecvCQ = send, recv
	q, err := e.pd.NewQP(o)
	if err != nil {
		return nil, nil, nil, err
	}
	e.undo = append(e.undo, func() error {
		q.Modify(verbs.StateReset, verbs.QPAttr{})
		return q.Close()
	})
	return q, send, recv, nil
}

// wire is two connected queue pairs.
type wires struct {
	a, b         verbs.QP
	sendA, recvB verbs.CQ
}

// attr is what the walk of an end's queue pair to RTS needs.
func (e *end) attr(access verbs.Access, to verbs.QP, peer *end) verbs.QPAttr {
	reads := uint8(min(e.h.p.MaxRead, 1))
	return verbs.QPAttr{
		Port: 1, Access: access, PathMTU: verbs.MTU1024, RemoteQP: to.Info().Number, RemoteGID: peer.h.gid.GID,
		GIDIndex: uint8(e.h.gid.Index), HopLimit: 64, MaxReadIn: reads, MaxReadOut: reads, MinRNRTimer: 12, Timeout: 4, Retries: 2, RNRRetries: 7,
	}
}

// connect makes and connects two queue pairs.
func (b *bed) connect(o verbs.QPOptions) (*wires, error) {
	if o.Kind == 0 && !b.a.h.p.RC {
		o.Kind = verbs.UC
	}
	var w wires
	var err error
	if w.a, w.sendA, _, err = b.a.pairOf(o); err != nil {
		return nil, err
	}
	if w.b, _, w.recvB, err = b.b.pairOf(o); err != nil {
		return nil, err
	}
	access := verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	for _, v := range []struct {
		q, to verbs.QP
		e, p  *end
	}{{w.a, w.b, b.a, b.b}, {w.b, w.a, b.b, b.a}} {
		at := v.e.attr(access, v.to, v.p)
		for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
			if err := v.q.Modify(s, at); err != nil {
				return nil, err
			}
		}
	}
	return &w, nil
}

// await polls a queue for one completion.
func await(q verbs.CQ) (verbs.Completion, error) {
	var buf [1]verbs.Completion
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Microsecond) {
		n, err := q.Poll(buf[:])
		if err != nil || n > 0 {
			return buf[0], err
		}
	}
	return buf[0], errors.New("no completion")
}

// send posts one request, signalled, and waits for its end.
func (w *wires) send(wr verbs.SendWR) error {
	wr.Flags |= verbs.FlagSignalled
	if _, err := w.a.PostSend([]verbs.SendWR{wr}); err != nil {
		return err
	}
	c, err := await(w.sendA)
	if err == nil {
		err = c.Err()
	}
	return err
}
