//go:build verbsabi

package verbs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"pdlink/transport"
)

// Settings of testdata/null.c.
const (
	deregBusy = iota
	qpBusy
	pollFails
	pollMany
	armFails
	postFailsAt
	postErrno
	postNoBad
	listErrno
	openErrno
	keepNone
)

// null is the library of testdata/null.c.
type null struct {
	t      testing.TB
	lib    *library
	handle uintptr
}

func buildNull(t testing.TB, args ...string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/null.c")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libnull.so")
	args = append([]string{"-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", path}, args...)
	if out, err := compile(t, compilers(t)[0], string(text), args...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func newNull(t testing.TB, args ...string) *null {
	t.Helper()
	path := buildNull(t, args...)
	n := &null{t: t, lib: must(load(path))(t), handle: must(purego.Dlopen(path, purego.RTLD_NOW))(t)}
	t.Cleanup(func() {
		n.call("null_reset")
		if left := n.call("null_objects"); left != 0 {
			t.Errorf("%d objects of the library are left", left)
		}
	})
	return n
}

func (n *null) call(name string, args ...uintptr) uintptr {
	n.t.Helper()
	r, _, _ := purego.SyscallN(must(purego.Dlsym(n.handle, name))(n.t), args...)
	return r
}

func (n *null) set(what, value int) { n.call("null_set", uintptr(what), uintptr(value)) }

// lane is what a link makes of one device.
type lane struct {
	dev        Device
	pd         PD
	ch         Channel
	send, recv CQ
	qp         QP
}

func (n *null) lane() *lane {
	n.t.Helper()
	t := n.t
	l := &lane{}
	l.dev = must((&provider{n.lib}).Open("null0"))(t)
	l.pd = must(l.dev.NewPD())(t)
	l.ch = must(l.pd.NewChannel())(t)
	l.send, l.recv = must(l.pd.NewCQ(64, l.ch))(t), must(l.pd.NewCQ(64, l.ch))(t)
	l.qp = must(l.pd.NewQP(QPOptions{SendCQ: l.send, RecvCQ: l.recv, MaxSend: 100, MaxRecv: 100}))(t)
	t.Cleanup(func() {
		n.call("null_reset")
		for _, f := range []func() error{l.qp.Close, l.send.Close, l.recv.Close, l.ch.Close, l.pd.Close, l.dev.Close} {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

func TestNullLoad(t *testing.T) {
	for name, args := range map[string][]string{"ibv_post_send": {"-DFOREIGN"}, "lacks ibv_destroy_qp": {"-DLACKING"}} {
		_, err := Load(Options{Library: buildNull(t, args...)})
		if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), name) {
			t.Errorf("library with %q: %v", args, err)
		}
	}
	_, err := Load(Options{Library: filepath.Join(t.TempDir(), "libnone.so")})
	if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), "libnone.so") {
		t.Errorf("no library: %v", err)
	}
}

// TestNullFewer: a library without events can still move bytes.
func TestNullFewer(t *testing.T) {
	n := newNull(t, "-DFEWER")
	d := must((&provider{n.lib}).Open("null0"))(t)
	pd := must(d.NewPD())(t)
	for what, err := range map[string]error{"limits": second(d.Attr()), "event": second(d.Event(t.Context())), "channel": second(pd.NewChannel())} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	q := must(pd.NewCQ(8, nil))(t)
	if err := q.Arm(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("arm: %v", err)
	}
	qp := must(pd.NewQP(QPOptions{SendCQ: q, RecvCQ: q, MaxSend: 8}))(t)
	if _, err := qp.PostSend([]SendWR{{ID: 5, Flags: FlagSignalled}}); err != nil {
		t.Error(err)
	}
	if got := drain(t, q); len(got) != 1 || got[0].ID != 5 {
		t.Errorf("completions %+v", got)
	}
	for _, f := range []func() error{qp.Close, q.Close, pd.Close, d.Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
}

func TestNullQueries(t *testing.T) {
	n := newNull(t)
	p := &provider{n.lib}
	n.set(listErrno, int(syscall.ENOSYS))
	if _, err := p.Devices(); !errors.Is(err, transport.ErrUnavailable) || !errors.Is(err, syscall.ENOSYS) {
		t.Errorf("list of a kernel without RDMA: %v", err)
	}
	n.set(listErrno, 0)
	if all := must(p.Devices())(t); len(all) != 1 || all[0] != (DeviceInfo{Name: "null0", Class: ClassOther}) {
		t.Errorf("devices %+v", all)
	}
	n.set(openErrno, int(syscall.EACCES))
	if _, err := p.Open("null0"); !errors.Is(err, transport.ErrUnavailable) || !errors.Is(err, syscall.EACCES) {
		t.Errorf("open without permission: %v", err)
	}
	n.set(openErrno, 0)
	l := n.lane()
	a := must(l.dev.Attr())(t)
	if a.Firmware != "1.2.3" || a.Ports != 1 || a.MaxMRSize != 1<<40 || a.MaxQPWR != 1024 || a.MaxReadOut != 3 {
		t.Errorf("limits %+v", a)
	}
	if _, err := l.dev.Port(2); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("port 2: %v", err)
	}
	gids := must(l.dev.GIDs(1))(t) // of four entries one fails, one is empty
	if len(gids) != 2 || gids[0].Index != 0 || gids[1].Index != 3 || gids[1].GID.String() != "fe80::3" || gids[1].Kind != GIDUnknown {
		t.Errorf("GIDs %+v", gids)
	}
}

func TestNullMoves(t *testing.T) {
	n := newNull(t)
	l := n.lane()
	a := QPAttr{
		Port: 1, Access: 2, PathMTU: MTU2048, RemoteQP: 3, RemotePSN: 4, RemoteGID: GID{5, 15: 6}, RemoteLID: 7, GIDIndex: 8, HopLimit: 9,
		MaxReadIn: 13, MinRNRTimer: 14, LocalPSN: 15, MaxReadOut: 16, Timeout: 17, Retries: 6, RNRRetries: 5,
	}
	route := cAHAttr{GRH: cGlobalRoute{DGID: gidOf(a.RemoteGID), SGIDIndex: 8, HopLimit: 9}, DLID: 7, IsGlobal: 1, PortNum: 1}
	local := a
	local.NoRoute = true
	for _, c := range []struct {
		to   QPState
		attr QPAttr
		want cQPAttr
		mask int32
	}{
		{StateReset, a, cQPAttr{}, 1},
		{StateInit, a, cQPAttr{QPState: 1, PortNum: 1, QPAccessFlags: 2}, 1<<0 | 1<<3 | 1<<4 | 1<<5},
		{StateRTR, a, cQPAttr{QPState: 2, PathMTU: 4, DestQPNum: 3, RqPSN: 4, AHAttr: route, MaxDestRdAtomic: 13, MinRNRTimer: 14}, 1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20},
		{StateRTR, local, cQPAttr{QPState: 2, PathMTU: 4, DestQPNum: 3, RqPSN: 4, AHAttr: cAHAttr{DLID: 7, PortNum: 1}, MaxDestRdAtomic: 13, MinRNRTimer: 14}, 1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20},
		{StateRTS, a, cQPAttr{QPState: 3, SqPSN: 15, MaxRdAtomic: 16, Timeout: 17, RetryCnt: 6, RNRRetry: 5}, 1<<0 | 1<<9 | 1<<10 | 1<<11 | 1<<13 | 1<<16},
		{StateError, a, cQPAttr{QPState: 6}, 1},
	} {
		if err := l.qp.Modify(c.to, c.attr); err != nil {
			t.Fatal(err)
		}
		got, mask := n.moved()
		if got != c.want || mask != c.mask {
			t.Errorf("move to %v: mask %#x, want %#x\n%+v, want\n%+v", c.to, mask, c.mask, got, c.want)
		}
	}
	uc := must(l.pd.NewQP(QPOptions{Kind: UC, SendCQ: l.send, RecvCQ: l.recv, MaxSend: 1}))(t)
	defer uc.Close()
	for to, want := range map[QPState]int32{StateRTR: 1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<20, StateRTS: 1<<0 | 1<<16} {
		if err := uc.Modify(to, a); err != nil {
			t.Fatal(err)
		}
		if _, mask := n.moved(); mask != want {
			t.Errorf("move of an unreliable pair to %v: mask %#x, want %#x", to, mask, want)
		}
	}
}

func (n *null) moved() (cQPAttr, int32) {
	mem, unmap := must2(Map(pageSize))(n.t)
	defer unmap()
	mask := at[int32](uintptr(Addr(mem)))
	got := *at[cQPAttr](n.call("null_moved", addrOf(mask)))
	return got, *mask
}

func must2[T, U any](v T, u U, err error) func(t testing.TB) (T, U) {
	return func(t testing.TB) (T, U) { t.Helper(); return must(v, err)(t), u }
}

// sent is struct sent of testdata/null.c.
type sent struct {
	ID            uint64
	Addr          [4]uint64
	Remote        uint64
	Length, LKey  [4]uint32
	SGEs          uint32
	Opcode, Flags uint32
	Imm, RKey     uint32
	_             uint32
}

func (n *null) sent() []sent {
	mem, unmap := must2(Map(pageSize))(n.t)
	defer unmap()
	count := at[int32](uintptr(Addr(mem)))
	first := at[sent](n.call("null_sent", addrOf(count)))
	return slices.Clone(unsafe.Slice(first, *count))
}

// TestNullChains posts lists of many lengths and compares what came out at the other
// side of the ABI.
func TestNullChains(t *testing.T) {
	n := newNull(t)
	l := n.lane()
	for _, count := range []int{1, 2, 3, chainMax - 1, chainMax, chainMax + 1, 2*chainMax + 7} {
		n.call("null_reset")
		list, want := make([]SendWR, count), make([]sent, count)
		for i := range list {
			u := uint64(i)
			list[i] = SendWR{ID: u + 1, Op: Op(i % 5), Flags: Flags(i % 16), Imm: 0x01020304, RemoteAddr: u << 40, RemoteKey: uint32(i) * 7}
			want[i] = sent{ID: u + 1, Opcode: uint32(i % 5), Flags: uint32(i % 16), Imm: 0x04030201, Remote: u << 40, RKey: uint32(i) * 7}
			for k := range i % 4 { // of 0 to 3 segments those with bytes
				s := Segment{Addr: u + 5, Length: uint32(k % 2 * 9), Key: uint32(k)}
				if k < MaxSegments {
					list[i].Local[k] = s
				}
				if k < MaxSegments && s.Length > 0 {
					want[i].Addr[want[i].SGEs], want[i].Length[want[i].SGEs], want[i].LKey[want[i].SGEs] = s.Addr, s.Length, s.Key
					want[i].SGEs++
				}
			}
		}
		if done, err := l.qp.PostSend(list); done != count || err != nil {
			t.Fatalf("posted %d of %d: %v", done, count, err)
		}
		if got := n.sent(); !slices.Equal(got, want) {
			t.Fatalf("list of %d:\n%+v, want\n%+v", count, got, want)
		}
		drain(t, l.send)
	}
	recvs := make([]RecvWR, 2*chainMax+1)
	for i := range recvs {
		recvs[i] = RecvWR{ID: uint64(i), Local: Segment{Length: uint32(i % 2)}}
	}
	if done, err := l.qp.PostRecv(recvs); done != len(recvs) || err != nil {
		t.Fatalf("posted %d: %v", done, err)
	}
	for i, c := range drain(t, l.recv) {
		if c.ID != uint64(i) || c.QP != uint32(i%2) { // the library says there how many segments
			t.Errorf("receive %d came as %+v", i, c)
		}
	}
}

func drain(t testing.TB, q CQ) []Completion {
	t.Helper()
	out := make([]Completion, 1024)
	return out[:must(q.Poll(out))(t)]
}

func TestNullPostFailures(t *testing.T) {
	n := newNull(t)
	l := n.lane()
	list := make([]SendWR, chainMax+10)
	for _, c := range []struct {
		at, errno, noBad int
		taken            int
		is               error
	}{
		{3, int(syscall.ENOMEM), 0, 3, ErrFull},
		{0, int(syscall.ENOMEM), 0, 0, ErrFull},
		{2, int(syscall.EOPNOTSUPP), 0, 2, ErrUnsupported},
		{5, int(syscall.EINVAL), 0, 5, syscall.EINVAL},
		{chainMax - 1, int(syscall.EINVAL), 0, chainMax - 1, syscall.EINVAL},
		{4, int(syscall.ENOMEM), 1, 0, syscall.ENOMEM}, // it does not say which
	} {
		n.set(postFailsAt, c.at)
		n.set(postErrno, c.errno)
		n.set(postNoBad, c.noBad)
		taken, err := l.qp.PostSend(list)
		if taken != c.taken || !errors.Is(err, c.is) || c.noBad != 0 && errors.Is(err, ErrFull) {
			t.Errorf("%+v: taken %d: %v", c, taken, err)
		}
		taken, err = l.qp.PostRecv(make([]RecvWR, chainMax))
		if taken != c.taken || !errors.Is(err, c.is) {
			t.Errorf("receives, %+v: taken %d: %v", c, taken, err)
		}
	}
	// The second chain fails: the first was taken.
	n.set(postFailsAt, 9)
	n.set(postErrno, int(syscall.ENOMEM))
	n.set(postNoBad, 0)
	if taken, err := l.qp.PostSend(list[:9]); taken != 9 || err != nil {
		t.Errorf("short list: %d, %v", taken, err)
	}
	drain(t, l.recv)
}

func TestNullDeadQueue(t *testing.T) {
	n := newNull(t)
	for what, value := range map[int]int{pollFails: int(syscall.EIO), pollMany: 1} {
		l := n.lane()
		n.set(what, value)
		out := make([]Completion, 4)
		first, err := l.send.Poll(out)
		if first != 0 || err == nil {
			t.Fatalf("poll: %d, %v", first, err)
		}
		n.call("null_reset")
		// It stays dead whatever the library says later.
		if again, err2 := l.send.Poll(out); again != 0 || err2 == nil || err2.Error() != err.Error() {
			t.Errorf("poll of a dead queue: %d, %v", again, err2)
		}
		if _, err := l.recv.Poll(out); err != nil {
			t.Errorf("the other queue: %v", err)
		}
		if q, k, err := Spin(out, 10, time.Second, l.recv, l.send); q != 1 || k != 0 || err == nil {
			t.Errorf("spin: queue %d, %d, %v", q, k, err)
		}
	}
}

func TestNullRefusals(t *testing.T) {
	n := newNull(t)
	l := n.lane()
	mem, unmap := must2(Map(pageSize))(t)
	defer unmap()
	m := must(l.pd.Register(mem, AccessLocalWrite))(t)
	n.set(deregBusy, 2)
	for i := range 2 {
		if err := m.Deregister(); !errors.Is(err, ErrBusy) || m.Info().Local != 7 {
			t.Errorf("deregistration %d: %v", i, err)
		}
	}
	if err := errors.Join(m.Deregister(), m.Deregister()); err != nil {
		t.Error(err)
	}
	q := must(l.pd.NewQP(QPOptions{SendCQ: l.send, RecvCQ: l.recv, MaxSend: 1}))(t)
	n.set(qpBusy, 1)
	if err := q.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close that the provider refuses: %v", err)
	}
	// It lives on.
	if _, err := q.PostSend([]SendWR{{Op: OpSend}}); err != nil {
		t.Error(err)
	}
	// Its memory is left: it is gone all the same, and is not destroyed again, which the
	// count of the library's objects would show.
	unmapQP := q.(*qp).unmap
	q.(*qp).unmap = func() error { return errors.Join(unmapQP(), syscall.EINVAL) }
	if err := q.Close(); !errors.Is(err, ErrLeft) || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("close whose memory is left: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	n.set(armFails, int(syscall.EOPNOTSUPP))
	if err := l.send.Arm(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("arm: %v", err)
	}
	if _, err := l.pd.Register(mem, 1<<6); !errors.Is(err, ErrUnsupported) {
		t.Errorf("registration with a flag that the provider does not know: %v", err)
	}
}
