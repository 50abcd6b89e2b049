package rdma

import (
	"context"
	"testing"

	"pdlink/rdma/internal/verbs"
)

// tally is a completion queue that has completions at certain polls, and counts calls.
type tally struct {
	polls, arms int
	due         map[int]int // completions by poll, from 1
}

func (q *tally) Poll(out []verbs.Completion) (int, error) {
	q.polls++
	n := q.due[q.polls]
	clear(out[:n])
	return n, nil
}

func (q *tally) Arm() error   { q.arms++; return nil }
func (q *tally) Close() error { return nil }

// bell is a channel that counts waits.
type bell struct{ waits int }

func (b *bell) Wait(context.Context) error { b.waits++; return nil }
func (b *bell) Wake()                      {}
func (b *bell) Close() error               { return nil }

func watching() (*watcher, *tally, *tally, *bell) {
	send, recv, ch := &tally{due: map[int]int{}}, &tally{due: map[int]int{}}, &bell{}
	l := &lane{c: &conn{ctx: context.Background()}, pair: &pair{send: send, recv: recv, ch: ch}}
	return &watcher{l: l, spin: spin{rounds: spinRounds}}, send, recv, ch
}

// TestWatcherArms: a queue is armed again only when something came of it, and is polled
// between arming and waiting.
func TestWatcherArms(t *testing.T) {
	w, send, recv, ch := watching()
	step := func(wantN, wantSends, wantRecvs, wantWaits int) {
		t.Helper()
		_, n, err := w.poll()
		if err == nil && n == 0 {
			err = w.wait()
		}
		if err != nil || n != wantN || send.arms != wantSends || recv.arms != wantRecvs || ch.waits != wantWaits {
			t.Fatalf("%d completions, armed %d and %d times, waited %d times, %v; want %d, %d and %d, %d",
				n, send.arms, recv.arms, ch.waits, err, wantN, wantSends, wantRecvs, wantWaits)
		}
	}
	step(0, 1, 1, 0) // nothing there: both are armed
	step(0, 1, 1, 1) // nor after that: it waits
	recv.due[recv.polls+1] = 2
	step(2, 1, 1, 1)
	step(0, 1, 2, 1)
	recv.due[recv.polls+1] = 1 // came before the event was asked for
	step(1, 1, 2, 1)
	step(0, 1, 3, 1)
	step(0, 1, 3, 2)
	send.due[send.polls+1] = 1
	step(1, 1, 3, 2)
	step(0, 2, 3, 2)
}

// TestSpin: where polling is in vain it soon ends, is tried again now and then, and goes
// on where something comes.
func TestSpin(t *testing.T) {
	s := spin{rounds: spinRounds}
	spent := 0
	for range 10 * spinAgain {
		if n := s.next(); n > 0 {
			spent += n
			s.ended(false)
		}
	}
	if most := 13 * spinRounds; spent > most || spent < 10*spinRounds {
		t.Errorf("%d rounds in vain, want %d to %d", spent, 10*spinRounds, most)
	}
	s.ended(true)
	if n := s.next(); n != spinRounds {
		t.Errorf("%d rounds where something comes, want %d", n, spinRounds)
	}
	w, send, _, _ := watching()
	w.spin.rounds = 0
	for range 100 { // a completion at a time, none of them quick
		send.due[send.polls+1] = 1
		for range 4 {
			if _, n, err := w.poll(); err != nil || n == 0 && w.wait() != nil {
				t.Fatal(err)
			}
		}
	}
	if send.polls > 100*5+3*spinRounds {
		t.Errorf("%d polls for 100 completions that come slowly", send.polls)
	}
	send.due[send.polls+20] = 1
	w.spin.rounds, w.fresh = spinRounds, true
	if _, n, err := w.poll(); n != 1 || err != nil || w.spin.rounds != spinRounds {
		t.Errorf("%d completions in %d polls, %v", n, send.polls, err)
	}
}
