package prefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/bridge/facts"
)

// worker is a connection of a worker. Three goroutines serve it: one reads, one
// writes, one waits for slots.
type worker struct {
	s    *Server
	conn *net.UnixConn
	peer peer
	hello
	brought *os.File // with HELLO; nil: none
	came    time.Time
	out     chan message
	asks    chan ask
	ctx     context.Context // ends with the connection
	stop    context.CancelFunc

	facts *facts.Facts // of the model that it has loaded; nil: not told. Guarded by s.mu

	jammed atomic.Bool   // messages for it piled up
	left   chan struct{} // closed when the connection has handed over what it had

	mu       sync.Mutex // guards the fields below
	last     uint32     // the last handle that was begun
	requests map[uint32]*request
	held     map[int]*holding // by slot
}

// ask is a LEASE that waits.
type ask struct {
	req   *request
	lease lease
	until time.Time
}

// request is one prompt at one worker.
type request struct {
	w      *worker
	handle uint32
	begin  begin
	t      *Transfer // set with BEGUN, guarded by w.mu
	layers span      // wanted of this worker, set with t
	heads  span      // that it has, set with t
	asked  int       // leases asked for and held, guarded by w.mu
}

// name is the worker for people.
func (w *worker) name() string {
	return fmt.Sprintf("worker %d of %d (pid %d)", w.TPRank+1, w.TPSize, w.PID)
}

// serve introduces a connection and serves it to its end.
func (s *Server) serve(c *net.UnixConn) error {
	w := &worker{s: s, conn: c, came: time.Now()}
	w.ctx, w.stop = context.WithCancel(s.ctx)
	defer w.stop()
	var err error
	if w.peer, err = peerOf(c); err != nil {
		return errors.Join(err, c.Close())
	}
	if !s.allowed(w.peer.uid) {
		w.peer.close()
		return errors.Join(w.deny(), c.Close())
	}
	s.mu.Lock()
	full := s.closed || s.conns >= maxWorkers
	if !full {
		s.conns++
	}
	s.mu.Unlock()
	if full {
		w.peer.close()
		w.refuse(codeBusy, "too many workers")
		return c.Close()
	}
	defer func() {
		s.mu.Lock()
		s.conns--
		s.mu.Unlock()
	}()
	end := context.AfterFunc(w.ctx, func() { c.Close() }) //nolint:errcheck // unblocks what reads and writes
	defer end()
	defer c.Close()
	if err = w.introduce(); err == nil {
		w.equip()
		s.enter(w)
		if err = w.welcome(); err == nil {
			return w.work()
		}
		w.leave()
	}
	w.peer.close()
	if errors.Is(err, io.EOF) {
		return nil // somebody looked whether a sidecar lives
	}
	return err
}

// equip makes the queues, 280 KB, of a worker that has introduced itself: whoever may
// connect may do so often.
func (w *worker) equip() {
	w.left, w.out, w.asks = make(chan struct{}), make(chan message, queued), make(chan ask, maxRequests*maxLeases)
	w.requests, w.held = make(map[uint32]*request), make(map[int]*holding)
}

// enter notes a worker. One that comes again has left its last connection,
// whatever that says: what it had there is handed over first.
func (s *Server) enter(w *worker) {
	for {
		s.mu.Lock()
		var before *worker
		for o := range s.workers {
			if o.Instance == w.Instance {
				before = o
			}
		}
		if before == nil {
			s.workers[w] = struct{}{}
		}
		s.mu.Unlock()
		if before == nil {
			return
		}
		before.stop()
		<-before.left
	}
}

// introduce answers HELLO.
func (w *worker) introduce() error {
	if err := w.conn.SetReadDeadline(time.Now().Add(helloWait)); err != nil {
		return err
	}
	m, f, err := w.read(true)
	if err == nil && m.typ != typeHello {
		err = breach("first message is of type %d", m.typ)
	}
	if err == nil {
		w.get(&m.body)
		err = w.check()
	}
	if err == nil && (m.code&flagRing != 0) != (f != nil) {
		err = breach("flag and attached ring contradict each other")
	}
	if err != nil {
		if f != nil {
			f.Close() //nolint:errcheck // nothing was written
		}
		w.refuseFor(err)
		return err
	}
	w.brought = f
	return nil
}

// welcome takes the worker's ring or gives it the server's.
func (w *worker) welcome() error {
	mine := false
	if f := w.brought; f != nil {
		w.brought = nil
		var err error
		if mine, err = w.s.adopt(f); err != nil {
			w.s.fault(fmt.Errorf("%s brought a ring: %w", w.name(), err)) // it gets another
		}
	}
	select {
	case <-w.s.ready:
	case <-w.ctx.Done():
		return io.EOF
	}
	tb := w.s.table
	m := pack(typeWelcome, 0, 0, &welcome{
		Ring: tb.id, Size: uint64(tb.size()), Slots: uint32(tb.slots), SlotSize: uint32(tb.slotSize), FirstSlot: uint64(tb.first()),
		RecordSize: recordSize, Waits: uint32(w.s.o.LeaseWait.Milliseconds()),
	})
	m.code = flagFacts
	if mine {
		m.code |= flagRing
	}
	return errors.Join(w.conn.SetReadDeadline(time.Time{}), w.write(&m, tb.file))
}

// work serves an introduced connection.
func (w *worker) work() error {
	var inner sync.WaitGroup
	inner.Go(w.writer)
	inner.Go(w.leaser)
	err := w.reader(&inner)
	if errors.Is(err, errProtocol) {
		w.refuseFor(err)
	}
	w.stop()
	inner.Wait()
	w.leave()
	switch {
	case w.jammed.Load():
		err = errors.New("does not read its messages")
	case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed):
		return nil // it went, or this end has closed
	}
	return fmt.Errorf("%s: %w", w.name(), err)
}

// read returns the next message, with its file where there may be one.
func (w *worker) read(file bool) (message, *os.File, error) {
	var buf [messageSize + 1]byte
	n, files, err := receive(w.conn, buf[:])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if len(files) == 1 && file && err == nil {
		m, err := parseMessage(buf[:n])
		if err == nil {
			return m, files[0], nil
		}
		files[0].Close() //nolint:errcheck // nothing was written
		return message{}, nil, err
	}
	for _, f := range files {
		f.Close() //nolint:errcheck // nothing was written
	}
	if err != nil {
		return message{}, nil, err
	}
	if len(files) > 0 {
		return message{}, nil, breach("%d files attached", len(files))
	}
	m, err := parseMessage(buf[:n])
	return m, nil, err
}

// write sends a message now.
func (w *worker) write(m *message, f *os.File) error {
	var buf [messageSize]byte
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return err
	}
	if err := send(w.conn, m.appendTo(buf[:0]), f); err != nil {
		return fmt.Errorf("write to worker: %w", err)
	}
	return nil
}

// refuse says why the connection ends. The peer may be gone already. What it had
// said meanwhile is read: a socket that is closed with something unread throws away
// what the peer has not read either.
func (w *worker) refuse(c code, why string) {
	t := text(why)
	m := pack(typeRefuse, c, 0, &t)
	if w.write(&m, nil) != nil || w.conn.SetReadDeadline(time.Now().Add(refuseWait)) != nil {
		return
	}
	for {
		if _, _, err := w.read(false); err != nil && !errors.Is(err, errProtocol) {
			return
		}
	}
}

// refuseFor says it of an error.
func (w *worker) refuseFor(err error) {
	var v versionError
	switch {
	case errors.As(err, &v):
		w.refuse(codeVersion, fmt.Sprintf("this sidecar speaks version %d", version))
	case errors.Is(err, errProtocol):
		w.refuse(codeInvalid, strings.TrimPrefix(err.Error(), errProtocol.Error()+": "))
	}
}

// post queues a message. A worker that does not read is dropped.
func (w *worker) post(m message) {
	select {
	case w.out <- m:
	default:
		w.jammed.Store(true)
		w.stop()
	}
}

// flood queues one of many messages, waiting for room.
func (w *worker) flood(m message) {
	select {
	case w.out <- m:
	case <-w.ctx.Done():
	}
}

// writer sends what is queued.
func (w *worker) writer() {
	for {
		select {
		case m := <-w.out:
			if err := w.write(&m, nil); err != nil {
				w.jammed.Store(errors.Is(err, os.ErrDeadlineExceeded))
				w.stop() // the reader hears of it
				return
			}
		case <-w.ctx.Done():
			return
		}
	}
}

// reader handles what the worker says.
func (w *worker) reader(inner *sync.WaitGroup) error {
	for {
		m, f, err := w.read(true)
		if err != nil {
			return err
		}
		if f != nil && m.typ != typeFacts {
			return errors.Join(breach("files attached to a message of type %d", m.typ), f.Close())
		}
		switch m.typ {
		case typeFacts:
			err = w.onFacts(&m, f)
		case typeBegin:
			err = w.onBegin(&m, inner)
		case typeLease:
			err = w.onLease(&m)
		case typeCommit:
			err = w.onCommit(&m)
		case typeReturn:
			w.onReturn(&m)
		case typeEnd, typeAbort:
			err = w.onEnd(&m)
		case typeReclaim:
			w.onReclaim(&m)
		default:
			err = breach("a worker does not send messages of type %d", m.typ)
		}
		if err != nil {
			return err
		}
	}
}

// leave hands over what the connection had: the requests may come again, the
// leases are the process's until it has ended.
func (w *worker) leave() {
	s := w.s
	w.mu.Lock()
	requests := make([]*request, 0, len(w.requests))
	for _, r := range w.requests {
		if r.t != nil {
			requests = append(requests, r)
		}
	}
	clear(w.requests)
	s.mu.Lock()
	for _, h := range w.held {
		h.req = nil
		s.orphans[h] = w
	}
	s.mu.Unlock()
	held := len(w.held) > 0
	clear(w.held)
	w.mu.Unlock()
	for _, r := range requests {
		r.t.lost(r)
	}
	s.mu.Lock()
	delete(s.workers, w)
	s.mu.Unlock()
	close(w.left)
	if held || len(requests) > 0 {
		s.wg.Go(func() { w.bury(requests) })
	} else {
		w.peer.close()
	}
}

// bury waits for the end of a process whose connection has ended, and frees its
// leases then. Its requests and its leases may have come again before.
func (w *worker) bury(requests []*request) {
	s := w.s
	ended := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		if w.peer.await() {
			close(ended)
		}
	})
	defer wait.Wait()
	defer w.peer.close()
	look, late := time.NewTicker(s.o.waits.back), time.NewTimer(s.o.waits.orphan)
	defer look.Stop()
	defer late.Stop()
	expired := late.C
	if w.peer.known() {
		expired = nil // its end will be told
	}
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		case <-expired:
			over = true
		case <-s.ctx.Done():
			over = true
		case <-look.C:
			over = s.orphaned(w, false) == 0
		}
		for _, r := range requests {
			r.t.gone(r)
		}
		requests = nil
	}
	s.orphaned(w, true)
}

// orphaned counts the leases of an ended connection that did not come again, and
// frees them if told so.
func (s *Server) orphaned(w *worker, free bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for h, owner := range s.orphans {
		if owner != w {
			continue
		}
		n++
		if free {
			delete(s.orphans, h)
			s.table.free(h)
		}
	}
	return n
}

// onReclaim gives a worker back a lease that it had on an earlier connection.
func (w *worker) onReclaim(m *message) {
	var r reclaim
	r.get(&m.body)
	answer, c := leased{Seq: r.Seq, Slot: r.Slot, Generation: r.Generation, Sealed: notSealed}, codeStale
	w.mu.Lock()
	w.s.mu.Lock()
	for h := range w.s.orphans {
		if h.slot == int(r.Slot) && h.gen == r.Generation && h.instance == w.Instance && h.transfer == r.Transfer {
			delete(w.s.orphans, h)
			w.held[h.slot] = h
			answer.Room, c = uint32(w.s.table.room()), codeOK
			break
		}
	}
	w.s.mu.Unlock()
	w.mu.Unlock()
	w.post(pack(typeLeased, c, 0, &answer))
}
