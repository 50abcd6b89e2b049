package failover_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport"
	"pdlink/transport/failover"
)

// TestWaitsCount: a peer that has no room and drops the connection each time is
// not asked for ever, and one that admitted the caller at last has not used the
// window up when that connection is lost.
func TestWaitsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := dialer(t, failover.Options{Window: 20 * time.Second}, &link{does: up})
		begin := time.Now()
		var err error
		for err == nil {
			var c transport.Conn
			if c, err = d.Dial(t.Context()); err == nil {
				for n := 0; err == nil && n < 4; n++ {
					err = d.Wait(t.Context(), transport.ErrBusy)
				}
				d.Lost(c, errDown)
			}
		}
		if took := time.Since(begin); !errors.Is(err, failover.ErrGaveUp) || took > 20*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		d.Progress()
		c := must(t, d)
		for range 3 {
			if err := d.Wait(t.Context(), transport.ErrBusy); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		d.Lost(c, errDown)
		must(t, d)
	})
}

// TestFirstDialTakesItsTime: a short window bounds dials of a peer that was there,
// not the first one, which a handshake alone may outlast.
func TestFirstDialTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{does: up, takes: 2 * time.Second}
		d, _ := dialer(t, failover.Options{Window: time.Second}, l)
		c := must(t, d)
		d.Lost(c, errDown)
		begin := time.Now()
		if _, err := d.Dial(t.Context()); !errors.Is(err, failover.ErrGaveUp) || !errors.Is(err, transport.ErrUnreachable) || time.Since(begin) > time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// TestFlapping has a peer that takes every connection and drops it: that is no
// progress, whatever the number of connections and however long they live. What they
// live does not count against the window.
func TestFlapping(t *testing.T) {
	for _, lives := range []time.Duration{50 * time.Millisecond, 9 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := &link{does: up}
			d, _ := dialer(t, failover.Options{Window: 20 * time.Second}, l)
			var err error
			var without time.Duration // a connection
			for n := 0; err == nil && n < 100; n++ {
				var c transport.Conn
				begin := time.Now()
				c, err = d.Dial(t.Context())
				without += time.Since(begin)
				if err == nil {
					time.Sleep(lives)
					d.Lost(c, errDown)
				}
			}
			if !errors.Is(err, failover.ErrGaveUp) || without > 20*time.Second || without < 17*time.Second || l.count() > 40 {
				t.Errorf("connections of %v: %v after %v without one, %d in all", lives, err, without, l.count())
			}
		})
	}
}

// TestWait paces an open that is refused for a while.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, log := dialer(t, failover.Options{Window: 10 * time.Second}, &link{does: up})
		c := must(t, d)
		begin, n := time.Now(), 0
		var err error
		for ; err == nil; n++ {
			err = d.Wait(t.Context(), errDown)
		}
		if took := time.Since(begin); !errors.Is(err, failover.ErrGaveUp) || !errors.Is(err, errDown) || n < 8 || n > 20 || took > 10*time.Second {
			t.Errorf("%v: %d waits in %v: %s", err, n, took, log.kinds())
		}
		d.Progress()
		begin = time.Now()
		if err := d.Wait(t.Context(), errDown); err != nil || time.Since(begin) > 100*time.Millisecond {
			t.Errorf("%v: waited %v after progress", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Wait(ctx, errDown); !errors.Is(err, context.Canceled) || !errors.Is(err, errDown) {
			t.Error(err)
		}
		d.Lost(c, nil)
	})
}
