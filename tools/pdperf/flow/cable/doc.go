// Package cable lays a cable between two network namespaces of this host, for tests
// that need a real link with a rate, a segment size or losses: what runs in them is
// real sockets, and nothing outside is touched. It needs Linux and root; where it
// cannot be had, New says why, and the test fails.
package cable

import (
	"errors"
	"net/netip"
	"time"
)

// ErrUnavailable says that this system cannot have one.
var ErrUnavailable = errors.New("no cable between network namespaces here")

// Options of a cable. The zero value is one without limits.
type Options struct {
	// MTU is the largest packet in bytes. Zero means 1500.
	MTU int

	// Rate is what each direction carries, in bits per second. Zero: as much as the
	// processors do.
	Rate uint64

	// Delay is how long a packet is on its way, in each direction. Such a cable is slow:
	// this process carries the packets, some thousands a second, and has no Rate and no
	// Loss.
	Delay time.Duration

	// Loss is the share of the packets to end B that are dropped, 0 to 1. With it
	// packets are as large as the MTU says, not bunches of them.
	Loss float64

	// Buffer bounds the receive buffers of sockets in B, in bytes. Zero: the system's.
	Buffer int
}

// End is one end of a cable.
type End int

// The ends.
const (
	A End = iota
	B
)

// Addr is the end's address on the cable.
func (e End) Addr() netip.Addr { return netip.AddrFrom4([4]byte{10, 231, 9, byte(e) + 1}) }
