package rdma

import (
	"context"
	"errors"
	"testing"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/transport"
)

// queuesOf is a personality whose queues have so many requests.
func queuesOf(p func() fakeverbs.Personality, n int) func() fakeverbs.Personality {
	return func() fakeverbs.Personality {
		v := p()
		v.MaxQPWR = n
		return v
	}
}

// slots changes Options.Slots of both ends.
func (e *ends) slots(n int) {
	e.la, e.lb = NewOver(e.a, Options{Slots: n}), NewOver(e.b, Options{Slots: n})
}

// TestSlots connects with every number of slots, and with short queues.
func TestSlots(t *testing.T) {
	for _, c := range []struct{ slots, queue, want int }{
		{-3, 64, defaultSlots}, {0, 64, defaultSlots}, {1, 64, leastSlots}, {2, 64, 2}, {32, 64, 32}, {33, 64, maxSlots}, {2, 3, 2},
	} {
		inBubble(t, queuesOf(fakeverbs.MLX5, c.queue), Options{}, func(t *testing.T, e *ends) {
			e.slots(c.slots)
			a, b := e.mustConnect(t)
			if got := e.tapA.t.slots; got != c.want {
				t.Errorf("Slots %d: %d were agreed, want %d", c.slots, got, c.want)
			}
			if err := move(t, a, b, 3, 1000); err != nil {
				t.Errorf("Slots %d, queues of %d: %v", c.slots, c.queue, err)
			}
			closeBoth(a, b)
		})
	}
}

// TestWidth computes how many frames a send queue has room for.
func TestWidth(t *testing.T) {
	for _, c := range []struct {
		mode  mode
		sends int
		want  uint64 // 0: it is refused
	}{
		{push, -1, 0}, {push, 0, 0}, {push, 2, 0}, {push, 3, 1}, {push, 31, 10}, {push, 1000, 16},
		{pull, 0, 0}, {pull, 4, 0}, {pull, 5, 1}, {pull, 1000, 16},
		{stride, 0, 0}, {stride, 1, 1}, {stride, 1000, 16},
	} {
		got, err := (&terms{mode: c.mode, slots: 16}).width(c.sends)
		if got != c.want || (c.want == 0) != errors.Is(err, transport.ErrUnavailable) {
			t.Errorf("%v, %d requests: %d, %v, want %d", c.mode, c.sends, got, err, c.want)
		}
	}
}

// TestCancelledTrial ends a caller's context while the lanes are tried.
func TestCancelledTrial(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		e.net.Latency = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		a, b := e.carry(ctx)
		for _, err := range []error{a.err, b.err} {
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, transport.ErrLost) {
				t.Errorf("the caller's time is over: %v", err)
			}
		}
	})
}
