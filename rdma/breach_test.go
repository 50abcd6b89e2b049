package rdma

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// TestResults of a trial that there was not, and that say neither yes nor no.
func TestResults(t *testing.T) {
	for v, bad := range map[byte]bool{0: false, 1: true, 2: true, 255: true} {
		msg := must(wire.AppendLink(nil, &wire.Link{Of: typeTested, Body: []byte{v}}))
		s := &setUp{c: &conn{}, b: carrier.Base{Role: session.Client, Control: &script{[][]byte{msg}}}}
		if err := s.results(t.Context()); (err != nil) != bad || bad && !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("tested %d: %v", v, err)
		}
	}
}

// TestNoReads agrees to read frames where an end can have no READ on its way.
func TestNoReads(t *testing.T) {
	o := offer{modes: pull, rc: true, mtu: verbs.MTU4096, lanes: 1, slots: 4, strides: 4, readsIn: 4, readsOut: 4}
	if _, err := agree(&o, &o); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(p *offer){func(p *offer) { p.readsIn = 0 }, func(p *offer) { p.readsOut = 0 }} {
		p := o
		change(&p)
		if _, err := agree(&o, &p); !errors.Is(err, transport.ErrIncompatible) || !strings.Contains(err.Error(), "READs") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// TestBeyondTheGrant announces one frame more than is granted, where frames are read: it
// is refused before the slot of one that the reader still has is read into.
func TestBeyondTheGrant(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{NoRemoteWrite: true}, func(t *testing.T, e *ends) {
		a, b := e.mustCarry(t)
		l, slots := a.d.lanes[0], uint64(a.d.t.slots)
		for n := uint64(1); n <= slots+1; n++ { // frame 0 was the trial
			if n == slots+1 {
				<-b.d.lanes[0].in.arrivals // as a reader does that still copies
			}
			note := l.out.notes.slot(int(n % slots))[:noticeSize]
			(&notice{epoch: a.d.t.epoch, number: n, slot: uint32(n % slots), head: headRoom, body: 100}).put(note)
			wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline | verbs.FlagSignalled, Local: one(l.out.notes.segment(note))}
			if _, err := l.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-b.d.dead:
			if err := b.d.why(); !errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), "frame 17 beyond the 17 granted") {
				t.Errorf("%d frames announced: %v", slots+1, err)
			}
		case <-time.After(stallTime):
			t.Errorf("%d frames were taken, %d are granted", slots+1, slots)
		}
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestReceivesBeforeGrants: whenever frames are granted, as many receives were posted.
func TestReceivesBeforeGrants(t *testing.T) {
	for name, o := range map[string]Options{"notices": {NoImmediate: true}, "immediates": {}, "reads": {NoRemoteWrite: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fakeverbs.MLX5, o, func(t *testing.T, e *ends) {
				h := &slow{Provider: e.b}
				e.lb = NewOver(h, e.lb.o)
				a, b := e.mustConnect(t)
				h.set(100 * time.Millisecond)
				say, worst := *e.tapB.say.Load(), int64(0)
				f := func(msg []byte) error {
					m, err := wire.Decode(msg)
					if err != nil {
						return err
					}
					var n count
					n.parse(&reader{b: m.(*wire.Link).Body})
					worst = max(worst, int64(n.total)-h.count())
					return say(msg)
				}
				e.tapB.say.Store(&f)
				if err := move(t, a, b, 50, 1000); err != nil {
					t.Error(err)
				}
				closeBoth(a, b)
				if worst > 0 {
					t.Errorf("%d frames were granted for which no receive was posted", worst)
				}
			})
		})
	}
}

// TestHeadsInOneRegion refuses a device that registers less at a time than the heads of
// a lane, and says so at both ends.
func TestHeadsInOneRegion(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		e.lb = NewOver(&slow{Provider: e.b, region: 64 << 10}, e.lb.o)
		free := e.rings(t, 16, 32<<10)
		a, b := e.carry(t.Context())
		for who, c := range map[string]carried{"client": a, "server": b} {
			if !errors.Is(c.err, transport.ErrUnavailable) || !strings.Contains(c.err.Error(), "one region of 131072 bytes of memory, the device registers 65536") {
				t.Errorf("%s: %v", who, c.err)
			}
		}
		free()
	})
}

// slow is a provider of one queue pair that counts the receives posted and takes its
// time for each list, and whose regions have a largest size.
type slow struct {
	verbs.Provider
	region int // 0: any

	mu     sync.Mutex // guards what follows
	posted int64
	delay  time.Duration
}

func (s *slow) set(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

func (s *slow) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posted
}

func (s *slow) Open(name string) (verbs.Device, error) {
	d, err := s.Provider.Open(name)
	return &slowDevice{d, s}, err
}

type slowDevice struct {
	verbs.Device
	s *slow
}

func (d *slowDevice) NewPD() (verbs.PD, error) {
	p, err := d.Device.NewPD()
	return &slowPD{p, d.s}, err
}

type slowPD struct {
	verbs.PD
	s *slow
}

func (p *slowPD) Register(mem []byte, a verbs.Access) (verbs.MR, error) {
	if p.s.region > 0 && len(mem) > p.s.region {
		return nil, syscall.ENOMEM
	}
	return p.PD.Register(mem, a)
}

func (p *slowPD) NewQP(o verbs.QPOptions) (verbs.QP, error) {
	q, err := p.PD.NewQP(o)
	if err != nil {
		return nil, err
	}
	if o.MaxRecv == leastDepth && o.MaxSend == leastDepth { // the trial's
		return q, nil
	}
	return &slowQP{q, p.s}, nil
}

type slowQP struct {
	verbs.QP
	s *slow
}

func (q *slowQP) PostRecv(list []verbs.RecvWR) (int, error) {
	q.s.mu.Lock()
	delay := q.s.delay
	q.s.mu.Unlock()
	time.Sleep(delay)
	n, err := q.QP.PostRecv(list)
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.s.posted += int64(n)
	return n, err
}
