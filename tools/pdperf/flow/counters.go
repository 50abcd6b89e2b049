package flow

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// ErrUnknown says that this system does not tell, or not of this descriptor.
var ErrUnknown = errors.New("the system does not tell")

// Counters are what the kernel says of one TCP socket. Those of the first group
// count since the connection was made; those of the second are as they are now.
// Zero where the system does not tell.
type Counters struct {
	// At is when they were read. Local and Remote are set by Sockets only.
	At            time.Time      `json:"-"`
	Local, Remote netip.AddrPort `json:"-"`

	Sent          uint64        `json:"sent_bytes"`      // payload that the peer acknowledged
	Received      uint64        `json:"received_bytes"`  // payload
	Resent        uint64        `json:"resent_bytes"`    // payload
	SegmentsOut   uint64        `json:"segments_out"`    // with payload
	SegmentsIn    uint64        `json:"segments_in"`     // with payload
	Retransmits   uint64        `json:"retransmits"`     // of SegmentsOut
	Timeouts      uint64        `json:"timeouts"`        // retransmits that a timer caused
	Spurious      uint64        `json:"spurious"`        // segments that the peer had twice
	Reordered     uint64        `json:"reordered"`       // times that reordering was seen
	OutOfOrder    uint64        `json:"out_of_order"`    // segments that came behind a gap
	Drops         uint64        `json:"drops"`           // segments that this socket had no room for
	Busy          time.Duration `json:"busy_ns"`         // something was unacknowledged or waited to be sent
	WindowLimited time.Duration `json:"rwnd_limited_ns"` // of Busy: the peer's receive window was full
	BufferLimited time.Duration `json:"sndbuf_limited_ns"`

	RTT           time.Duration `json:"rtt_ns"` // smoothed
	RTTVar        time.Duration `json:"rtt_var_ns"`
	MinRTT        time.Duration `json:"min_rtt_ns"`
	ReceiveRTT    time.Duration `json:"receive_rtt_ns"` // as the receiving end guesses it
	DeliveryRate  uint64        `json:"delivery_rate"`  // bytes/s, of the last round trip that was measured
	PacingRate    uint64        `json:"pacing_rate"`    // bytes/s
	MSS           int           `json:"mss"`
	Window        int           `json:"congestion_window"` // segments
	Reordering    int           `json:"reordering"`        // segments of reordering that are taken for granted
	SendWindow    int           `json:"send_window"`       // bytes that the peer offers
	ReceiveWindow int           `json:"receive_window"`    // bytes that this end offers
	Unsent        int           `json:"unsent_bytes"`      // written and not sent yet
	Queued        int           `json:"receive_memory"`    // bytes of memory of what waits for the reader
	ReceiveBuffer int           `json:"receive_buffer"`    // limit of Queued
	SendQueue     int           `json:"send_memory"`
	SendBuffer    int           `json:"send_buffer"`
}

// ReadConn is Read of a connection of package net. Errors: ErrUnknown; the
// connection's, when it is closed.
func ReadConn(c syscall.Conn) (Counters, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Counters{}, fmt.Errorf("read socket counters: %w", err)
	}
	var out Counters
	var failed error
	if err := raw.Control(func(fd uintptr) { out, failed = Read(int(fd)) }); err != nil {
		return Counters{}, fmt.Errorf("read socket counters: %w", err)
	}
	return out, failed
}

// Since is what was counted between two readings of the same socket; what does not
// count is as it is in c.
func (c Counters) Since(before Counters) Counters {
	less := func(a *uint64, b uint64) { *a -= min(*a, b) }
	less(&c.Sent, before.Sent)
	less(&c.Received, before.Received)
	less(&c.Resent, before.Resent)
	less(&c.SegmentsOut, before.SegmentsOut)
	less(&c.SegmentsIn, before.SegmentsIn)
	less(&c.Retransmits, before.Retransmits)
	less(&c.Timeouts, before.Timeouts)
	less(&c.Spurious, before.Spurious)
	less(&c.Reordered, before.Reordered)
	less(&c.OutOfOrder, before.OutOfOrder)
	less(&c.Drops, before.Drops)
	c.Busy = max(0, c.Busy-before.Busy)
	c.WindowLimited = max(0, c.WindowLimited-before.WindowLimited)
	c.BufferLimited = max(0, c.BufferLimited-before.BufferLimited)
	return c
}

// Sum is the sum of what the sockets of one connection counted. Of what does not
// count the sizes are summed up, of times the longest (of MinRTT the shortest) is
// taken, and of MSS and Reordering the largest.
func Sum(list []Counters) Counters {
	var s Counters
	for i, c := range list {
		s.Sent += c.Sent
		s.Received += c.Received
		s.Resent += c.Resent
		s.SegmentsOut += c.SegmentsOut
		s.SegmentsIn += c.SegmentsIn
		s.Retransmits += c.Retransmits
		s.Timeouts += c.Timeouts
		s.Spurious += c.Spurious
		s.Reordered += c.Reordered
		s.OutOfOrder += c.OutOfOrder
		s.Drops += c.Drops
		s.Busy += c.Busy
		s.WindowLimited += c.WindowLimited
		s.BufferLimited += c.BufferLimited

		s.RTT, s.RTTVar, s.ReceiveRTT = max(s.RTT, c.RTT), max(s.RTTVar, c.RTTVar), max(s.ReceiveRTT, c.ReceiveRTT)
		if i == 0 || c.MinRTT < s.MinRTT {
			s.MinRTT = c.MinRTT
		}
		s.DeliveryRate += c.DeliveryRate
		s.PacingRate += c.PacingRate
		s.MSS, s.Reordering = max(s.MSS, c.MSS), max(s.Reordering, c.Reordering)
		s.Window += c.Window
		s.SendWindow += c.SendWindow
		s.ReceiveWindow += c.ReceiveWindow
		s.Unsent += c.Unsent
		s.Queued += c.Queued
		s.ReceiveBuffer += c.ReceiveBuffer
		s.SendQueue += c.SendQueue
		s.SendBuffer += c.SendBuffer
		if c.At.After(s.At) {
			s.At = c.At
		}
	}
	return s
}
