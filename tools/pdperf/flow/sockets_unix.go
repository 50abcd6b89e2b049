//go:build linux || darwin

package flow

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sockets reads the counters of the TCP sockets of this process that match says yes
// to, in no order. It looks at the descriptors themselves, so it finds sockets that
// nobody gives access to. Errors: the system's, when descriptors cannot be listed.
func Sockets(match func(local, remote netip.AddrPort) bool) ([]Counters, error) {
	var all []Counters
	err := EachSocket(match, func(fd int, local, remote netip.AddrPort) {
		if c, err := Read(fd); err == nil { // else it was closed meanwhile
			c.Local, c.Remote = local, remote
			all = append(all, c)
		}
	})
	return all, err
}

// relist is after how many looks a poller lists the descriptors again: four times a
// second by default, since that costs some hundred times what a look does.
const relist = 50

// poller looks at the sockets that match, with one system call. It belongs to one
// goroutine.
type poller struct {
	sockets []unix.PollFd
	remotes []netip.AddrPort
	looks   int // until the descriptors are listed again
}

// look tells of each socket whether it has enough bytes to wake its reader.
func (p *poller) look(match func(local, remote netip.AddrPort) bool, tell func(remote netip.AddrPort, waiting bool)) {
	if p.looks == 0 {
		p.sockets, p.remotes, p.looks = p.sockets[:0], p.remotes[:0], relist
		EachSocket(match, func(fd int, _, remote netip.AddrPort) { //nolint:errcheck // then there are none
			p.sockets, p.remotes = append(p.sockets, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(p.remotes, remote)
		})
	}
	p.looks--
	if _, err := unix.Poll(p.sockets, 0); err != nil {
		return
	}
	for i, s := range p.sockets {
		switch {
		case s.Revents&unix.POLLNVAL != 0: // it was closed
			p.looks = 0
		default:
			tell(p.remotes[i], s.Revents != 0)
		}
	}
}

// EachSocket calls f for the connected TCP sockets of this process that match says yes to,
// in no order. A descriptor may be closed meanwhile, and its number be another socket's.
// Errors: the system's, when descriptors cannot be listed.
func EachSocket(match func(local, remote netip.AddrPort) bool, f func(fd int, local, remote netip.AddrPort)) error {
	dir, err := os.ReadDir("/dev/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range dir {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if local, remote, ok := addresses(fd); ok && match(local, remote) {
			f(fd, local, remote)
		}
	}
	return nil
}

// addresses are those of a connected TCP socket.
func addresses(fd int) (local, remote netip.AddrPort, ok bool) {
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return local, remote, false
	}
	a, err1 := unix.Getsockname(fd)
	b, err2 := unix.Getpeername(fd)
	if err1 != nil || err2 != nil {
		return local, remote, false
	}
	local, ok1 := addrPort(a)
	remote, ok2 := addrPort(b)
	return local, remote, ok1 && ok2
}

func addrPort(a unix.Sockaddr) (netip.AddrPort, bool) {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)), true
	}
	return netip.AddrPort{}, false
}
