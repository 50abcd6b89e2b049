package flow

import (
	"errors"
	"time"
)

// ErrPrivilege says that Watch may not: its message is one line for people, with what
// would help.
var ErrPrivilege = errors.New("watching flows in the kernel is not allowed")

// ErrUnsupported says that Watch cannot: another system, or a kernel without BTF.
var ErrUnsupported = errors.New("watching flows in the kernel is not possible here")

// WatchOptions say what Watch watches. Ports is required.
type WatchOptions struct {
	// Ports are the TCP ports, local or remote, of the connections: those of the
	// listeners suffice. One to MaxPorts.
	Ports []uint16

	// Cgroup is the directory of the cgroup v2 whose processes' connections are asked
	// for round trips. Empty: the root of the mounted hierarchy.
	Cgroup string

	// NoSoftirq leaves out Seen.Softirq: over loopback, where each segment has softirqs of
	// its own, that costs as much as all else.
	NoSoftirq bool
}

// MaxPorts is how many ports may be watched: they are compared one by one.
const MaxPorts = 8

// Report is what a Watcher has seen so far.
type Report struct {
	At    time.Duration `json:"at_ns"` // since Watch, by the clock of events
	Flows []Seen        `json:"flows"` // by the bytes that they moved, most first
	Notes []string      `json:"notes"` // one line each: what could not be watched and why
	Lost  uint64        `json:"lost"`  // events beyond what is kept of each flow, or flows beyond MaxFlows
}

// Seen is one direction of one connection at one end: the socket on the local port.
// Both ends of a connection on this host make two.
type Seen struct {
	LocalPort  uint16 `json:"local_port"`
	RemotePort uint16 `json:"remote_port"`

	Retransmits  uint64        `json:"retransmits"`  // times that something was sent again
	ZeroWindows  uint64        `json:"zero_windows"` // times that the peer closed its window
	WindowClosed time.Duration `json:"window_closed_ns"`
	RTT          Histogram     `json:"rtt"`           // each round trip that was measured
	Wait         Histogram     `json:"receive_queue"` // from bytes that arrive in an empty queue to their reader
	WriteToRead  Histogram     `json:"write_to_read"` // samples: from the end of a write until its last byte was read; both ends on this host
	Softirq      time.Duration `json:"softirq_ns"`    // estimate from one in 16: receive softirqs in which a segment of it came last
	Events       []Event       `json:"events"`        // the first ones, in the order in which they came
}

// Since is what was seen between two reports of one Watcher. At and Notes are those of r.
func (r Report) Since(before Report) Report {
	flows := make([]Seen, len(r.Flows))
	for i, s := range r.Flows {
		for _, b := range before.Flows {
			if b.LocalPort == s.LocalPort && b.RemotePort == s.RemotePort {
				s = s.since(b)
			}
		}
		flows[i] = s
	}
	r.Flows, r.Lost = flows, r.Lost-min(r.Lost, before.Lost)
	return r
}

func (s Seen) since(before Seen) Seen {
	s.Retransmits -= min(s.Retransmits, before.Retransmits)
	s.ZeroWindows -= min(s.ZeroWindows, before.ZeroWindows)
	s.WindowClosed = max(0, s.WindowClosed-before.WindowClosed)
	s.Softirq = max(0, s.Softirq-before.Softirq)
	s.RTT, s.Wait, s.WriteToRead = s.RTT.since(before.RTT), s.Wait.since(before.Wait), s.WriteToRead.since(before.WriteToRead)
	s.Events = s.Events[min(len(before.Events), len(s.Events)):]
	return s
}

// Event is something that happened to a flow.
type Event struct {
	At   time.Duration `json:"at_ns"` // since Watch
	What EventKind     `json:"what"`
}

// EventKind is what happened.
type EventKind string

// Events.
const (
	Retransmit  EventKind = "retransmit"
	WindowShut  EventKind = "window closed" // the peer has no room
	WindowOpens EventKind = "window open"   // and has it again
)

// Histogram counts durations by powers of two: bucket i has those of at least 2^(i-1)
// and less than 2^i microseconds, bucket 0 those below one.
type Histogram struct {
	Buckets [HistogramBuckets]uint64 `json:"buckets"`
}

// HistogramBuckets is how many buckets a Histogram has; the last one takes all above
// 16 seconds.
const HistogramBuckets = 26

func (h Histogram) since(before Histogram) Histogram {
	for i := range h.Buckets {
		h.Buckets[i] -= min(h.Buckets[i], before.Buckets[i])
	}
	return h
}

// Count is how many durations were counted.
func (h Histogram) Count() (n uint64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// Quantile is the upper bound of the bucket that holds the quantile q (0 to 1), at
// most a factor of two above it; 0 where nothing was counted.
func (h Histogram) Quantile(q float64) time.Duration {
	total := h.Count()
	if total == 0 {
		return 0
	}
	want := uint64(q * float64(total))
	var seen uint64
	for i, b := range h.Buckets {
		if seen += b; seen > want || seen == total {
			return time.Microsecond << i
		}
	}
	return time.Microsecond << (HistogramBuckets - 1)
}
