package flow

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The words of SO_MEMINFO that are of use: SK_MEMINFO_* of linux/sock_diag.h.
const (
	memReceive       = 0 // bytes of memory of what waits for the reader
	memReceiveBuffer = 1
	memSend          = 2
	memSendBuffer    = 3
	memDrops         = 8
	memWords         = 9
)

// noMinRTT is what the kernel says before it has measured a round trip.
const noMinRTT = ^uint32(0)

// Read asks the kernel about the socket of a descriptor: two system calls. Errors:
// ErrUnknown for one that is no TCP socket, or that is closed.
func Read(fd int) (Counters, error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return Counters{}, fmt.Errorf("read TCP_INFO: %w: %w", ErrUnknown, err)
	}
	micros := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	c := Counters{
		At:   time.Now(),
		Sent: info.Bytes_acked, Received: info.Bytes_received, Resent: info.Bytes_retrans,
		SegmentsOut: uint64(info.Data_segs_out), SegmentsIn: uint64(info.Data_segs_in),
		Retransmits: uint64(info.Total_retrans), Timeouts: uint64(info.Total_rto),
		Spurious: uint64(info.Dsack_dups), Reordered: uint64(info.Reord_seen), OutOfOrder: uint64(info.Rcv_ooopack),
		Busy: micros(info.Busy_time), WindowLimited: micros(info.Rwnd_limited), BufferLimited: micros(info.Sndbuf_limited),
		RTT: micros(uint64(info.Rtt)), RTTVar: micros(uint64(info.Rttvar)), ReceiveRTT: micros(uint64(info.Rcv_rtt)),
		DeliveryRate: info.Delivery_rate, PacingRate: info.Pacing_rate,
		MSS: int(info.Snd_mss), Window: int(info.Snd_cwnd), Reordering: int(info.Reordering),
		SendWindow: int(info.Snd_wnd), ReceiveWindow: int(info.Rcv_wnd), Unsent: int(info.Notsent_bytes),
	}
	if info.Min_rtt != noMinRTT {
		c.MinRTT = micros(uint64(info.Min_rtt))
	}
	if m, ok := memInfo(fd); ok {
		c.Queued, c.ReceiveBuffer = int(m[memReceive]), int(m[memReceiveBuffer])
		c.SendQueue, c.SendBuffer = int(m[memSend]), int(m[memSendBuffer])
		c.Drops = uint64(m[memDrops])
	}
	return c, nil
}

// memInfo reads what memory a socket has; false on kernels before 4.12.
func memInfo(fd int) (m [memWords]uint32, ok bool) {
	size := uint32(unsafe.Sizeof(m))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&size)), 0)
	return m, errno == 0 && size == uint32(unsafe.Sizeof(m))
}
