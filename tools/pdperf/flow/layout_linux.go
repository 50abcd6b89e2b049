package flow

// What is kept of a flow in the kernel: words of eight bytes at these offsets. The
// programs write it and Report reads it.
const (
	atRetransmits = 0
	atZeroWindows = 8
	atClosed      = 16 // ns
	atShut        = 24 // since when the window is closed, by the monotonic clock; 0: it is open
	atWaiting     = 32 // since when bytes wait for their reader; 0: none do
	atSoftirq     = 40 // ns
	atEventCount  = 48
	atEventsLost  = 56
	atRTT         = 64
	atWait        = atRTT + 8*HistogramBuckets
	atWriteToRead = atWait + 8*HistogramBuckets
	atEvents      = atWriteToRead + 8*HistogramBuckets
	flowSize      = atEvents + eventSize*maxEvents

	eventSize = 16 // when, and which of the kinds below
)

const (
	// maxEvents is how many events of a flow are kept: enough to see when it began to go
	// wrong and how often that comes, in a value of less than two kilobytes.
	maxEvents = 64

	// MaxFlows is how many ends of connections are kept apart: 16 lanes each of 8
	// connections, both ends here.
	maxFlows = 256
)

// Kinds of events in the kernel.
const (
	kindRetransmit = 1 + iota
	kindShut
	kindOpens
)

// A sample of the time from a write to its read, by the ports of the writer.
const (
	sampleAt   = 0  // ns, monotonic
	sampleSeq  = 8  // sequence number of the last byte of the write
	sampleLive = 16 // not zero while it waits for the reader
	sampleSize = 24
)

// What a core notes of the softirq that it runs.
const (
	softirqAt    = 0  // since when; 0: it runs none that receives
	softirqPorts = 8  // of the flow that a segment was handled of last; 0: of none
	softirqCount = 16 // of those that receive, so far
	softirqSize  = 24

	// softirqEvery is how many receive softirqs one that is measured stands for: reading
	// the clock twice for each costs more than all else here. A power of two.
	softirqEvery = 16

	netRx = 3 // NET_RX_SOFTIRQ of linux/interrupt.h
)
