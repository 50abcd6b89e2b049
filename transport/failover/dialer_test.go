package failover_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport"
	"pdlink/transport/failover"
)

func TestNewRefuses(t *testing.T) {
	l := &link{does: up}
	tests := []struct {
		name string
		o    failover.Options
		want error
		says string
	}{
		{"no routes", failover.Options{}, transport.ErrInvalid, "no routes"},
		{"no link", failover.Options{Routes: []failover.Route{{Name: "tcp"}}}, transport.ErrInvalid, "no link"},
		{"required", failover.Options{Routes: []failover.Route{{Name: "tcp", Link: l}}, Require: "rdma"}, transport.ErrUnavailable, `"rdma" is required`},
	}
	for _, tt := range tests {
		if d, err := failover.New(tt.o); d != nil || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestRequire(t *testing.T) {
	first, second := &link{does: up}, &link{does: up}
	d, _ := dialer(t, failover.Options{Require: "b"}, first, second)
	if c := must(t, d); c.l != second || first.count() != 0 {
		t.Error("a route was taken that is not the required one")
	}
}

// TestBackoff has pauses double and vary, and nobody dialled in between.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{does: after(8)}
		d, log := dialer(t, failover.Options{}, l)
		must(t, d)
		if len(l.dials) != 9 {
			t.Fatalf("%d dials", len(l.dials))
		}
		uneven := false
		for i, most := range []time.Duration{100, 200, 400, 800, 1600, 2000, 2000, 2000} {
			most *= time.Millisecond
			gap := l.dials[i+1].Sub(l.dials[i])
			if gap < most/2 || gap > most {
				t.Errorf("pause %d is %v, want %v to %v", i+1, gap, most/2, most)
			}
			uneven = uneven || gap != most
		}
		if !uneven {
			t.Error("pauses do not vary")
		}
		if last := log.all[len(log.all)-1]; last.Kind != failover.Connected || last.Tries != 8 || last.Again || last.Err != nil {
			t.Errorf("last event %+v", last)
		}
	})
}

// TestGivesUp has the window begin with the first dial, and again with progress.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{does: down}
		d, log := dialer(t, failover.Options{Window: 10 * time.Second}, l)
		time.Sleep(time.Hour) // nobody wanted anything yet
		begin := time.Now()
		c, err := d.Dial(t.Context())
		took := time.Since(begin)
		if c != nil || !errors.Is(err, failover.ErrGaveUp) || !errors.Is(err, errDown) || took > 10*time.Second || took < 8*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if !strings.HasSuffix(log.kinds(), " gave-up") || strings.Count(log.kinds(), "gave-up") != 1 {
			t.Error(log.kinds())
		}
		if n := l.count(); n < 8 || n > 20 {
			t.Errorf("%d dials in 10 s", n)
		}
		// The window is over for good, until somebody says that something moved.
		n := l.count()
		if _, err := d.Dial(t.Context()); !errors.Is(err, failover.ErrGaveUp) || l.count() != n {
			t.Errorf("%v and %d more dials", err, l.count()-n)
		}
		d.Progress()
		begin = time.Now()
		if _, err := d.Dial(t.Context()); !errors.Is(err, failover.ErrGaveUp) || time.Since(begin) < 8*time.Second {
			t.Errorf("%v %v after progress", err, time.Since(begin))
		}
	})
}

// TestAtOnce has a lost connection replaced without a pause if it was good for
// something, and with one if it was not.
func TestAtOnce(t *testing.T) {
	tests := []struct {
		name   string
		use    func(d *failover.Dialer)
		atOnce bool
	}{
		{"moved something", func(d *failover.Dialer) { time.Sleep(time.Millisecond); d.Progress(); time.Sleep(time.Second) }, true},
		{"lived long", func(*failover.Dialer) { time.Sleep(time.Hour) }, false},
		{"died at once", func(*failover.Dialer) {}, false},
		{"died soon", func(*failover.Dialer) { time.Sleep(7 * time.Second) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &link{does: up}
				d, log := dialer(t, failover.Options{}, l)
				c := must(t, d)
				tt.use(d)
				d.Lost(c, errDown)
				begin := time.Now()
				must(t, d)
				if took := time.Since(begin); (took == 0) != tt.atOnce || took > 100*time.Millisecond {
					t.Errorf("replaced after %v", took)
				}
				if r := d.Report(); r.Reconnects != 1 || r.Routes[0].Losses != 1 || r.Routes[0].Connects != 2 || r.Routes[0].Reason == "" {
					t.Errorf("report %+v", r)
				}
				if log.kinds() != "connected:a lost:a connected:a" || !log.all[2].Again {
					t.Error(log.kinds())
				}
			})
		})
	}
}

// TestFallsOver leaves a route after three failures, tells why, and comes back.
func TestFallsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &link{does: after(3)}, &link{does: up}
		d, log := dialer(t, failover.Options{}, first, second)
		begin := time.Now()
		c := must(t, d)
		if c.l != second || first.count() != 3 || time.Since(begin) > 300*time.Millisecond {
			t.Errorf("%d dials of the first in %v", first.count(), time.Since(begin))
		}
		want := strings.Repeat("failed:a ", 3) + "tripped:a connected:b"
		if log.kinds() != want {
			t.Errorf("events %q, want %q", log.kinds(), want)
		}
		if e := log.all[4]; !errors.Is(e.Err, errDown) || !strings.Contains(e.String(), "no better route") {
			t.Errorf("event %q does not say why it is the second route", e)
		}
		time.Sleep(15 * time.Second)
		d.Lost(c, errDown)
		if c = must(t, d); c.l != second {
			t.Error("back to a route that has just failed three times")
		}
		time.Sleep(16 * time.Second)
		d.Lost(c, errDown)
		if c = must(t, d); c.l != first {
			t.Error("the preferred route is not tried again")
		}
		r := d.Report()
		if r.Reconnects != 2 || r.Routes[0].Failures != 3 || r.Routes[0].Trips != 1 || r.Routes[0].Connects != 1 || r.Routes[1].Connects != 2 {
			t.Errorf("report %+v", r)
		}
	})
}

// TestLossesTrip has a route that connects and does not last.
func TestLossesTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &link{does: up}, &link{does: up}
		d, log := dialer(t, failover.Options{}, first, second)
		for range 3 {
			c := must(t, d)
			if c.l != first {
				t.Fatal("left too early")
			}
			time.Sleep(time.Second)
			d.Progress() // it moves, but never for long
			d.Lost(c, errDown)
		}
		if c := must(t, d); c.l != second {
			t.Errorf("not left: %s", log.kinds())
		}
	})
}

// TestRareFailures never trip a route.
func TestRareFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &link{does: up}, &link{does: up}
		d, _ := dialer(t, failover.Options{}, first, second)
		for range 20 {
			c := must(t, d)
			time.Sleep(31 * time.Second)
			d.Lost(c, errDown)
		}
		if second.count() != 0 {
			t.Error("left for a loss every half minute")
		}
	})
}

// TestSilenceTripsAtOnce: an address that swallows packets costs the window, so
// once is enough where there is another route.
func TestSilenceTripsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &link{does: up, takes: time.Hour}, &link{does: up}
		d, log := dialer(t, failover.Options{}, first, second)
		begin := time.Now()
		c := must(t, d)
		if took := time.Since(begin); c.l != second || took != 2*time.Second || log.kinds() != "failed:a tripped:a connected:b" {
			t.Errorf("%s after %v", log.kinds(), took)
		}
		// Alone it gets longer, again and again.
		d, _ = dialer(t, failover.Options{}, first)
		first.dials = nil
		_, err := d.Dial(t.Context())
		if !errors.Is(err, failover.ErrGaveUp) || !errors.Is(err, context.DeadlineExceeded) || first.count() < 4 || first.count() > 6 {
			t.Errorf("%v after %d dials", err, first.count())
		}
	})
}

// TestAllTripped goes on with all routes when none is better.
func TestAllTripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &link{does: down}, &link{does: after(7)}
		d, log := dialer(t, failover.Options{}, first, second)
		if c := must(t, d); c.l != second || first.count() < 4 {
			t.Error(log.kinds())
		}
	})
}

func TestPermanent(t *testing.T) {
	errKey := errors.New("unknown key")
	all := []error{transport.ErrInsecure, transport.ErrIncompatible, transport.ErrUnavailable, transport.ErrInvalid, errKey}
	for _, cause := range all {
		synctest.Test(t, func(t *testing.T) {
			l := &link{does: func(int) error { return fmt.Errorf("dial: %w", cause) }}
			o := failover.Options{Permanent: func(err error) bool { return errors.Is(err, errKey) }}
			d, log := dialer(t, o, l)
			begin := time.Now()
			_, err := d.Dial(t.Context())
			if !errors.Is(err, cause) || errors.Is(err, failover.ErrGaveUp) || l.count() != 1 || time.Since(begin) != 0 || log.kinds() != "barred:a" {
				t.Errorf("%v: %v, %d dials, %s", cause, err, l.count(), log.kinds())
			}
			second := &link{does: up}
			d, log = dialer(t, o, l, second)
			if c := must(t, d); c.l != second || time.Since(begin) != 0 {
				t.Errorf("%v: %s", cause, log.kinds())
			}
			if e := log.all[1]; !errors.Is(e.Err, cause) {
				t.Errorf("%v: the second route is taken without saying why: %v", cause, e)
			}
		})
	}
}

// TestOneTry is what a negative window leaves: each route once, no reconnect.
func TestOneTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		first, second := &link{does: down}, &link{does: down}
		d, log := dialer(t, failover.Options{Window: -1}, first, second)
		_, err := d.Dial(t.Context())
		if !errors.Is(err, failover.ErrGaveUp) || !errors.Is(err, errDown) || first.count() != 1 || second.count() != 1 {
			t.Errorf("%v: %s", err, log.kinds())
		}
		if strings.Contains(log.all[0].String(), "more") {
			t.Errorf("promises more tries: %v", log.all[0])
		}
		d, _ = dialer(t, failover.Options{Window: -1}, first, &link{does: up})
		c := must(t, d)
		d.Lost(c, errDown)
		if _, err := d.Dial(t.Context()); !errors.Is(err, failover.ErrGaveUp) {
			t.Errorf("lost connection: %v", err)
		}
		if time.Since(begin) != 0 {
			t.Errorf("waited %v", time.Since(begin))
		}
	})
}

func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{does: down}
		d, _ := dialer(t, failover.Options{}, l)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Dial(ended); !errors.Is(err, context.Canceled) || l.count() != 0 {
			t.Errorf("%v after %d dials", err, l.count())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		_, err := d.Dial(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errDown) || errors.Is(err, failover.ErrGaveUp) || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		l.takes = time.Hour
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		if _, err := d.Dial(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("in the middle of a dial: %v", err)
		}
	})
}

// TestWaitWithoutAWindow: nothing is tried again.
func TestWaitWithoutAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, log := dialer(t, failover.Options{Window: -1}, &link{does: up})
		c := must(t, d)
		begin := time.Now()
		if err := d.Wait(t.Context(), errDown); !errors.Is(err, failover.ErrGaveUp) || !errors.Is(err, errDown) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if log.kinds() != "connected:a gave-up" {
			t.Error(log.kinds())
		}
		d.Done(c)
	})
}

// TestDone: an end in order is no loss, whatever is dialled afterwards, and a
// connection that ended so takes no place among those that are remembered.
func TestDone(t *testing.T) {
	for _, window := range []time.Duration{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			d, log := dialer(t, failover.Options{Window: window}, &link{does: up})
			kept := must(t, d)
			begin := time.Now()
			for range 40 { // more than are remembered
				c := must(t, d)
				d.Done(c)
				d.Done(c)
				d.Lost(c, errDown)
			}
			if r := d.Report(); r.Reconnects != 0 || r.Routes[0].Losses != 0 || r.Routes[0].Connects != 41 || time.Since(begin) != 0 {
				t.Errorf("report %+v after %v", r, time.Since(begin))
			}
			if kinds := strings.ReplaceAll(log.kinds(), "connected:a", ""); strings.TrimSpace(kinds) != "" {
				t.Errorf("events beside connections: %q", kinds)
			}
			d.Lost(kept, errDown)
			if r := d.Report(); r.Routes[0].Losses != 1 {
				t.Errorf("the loss of a connection that was not done with: %+v", r)
			}
		})
	}
}

// TestEventsInOrder has one goroutine be slow to tell what happened first.
func TestEventsInOrder(t *testing.T) {
	log := &log{}
	var once sync.Once
	var d *failover.Dialer
	ended := make(chan struct{})
	meanwhile := func() {
		go func() {
			defer close(ended)
			if c, err := d.Dial(t.Context()); err == nil {
				d.Lost(c, errDown)
			}
		}()
		for d.Report().Routes[0].Connects < 2 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond) // so that an overtaking event would be there
	}
	d, err := failover.New(failover.Options{
		Routes:  []failover.Route{{Name: "a", Link: &link{does: up}, Addr: "a:1"}},
		OnEvent: func(e failover.Event) { once.Do(meanwhile); log.add(e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	must(t, d)
	<-ended
	if len(log.all) != 3 || log.all[2].Kind != failover.Lost {
		t.Errorf("told of %s", log.kinds())
	}
}

// TestStrangeLosses are ignored: a connection of somebody else, one that was
// lost already, and more than are remembered.
func TestStrangeLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{does: up}
		d, _ := dialer(t, failover.Options{}, l)
		d.Lost(&conn{}, errDown)
		first := must(t, d)
		for range 16 {
			must(t, d)
		}
		last := must(t, d)
		for range 3 {
			d.Lost(last, errDown)
		}
		d.Lost(first, errDown)
		if r := d.Report(); r.Routes[0].Losses != 1 {
			t.Errorf("%d losses", r.Routes[0].Losses)
		}
	})
}

// TestConcurrent has many callers share a dialler, for the race detector.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flaky := &link{does: func(n int) error {
			if n%3 == 0 {
				return errDown
			}
			return nil
		}, takes: time.Millisecond}
		d, _ := dialer(t, failover.Options{}, flaky, &link{does: up})
		for range 8 {
			go func() {
				for range 50 {
					c, err := d.Dial(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					d.Progress()
					d.Lost(c, errDown)
					d.Report()
				}
			}()
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		if r := d.Report(); r.Routes[0].Losses+r.Routes[1].Losses != 400 {
			t.Errorf("report %+v", r)
		}
	})
}

func TestEventsAsText(t *testing.T) {
	e := failover.Event{Route: "rdma", Addr: "decoder:1", Err: errDown, Left: 12400 * time.Millisecond}
	tests := []struct {
		kind failover.Kind
		left time.Duration
		err  error
		want string
	}{
		{failover.Connected, time.Second, nil, "connected over rdma to decoder:1"},
		{failover.Connected, time.Second, errDown, "connected over rdma to decoder:1, no better route: nobody listens"},
		{failover.Failed, 12400 * time.Millisecond, errDown, "cannot connect, trying for 12s more: nobody listens"},
		{failover.Failed, time.Millisecond, errDown, "cannot connect, trying for 1s more: nobody listens"},
		{failover.Failed, 0, errDown, "cannot connect: nobody listens"},
		{failover.Barred, time.Second, errDown, "cannot connect, and trying again will not help: nobody listens"},
		{failover.Lost, time.Second, errDown, "lost the connection over rdma to decoder:1: nobody listens"},
		{failover.Tripped, time.Second, errDown, "rdma to decoder:1 fails again and again, preferring others: nobody listens"},
		{failover.GaveUp, 0, errDown, "nobody listens"},
	}
	for _, tt := range tests {
		e.Kind, e.Left, e.Err = tt.kind, tt.left, tt.err
		if got := e.String(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.kind, got, tt.want)
		}
	}
	e = failover.Event{Kind: failover.Connected, Route: "tcp", Addr: "decoder:1", Again: true}
	if got := e.String(); got != "connected again over tcp to decoder:1" {
		t.Errorf("%q", got)
	}
}
