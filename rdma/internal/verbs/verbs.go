package verbs

import (
	"context"
	"errors"
	"net"
)

// Sentinels beside transport.ErrUnavailable, which Load, Open and Register return
// with the reason when this host cannot do RDMA.
var (
	// ErrUnsupported is returned when the provider does not do that at all: do
	// without.
	ErrUnsupported = errors.New("verbs: not supported by the provider")

	// ErrBusy is returned by Close and Deregister while the object is in use, here
	// or in the device: try again later, or leave it.
	ErrBusy = errors.New("verbs: in use")

	// ErrFull is returned by PostSend and PostRecv when the queue has no room for
	// the rest of the list: poll completions first.
	ErrFull = errors.New("verbs: queue is full")

	// ErrLeft is returned by Close when the object is gone and memory that this end had
	// for it is not: closing it again does nothing.
	ErrLeft = errors.New("verbs: memory was not given back")

	// ErrClosed is returned by calls on an object that this end closed.
	ErrClosed = net.ErrClosed
)

// Provider gives access to devices. It may be used concurrently.
type Provider interface {
	// Devices lists what the host has, possibly nothing. Errors:
	// transport.ErrUnavailable when the system has no RDMA at all.
	Devices() ([]DeviceInfo, error)

	// Open opens the device of that name; it may be opened several times, and each
	// is a world of its own. Errors: transport.ErrUnavailable.
	Open(name string) (Device, error)
}

// Device is an opened device. It may be used concurrently.
type Device interface {
	// Attr asks for the limits that the device advertises. Real ones can be lower.
	Attr() (DeviceAttr, error)

	// Port asks for the state of a port; ports count from 1. Link up and down
	// change it.
	Port(port int) (PortAttr, error)

	// GIDs lists the addresses of a port as they are now. Indexes change while
	// addresses come and go: choose by content each time.
	GIDs(port int) ([]GIDEntry, error)

	// Event waits for the next asynchronous event of the device or of an object of
	// it. One goroutine may wait at a time. Errors: ErrUnsupported, ErrClosed (also
	// when Close comes while it waits), the context's.
	Event(ctx context.Context) (Event, error)

	// NewPD makes a protection domain: what is made in it works together.
	NewPD() (PD, error)

	// Close closes the device. It wakes Event. Errors: ErrBusy.
	Close() error
}

// PD is a protection domain of a device. It may be used concurrently.
type PD interface {
	// Register pins mem, which lies outside the Go heap, and lets the device use it
	// until Deregister. It is slow (some microseconds a page). Errors:
	// transport.ErrUnavailable when the system's limit of locked memory forbids it,
	// with the cure; ErrUnsupported for access flags that the provider does not
	// know; another one for too large or too many regions.
	Register(mem []byte, access Access) (MR, error)

	// NewChannel makes a completion channel. Errors: ErrUnsupported: poll instead.
	NewChannel() (Channel, error)

	// NewCQ makes a completion queue for at least depth completions. ch may be nil:
	// then Arm returns ErrUnsupported. A queue that overflows is dead, and its
	// queue pairs with it.
	NewCQ(depth int, ch Channel) (CQ, error)

	// NewQP makes a queue pair in state StateReset.
	NewQP(o QPOptions) (QP, error)

	// Close frees the domain. Errors: ErrBusy.
	Close() error
}

// MR is registered memory.
type MR interface {
	// Info is what work requests and, for remote access, the peer need. It is valid
	// until Deregister returned nil.
	Info() MRInfo

	// Deregister takes the device's access away and unpins the memory. The memory
	// may be unmapped when it returned nil, not before. It is idempotent. Errors:
	// ErrBusy and others: it may be tried again.
	Deregister() error
}

// Channel tells that completion queues have something. Queues that share a channel
// are waited for together.
type Channel interface {
	// Wait returns nil after a queue that was armed got a completion, or after Wake:
	// the caller polls all queues of the channel, and arms again those that it wants
	// to hear of. It may return early for no reason. The goroutine waits without a
	// thread. One goroutine may wait at a time. Errors: ErrClosed, the context's.
	Wait(ctx context.Context) error

	// Wake makes the Wait that is under way, else the next one, return nil. It may
	// be called from anywhere, and does nothing after Close.
	Wake()

	// Close frees the channel. It wakes Wait. Errors: ErrBusy while it has queues.
	Close() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll takes up to len(out) completions that are there now and returns how many;
	// 0 says that there is none. It neither waits nor allocates. It may be called
	// concurrently. An error says that the queue is dead for good, and with it every
	// queue pair that uses it; nothing was taken.
	Poll(out []Completion) (int, error)

	// Arm asks for one event on the queue's channel with the next completion that
	// comes. What came before gives none: arm, poll again, then wait. It does not
	// allocate. Errors: ErrUnsupported: sleep and poll instead.
	Arm() error

	// Close frees the queue. Errors: ErrBusy while queue pairs use it.
	Close() error
}

// QP is a queue pair.
type QP interface {
	// Info is the pair's number and what was granted. It never changes.
	Info() QPInfo

	// Modify moves the pair to a state with those fields of a that the move needs
	// (see QPAttr). Moving to StateReset forgets all outstanding work, whose
	// completions may never come; moving to StateError flushes it with
	// StatusFlushed. Errors: ErrUnsupported, the system's.
	Modify(to QPState, a QPAttr) error

	// PostSend posts the work requests of list in order, as one chain, and returns
	// how many were taken. The list may be reused when it returned. It neither waits
	// nor allocates, and may be called concurrently, then in no particular order.
	// With an error the requests from the returned number on were not taken.
	// Errors: ErrFull; ErrUnsupported (an opcode, a flag, an unsignalled request);
	// the system's (a state that cannot send, a segment too many).
	PostSend(list []SendWR) (int, error)

	// PostRecv posts receives in the same way. It needs at least StateInit.
	PostRecv(list []RecvWR) (int, error)

	// Close destroys the pair. Outstanding work ends without completions; completions
	// that were not polled are dropped. Errors: ErrBusy and others: it may be tried
	// again.
	Close() error
}
