package rdma

import (
	"errors"
	"strings"
	"syscall"
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
		e := newEnds(fakeverbs.MLX5, 4, Options{})
		a, b := e.mustConnect(t)
		arena := e.tapA.lanes[0].in.bodies
		e.a.Refuse(1 << 30)
		begin := time.Now()
		if err := closeBoth(a, b); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close: %v", err)
		}
		if took := time.Since(begin); took > destroyTime+drainTime {
			t.Errorf("close took %v, with all lanes together", took)
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

// deafPair is one that takes no command at all.
type deafPair struct{ stuckPair }

func (deafPair) Modify(verbs.QPState, verbs.QPAttr) error { return verbs.ErrBusy }

// TestHeldFrames closes a connection with frames on their way whose queue pair does not
// go. Their slots are free when the device has lost the memory, not before that.
func TestHeldFrames(t *testing.T) {
	for name, refused := range map[string]bool{"the memory goes": false, "nothing goes": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
				free := e.rings(t, 16, 32<<10)
				a, b := e.mustCarry(t)
				synctest.Wait() // the pump does not use the queue pair
				e.net.Latency = time.Hour
				freed := 0
				for range 3 {
					header := make([]byte, wire.FixedHeader+wire.PieceSize)
					if err := a.d.QueueFrame(0, header, e.oa.SendRing.Memory()[:1000], func() { freed++ }); err != nil {
						t.Fatal(err)
					}
				}
				if refused {
					e.a.Refuse(1 << 30)
				}
				l := a.d.lanes[0]
				whole := l.qp
				l.qp = deafPair{stuckPair{whole}}
				err := a.d.Close()
				want, says := 3, "0 slots of the send ring"
				if refused {
					want, says = 0, "3 slots of the send ring"
				}
				if !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), says) {
					t.Errorf("close: %v, want one that says %q", err, says)
				}
				if freed != want {
					t.Errorf("%d slots were given back, want %d", freed, want)
				}
				e.a.Refuse(0)
				l.qp = whole
				if err := errors.Join(a.d.destroy(), b.d.Close()); err != nil {
					t.Error(err)
				}
				if freed != 3 {
					t.Errorf("all is gone, and %d slots were given back", freed)
				}
				free()
			})
		})
	}
}

// halfPair is a queue pair that takes the first request of a list and no more.
type halfPair struct{ verbs.QP }

func (p halfPair) PostSend(list []verbs.SendWR) (int, error) {
	n, err := p.QP.PostSend(list[:1])
	return n, errors.Join(err, verbs.ErrFull)
}

// TestHalfAFrame: the bytes of a frame some of whose requests were taken are not free
// until the queue pair is gone.
func TestHalfAFrame(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{NoImmediate: true}, func(t *testing.T, e *ends) {
		free := e.rings(t, 16, 32<<10)
		a, b := e.mustCarry(t)
		synctest.Wait() // the pump does not use it
		e.net.Latency = time.Hour
		a.d.lanes[0].qp = halfPair{a.d.lanes[0].qp}
		header, freed := make([]byte, wire.FixedHeader+wire.PieceSize), false
		err := a.d.QueueFrame(0, header, e.oa.SendRing.Memory()[:1000], func() { freed = true })
		if err != nil || freed {
			t.Errorf("half a frame: %v, freed %v", err, freed)
		}
		if err := a.d.QueueFrame(0, header, nil, nil); !errors.Is(err, verbs.ErrFull) {
			t.Errorf("the next one: %v", err)
		}
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil || !freed {
			t.Errorf("close: %v, freed %v", err, freed)
		}
		free()
	})
}

// TestRefusedRegistration registers memory of which the device takes a part only and
// does not give that back: it stays mapped until the device lets go.
func TestRefusedRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fakeverbs.MLX5()
		p.MaxMR = 2
		e := newEnds(func() fakeverbs.Personality { return p }, 1, Options{})
		d, err := e.a.Open(e.a.Device())
		if err != nil {
			t.Fatal(err)
		}
		pd, err := d.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		e.a.Refuse(1 << 30)
		a, err := newArena(pd, 8, pageSize, 2*pageSize, verbs.AccessLocalWrite)
		if !errors.Is(err, verbs.ErrBusy) || !errors.Is(err, syscall.ENOMEM) || a == nil {
			t.Fatalf("%v, %v", a, err)
		}
		a.mem[0]++ // it is there
		begin := time.Now()
		if err := a.close(); !errors.Is(err, verbs.ErrBusy) || time.Since(begin) != 0 {
			t.Errorf("close: %v", err)
		}
		a.mem[0]++
		e.a.Refuse(0)
		if err := errors.Join(a.close(), a.close(), pd.Close(), d.Close(), e.left()); err != nil {
			t.Error(err)
		}
	})
}

// TestUnmapFails: memory that the system does not take back is no fault of the device,
// and is said once.
func TestUnmapFails(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustConnect(t)
		l := e.tapA.lanes[0]
		unmap, times := l.in.bodies.unmap, 0
		l.in.bodies.unmap = func() error { times++; return errors.Join(unmap(), syscall.EINVAL) }
		if err := closeBoth(a, b); !errors.Is(err, syscall.EINVAL) || times != 1 {
			t.Errorf("close: %v, after %d calls", err, times)
		}
		if err := e.la.Available(); err != nil {
			t.Error(err)
		}
	})
}

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
