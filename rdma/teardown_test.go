package rdma

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/wire"
)

// TestRefusedTeardown closes connections whose device does not let go: for a moment,
// which is waited for, and for good, which costs the device and the memory.
func TestRefusedTeardown(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustConnect(t)
		e.a.Refuse(5)
		if err := errors.Join(closeBoth(a, b), e.la.Available()); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(fakeverbs.MLX5, 1, Options{})
		a, b := e.mustConnect(t)
		arena := e.tapA.lanes[0].in.bodies
		e.a.Refuse(1 << 30)
		begin := time.Now()
		if err := closeBoth(a, b); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close: %v", err)
		}
		if took := time.Since(begin); took > 4*destroyTime {
			t.Errorf("close took %v", took)
		}
		arena.mem[0]++ // the memory is still there, since the device may write to it
		if err := e.la.Available(); !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), "restarts") {
			t.Errorf("the device is used again: %v", err)
		}
		e.a.Refuse(0)
		if err := e.tapA.destroy(); err != nil {
			t.Error(err)
		}
	})
}

// stuckPair is a queue pair that does not go.
type stuckPair struct{ verbs.QP }

func (stuckPair) Close() error { return verbs.ErrBusy }

// TestStuckPair closes a connection one of whose queue pairs does not go: the peer loses
// the memory, which stays mapped.
func TestStuckPair(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustConnect(t)
		synctest.Wait() // the pump does not use it
		if len(e.a.Remote()) == 0 {
			t.Error("the peer has no memory to write to")
		}
		l := e.tapA.lanes[0]
		whole := l.qp
		l.qp = stuckPair{whole}
		if err := closeBoth(a, b); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close: %v", err)
		}
		if list := e.a.Remote(); len(list) != 0 {
			t.Errorf("the peer can still use %+v", list)
		}
		l.in.bodies.mem[0]++ // it is still there
		l.qp = whole
		if err := e.tapA.destroy(); err != nil {
			t.Error(err)
		}
	})
}

// TestTakenCompletions fails frames whose completions come at once: closing waits for
// none of them.
func TestTakenCompletions(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		free := e.rings(t, 16, 32<<10)
		a, b := e.mustCarry(t)
		e.net.Latency = time.Second
		e.a.FailAfter(0, verbs.StatusRetries)
		payload := e.oa.SendRing.Memory()[:1000]
		for range 4 {
			if err := a.d.QueueFrame(0, make([]byte, wire.FixedHeader+wire.PieceSize), payload, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		<-a.d.dead
		begin := time.Now()
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took >= drainTime {
			t.Errorf("close took %v", took)
		}
		free()
	})
}
