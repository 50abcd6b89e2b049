package fakeverbs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"pdlink/rdma/internal/verbs"
)

// pair implements verbs.QP. The network's mutex guards its state. One goroutine
// executes its send requests, in order.
type pair struct {
	p          *domain
	d          *device
	o          verbs.QPOptions
	number     uint32
	send, recv *queue
	rng        *rand.Rand
	turn       *sync.Cond // there may be something to execute

	state    verbs.QPState
	attr     verbs.QPAttr
	lost     bool // what it sends goes nowhere: a GID or an MTU that the network does not have
	life     int  // counts resets and the end: what was begun before is void
	sq       []work
	rq       []verbs.RecvWR
	used     int     // places of the send queue
	silent   int     // executed requests without a completion, whose places are not free
	held     []entry // receives whose completions are late
	closed   bool
	finished chan struct{} // closed when the goroutine has ended
}

// work is a send request.
type work struct {
	verbs.SendWR
	inline []byte // its bytes, where they were taken when it was posted
}

// length is the bytes of a request.
func (w *work) length() (n uint64) {
	for _, s := range w.Local {
		n += uint64(s.Length)
	}
	return n
}

// NewQP implements verbs.PD.
func (p *domain) NewQP(o verbs.QPOptions) (verbs.QP, error) {
	d, h := p.d, p.d.h
	if o.Kind == 0 {
		o.Kind = verbs.RC
	}
	o.SendSegments = max(o.SendSegments, 1)
	send, sends := o.SendCQ.(*queue)
	recv, receives := o.RecvCQ.(*queue)
	if !sends || !receives {
		return nil, errStrange
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	l := &h.p
	switch {
	case o.Kind == verbs.RC && !l.RC || o.Kind == verbs.UC && !l.UC:
		return nil, fmt.Errorf("fakeverbs: queue pair of kind %d: %w", o.Kind, verbs.ErrUnsupported)
	case o.MaxSend > l.MaxQPWR || o.MaxRecv > l.MaxQPWR || o.SendSegments > l.Segments || o.MaxInline > l.MaxInline:
		return nil, fmt.Errorf("fakeverbs: queue pair of %d and %d requests, %d segments, %d bytes inline: %w",
			o.MaxSend, o.MaxRecv, o.SendSegments, o.MaxInline, syscall.EINVAL)
	case h.counts.Pairs >= l.MaxQP:
		return nil, fmt.Errorf("fakeverbs: %d queue pairs: %w", h.counts.Pairs, syscall.ENOMEM)
	}
	n := h.net
	n.last++
	q := &pair{
		p: p, d: d, o: o, number: 0x400 + n.last&0xffffff, send: send, recv: recv,
		turn: sync.NewCond(&n.mu), finished: make(chan struct{}),
	}
	q.rng = n.rng(h.name, -1-h.counts.Pairs)
	q.send.pairs++
	q.recv.pairs++
	p.users++
	h.counts.Pairs++
	n.pairs[q.number] = q
	go q.run()
	return q, nil
}

// Info implements verbs.QP.
func (q *pair) Info() verbs.QPInfo {
	return verbs.QPInfo{
		Number: q.number, Kind: q.o.Kind, MaxSend: q.o.MaxSend, MaxRecv: q.o.MaxRecv,
		SendSegments: q.o.SendSegments, MaxInline: q.o.MaxInline,
	}
}

// Modify implements verbs.QP.
func (q *pair) Modify(to verbs.QPState, a verbs.QPAttr) error {
	n := q.d.h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	var err error
	switch to {
	case verbs.StateReset:
		q.reset()
		return nil
	case verbs.StateInit:
		err = q.toInit(a)
	case verbs.StateRTR:
		err = q.toRTR(a)
	case verbs.StateRTS:
		err = q.toRTS(a)
	case verbs.StateError:
		if q.d.h.p.NoError {
			err = syscall.EINVAL
		} else {
			q.flush()
			return nil
		}
	default:
		err = syscall.EINVAL
	}
	if err != nil {
		return fmt.Errorf("fakeverbs: move from %v to %v: %w", q.state, to, err)
	}
	q.state = to
	q.turn.Broadcast()
	return nil
}

func (q *pair) toInit(a verbs.QPAttr) error {
	if q.state != verbs.StateReset || a.Port != 1 || a.Access&^q.d.h.p.InitAccess != 0 {
		return syscall.EINVAL
	}
	q.attr.Port, q.attr.Access = a.Port, a.Access
	return nil
}

func (q *pair) toRTR(a verbs.QPAttr) error {
	l := &q.d.h.p
	switch {
	case q.state != verbs.StateInit, a.PathMTU.Bytes() == 0, a.RemotePSN>>24 != 0, a.Port != 1:
		return syscall.EINVAL
	case l.GIDZero && a.GIDIndex != 0, int(a.GIDIndex) > q.d.h.gid.Index:
		return syscall.EINVAL
	case q.o.Kind == verbs.RC && (int(a.MaxReadIn) > l.MaxRead || l.ExactRead && int(a.MaxReadIn) != l.MaxRead):
		return syscall.EINVAL
	}
	access, psn, out := q.attr.Access, q.attr.LocalPSN, q.attr.MaxReadOut
	q.attr = a
	q.attr.Access, q.attr.LocalPSN, q.attr.MaxReadOut = access, psn, out
	q.lost = int(a.GIDIndex) != q.d.h.gid.Index || a.PathMTU > l.MTU
	return nil
}

func (q *pair) toRTS(a verbs.QPAttr) error {
	l := &q.d.h.p
	if q.state != verbs.StateRTR || a.LocalPSN>>24 != 0 {
		return syscall.EINVAL
	}
	if q.o.Kind == verbs.RC && (int(a.MaxReadOut) > l.MaxRead || l.ExactRead && int(a.MaxReadOut) != l.MaxRead || a.Retries > 7 || a.RNRRetries > 7) {
		return syscall.EINVAL
	}
	q.attr.LocalPSN, q.attr.MaxReadOut = a.LocalPSN, a.MaxReadOut
	q.attr.Timeout, q.attr.Retries, q.attr.RNRRetries = a.Timeout, a.Retries, a.RNRRetries
	return nil
}

// reset forgets all that is outstanding. The caller holds mu.
func (q *pair) reset() {
	q.life++
	q.state, q.attr, q.lost = verbs.StateReset, verbs.QPAttr{}, false
	q.sq, q.rq, q.held = nil, nil, nil
	q.used, q.silent = 0, 0
	mine := func(e entry) bool { return e.q == q || e.c.QP == q.number }
	q.send.ready = slices.DeleteFunc(q.send.ready, mine)
	q.recv.ready = slices.DeleteFunc(q.recv.ready, mine)
}

// flush moves to the error state and ends what is outstanding. The caller holds mu.
func (q *pair) flush() {
	q.state = verbs.StateError
	for i := range q.sq {
		q.complete(&q.sq[i], verbs.StatusFlushed)
	}
	for _, r := range q.rq {
		q.recv.put(entry{c: verbs.Completion{ID: r.ID, Status: verbs.StatusFlushed, QP: q.number}})
	}
	q.sq, q.rq = nil, nil
}

// PostSend implements verbs.QP.
func (q *pair) PostSend(list []verbs.SendWR) (int, error) {
	n := q.d.h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range list {
		if err := q.judge(&list[i]); err != nil {
			return i, err
		}
		w := work{SendWR: list[i]}
		if w.Flags&verbs.FlagInline != 0 {
			w.inline = takeInline(&w.SendWR)
		}
		q.used++
		if q.state == verbs.StateError {
			q.complete(&w, verbs.StatusFlushed)
			continue
		}
		q.sq = append(q.sq, w)
	}
	q.turn.Signal()
	return len(list), nil
}

// judge says why a send request is not taken. The caller holds mu.
func (q *pair) judge(w *verbs.SendWR) error {
	l := &q.d.h.p
	segments, bytes := 0, 0
	for _, s := range w.Local {
		if s.Length > 0 {
			segments++
			bytes += int(s.Length)
		}
	}
	imm := w.Op == verbs.OpWriteImm || w.Op == verbs.OpSendImm
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state != verbs.StateRTS && q.state != verbs.StateError:
		return fmt.Errorf("fakeverbs: post a send in state %v: %w", q.state, syscall.EINVAL)
	case w.Op > verbs.OpRead, imm && l.NoImmediate, w.Op == verbs.OpRead && (l.NoRead || q.o.Kind != verbs.RC):
		return fmt.Errorf("fakeverbs: post operation %d: %w", w.Op, verbs.ErrUnsupported)
	case l.MustSignal && w.Flags&verbs.FlagSignalled == 0:
		return fmt.Errorf("fakeverbs: post an unsignalled request: %w", verbs.ErrUnsupported)
	case segments > q.o.SendSegments, w.Flags&verbs.FlagInline != 0 && bytes > q.o.MaxInline:
		return fmt.Errorf("fakeverbs: post %d segments of %d bytes: %w", segments, bytes, syscall.EINVAL)
	case q.used >= q.o.MaxSend:
		return verbs.ErrFull
	}
	return nil
}

// takeInline copies the bytes of an inline request, which are named by address only.
func takeInline(w *verbs.SendWR) []byte {
	var b []byte
	for _, s := range w.Local {
		if s.Length > 0 {
			at := uintptr(s.Addr)
			b = append(b, unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), s.Length)...)
		}
	}
	return b
}

// PostRecv implements verbs.QP.
func (q *pair) PostRecv(list []verbs.RecvWR) (int, error) {
	n := q.d.h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, r := range list {
		switch {
		case q.closed:
			return i, verbs.ErrClosed
		case q.state == verbs.StateReset:
			return i, fmt.Errorf("fakeverbs: post a receive in state %v: %w", q.state, syscall.EINVAL)
		case len(q.rq) >= q.o.MaxRecv:
			return i, verbs.ErrFull
		case q.state == verbs.StateError:
			q.recv.put(entry{c: verbs.Completion{ID: r.ID, Status: verbs.StatusFlushed, QP: q.number}})
			continue
		}
		q.rq = append(q.rq, r)
	}
	return len(list), nil
}

// Close implements verbs.QP.
func (q *pair) Close() error {
	h := q.d.h
	h.net.mu.Lock()
	if q.closed {
		h.net.mu.Unlock()
		return nil
	}
	live := q.state == verbs.StateRTS || q.state == verbs.StateRTR
	if h.refuse() || h.p.SlowClose && live && (q.used > 0 || len(q.rq) > 0) {
		h.net.mu.Unlock()
		return verbs.ErrBusy
	}
	q.reset()
	q.closed = true
	q.send.pairs--
	q.recv.pairs--
	q.p.users--
	h.counts.Pairs--
	delete(h.net.pairs, q.number)
	q.turn.Broadcast()
	h.net.mu.Unlock()
	<-q.finished
	return nil
}

// references reports whether outstanding work of a live queue pair names r. The
// caller holds mu.
func (n *Net) references(r *region) bool {
	for _, q := range n.pairs {
		if q.p != r.p {
			continue
		}
		for i := range q.sq {
			for _, s := range q.sq[i].Local {
				if s.Length > 0 && s.Key == r.info.Local {
					return true
				}
			}
		}
		for _, v := range q.rq {
			if v.Local.Length > 0 && v.Local.Key == r.info.Local {
				return true
			}
		}
	}
	return false
}
