package main

import (
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"pdlink/tools/pdperf/flow"
)

// readSockets asks the kernel about the sockets of the connection between two
// addresses, all of this process that match. It looks at the descriptors
// themselves, so what it says does not depend on what a link believes to have
// set. Nil where the addresses are none of sockets.
func readSockets(local, remote string) []socketFacts {
	l, r, ok := endpoints(local, remote)
	if !ok {
		return nil
	}
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var all []socketFacts
	for _, e := range dir {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		here, there, ok := socketAddrs(fd)
		if !ok || !sameConn(here, there, l, r) {
			continue
		}
		f := socketFacts{Local: here.String(), Remote: there.String()}
		if fillSocket(fd, &f) {
			all = append(all, f)
		}
	}
	return all
}

// socketAddrs are the addresses of a connected TCP socket.
func socketAddrs(fd int) (local, remote netip.AddrPort, ok bool) {
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

// fillSocket reads the options and counters of a socket, whose descriptor may
// have been closed meanwhile: then it reports false.
func fillSocket(fd int, f *socketFacts) bool {
	c, err := flow.Read(fd)
	if err != nil {
		return false
	}
	get := func(level, opt int) int {
		v, err := unix.GetsockoptInt(fd, level, opt)
		if err != nil {
			return 0
		}
		return v
	}
	f.Congestion, _ = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	f.SendBuffer = get(unix.SOL_SOCKET, unix.SO_SNDBUF)
	f.RecvBuffer = get(unix.SOL_SOCKET, unix.SO_RCVBUF)
	f.RecvLowWater = get(unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	f.KeepAlive = get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0
	f.ZeroCopy = get(unix.SOL_SOCKET, unix.SO_ZEROCOPY) != 0
	f.NoDelay = get(unix.IPPROTO_TCP, unix.TCP_NODELAY) != 0
	f.UserTimeout = get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	f.Flow = c
	f.MSS, f.RTTMicros, f.Window = c.MSS, int(c.RTT.Microseconds()), c.Window
	f.Sent, f.Received = int64(c.Sent), int64(c.Received)
	f.Retransmits, f.SegmentsIn = int64(c.Retransmits), int64(c.SegmentsIn)
	f.ReceiveRTT = int(c.ReceiveRTT.Microseconds())
	f.Busy, f.WindowLimited, f.BufferLimited = c.Busy.Seconds(), c.WindowLimited.Seconds(), c.BufferLimited.Seconds()
	return true
}
