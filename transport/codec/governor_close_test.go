package codec_test

import (
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"pdlink/transport/codec"
)

// measure tells a governor of a lane that writes so many bytes a second, for a second
// from now, and returns the time then.
func measure(g *codec.Governor, rate float64, now time.Time) time.Time {
	each := secs(frame / rate)
	for end := now.Add(time.Second); now.Before(end) && !g.Resting(); {
		now = now.Add(each)
		g.Wrote(frame, frame, 0, each, now)
	}
	return now
}

// measured makes a governor that holds on to a large connection, and lets it measure.
func measured(m *codec.Meter, rate float64) (*codec.Governor, weak.Pointer[[frame]byte]) {
	connection := new([frame]byte)
	g := codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4, Meter: m, Delivered: func() (uint64, bool) {
		return uint64(connection[0]), false
	}})
	measure(g, rate, time.Unix(1e9, 0))
	return g, weak.Make(connection)
}

// gone waits until nothing holds on to what p points to; goroutines that have just ended
// may, for a moment.
func gone[T any](p weak.Pointer[T]) bool {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if runtime.GC(); p.Value() == nil {
			return true
		}
	}
	return false
}

// TestClosedGovernorIsForgotten: a Meter keeps neither a closed governor nor what is
// behind it, also if that was the last.
func TestClosedGovernorIsForgotten(t *testing.T) {
	var m codec.Meter
	g, open := measured(&m, 100e6)
	kept := weak.Make(g)
	runtime.GC()
	if open.Value() == nil || kept.Value() == nil {
		t.Fatal("an open governor is not kept, so that this test tells nothing")
	}
	g.Close()
	if !gone(open) {
		t.Error("a closed governor keeps its connection")
	}
	g.Close()
	measure(g, 100e6, time.Unix(1e9+1, 0)) // a lane that was still at a frame
	if !gone(kept) {
		t.Error("the Meter keeps a closed governor")
	}
	runtime.KeepAlive(&m)
}

// TestClosedGovernorCountsNoMore: the rate of a connection that is gone is not part of
// the link's.
func TestClosedGovernorCountsNoMore(t *testing.T) {
	for _, closes := range []bool{false, true} {
		var m codec.Meter
		other, _ := measured(&m, 250e6)
		if closes {
			other.Close()
		}
		g := codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4, Meter: &m})
		measure(g, 250e6, time.Unix(1e9+1, 0))
		if g.Resting() == closes {
			t.Errorf("250 MB/s beside as many of a connection that is closed, %v: it rests: %v", closes, g.Resting())
		}
	}
	codec.NewGovernor(codec.Auto, codec.All(), codec.Place{}).Close() // no Meter
}

// TestCloseAmongLanes: Close may come while lanes are at their frames, and they may go on.
func TestCloseAmongLanes(t *testing.T) {
	var m codec.Meter
	delivered := func() (uint64, bool) { return 0, false }
	g := codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 4, Cores: 8, Meter: &m, Delivered: delivered})
	var wg sync.WaitGroup
	for lane := range 4 {
		wg.Go(func() {
			now := time.Unix(1e9, 0)
			for i := range 2000 {
				id, try := g.Next(frame)
				for _, t := range try {
					g.Try(t, frame, frame*2/3, time.Millisecond)
				}
				if len(try) > 0 {
					id = g.Tried(now)
				}
				if id != codec.None && id != codec.BF16 {
					t.Errorf("coded by %v", id)
					return
				}
				end := g.Share(lane)
				now = now.Add(secs(4 * frame / 100e6))
				g.Wrote(frame, frame, 0, secs(4*frame/100e6), now)
				end()
				if i%500 == 100 {
					g.Close()
				}
			}
		})
	}
	wg.Wait()
	kept := weak.Make(g)
	if !gone(kept) {
		t.Error("the Meter keeps a closed governor")
	}
	runtime.KeepAlive(&m)
}

// TestShareEnds: of the transfers that are open the one with the most senders counts,
// and one that has ended does not.
func TestShareEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		share func(*codec.Governor)
		rests bool
	}{
		"nobody":            {func(*codec.Governor) {}, false},
		"one":               {func(g *codec.Governor) { g.Share(1) }, false},
		"none":              {func(g *codec.Governor) { g.Share(-1) }, false},
		"two":               {func(g *codec.Governor) { g.Share(2) }, false},
		"four":              {func(g *codec.Governor) { g.Share(4) }, true},
		"more than can be":  {func(g *codec.Governor) { g.Share(1 << 40) }, true},
		"four, then one":    {func(g *codec.Governor) { g.Share(4); g.Share(1)() }, true},
		"four, until it is": {func(g *codec.Governor) { g.Share(4)() }, false},
		"four twice": {func(g *codec.Governor) {
			end := g.Share(4)
			g.Share(4)
			end()
			end()
		}, true},
	} {
		g := codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4})
		tt.share(g)
		measure(g, 150e6, time.Unix(1e9, 0))
		if g.Resting() != tt.rests {
			t.Errorf("%s: the governor rests: %v", name, g.Resting())
		}
	}
}
