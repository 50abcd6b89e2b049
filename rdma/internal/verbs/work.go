package verbs

import (
	"fmt"
	"time"
)

// MaxSegments is how many segments a send request can have.
const MaxSegments = 2

// Segment is a range of registered memory of this end (struct ibv_sge). Length 0 is
// no segment.
type Segment struct {
	Addr   uint64
	Length uint32
	Key    uint32 // MRInfo.Local
}

// Op is IBV_WR_*: what a send request does.
type Op uint32

// Operations.
const (
	OpWrite    Op = 0 // RDMA WRITE
	OpWriteImm Op = 1 // RDMA WRITE that takes a receive of the peer and hands it 32 bits
	OpSend     Op = 2
	OpSendImm  Op = 3
	OpRead     Op = 4 // RDMA READ
)

// Flags are IBV_SEND_* of a send request.
type Flags uint32

// Flags of a send request.
const (
	FlagSignalled Flags = 1 << 1 // it gives a completion; without, its place is free when a later signalled one completed
	FlagInline    Flags = 1 << 3 // the bytes are taken when it is posted: they may change at once, and need no key
)

// SendWR is a send request (struct ibv_send_wr).
type SendWR struct {
	ID         uint64 // comes back in the completion
	Op         Op
	Flags      Flags
	Imm        uint32               // with OpWriteImm and OpSendImm; any byte order, the peer sees the same number
	RemoteAddr uint64               // with WRITE and READ
	RemoteKey  uint32               // the peer's MRInfo.Remote
	Local      [MaxSegments]Segment // the bytes, in order; segments of length 0 are left out
}

// RecvWR is a receive (struct ibv_recv_wr). It may have no memory: then it takes a
// WRITE with immediate, or a message without bytes.
type RecvWR struct {
	ID    uint64
	Local Segment
}

// Status is IBV_WC_*: how a work request ended.
type Status uint32

// Statuses that lead to different decisions; each other one is an error too. After
// the first that is not StatusOK the queue pair is in error, and what follows is
// StatusFlushed.
const (
	StatusOK           Status = 0
	StatusLocalLength  Status = 1  // a message did not fit its receive
	StatusLocalAccess  Status = 4  // a segment is not registered like that
	StatusFlushed      Status = 5  // the queue pair was in error before
	StatusRemoteBad    Status = 9  // the peer could not take the request: a receive too short
	StatusRemoteAccess Status = 10 // the peer's memory may not be used like that
	StatusRemoteOp     Status = 11
	StatusRetries      Status = 12 // no acknowledgement: the peer or the way to it is gone
	StatusRNR          Status = 13 // the peer had no receive posted
	StatusFatal        Status = 19
	StatusGeneral      Status = 21
)

// String returns the status in words.
func (s Status) String() string {
	return nameOf(uint32(s), "success", "local length error", "local queue pair operation error",
		"local end-to-end context error", "local protection error", "flushed", "memory window bind error", "bad response",
		"local access error", "remote invalid request", "remote access error", "remote operation error",
		"no acknowledgement after all retries", "peer had no receive posted", "local domain violation",
		"remote invalid read request", "remote abort", "invalid end-to-end context number",
		"invalid end-to-end context state", "fatal error", "response timed out", "general error", "tag matching error",
		"tag matching incomplete")
}

// WCOp is IBV_WC_*: what a completion is of.
type WCOp uint32

// Kinds of completions. From WCRecv on the work request was a receive.
const (
	WCSend    WCOp = 0
	WCWrite   WCOp = 1
	WCRead    WCOp = 2
	WCRecv    WCOp = 128
	WCRecvImm WCOp = 129 // a WRITE with immediate of the peer took the receive
)

// Completion is the end of a work request (struct ibv_wc). When Status is not
// StatusOK only ID, QP and Vendor have a meaning beside it.
type Completion struct {
	ID     uint64 // of the work request
	Status Status
	Vendor uint32 // the provider's own code of an error
	Op     WCOp
	Length uint32 // bytes received, of receives (also of the WRITE with immediate) and READs
	Imm    uint32 // with HasImm, the number that the peer gave
	HasImm bool
	QP     uint32 // number of this end's queue pair
}

// Err is nil for a success; otherwise it says what went wrong in words.
func (c *Completion) Err() error {
	if c.Status == StatusOK {
		return nil
	}
	return fmt.Errorf("work request %#x of queue pair %d: %v (status %d, vendor code %#x)", c.ID, c.QP, c.Status, uint32(c.Status), c.Vendor)
}

// Spin polls the queues in turn until one has completions. It ends with the one that
// has, out filled from it alone, or with n == 0 after that many rounds or
// budget, whichever is first; at least one round is done. It does not allocate. Between
// rounds it holds its processor: a budget of 50 to 100 µs leaves the other goroutines
// theirs. Errors: those of Poll, with the queue's index.
func Spin(out []Completion, rounds int, budget time.Duration, queues ...CQ) (queue, n int, err error) {
	var start time.Time
	for round := 0; ; round++ {
		for i, q := range queues {
			if n, err := q.Poll(out); n != 0 || err != nil {
				return i, n, err
			}
		}
		if round+1 >= rounds {
			return 0, 0, nil
		}
		// The first round costs no look at the clock.
		if round == 0 {
			start = time.Now()
		} else if time.Since(start) >= budget {
			return 0, 0, nil
		}
	}
}
