package why

import (
	"time"

	"pdlink/tools/pdperf/flow"
)

// Cause is what limited a link.
type Cause string

// The causes.
const (
	SenderCPU     Cause = "sender CPU"
	ReceiverCPU   Cause = "receiver CPU"
	ReceiveWindow Cause = "receive window" // too small for the path
	Wire          Cause = "wire"           // it carried what it can
	Loss          Cause = "loss"           // segments were lost or damaged on the way
	Disk          Cause = "disk"           // the receiver's store
	Leases        Cause = "leases"         // nobody filled slots, or none came free
	RoundTrip     Cause = "round trip"     // too few blocks were on their way to hide that of an acknowledgement
	Unknown       Cause = "unknown"        // the figures do not tell
)

// Input is what both ends counted in the same stretch of time. Zero means unknown,
// but for Seconds, without which nothing can be said.
type Input struct {
	Seconds float64 `json:"seconds"` // how long it took
	Bytes   uint64  `json:"bytes"`   // payload that arrived
	Line    float64 `json:"line"`    // payload bytes/s that the link can carry at most

	Sender   End  `json:"sender"`
	Receiver End  `json:"receiver"`
	Flow     Flow `json:"flow"` // of the sender's sockets
}

// End is what one end did.
type End struct {
	Run     float64 `json:"run_seconds"`   // processor time of its threads
	Ready   float64 `json:"ready_seconds"` // its threads were ready and had no core; see flow.CPU
	Threads int     `json:"threads"`       // how many of them can move bytes at once: lanes, and no more than cores; 0: 1

	// Backlog is what flow.Sample saw of its data sockets. Of the receiver.
	Backlog flow.Backlog `json:"backlog"`

	// Disk is for how long somebody waited for the store, one waiter at a time: writes,
	// and the synchronisation that holds up frames. Of the receiver.
	Disk float64 `json:"disk_seconds"`
	// Leases is for how long the source waited for a free slot. Of the sender.
	Leases float64 `json:"lease_seconds"`
	// Grants is for how long a frame waited for the receiver's promise of room. Of the
	// sender.
	Grants float64 `json:"grant_seconds"`
	// Fill is for how long a slot was held by who fills it and the link had none to
	// send. Of the sender.
	Fill float64 `json:"fill_seconds"`

	// Acks is for how long as many blocks as may be on their way were, and all of them were
	// handed over: nothing more could be sent before an acknowledgement came. Of the sender.
	Acks float64 `json:"ack_seconds"`

	// InFlight is how many blocks may be on their way; 0: as many as there is room for. Of
	// the sender.
	InFlight int `json:"blocks_in_flight"`

	// Device is for how long a device that moves frames by itself had some to move: what
	// Flow.Busy is where there are no sockets. Of the sender.
	Device float64 `json:"device_seconds"`
}

// Flow is what held the sender's sockets; times are means over the sockets.
type Flow struct {
	Sockets       int     `json:"sockets"`
	Busy          float64 `json:"busy_seconds"`           // something was to be sent or on its way
	WindowLimited float64 `json:"window_limited_seconds"` // of Busy
	BufferLimited float64 `json:"buffer_limited_seconds"` // of Busy
	Segments      uint64  `json:"segments"`
	Retransmits   uint64  `json:"retransmits"` // of Segments
	Timeouts      uint64  `json:"timeouts"`    // of Retransmits
	Spurious      uint64  `json:"spurious"`    // of Retransmits, those that were not needed
	RTT           float64 `json:"rtt_seconds"`
	MinRTT        float64 `json:"min_rtt_seconds"`
	Window        uint64  `json:"window_bytes"`          // that the receiver offers, over all sockets
	Congestion    uint64  `json:"congestion_bytes"`      // that congestion control allows, over all sockets
	ReceiveBuffer uint64  `json:"receive_buffer_bytes"`  // of the receiver's sockets; 0: unknown
	Closed        uint64  `json:"zero_windows"`          // times that the window was shut; flow.Report
	ClosedFor     float64 `json:"window_closed_seconds"` // a sum over the sockets
}

// FlowOf is the Flow of the sender's sockets, given what each counted in the
// stretch of time (flow.Counters.Since).
func FlowOf(sockets []flow.Counters) Flow {
	n := len(sockets)
	if n == 0 {
		return Flow{}
	}
	s := flow.Sum(sockets)
	mean := func(d time.Duration) float64 { return d.Seconds() / float64(n) }
	return Flow{
		Sockets: n, Busy: mean(s.Busy), WindowLimited: mean(s.WindowLimited), BufferLimited: mean(s.BufferLimited),
		Segments: s.SegmentsOut, Retransmits: s.Retransmits, Timeouts: s.Timeouts, Spurious: s.Spurious,
		RTT: s.RTT.Seconds(), MinRTT: s.MinRTT.Seconds(),
		Window: uint64(s.SendWindow), Congestion: uint64(s.Window) * uint64(s.MSS),
	}
}

// Verdict is what limited a link, and how that is known.
type Verdict struct {
	Cause    Cause   `json:"cause"`
	Share    float64 `json:"share"`    // of the time, 0 to 1, in which the cause showed; 0: not such a cause
	Evidence string  `json:"evidence"` // a sentence without the cause
}

// String is the sentence: "receive window: …".
func (v Verdict) String() string { return string(v.Cause) + ": " + v.Evidence }
