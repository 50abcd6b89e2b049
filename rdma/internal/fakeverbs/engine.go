package fakeverbs

import (
	"time"

	"pdlink/rdma/internal/verbs"
)

const (
	// rnrPause is how long a sender waits for a receive to be posted: the code 12 of
	// MinRNRTimer, which every provider gets.
	rnrPause = 640 * time.Microsecond

	// slowTimes is how many latencies late a completion is that Odds.Slow holds back.
	slowTimes = 10
)

// run executes send requests until the pair is closed.
func (q *pair) run() {
	n := q.d.h.net
	n.mu.Lock()
	defer close(q.finished)
	defer n.mu.Unlock()
	for {
		for !q.closed && (q.state != verbs.StateRTS || len(q.sq) == 0) {
			q.turn.Wait()
		}
		if q.closed {
			return
		}
		if n.Latency > 0 && !q.sleep(time.Duration(q.rng.Int64N(int64(n.Latency)))+1) {
			continue
		}
		w := q.sq[0]
		life := q.life
		status := q.execute(&w)
		if q.life != life || q.state != verbs.StateRTS {
			continue // nobody wants to know any more; what is left was flushed
		}
		q.sq = q.sq[1:]
		q.complete(&w, status)
		if status != verbs.StatusOK {
			q.flush()
		}
	}
}

// sleep lets time pass without the mutex, and reports whether the pair still is what
// it was.
func (q *pair) sleep(d time.Duration) bool {
	life := q.life
	q.d.h.net.mu.Unlock()
	time.Sleep(d)
	q.d.h.net.mu.Lock()
	return q.life == life && q.state == verbs.StateRTS && len(q.sq) > 0
}

// complete ends a send request. The caller holds mu.
func (q *pair) complete(w *work, status verbs.Status) {
	if status == verbs.StatusOK && w.Flags&verbs.FlagSignalled == 0 {
		q.silent++
		return
	}
	c := verbs.Completion{ID: w.ID, Status: status, QP: q.number}
	switch w.Op {
	case verbs.OpRead:
		c.Op, c.Length = verbs.WCRead, uint32(w.length())
	case verbs.OpWrite, verbs.OpWriteImm:
		c.Op = verbs.WCWrite
	}
	q.send.put(entry{c: c, q: q, free: 1 + q.silent})
	q.silent = 0
}

// chance draws whether something of odds p happens.
func (q *pair) chance(p float64) bool { return p > 0 && q.rng.Float64() < p }

// execute does a send request and returns how it ended. It may let time pass. The
// caller holds mu.
func (q *pair) execute(w *work) verbs.Status {
	h := q.d.h
	n := h.net
	if s := h.failure(); s != verbs.StatusOK {
		return s
	}
	if q.chance(n.Odds.Fail) {
		return verbs.StatusRetries
	}
	if q.o.Kind == verbs.UC {
		return q.datagram(w)
	}
	tries, rnrs := 0, 0
	for {
		peer := q.peer()
		if peer == nil {
			if tries++; tries > int(q.attr.Retries)+1 {
				return verbs.StatusRetries
			}
			if !q.sleep(4096 * time.Nanosecond << q.attr.Timeout) {
				return verbs.StatusFlushed
			}
			continue
		}
		if takesReceive(w.Op) && (len(peer.rq) == 0 || q.chance(n.Odds.RNR)) {
			if rnrs++; q.attr.RNRRetries != 7 && rnrs > int(q.attr.RNRRetries) {
				return verbs.StatusRNR
			}
			if !q.sleep(rnrPause) {
				return verbs.StatusFlushed
			}
			continue
		}
		return q.transfer(peer, w)
	}
}

// failure is the status of an injected failure that is due. The caller holds mu.
func (h *Host) failure() verbs.Status {
	if h.failIn == 0 {
		return verbs.StatusOK
	}
	if h.failIn--; h.failIn > 0 {
		return verbs.StatusOK
	}
	return h.fail
}

// peer is the queue pair at the other end, nil where nothing answers.
func (q *pair) peer() *pair {
	h := q.d.h
	if h.down || h.dead || q.lost {
		return nil
	}
	p := h.net.find(q.attr.RemoteGID, q.attr.RemoteQP)
	switch {
	case p == nil, p.state != verbs.StateRTR && p.state != verbs.StateRTS:
		return nil
	case p.o.Kind != q.o.Kind, p.attr.RemoteQP != q.number, p.attr.RemotePSN != q.attr.LocalPSN, p.attr.RemoteGID != h.gid.GID:
		return nil
	case q.attr.PathMTU > p.d.h.p.MTU:
		return nil
	}
	return p
}

func takesReceive(op verbs.Op) bool {
	return op == verbs.OpSend || op == verbs.OpSendImm || op == verbs.OpWriteImm
}

// gather is the bytes that a request sends, or false where they are not registered.
func (q *pair) gather(w *work) ([]byte, bool) {
	if w.Flags&verbs.FlagInline != 0 {
		return w.inline, true
	}
	var all []byte
	for _, s := range w.Local {
		if s.Length == 0 {
			continue
		}
		b, ok := q.d.local(q.p, s, 0)
		if !ok {
			return nil, false
		}
		if all == nil {
			all = b
		} else {
			all = append(all[:len(all):len(all)], b...)
		}
	}
	return all, true
}

// transfer moves the bytes of a request to or from the peer.
func (q *pair) transfer(peer *pair, w *work) verbs.Status {
	counts := &q.d.h.counts
	if w.Op == verbs.OpRead {
		counts.Reads++
		return q.read(peer, w)
	}
	bytes, ok := q.gather(w)
	if !ok {
		return verbs.StatusLocalAccess
	}
	if watch := q.d.h.net.Watch; watch != nil {
		watch(bytes)
	}
	switch w.Op {
	case verbs.OpSend, verbs.OpSendImm:
		counts.Sends++
		return q.message(peer, w, bytes)
	case verbs.OpWriteImm:
		counts.Immediates++
	default:
		counts.Writes++
	}
	if len(bytes) > 0 {
		mem, ok := peer.d.remote(peer.p, w.RemoteAddr, w.RemoteKey, uint64(len(bytes)), verbs.AccessRemoteWrite)
		if !ok || peer.attr.Access&verbs.AccessRemoteWrite == 0 {
			return peer.deny()
		}
		copy(mem, bytes)
	}
	if w.Op == verbs.OpWriteImm {
		peer.immediate(w, len(bytes))
	}
	return verbs.StatusOK
}

// deny is what a request does to its target that is not allowed.
func (q *pair) deny() verbs.Status {
	if !q.d.h.p.PortEvents && !q.d.h.p.NoEvents {
		q.d.tell(verbs.Event{Kind: verbs.EventQPAccess, QP: q.number})
	}
	q.flush()
	return verbs.StatusRemoteAccess
}

// read does a READ.
func (q *pair) read(peer *pair, w *work) verbs.Status {
	n := w.length()
	from, ok := peer.d.remote(peer.p, w.RemoteAddr, w.RemoteKey, n, verbs.AccessRemoteRead)
	if !ok || peer.attr.Access&verbs.AccessRemoteRead == 0 || peer.attr.MaxReadIn == 0 || q.attr.MaxReadOut == 0 {
		return peer.deny()
	}
	for _, s := range w.Local {
		if s.Length == 0 {
			continue
		}
		to, ok := q.d.local(q.p, s, verbs.AccessLocalWrite)
		if !ok {
			return verbs.StatusLocalAccess
		}
		from = from[copy(to, from):]
	}
	return verbs.StatusOK
}

// take removes the oldest receive.
func (q *pair) take() verbs.RecvWR {
	r := q.rq[0]
	q.rq = q.rq[1:]
	return r
}

// immediate is the end of a WRITE with immediate at its target.
func (q *pair) immediate(w *work, n int) {
	r, p := q.take(), &q.d.h.p
	if p.BadImm {
		q.recv.kill(errRetired)
		return
	}
	c := verbs.Completion{ID: r.ID, Op: verbs.WCRecvImm, Length: uint32(n), Imm: w.Imm, HasImm: true, QP: q.number}
	if p.PlainImm {
		c.Op = verbs.WCRecv
	}
	q.arrive(c)
}

// message is a SEND at its target.
func (q *pair) message(peer *pair, w *work, bytes []byte) verbs.Status {
	r := peer.take()
	c := verbs.Completion{ID: r.ID, Op: verbs.WCRecv, Length: uint32(len(bytes)), QP: peer.number}
	if w.Op == verbs.OpSendImm {
		c.Imm, c.HasImm = w.Imm, true
	}
	to, ok := peer.d.local(peer.p, r.Local, verbs.AccessLocalWrite)
	if r.Local.Length == 0 {
		to, ok = nil, true
	}
	step := peer.d.h.p.Frames
	odd := step > 0 && (len(bytes) == 0 || r.Local.Length%step != 0 || int(r.Local.Length) != len(bytes))
	switch {
	case !ok:
		c.Status = verbs.StatusLocalAccess
	case len(bytes) > len(to) || odd:
		c.Status = verbs.StatusLocalLength
	default:
		copy(to, bytes)
		peer.arrive(c)
		return verbs.StatusOK
	}
	peer.recv.put(entry{c: c})
	peer.flush()
	return verbs.StatusRemoteBad
}

// datagram sends over an unreliable connection: it has ended when it has left.
func (q *pair) datagram(w *work) verbs.Status {
	bytes, ok := q.gather(w)
	if !ok {
		return verbs.StatusLocalAccess
	}
	q.d.h.counts.Sends++
	peer := q.peer()
	if peer == nil || q.chance(q.d.h.net.Odds.Drop) || len(peer.rq) == 0 || len(bytes) == 0 {
		return verbs.StatusOK
	}
	q.message(peer, w, bytes) // the sender does not hear how it went
	return verbs.StatusOK
}

// arrive completes a receive, now or later, in order. The caller holds mu.
func (q *pair) arrive(c verbs.Completion) {
	n := q.d.h.net
	e := entry{c: c}
	if len(q.held) == 0 && !q.chance(n.Odds.Slow) {
		q.recv.put(e)
		return
	}
	q.held = append(q.held, e)
	if len(q.held) > 1 {
		return
	}
	life := q.life
	time.AfterFunc(slowTimes*n.Latency, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if q.life != life {
			return
		}
		for _, e := range q.held {
			q.recv.put(e)
		}
		q.held = nil
	})
}
