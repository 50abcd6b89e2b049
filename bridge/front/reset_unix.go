//go:build unix

package front

import (
	"errors"
	"net"
	"syscall"
)

// isReset reports whether an error says that the other end's system refused something that
// had been sent: its process had closed the connection, or was gone, and had not read it.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// wasReset reports the same of an open connection. After the other end's close a Read finds
// that alone, whatever came behind it. It takes the connection's error.
func wasReset(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	reset := false
	err = raw.Control(func(fd uintptr) {
		n, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		reset = err == nil && n != 0 && isReset(syscall.Errno(n)) //nolint:gosec // an errno
	})
	return err == nil && reset
}
