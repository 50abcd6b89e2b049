package tcp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// markLimit is the highest low-water mark that a socket stands. Linux bounds it
// itself, by half of the largest receive buffer (tcp_rmem), and grows the buffer
// and the window to hold what is asked for.
func markLimit(int) int { return maxLowWater }

// tuneSocket sets the options that package net has no words for.
func tuneSocket(fd int, congestion string) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout/time.Millisecond)); err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	if congestion == "" {
		return nil
	}
	err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set congestion control %q: %w; sysctl net.ipv4.tcp_allowed_congestion_control lists what there is",
			congestion, err)
	}
	if err != nil {
		return fmt.Errorf("set congestion control %q: %w", congestion, err)
	}
	return nil
}

// readSocket asks the kernel about a socket. It reports false when there is none.
func readSocket(fd int, f *SocketFacts) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
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
		f.KeepAliveIdle = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)) * time.Second
		f.KeepAliveInterval = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)) * time.Second
		f.KeepAliveCount = get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	}
	f.UserTimeout = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)) * time.Millisecond
	f.SendBuffer = get(unix.SOL_SOCKET, unix.SO_SNDBUF)
	f.RecvBuffer = get(unix.SOL_SOCKET, unix.SO_RCVBUF)
	f.LowWater = get(unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	f.Congestion, _ = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	f.MSS = int(info.Snd_mss)
	f.RTT = time.Duration(info.Rtt) * time.Microsecond
	f.Retransmits = uint64(info.Total_retrans)
	return true
}

// left is how many bytes the peer has acknowledged since the socket was connected; false:
// the kernel does not count them (before 4.1, and some that only look like Linux). A lane
// that has sent nothing else has had its handshake acknowledged: the dialer wrote a
// LaneHello, and the acceptor a LaneOK. An end that wrote nothing would look like a kernel
// that does not count until its first frame is acknowledged.
func left(fd int) (uint64, bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_acked, info.Bytes_acked > 0
}
