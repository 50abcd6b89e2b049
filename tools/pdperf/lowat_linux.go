package main

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// floorLowat is the mark of a floor that is measured beside a transport, which has the
// same one.
const floorLowat = 1 << 20

// waker sets how many bytes wake the reader of a socket.
type waker struct {
	raw   syscall.RawConn
	limit int // 0: the socket is left as it is
	now   int
}

func newWaker(c *net.TCPConn, limit int) (*waker, error) {
	w := &waker{limit: limit}
	if limit == 0 {
		return w, nil
	}
	var err error
	if w.raw, err = c.SyscallConn(); err != nil {
		return nil, fmt.Errorf("set SO_RCVLOWAT: %w", err)
	}
	return w, nil
}

// want says that so many bytes complete what is being read. It has to be called
// before each read: a mark above what is still to come would never be reached.
func (w *waker) want(left int) error {
	mark := min(w.limit, left)
	if w.limit == 0 || mark == w.now {
		return nil
	}
	var setErr error
	err := w.raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, mark)
	})
	if err == nil {
		err = setErr
	}
	if err != nil {
		return fmt.Errorf("set SO_RCVLOWAT: %w", err)
	}
	w.now = mark
	return nil
}
