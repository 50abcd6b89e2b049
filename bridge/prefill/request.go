package prefill

import (
	"sync"
	"time"
)

// onBegin registers a request; its transfer may come a moment later.
func (w *worker) onBegin(m *message, inner *sync.WaitGroup) error {
	r := &request{w: w, handle: m.handle}
	r.begin.get(&m.body)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case m.handle <= w.last:
		return breach("request %d begun after %d", m.handle, w.last)
	case r.begin.Mode != modePieces && r.begin.Mode != modeRows:
		return breach("request %d has mode %d", m.handle, r.begin.Mode)
	}
	w.last = m.handle
	if len(w.requests) >= maxRequests {
		w.post(pack(typeBegun, codeBusy, m.handle, nil))
		return nil
	}
	w.requests[m.handle] = r
	inner.Go(func() { w.start(r) })
	return nil
}

// start answers BEGIN.
func (w *worker) start(r *request) {
	c := codeMemory
	var t *Transfer
	if !w.s.gauge.low() {
		c = codeUnknown
		t = w.s.find(w.ctx, r.begin.Transfer)
	}
	for _, a := range w.begun(r, t, c) {
		w.flood(pack(typeArray, codeOK, r.handle, &a))
	}
}

// begun says BEGUN and returns the arrays that have to follow. c is why there is
// no transfer.
func (w *worker) begun(r *request, t *Transfer, c code) []array {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.requests[r.handle] != r {
		return nil // it ended before it began
	}
	var b begun
	var places []array
	if t != nil {
		b, places, c = t.attach(r)
	}
	if c != codeOK {
		delete(w.requests, r.handle)
		w.post(pack(typeBegun, c, r.handle, nil))
		return nil
	}
	w.post(pack(typeBegun, codeOK, r.handle, &b))
	if at := t.sealedAt(); at != notSealed {
		v := sealed(at)
		w.post(pack(typeSealed, codeLate, r.handle, &v))
	}
	return places
}

// request returns the live request of a handle; nil for one that is over. The
// caller holds mu.
func (w *worker) request(handle uint32) (*request, error) {
	if handle == 0 || handle > w.last {
		return nil, breach("request %d was not begun", handle)
	}
	r := w.requests[handle]
	if r != nil && r.t == nil {
		return nil, breach("request %d was not answered yet", handle)
	}
	return r, nil
}

// onLease queues the wish for a slot.
func (w *worker) onLease(m *message) error {
	a := ask{}
	a.lease.get(&m.body)
	a.until = time.Now().Add(min(time.Duration(a.lease.WaitMS)*time.Millisecond, w.s.o.LeaseWait))
	w.mu.Lock()
	defer w.mu.Unlock()
	r, err := w.request(m.handle)
	if err != nil {
		return err
	}
	if r == nil {
		w.post(pack(typeLeased, codeOver, m.handle, &leased{Seq: a.lease.Seq, Sealed: notSealed}))
		return nil
	}
	if r.asked >= w.s.leases() {
		return breach("request %d has %d leases", m.handle, r.asked)
	}
	r.asked++
	a.req = r
	select {
	case w.asks <- a:
		return nil
	default:
		return breach("%d leases asked for", cap(w.asks))
	}
}

// leases is how many leases a request may have.
func (s *Server) leases() int { return min(maxLeases, max(1, s.geometry.slots/4)) }

// leaser takes slots for what the worker asked, in its order.
func (w *worker) leaser() {
	for {
		select {
		case a := <-w.asks:
			w.lend(a)
		case <-w.ctx.Done():
			return
		}
	}
}

// lend answers one LEASE.
func (w *worker) lend(a ask) {
	r := a.req
	t := r.t
	var h *holding
	c := t.refusal(a.lease.Block)
	if c == codeOK {
		h, c = t.slot(w.ctx, r.begin.Mode, a.lease.Block, a.until)
	}
	answer := leased{Seq: a.lease.Seq, Sealed: t.sealedAt()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c == codeOK && w.requests[r.handle] != r {
		w.s.table.free(h)
		c = codeOver
	}
	if c == codeOK {
		w.s.table.grant(h, t.job.ID, w.Instance, r.begin.Mode)
		h.req = r
		w.held[h.slot] = h
		answer.Slot, answer.Generation, answer.Room = uint32(h.slot), h.gen, uint32(t.job.Room)
	} else {
		r.asked--
	}
	w.post(pack(typeLeased, c, r.handle, &answer))
}

// own returns what the worker holds of a slot. The caller holds mu.
func (w *worker) own(c *commit) (*holding, error) {
	h := w.held[int(c.Slot)]
	if h == nil || h.gen != c.Generation {
		return nil, breach("slot %d of generation %d is not leased to this worker", c.Slot, c.Generation)
	}
	return h, nil
}

// onCommit hands a slot to the transfer.
func (w *worker) onCommit(m *message) error {
	var c commit
	c.get(&m.body)
	w.mu.Lock()
	defer w.mu.Unlock()
	r, err := w.request(m.handle)
	if err != nil {
		return err
	}
	h, err := w.own(&c)
	if err != nil {
		return err
	}
	if r == nil { // it ended meanwhile
		w.drop(h)
		return nil
	}
	if err := w.take(r, h, &c); err != nil {
		return err
	}
	delete(w.held, h.slot)
	if h.req == r {
		r.asked--
	}
	h.req = r
	if !r.t.push(h) {
		w.s.table.free(h)
	}
	return nil
}

// take copies a slot's list and checks it. The record is the worker's memory too,
// so nothing is read from there twice.
func (w *worker) take(r *request, h *holding, c *commit) error {
	switch {
	case c.Entries < 1 || c.Entries > maxEntries:
		return breach("commit of %d entries", c.Entries)
	case h.transfer != r.t.job.ID || h.mode != r.begin.Mode:
		return breach("slot %d was leased for another request", c.Slot)
	}
	h.entries = int(c.Entries)
	list := h.list[:h.entries*entrySize]
	copy(list, w.s.table.record(h.slot).list())
	payload, err := listed(list, r.t.job.Room)
	if err != nil {
		return err
	}
	if payload != int(c.Payload) {
		return breach("commit of %d bytes, the entries add up to %d", c.Payload, payload)
	}
	for ; len(list) > 0; list = list[entrySize:] {
		if err := r.t.check(r, list[:entrySize]); err != nil {
			return err
		}
	}
	return nil
}

// drop frees a slot that the worker gave back. The caller holds mu.
func (w *worker) drop(h *holding) {
	delete(w.held, h.slot)
	if h.req != nil {
		h.req.asked--
	}
	w.s.table.free(h)
}

// onReturn takes back a slot that was not used. One that is not the worker's (any
// more) may have crossed with what took it away.
func (w *worker) onReturn(m *message) {
	var c commit
	c.get(&m.body)
	w.mu.Lock()
	defer w.mu.Unlock()
	if h, err := w.own(&c); err == nil {
		w.drop(h)
	}
}

// onEnd ends a request, in order or not. Its leases stay the worker's, where a copy
// may still be under way, until it returns them.
func (w *worker) onEnd(m *message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.handle == 0 || m.handle > w.last {
		return breach("request %d was not begun", m.handle)
	}
	r := w.requests[m.handle]
	if r == nil {
		return nil
	}
	delete(w.requests, m.handle)
	if r.t == nil {
		return nil
	}
	rep := Report{Rank: int(w.TPRank)}
	if m.typ == typeAbort {
		var t text
		t.get(&m.body)
		rep.Fault = "worker gave up: " + string(t)
	} else {
		var e end
		e.get(&m.body)
		rep.Tokens = int(e.Tokens)
		rep.Capture, rep.Project, rep.Wait = nanoseconds(e.Capture), nanoseconds(e.Project), nanoseconds(e.Wait)
	}
	r.t.ended(r, rep)
	return nil
}

// nanoseconds reads a time that a worker says.
func nanoseconds(n uint64) time.Duration { return time.Duration(min(n, uint64(24*time.Hour))) }

// revoke tells a worker that nobody needs the rest of a request. Its leases stay
// its own until it returns them.
func (r *request) revoke(c code, why string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.requests[r.handle] != r {
		return
	}
	delete(r.w.requests, r.handle)
	t := text(why)
	r.w.post(pack(typeAbort, c, r.handle, &t))
}
