package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"pdlink/tools/pdperf/stats"
)

// floorSender writes blocks from its buffers in turn.
type floorSender struct {
	f    *floorFlags
	mem  []byte
	data *net.TCPConn
	next int // buffer of the next block

	acking period // all blocks that may be on their way are, see waitFacts

	early <-chan struct{} // closed: no more blocks are started
}

func newFloorSender(f *floorFlags) *floorSender {
	s := &floorSender{f: f, acking: period{least: 1}, mem: make([]byte, int64(f.buffers)*int64(f.block))}
	var seed [32]byte
	rand.NewChaCha8(seed).Read(s.mem) //nolint:errcheck // it never fails
	return s
}

// measure connects, warms up and measures.
func (s *floorSender) measure(ctx context.Context, addr string) (*result, error) {
	c, err := dialTCP(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := newTalk(c)
	ctx, cancel := context.WithTimeoutCause(ctx, s.f.warmup+s.f.time+2*patience, fmt.Errorf("not done %v after the end", 2*patience))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.Close() }) //nolint:errcheck // it interrupts what waits
	defer stop()
	if _, err := t.ask(s.f.wish()); err != nil {
		return nil, err
	}
	if s.data, err = dialTCP(ctx, addr); err != nil {
		return nil, err
	}
	defer s.data.Close()
	stopData := context.AfterFunc(ctx, func() { s.data.Close() }) //nolint:errcheck // it interrupts what waits
	defer stopData()
	if s.f.warmup > 0 && !s.stopped() {
		if _, _, err := s.phase(t, s.f.warmup); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	m, rep, err := s.phase(t, s.f.time)
	if err != nil {
		return nil, err
	}
	r := &result{
		Program: "floor", Link: "tcp", Local: s.data.LocalAddr().String(), Remote: s.data.RemoteAddr().String(),
		Direction: push, Processes: 2, Model: s.f.model, BlockTokens: s.f.blockTokens, BlockBytes: int64(s.f.block), FrameBytes: int64(s.f.frame), InFlight: s.f.inFlight,
		Lanes: 1, Sum: "none", Warmup: s.f.warmup.Seconds(),
	}
	r.settle(m, rep)
	return r, nil
}

func dialTCP(ctx context.Context, addr string) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: greeting}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		c.Close() //nolint:errcheck // not what was asked for
		return nil, fmt.Errorf("connect to %s: got %T", addr, c)
	}
	return t, nil
}

// phase sends for so long and waits for every acknowledgement.
func (s *floorSender) phase(t *talk, d time.Duration) (sent, report, error) {
	if _, err := t.ask(floorLine{Phase: "begin"}); err != nil {
		return sent{}, report{}, err
	}
	local, remote := s.data.LocalAddr().String(), s.data.RemoteAddr().String()
	before, acked := beginReading(local, remote, nil, false), s.acking.so()
	m, err := s.send(d)
	if err != nil {
		return sent{}, report{}, err
	}
	after := readCPU()
	m.end = before.end(after, m.bytes)
	m.end.Buffers, m.end.Owned, m.end.Buffer = min(s.f.buffers, int(min(m.blocks, maxBlocks))), s.f.buffers, int64(s.f.block)
	m.end.Sockets = dataSockets(m.end.Sockets)
	m.end.Waits = &waitFacts{Acks: (s.acking.so() - acked).Seconds()}
	l, err := t.ask(floorLine{Phase: "end"})
	if err != nil {
		return sent{}, report{}, err
	}
	if l.Report == nil {
		return sent{}, report{}, errors.New("the other end sent no report")
	}
	l.Report.End.clean()
	return m, *l.Report, nil
}

// send writes blocks while acknowledgements are read by another goroutine.
func (s *floorSender) send(d time.Duration) (sent, error) {
	starts := make(chan time.Time, s.f.inFlight) // of blocks that are not acknowledged
	room := make(chan struct{}, s.f.inFlight)    // holds one for each of them
	m := sent{times: stats.NewTimes()}
	var first, last time.Time
	acked := make(chan error, 1)
	go func() {
		one := make([]byte, 1)
		for begin := range starts {
			if _, err := io.ReadFull(s.data, one); err != nil {
				s.data.Close() //nolint:errcheck // it ends the writing
				<-room         // the writer is to go on, to see that
				for range starts {
					<-room
				}
				acked <- fmt.Errorf("wait for an acknowledgement: %w", err)
				return
			}
			last = time.Now()
			m.times.Record(last.Sub(begin))
			<-room
		}
		acked <- nil
	}()
	err := s.write(d, room, starts, &first)
	close(starts)
	if err := errors.Join(err, <-acked); err != nil {
		return sent{}, err
	}
	m.blocks = uint64(m.times.N())
	m.bytes = m.blocks * uint64(s.f.block)
	m.seconds, m.early = last.Sub(first).Seconds(), s.stopped()
	return m, nil
}

// stopped reports whether no more blocks are to be started.
func (s *floorSender) stopped() bool {
	select {
	case <-s.early:
		return true
	default:
		return false
	}
}

// write sends blocks until the time is over.
func (s *floorSender) write(d time.Duration, room chan<- struct{}, starts chan<- time.Time, first *time.Time) error {
	end := time.Now().Add(d)
	for n := 0; n < maxBlocks && (n == 0 || time.Now().Before(end)) && !s.stopped(); n++ {
		block := s.mem[s.next*int(s.f.block):][:s.f.block]
		s.next = (s.next + 1) % s.f.buffers
		s.acking.add(1)
		room <- struct{}{}
		s.acking.add(-1)
		begin := time.Now()
		if n == 0 {
			*first = begin
		}
		starts <- begin
		for len(block) > 0 {
			k := min(len(block), int(s.f.frame))
			if _, err := s.data.Write(block[:k]); err != nil {
				return fmt.Errorf("send a block: %w", err)
			}
			block = block[k:]
		}
	}
	return nil
}
