package fakeverbs

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// status sends a WRITE and returns how it ended.
func (w *wires) status(b *bed, wr verbs.SendWR) verbs.Status {
	wr.Flags |= verbs.FlagSignalled
	if _, err := w.a.PostSend([]verbs.SendWR{wr}); err != nil {
		b.a.tb.Fatal(err)
	}
	c, err := await(w.sendA)
	if err != nil {
		b.a.tb.Fatal(err)
	}
	return c.Status
}

func (b *bed) write() verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpWrite, Local: b.a.segment(0, 64), RemoteAddr: b.b.mr.Addr, RemoteKey: b.b.mr.Remote}
}

func mustConnect(t *testing.T, b *bed) *wires {
	t.Helper()
	w, err := b.connect(verbs.QPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestFaults does what goes wrong.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(b *bed, w *wires, wr *verbs.SendWR)
		want verbs.Status
	}{
		"nothing":           {func(*bed, *wires, *verbs.SendWR) {}, verbs.StatusOK},
		"injected":          {func(b *bed, _ *wires, _ *verbs.SendWR) { b.a.h.FailAfter(0, verbs.StatusGeneral) }, verbs.StatusGeneral},
		"wrong remote key":  {func(_ *bed, _ *wires, wr *verbs.SendWR) { wr.RemoteKey++ }, verbs.StatusRemoteAccess},
		"beyond the region": {func(_ *bed, _ *wires, wr *verbs.SendWR) { wr.RemoteAddr += memSize - 63 }, verbs.StatusRemoteAccess},
		"before the region": {func(_ *bed, _ *wires, wr *verbs.SendWR) { wr.RemoteAddr-- }, verbs.StatusRemoteAccess},
		"wrong local key":   {func(_ *bed, _ *wires, wr *verbs.SendWR) { wr.Local[0].Key++ }, verbs.StatusLocalAccess},
		"port down":         {func(b *bed, _ *wires, _ *verbs.SendWR) { b.b.h.SetPort(false) }, verbs.StatusRetries},
		"peer vanished":     {func(b *bed, _ *wires, _ *verbs.SendWR) { b.b.h.Kill() }, verbs.StatusRetries},
		"queue pair gone": {func(b *bed, w *wires, _ *verbs.SendWR) {
			if err := w.b.Modify(verbs.StateReset, verbs.QPAttr{}); err != nil {
				b.a.tb.Error(err)
			}
		}, verbs.StatusRetries},
		"broken": {func(b *bed, _ *wires, _ *verbs.SendWR) { b.a.h.Break() }, verbs.StatusFlushed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, MLX5())
			w, wr := mustConnect(t, b), b.write()
			c.do(b, w, &wr)
			if got := w.status(b, wr); got != c.want {
				t.Errorf("status %v, want %v", got, c.want)
			}
			if c.want != verbs.StatusOK {
				if got := w.status(b, b.write()); got != verbs.StatusFlushed {
					t.Errorf("after it: %v", got)
				}
			}
		})
	}
}

// TestNoReceive sends to a peer that posts its receive late, and to one that never
// does.
func TestNoReceive(t *testing.T) {
	b := newBed(t, MLX5())
	w := mustConnect(t, b)
	late := time.AfterFunc(5*time.Millisecond, func() { w.b.PostRecv([]verbs.RecvWR{{Local: b.b.segment(0, 64)[0]}}) })
	defer late.Stop()
	if got := w.status(b, verbs.SendWR{Op: verbs.OpSend, Local: b.a.segment(0, 64)}); got != verbs.StatusOK {
		t.Errorf("late receive: %v", got)
	}
	short := newBed(t, MLX5())
	v := mustConnect(t, short)
	v.b.PostRecv([]verbs.RecvWR{{Local: short.b.segment(0, 63)[0]}})
	if got := v.status(short, verbs.SendWR{Op: verbs.OpSend, Local: short.a.segment(0, 64)}); got != verbs.StatusRemoteBad {
		t.Errorf("short receive: %v", got)
	}
	if c, err := await(v.recvB); err != nil || c.Status != verbs.StatusLocalLength {
		t.Errorf("receiver: %v, %v", c.Status, err)
	}
}

// TestRefusals destroys things that do not go at once, and registers above a limit.
func TestRefusals(t *testing.T) {
	b := newBed(t, MLX5())
	w := mustConnect(t, b)
	b.a.h.Refuse(2)
	for i := range 2 {
		if err := w.a.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close %d: %v", i, err)
		}
	}
	if err := errors.Join(w.a.Close(), w.a.Close()); err != nil {
		t.Error(err)
	}
	if err := b.a.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("close a domain that is used: %v", err)
	}
	b.a.h.LimitMemory(memSize + 4096)
	if err := regions(1, 4096, 0)(b); err != nil {
		t.Errorf("up to the limit: %v", err)
	}
	if err := regions(1, 4096, 0)(b); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("above the limit: %v", err)
	}
}

// TestOverflow fills a completion queue: it is dead for good.
func TestOverflow(t *testing.T) {
	b := newBed(t, MLX5())
	w, err := b.connect(verbs.QPOptions{MaxSend: 40, MaxRecv: 8})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		wr := b.write()
		wr.Flags = verbs.FlagSignalled
		if _, err := w.a.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
	}
	for range 5000 {
		if _, err = w.sendA.Poll(nil); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, errRetired) {
		t.Errorf("poll: %v", err)
	}
	if _, err := w.a.PostSend([]verbs.SendWR{b.write()}); !errors.Is(err, verbs.ErrFull) {
		t.Errorf("post to a full queue: %v", err)
	}
}

// TestSeed lets time pass in a bubble: the same seed gives the same times.
func TestSeed(t *testing.T) {
	run := func(seed uint64) (times []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			fresh := newBed(t, MLX5())
			fresh.net.Seed, fresh.net.Latency = seed, time.Millisecond
			w := mustConnect(t, fresh)
			begin := time.Now()
			for range 20 {
				if got := w.status(fresh, fresh.write()); got != verbs.StatusOK {
					t.Fatal(got)
				}
				times = append(times, time.Since(begin))
			}
			fresh.a.close()
			fresh.b.close()
		})
		return times
	}
	one, same, other := run(1), run(1), run(2)
	equal := func(a, b []time.Duration) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	if !equal(one, same) || equal(one, other) {
		t.Errorf("seed 1: %v and %v, seed 2: %v", one, same, other)
	}
}
