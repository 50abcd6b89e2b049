package session

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pdlink/transport"
)

// queueModel is what sendQueue has to do, in the plainest way.
type queueModel struct {
	order []*outgoing // whose turn comes in which order
	lines map[*outgoing][]*txFrame
}

func (m *queueModel) push(f *txFrame) {
	if len(m.lines[f.o]) == 0 {
		m.order = append(m.order, f.o)
	}
	m.lines[f.o] = append(m.lines[f.o], f)
}

func (m *queueModel) pop() *txFrame {
	if len(m.order) == 0 {
		return nil
	}
	o := m.order[0]
	f := m.lines[o][0]
	m.order, m.lines[o] = m.order[1:], m.lines[o][1:]
	if len(m.lines[o]) > 0 {
		m.order = append(m.order, o)
	}
	return f
}

func (m *queueModel) remove(o *outgoing) {
	m.lines[o] = nil
	m.order = slices.DeleteFunc(m.order, func(x *outgoing) bool { return x == o })
}

func newQueue() *sendQueue { return &sendQueue{wake: make(chan struct{}, 1)} }

func newTransfers(n int) []*outgoing {
	all := make([]*outgoing, n)
	for i := range all {
		all[i] = newOutgoing(&conn{}, uint32(i), transport.Request{}, nil)
	}
	return all
}

// FuzzSendQueue compares with the model: each byte is one operation on one of
// four transfers.
func FuzzSendQueue(f *testing.F) {
	const push, pop, remove = 0, 4, 8
	f.Add([]byte{push, push, push + 1, pop, pop, pop, pop})
	f.Add([]byte{push, push + 1, push + 2, remove, pop, push, pop, pop, pop})
	f.Add([]byte{push, push + 1, pop, remove + 1, push + 1, push + 1, remove, remove + 1, pop})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		ops := make([]byte, 300)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		q, m := newQueue(), &queueModel{lines: map[*outgoing][]*txFrame{}}
		transfers := newTransfers(4)
		for _, op := range ops {
			o := transfers[op%4]
			switch {
			case op%12 < pop:
				fr := &txFrame{o: o, busy: true}
				q.push(fr)
				m.push(fr)
			case op%12 < remove:
				if got, want := q.pop(), m.pop(); got != want {
					t.Fatalf("popped %p, want %p", got, want)
				} else if got != nil && (got.next != nil || !got.busy) {
					t.Fatal("a popped frame is tied to others, or not busy")
				}
			default:
				queued := m.lines[o]
				q.remove(o)
				m.remove(o)
				for _, f := range queued {
					if f.busy || f.next != nil {
						t.Fatal("a frame that was taken out is busy, or tied to others")
					}
				}
			}
			if len(m.order) > 0 && len(q.wake) == 0 {
				t.Fatal("frames wait and nobody is woken")
			}
		}
		for want := m.pop(); want != nil; want = m.pop() {
			if got := q.pop(); got != want {
				t.Fatalf("popped %p, want %p", got, want)
			}
		}
		if q.pop() != nil || q.turn != nil {
			t.Fatal("more came out than went in")
		}
	})
}

// TestTurns delays the first frame of a transfer by one frame of each other, however
// many those have waiting.
func TestTurns(t *testing.T) {
	const others, window = 8, 64
	q, transfers := newQueue(), newTransfers(others+1)
	late := transfers[others]
	for _, o := range transfers[:others] {
		for range window {
			q.push(&txFrame{o: o})
		}
	}
	for range 3 { // in the middle of a round
		q.pop()
	}
	first := &txFrame{o: late}
	q.push(first)
	before := 0
	for q.pop() != first {
		before++
	}
	if before != others {
		t.Errorf("%d frames went before the first frame of a transfer beside %d others", before, others)
	}
}

func TestSendQueueDoesNotAllocate(t *testing.T) {
	q, transfers := newQueue(), newTransfers(3)
	frames := make([]*txFrame, 30)
	for i := range frames {
		frames[i] = &txFrame{o: transfers[i%3]}
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, f := range frames {
			q.push(f)
		}
		q.remove(transfers[1])
		for q.pop() != nil {
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSendQueue(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(map[int]string{1: "one", 64: "many"}[n], func(b *testing.B) {
			q, transfers := newQueue(), newTransfers(n)
			for _, o := range transfers {
				for range 16 {
					q.push(&txFrame{o: o})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				q.push(q.pop())
			}
		})
	}
}
