package prefill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"pdlink/kernels"
	"pdlink/transport"
)

// Options of a server. The zero value works but for Socket.
type Options struct {
	// Socket is the path of the Unix socket; beside it a file of the same name
	// with ".lock" appears. The directory must be there.
	Socket string

	// Slots and SlotSize (bytes, header room included) cut the ring. Defaults:
	// 192 and transport.DefaultSlot, 202 MB. At most 512 MiB in all.
	Slots, SlotSize int

	// UIDs are users whose workers are accepted beside this process's own. With any,
	// the socket's mode is 0666, and the kernel's word on who connected decides; its
	// directory must let them in.
	UIDs []uint32

	// LeaseWait is the longest that a worker is made to wait for a slot.
	// Default: 250 ms; at most 10 s; negative: it never waits.
	LeaseWait time.Duration

	// MemFloor is the free memory of the host, in bytes, below which transfers
	// are sealed. Default: 2 GiB; negative: none.
	MemFloor int64

	// MemInfo is where the free memory is read. Default: /proc/meminfo.
	MemInfo string

	// Reclaim is how long Listen waits for workers that keep the ring of a
	// sidecar which was here before. Default: 1.5 s; negative: not at all.
	Reclaim time.Duration

	// Projection makes blocks of DeepSeek-V4's attention inputs. Nil: workers
	// have to do it themselves (mode pieces).
	Projection *Projection

	// OnFault is told what nobody else hears: why a worker was refused or
	// dropped (ErrWorker). It must return soon. Nil: nobody is told.
	OnFault func(error)

	waits waits
}

// Projection is what the Go kernels need. It is read-only while a server uses it.
type Projection struct {
	Geometry kernels.Geometry
	Weights  *kernels.Weights // must stay open
	Numerics kernels.Numerics
	Workers  int // goroutines of the kernels; 0: GOMAXPROCS
}

// withDefaults fills o in.
func (o Options) withDefaults() Options {
	if o.Slots == 0 {
		o.Slots = defaultSlots
	}
	if o.SlotSize == 0 {
		o.SlotSize = transport.DefaultSlot
	}
	if o.LeaseWait == 0 {
		o.LeaseWait = defaultLeaseWait
	}
	o.LeaseWait = min(max(o.LeaseWait, 0), maxLeaseWait)
	if o.MemFloor == 0 {
		o.MemFloor = defaultMemFloor
	}
	if o.MemInfo == "" {
		o.MemInfo = "/proc/meminfo"
	}
	if o.Reclaim == 0 {
		o.Reclaim = defaultReclaim
	}
	o.waits = o.waits.withDefaults()
	return o
}

// geometry is how options that were filled in cut the ring.
func (o Options) geometry() geometry { return geometry{o.Slots, o.SlotSize} }

// Server shares a ring with the workers of this host's engine. All methods may be
// called concurrently.
type Server struct {
	o        Options
	geometry geometry
	listener *net.UnixListener
	place    *place
	gauge    memGauge
	weights  *weights

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup
	runs sync.WaitGroup // transfers that Run serves

	ready chan struct{} // closed when there is a ring
	table *table        // set before ready is closed

	mu        sync.Mutex // guards the fields below
	transfers map[transport.ID]*Transfer
	opened    chan struct{} // closed, and made anew, when a transfer is opened
	workers   map[*worker]struct{}
	watcher   *func()              // called when a worker has said what it has loaded; nil: nobody watches
	conns     int                  // connections, those that have not introduced themselves included
	strangers int                  // connections of users that are not accepted
	denied    uint32               // the last of those users; this one: none yet
	orphans   map[*holding]*worker // leases whose worker's connection ended; nil: before a restart
	recovered map[transport.ID][]*holding
	closed    bool
}

// Listen makes the ring, or takes over the one that workers kept while this
// sidecar restarted, and accepts workers until Close. The context bounds the call
// only. Errors: ErrUnavailable, ErrInUse, ErrRing (sizes), ErrJob (no path), the
// context's; another one says what the system refused.
func Listen(ctx context.Context, o Options) (*Server, error) {
	if o.Socket == "" {
		return nil, fmt.Errorf("%w: no path for the socket", ErrJob)
	}
	o = o.withDefaults()
	g := o.geometry()
	if err := g.check(); err != nil {
		return nil, err
	}
	l, at, err := listenSocket(ctx, o.Socket, len(o.UIDs) > 0)
	if err != nil {
		return nil, fmt.Errorf("listen for workers: %w", err)
	}
	s := &Server{
		o: o, geometry: g, listener: l, place: at, gauge: memGauge{path: o.MemInfo, floor: o.MemFloor},
		weights: newWeights(o.Projection), ready: make(chan struct{}), opened: make(chan struct{}),
		transfers: make(map[transport.ID]*Transfer), workers: make(map[*worker]struct{}),
		denied: uint32(os.Getuid()), orphans: make(map[*holding]*worker), recovered: make(map[transport.ID][]*holding),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	if at.stale && o.Reclaim > 0 {
		wait := time.NewTimer(o.Reclaim)
		defer wait.Stop()
		select {
		case <-s.ready:
		case <-wait.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), s.Close())
		}
	}
	if err := s.makeRing(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Ring is what connections to the decode host have to send from (as
// session.Options.SendRing). It stays the server's; they must be closed before it.
func (s *Server) Ring() *transport.Ring { return s.table.ring }

// Recovered are the transfers of which an earlier sidecar left committed bytes
// in the ring. Open one within 30 s to send them on.
func (s *Server) Recovered() []transport.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]transport.ID, 0, len(s.recovered))
	for id := range s.recovered {
		ids = append(ids, id)
	}
	return ids
}

// Present is how many workers are connected, and how many workers of the engine there are
// on this host, as those say that are.
func (s *Server) Present() (connected, expected int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.workers {
		expected = max(expected, int(w.LocalWorkers))
	}
	return len(s.workers), expected
}

// makeRing makes the ring unless there is one.
func (s *Server) makeRing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table != nil {
		return nil
	}
	f, err := makeMemory(s.geometry.size())
	if err != nil {
		return fmt.Errorf("make ring of %d bytes: %w", s.geometry.size(), err)
	}
	tb, err := newTable(f, s.geometry, false)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.table = tb
	close(s.ready)
	return nil
}

// adopt looks at a ring that a worker brought: it is taken over where there is
// none yet. It reports whether it is the server's, and closes it otherwise.
func (s *Server) adopt(f *os.File) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, errors.Join(ErrClosed, f.Close())
	}
	if s.table != nil {
		a, errA := f.Stat()
		b, errB := s.table.file.Stat()
		return errA == nil && errB == nil && os.SameFile(a, b), errors.Join(errA, errB, f.Close())
	}
	tb, err := newTable(f, s.geometry, true)
	if err != nil {
		return false, errors.Join(err, f.Close())
	}
	leases, taken := tb.recover()
	for _, h := range leases {
		s.orphans[h] = nil
	}
	s.recovered = taken
	s.table = tb
	close(s.ready)
	s.wg.Go(func() { s.expire(leases) })
	return true, nil
}

// expire frees what nobody asked for some time after a restart.
func (s *Server) expire(leases []*holding) {
	wait := time.NewTimer(s.o.waits.orphan)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.ctx.Done():
		return // Close frees them
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range leases {
		if w, there := s.orphans[h]; there && w == nil {
			delete(s.orphans, h)
			s.table.free(h)
		}
	}
	s.dropRecovered()
}

// dropRecovered frees committed slots that no transfer took. The caller holds mu.
func (s *Server) dropRecovered() {
	for id, list := range s.recovered {
		for _, h := range list {
			s.table.free(h)
		}
		delete(s.recovered, id)
	}
}

// accept takes workers on.
func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, most likely: it may get better
			s.fault(fmt.Errorf("accept: %w", err))
			select {
			case <-time.After(memInfoAge):
			case <-s.ctx.Done():
				return
			}
			continue
		}
		s.wg.Go(func() {
			if err := s.serve(c); err != nil {
				s.fault(err)
			}
		})
	}
}

// fault tells what nobody else hears.
func (s *Server) fault(err error) {
	if s.o.OnFault != nil {
		s.o.OnFault(fmt.Errorf("%w: %w", ErrWorker, err))
	}
}

// find waits a moment for a transfer to be opened; nil when it is not.
func (s *Server) find(ctx context.Context, id transport.ID) *Transfer {
	wait := time.NewTimer(s.o.waits.begin)
	defer wait.Stop()
	for {
		s.mu.Lock()
		t, next := s.transfers[id], s.opened
		s.mu.Unlock()
		if t != nil {
			return t
		}
		select {
		case <-next:
		case <-wait.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Close cancels what is open, drops the workers and waits for the server's
// goroutines. The workers keep the ring, and the socket's name stays as the sign
// of it. Connections that send from the ring must be closed before: otherwise
// transport.ErrRingInUse is returned and the ring stays mapped. It is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	open := make([]*Transfer, 0, len(s.transfers))
	for _, t := range s.transfers {
		open = append(open, t)
	}
	kept := len(s.workers) > 0
	s.mu.Unlock()
	for _, t := range open {
		t.Cancel("the sidecar was stopped")
	}
	s.stop()
	err := s.listener.Close()
	s.wg.Wait()
	s.runs.Wait()
	for _, t := range open {
		t.drop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table != nil {
		for h := range s.orphans {
			delete(s.orphans, h)
			s.table.free(h)
		}
		s.dropRecovered()
		err = errors.Join(err, s.table.close())
	}
	return errors.Join(err, s.place.leave(kept))
}
