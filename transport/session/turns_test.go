package session_test

import (
	"slices"
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
)

// gated is a driver that writes a frame for each token that it is given.
type gated struct {
	session.Driver
	lanes   int
	entered chan int // lanes that have a frame to write
	tokens  chan struct{}
	closed  chan struct{}
}

func (g *gated) Lanes() int { return g.lanes }

func (g *gated) WriteFrame(lane int, header, payload []byte) error {
	g.entered <- lane
	select {
	case <-g.tokens:
	case <-g.closed:
	}
	return g.Driver.WriteFrame(lane, header, payload)
}

func (g *gated) Close() error {
	close(g.closed)
	return g.Driver.Close()
}

// TestTurnsOnLanes has a transfer with a full window and every lane busy. Another
// one that comes then waits for what is being written and for one frame of the
// first, and one that is cancelled meanwhile gets its slots back at once.
func TestTurnsOnLanes(t *testing.T) {
	for lanes := range 3 {
		lanes++
		g := &gated{lanes: lanes, entered: make(chan int, 16), tokens: make(chan struct{}), closed: make(chan struct{})}
		b := start(t, func(o *session.Options) {
			o.Intercept = func(d session.Driver) session.Driver { g.Driver = d; return g }
		})
		full, first := b.outgoing(transport.Request{Replayable: true})
		late, second := b.outgoing(transport.Request{Replayable: true})
		tired, _ := b.outgoing(transport.Request{})
		for range testWindow {
			must(t, put(t.Context(), full, 1))
		}
		for range lanes {
			<-g.entered
		}
		must(t, put(t.Context(), tired, 1))
		must(t, put(t.Context(), late, 1))
		must(t, put(t.Context(), late, 1))
		must(t, put(t.Context(), tired, 1))
		b.kept(testWindow + 4)
		tired.Cancel("changed its mind")
		b.kept(testWindow + 2)
		// One frame at a time: the next one is written when a lane has it.
		var order []uint32
		for range testWindow + 2 {
			g.tokens <- struct{}{}
			order = append(order, b.sent().Handle)
			if len(order) < testWindow+2-lanes+1 {
				<-g.entered
			}
		}
		// Which of the lanes goes on is not settled, so a frame may be as many
		// places late as there are lanes beside it.
		at := slices.Index(order, second)
		if most := lanes + 1 + lanes - 1; at < 0 || at > most {
			t.Errorf("%d lanes: frames by handle %v: the first of %d waits for more than %d", lanes, order, second, most)
		}
		if lanes == 1 && !slices.Equal(order, []uint32{first, first, second, first, second, first}) {
			t.Errorf("frames by handle %v, want turns", order)
		}
		b.kept(0)
		full.Cancel("done")
		late.Cancel("done")
	}
}
