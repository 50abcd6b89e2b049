package verbs

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLoadHere: whatever this host has, the answer is a list of devices or the sentinel
// with a reason.
func TestLoadHere(t *testing.T) {
	p, err := Load(Options{})
	if err == nil {
		var all []DeviceInfo
		if all, err = p.Devices(); err == nil {
			t.Logf("devices %+v", all)
			_, err = p.Open("no such device")
		}
	}
	if !errors.Is(err, transport.ErrUnavailable) || len(err.Error()) < len(transport.ErrUnavailable.Error())+10 {
		t.Errorf("without a device: %v", err)
	}
	t.Log(err)
}

func TestLoadOther(t *testing.T) {
	if _, err := Load(Options{Library: "/nonexistent/libibverbs.so"}); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("library that is not there: %v", err)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		StateRTS.String(): "RTS", StateError.String(): "ERR", QPState(9).String(): "number 9", PortActive.String(): "active", PortDown.String(): "down",
		GIDRoCEv2.String(): "RoCE v2", GIDUnknown.String(): "unknown", EventPortError.String(): "port error", EventGIDChange.String(): "GID change",
		EventDeviceFatal.String(): "device fatal error", EventKind(40).String(): "number 40", StatusRNR.String(): "peer had no receive posted",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestGID(t *testing.T) {
	four := GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 15: 1}
	six := GID{0: 0xfe, 1: 0x80, 15: 9}
	if four.String() != "10.77.0.1" || !four.Addr().Is4() || six.String() != "fe80::9" || !six.Addr().IsLinkLocalUnicast() {
		t.Errorf("%v and %v", four, six)
	}
}

func TestMTU(t *testing.T) {
	for m, want := range map[MTU]int{0: 0, MTU256: 256, MTU1024: 1024, MTU4096: 4096, 6: 0} {
		if got := m.Bytes(); got != want {
			t.Errorf("MTU %d is %d bytes, want %d", m, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		width, speed uint8
		want         uint64
	}{{1, 1, 2_500_000_000}, {2, 64, 200_000_000_000}, {2, 32, 100_000_000_000}, {1, 32, 25_000_000_000}, {0, 1, 0}, {1, 0, 0}, {255, 255, 0}} {
		if got := (PortAttr{Width: c.width, Speed: c.speed}).Rate(); got != c.want {
			t.Errorf("width %d, speed %d: %d, want %d", c.width, c.speed, got, c.want)
		}
	}
}

func TestImmediate(t *testing.T) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], immediate(0x01020304))
	if b != [4]byte{1, 2, 3, 4} || immediate(immediate(0x01020304)) != 0x01020304 {
		t.Errorf("bytes %v on the wire", b)
	}
}

func TestCompletionErr(t *testing.T) {
	c := Completion{ID: 0xab, Status: StatusRetries, QP: 17, Vendor: 0x81}
	err := c.Err()
	for _, want := range []string{"0xab", "17", "no acknowledgement", "0x81", "status 12"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if err := (&Completion{}).Err(); err != nil {
		t.Error(err)
	}
}

func TestMap(t *testing.T) {
	mem, unmap, err := Map(3 * 4096)
	if err != nil || len(mem) != 3*4096 || Addr(mem)%4096 != 0 || Addr(mem[100:])-Addr(mem) != 100 || Addr(nil) != 0 {
		t.Fatalf("%d bytes at %#x: %v", len(mem), Addr(mem), err)
	}
	for _, b := range mem {
		if b != 0 {
			t.Fatal("memory is not zeroed")
		}
	}
	if err := unmap(); err != nil {
		t.Error(err)
	}
	if _, _, err := Map(-1); err == nil {
		t.Error("less than no memory was mapped")
	}
}

// fakeCQ answers polls from a list of counts.
type fakeCQ struct {
	CQ
	polls  int
	counts []int
	err    error
}

func (f *fakeCQ) Poll(out []Completion) (int, error) {
	f.polls++
	if len(f.counts) == 0 {
		return 0, f.err
	}
	n := f.counts[0]
	f.counts = f.counts[1:]
	return min(n, len(out)), nil
}

func TestSpin(t *testing.T) {
	out := make([]Completion, 4)
	bad := errors.New("dead")
	for name, c := range map[string]struct {
		a, b        fakeCQ
		rounds      int
		budget      time.Duration
		queue, n    int
		err         error
		polls, most int // polls of a
	}{
		"first":         {a: fakeCQ{counts: []int{2}}, rounds: 9, budget: time.Hour, n: 2, polls: 1, most: 1},
		"second":        {b: fakeCQ{counts: []int{9}}, rounds: 9, budget: time.Hour, queue: 1, n: 4, polls: 1, most: 1},
		"after some":    {b: fakeCQ{counts: []int{0, 0, 1}}, rounds: 9, budget: time.Hour, queue: 1, n: 1, polls: 3, most: 3},
		"rounds":        {rounds: 7, budget: time.Hour, polls: 7, most: 7},
		"time":          {rounds: 1 << 40, budget: time.Millisecond, polls: 2, most: 1 << 30},
		"at least once": {a: fakeCQ{counts: []int{1}}, n: 1, polls: 1, most: 1},
		"dead":          {a: fakeCQ{counts: []int{0}, err: bad}, rounds: 9, budget: time.Hour, err: bad, polls: 2, most: 2},
		"the other is":  {b: fakeCQ{err: bad}, rounds: 9, budget: time.Hour, queue: 1, err: bad, polls: 1, most: 1},
	} {
		queue, n, err := Spin(out, c.rounds, c.budget, &c.a, &c.b)
		if queue != c.queue || n != c.n || !errors.Is(err, c.err) || c.a.polls < c.polls || c.a.polls > c.most {
			t.Errorf("%s: queue %d, %d completions, %d polls: %v", name, queue, n, c.a.polls, err)
		}
	}
	a, b := &fakeCQ{}, &fakeCQ{}
	if got := testing.AllocsPerRun(100, func() { _, _, _ = Spin(out, 3, time.Hour, a, b) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestErrorsAreTold(t *testing.T) {
	all := []error{ErrUnsupported, ErrBusy, ErrFull, ErrClosed, transport.ErrUnavailable, transport.ErrInvalid}
	for i, e := range all {
		if slices.ContainsFunc(all[i+1:], func(other error) bool { return errors.Is(e, other) || errors.Is(other, e) }) {
			t.Errorf("%v is another one too", e)
		}
	}
}
