//go:build linux || darwin

package tcp

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// source reads a socket with as few wake-ups and system calls as it can: one
// vectored read for what is asked for and what may follow it, and a low-water
// mark (SO_RCVLOWAT) that lets the reader sleep until much of a payload is there.
//
// The mark is safe here and nowhere else: reads never block in the kernel. A
// blocking read that has taken a part waits for a whole mark of further bytes,
// which a sender without credit does not send. Here the mark is never above what
// is still missing when the reader goes to sleep, and lowering it wakes a reader
// for whom there is enough already (Linux: tcp_set_rcvlowat, XNU: sosetoptlock).
// The end of the stream and errors wake a reader whatever the mark is.
//
// One goroutine reads; done may be called by any.
type source struct {
	raw   syscall.RawConn
	limit int                   // highest mark; 1 leaves the socket alone
	mark  int                   // the socket's, as it was set
	try   func(fd uintptr) bool // made once: a method value allocates

	// The read at hand.
	vec  [2][]byte // what is missing, and room for what may follow
	what bulk
	got  int
	err  error

	reads, marks atomic.Uint64
}

// open prepares c for reading. limit is the highest mark in bytes; the kernel's
// own limits apply on top.
func (s *source) open(c socket, limit int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("tcp: prepare for reading: %w", err)
	}
	s.raw, s.limit, s.mark, s.try = raw, limit, 1, s.attempt
	err = raw.Control(func(fd uintptr) { s.limit = min(limit, markLimit(int(fd))) })
	if err != nil {
		return fmt.Errorf("tcp: prepare for reading: %w", err)
	}
	return nil
}

// read reads at least len(p) bytes: p, then spill. n counts both. With an error
// n is what had been read of p.
func (s *source) read(p, spill []byte, what bulk) (n int, err error) {
	s.vec, s.what, s.got, s.err = [2][]byte{p, spill}, what, 0, nil
	err = s.raw.Read(s.try)
	s.vec = [2][]byte{}
	if err == nil {
		err = s.err
	}
	return s.got, err
}

// done is what reading took so far.
func (s *source) done() work { return work{reads: s.reads.Load(), marks: s.marks.Load()} }

// attempt reads what is there. False sends the caller to sleep until the socket
// has more. It runs on the poller's terms: the descriptor does not block.
func (s *source) attempt(fd uintptr) bool {
	for {
		n, err := unix.Readv(int(fd), s.vec[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return s.sleep(fd)
		case err != nil:
			s.err = fmt.Errorf("read: %w", err)
			return true
		case n == 0:
			s.err = io.EOF
			return true
		}
		s.reads.Add(1)
		s.got += n
		if n >= len(s.vec[0]) {
			return true
		}
		s.vec[0] = s.vec[0][n:]
	}
}

// sleep sets the mark for what is missing of a payload, or for anything, and sends the caller to sleep.
func (s *source) sleep(fd uintptr) bool {
	mark := 1
	if s.what != noPayload {
		mark = min(s.limit, len(s.vec[0])+int(s.what))
	}
	if mark == s.mark || s.limit <= 1 {
		return false
	}
	s.marks.Add(1)
	if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, mark); err != nil {
		s.err = fmt.Errorf("set SO_RCVLOWAT to %d: %w", mark, err)
		return true
	}
	s.mark = mark
	return false
}
