package transport

import "context"

// Link is one way between hosts. Implementations are values made in main from
// an options struct; there is no registry. A Link may be used concurrently.
type Link interface {
	// Dial connects to a listener of the same link. The address is the part of
	// the URL after "scheme://". The context bounds the attempt only.
	Dial(ctx context.Context, addr string) (Conn, error)

	// Listen starts to accept connections at addr.
	Listen(ctx context.Context, addr string) (Listener, error)
}

// Listener accepts connections. It may be used concurrently.
type Listener interface {
	// Accept returns the next connection whose handshake succeeded. Peers that
	// fail theirs are dropped and never surface here. After Close it returns
	// an error that Is ErrClosed.
	Accept(ctx context.Context) (Conn, error)

	// Addr is the address that Dial of the same link takes, with the port
	// that was really bound.
	Addr() string

	// Close stops accepting and drops connections that nobody accepted yet;
	// accepted ones live on. It is idempotent.
	Close() error
}

// Conn is a connection to one peer. All methods may be called concurrently.
type Conn interface {
	// Open offers a transfer and returns when the peer has admitted it. The
	// request is copied. Errors: ErrRefused and its kinds, ErrTooLarge,
	// ErrLost, ErrClosed, the context's.
	Open(ctx context.Context, r Request) (Outgoing, error)

	// Accept returns the next transfer that the peer offers. Each offer must
	// be admitted or refused. Errors: ErrLost, ErrClosed, the context's.
	Accept(ctx context.Context) (Offer, error)

	// Facts tells what this connection can do. They never change.
	Facts() Facts

	// Close ends all transfers of the connection and waits for its goroutines.
	Close() error
}

// Offer is a transfer that the peer wants to send. Exactly one of Admit and
// Refuse takes effect, the first; it may be called from any goroutine.
type Offer interface {
	// Request is what the opener asked. It and its Meta are valid until the
	// incoming transfer ends; they must not be changed.
	Request() Request

	// Admit takes the transfer on; answer (at most MaxMeta bytes, copied)
	// reaches the opener as Outgoing.Answer. It fails with ErrBusy when the
	// receive ring has no slot left to promise (the opener has then been told
	// so), or with ErrLost, ErrCancelled, ErrClosed.
	Admit(answer []byte) (Incoming, error)

	// Refuse declines it. The reason is for people.
	Refuse(code RefuseCode, reason string) error
}

// Outgoing is the sending half of a transfer. Lease, Send, Flush and Cancel may
// be called concurrently.
type Outgoing interface {
	// Answer is what the peer said when it admitted the transfer. Read only.
	Answer() []byte

	// Lease waits for a free slot. Errors: ErrCancelled, ErrLost, ErrClosed,
	// the context's.
	Lease(ctx context.Context) (*Lease, error)

	// Send hands a filled lease over, waiting for a grant where needed. The
	// lease has ended when Send returns, whatever it returns. A nil error
	// says that the frame is queued, not that it arrived. An empty lease is
	// given back and nothing is sent.
	Send(ctx context.Context, l *Lease) error

	// Flush returns nil when the peer has verified everything sent before the
	// call and has made it durable. An error that Is ErrMissing lists pieces
	// that have to be sent again; they are listed once.
	Flush(ctx context.Context) error

	// Finish flushes, says that nothing more will come, and waits for the
	// peer's result (at most MaxMeta bytes). The transfer has ended when it
	// returns without error or with one that does not Is ErrMissing; after
	// ErrMissing the caller may send the pieces and call Finish again.
	Finish(ctx context.Context) (Outcome, error)

	// Cancel ends the transfer early at both ends. It does not wait, is
	// idempotent, and does nothing after the transfer ended. All leases that
	// are out stay valid until they are sent (which then fails) or released.
	Cancel(reason string)
}

// Incoming is the receiving half of a transfer. All methods may be called
// concurrently; each delivery goes to one caller of Recv.
type Incoming interface {
	// Request is what the opener asked.
	Request() Request

	// Recv returns the next delivery: a frame of verified pieces, or a mark.
	// io.EOF says that the sender finished and everything was delivered; the
	// receiver then owes Finish. Errors: ErrCancelled, ErrLost, ErrClosed,
	// the context's. Frames that arrived before a cancel or a loss may be
	// dropped.
	Recv(ctx context.Context) (*Delivery, error)

	// Ack tells the sender that blocks are durable: slots that it kept for
	// them are free. Blocks that the transfer never touched are ignored by
	// the sender.
	Ack(blocks ...uint32) error

	// Finish ends the transfer with a result for the sender. It may be called
	// before io.EOF was seen: the sender's calls then fail with ErrCancelled
	// until it calls Finish, which returns the result.
	Finish(result []byte) error

	// Cancel ends the transfer early at both ends. It does not wait, is
	// idempotent, and does nothing after the transfer ended.
	Cancel(reason string)

	// Stats counts what has arrived so far.
	Stats() Stats
}

// Outcome is how a finished transfer ended for its sender.
type Outcome struct {
	Result []byte // the receiver's result
	Stats  Stats  // what was sent
}

// Stats counts one transfer at one end.
type Stats struct {
	Frames   uint64 // frames sent or received
	Bytes    uint64 // payload bytes of them, without headers
	Pieces   uint64 // pieces of them
	BadPiece uint64 // pieces whose checksum did not match (receiver), or that the peer said so of (sender)
}

// Facts are what a connection can do. They are fixed when it is made.
type Facts struct {
	Link       string // scheme of the link: "mem", "tcp"
	Local      string // this end's address, for people
	Remote     string // the peer's address, for people
	Peer       string // the name that the peer gave itself, for people
	PeerBoot   ID     // changes when the peer's process restarts
	MaxPayload int    // payload bytes of the largest frame that both ends take
	MaxMeta    int    // bytes of Meta that both ends take
	Lanes      int    // data lanes
	Sum        string // checksum algorithm, one of Sums
	ZeroCopy   bool   // the link moves frames without copying them in user space
	Sealed     bool   // frames are encrypted and authenticated
}
