package flow

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Read asks the kernel about the socket of a descriptor. macOS counts bytes, packets
// and retransmits, not what held a flow. Errors: ErrUnknown for one that is no TCP
// socket, or that is closed.
func Read(fd int) (Counters, error) {
	info, err := unix.GetsockoptTCPConnectionInfo(fd, unix.IPPROTO_TCP, unix.TCP_CONNECTION_INFO)
	if err != nil {
		return Counters{}, fmt.Errorf("read TCP_CONNECTION_INFO: %w: %w", ErrUnknown, err)
	}
	millis := func(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }
	c := Counters{
		At:   time.Now(),
		Sent: info.Txbytes, Received: info.Rxbytes, Resent: info.Txretransmitbytes,
		SegmentsOut: info.Txpackets, SegmentsIn: info.Rxpackets, Retransmits: info.Txretransmitpackets,
		RTT: millis(info.Srtt), RTTVar: millis(info.Rttvar),
		MSS: int(info.Maxseg), SendWindow: int(info.Snd_wnd), ReceiveWindow: int(info.Rcv_wnd), SendQueue: int(info.Snd_sbbytes),
	}
	if info.Maxseg > 0 {
		c.Window = int(info.Snd_cwnd / info.Maxseg)
		c.OutOfOrder = info.Rxoutoforderbytes / uint64(info.Maxseg)
	}
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
		c.ReceiveBuffer = n
	}
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
		c.SendBuffer = n
	}
	return c, nil
}
