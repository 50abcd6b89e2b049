package main

import (
	"net/netip"

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
	var all []socketFacts
	match := func(here, there netip.AddrPort) bool { return sameConn(here, there, l, r) }
	flow.EachSocket(match, func(fd int, here, there netip.AddrPort) { //nolint:errcheck // then there are none to tell of
		f := socketFacts{Local: here.String(), Remote: there.String()}
		if fillSocket(fd, &f) {
			all = append(all, f)
		}
	})
	return all
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
