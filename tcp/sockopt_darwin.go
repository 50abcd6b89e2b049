package tcp

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/transport"
)

// markLimit is the highest low-water mark that a socket stands: half of its
// receive buffer as the connection begins. What XNU does with SO_RCVLOWAT
// (bsd/kern/uipc_socket.c): sosetoptlock cuts it to the buffer's size and wakes
// the reader when there is enough already; filt_soread_common, behind the
// EVFILT_READ of Go's poller, wakes it when there is that much, at the end of the
// stream and at an error, and at nothing else. A mark that the receive window
// cannot hold would never be reached. tcp_sbspace takes the window from the same
// buffer, so below half of it the window is open; tcp_sbrcv_trim never cuts the
// buffer below the size that a connection begins with.
func markLimit(fd int) int {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 1
	}
	return max(1, n/2)
}

// tuneSocket sets the options that package net has no words for.
// TCP_RXT_CONNDROPTIME, in seconds, is what TCP_USER_TIMEOUT is elsewhere.
func tuneSocket(fd int, congestion string) error {
	if congestion != "" {
		return fmt.Errorf("%w: congestion control %q: this system has no choice for one socket", transport.ErrUnavailable, congestion)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RXT_CONNDROPTIME, int(userTimeout/time.Second)); err != nil {
		return fmt.Errorf("set TCP_RXT_CONNDROPTIME: %w", err)
	}
	return nil
}

// readSocket asks the kernel about a socket. It reports false when there is none.
func readSocket(fd int, f *SocketFacts) bool {
	info, err := unix.GetsockoptTCPConnectionInfo(fd, unix.IPPROTO_TCP, unix.TCP_CONNECTION_INFO)
	if err != nil {
		return false
	}
	get := func(level, name int) int {
		v, err := unix.GetsockoptInt(fd, level, name)
		if err != nil {
			return 0
		}
		return v
	}
	f.NoDelay = get(unix.IPPROTO_TCP, unix.TCP_NODELAY) != 0
	if get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0 {
		f.KeepAliveIdle = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPALIVE)) * time.Second
		f.KeepAliveInterval = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)) * time.Second
		f.KeepAliveCount = get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	}
	f.UserTimeout = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_RXT_CONNDROPTIME)) * time.Second
	f.SendBuffer = get(unix.SOL_SOCKET, unix.SO_SNDBUF)
	f.RecvBuffer = get(unix.SOL_SOCKET, unix.SO_RCVBUF)
	f.LowWater = get(unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	f.MSS = int(info.Maxseg)
	f.RTT = time.Duration(info.Srtt) * time.Millisecond
	f.Retransmits = info.Txretransmitpackets
	return true
}

// left is how many bytes the socket has sent, each counted once: XNU has no count of what
// was acknowledged, which is less by no more than the window.
func left(fd int) (uint64, bool) {
	info, err := unix.GetsockoptTCPConnectionInfo(fd, unix.IPPROTO_TCP, unix.TCP_CONNECTION_INFO)
	if err != nil || info.Txbytes < info.Txretransmitbytes {
		return 0, false
	}
	return info.Txbytes - info.Txretransmitbytes, true
}
