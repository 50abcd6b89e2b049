package transport

import "context"

// Link is one way between hosts. Implementations are values made in main from
// an options struct; there is no registry. A Link may be used concurrently.
type Link interface {
	// Dial connects to a listener of the same link. The address is the part of
	// the URL after "scheme://". The context bounds the attempt only. Errors:
	// ErrIncompatible, ErrProtocol, ErrLost (it ended during the handshake),
	// ErrUnavailable, ErrInsecure, the context's; another one says that nobody
	// was reached.
	Dial(ctx context.Context, addr string) (Conn, error)

	// Listen starts to accept connections at addr. Errors: ErrUnavailable,
	// ErrInsecure, the context's; another one says that the address cannot be
	// had.
	Listen(ctx context.Context, addr string) (Listener, error)
}

// Listener accepts connections. It may be used concurrently.
type Listener interface {
	// Accept returns the next connection whose handshake succeeded. Peers that
	// fail theirs are dropped and never surface here, and one that nobody
	// accepts in time may be. Errors: ErrClosed, the context's.
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
	// request is copied. Errors: ErrRefused and its kinds; ErrTooLarge and
	// ErrInvalid, which Request.Validate explains, also for Meta above
	// Facts.MaxMeta and for a Kind that is not printable; ErrCancelled (by a
	// peer that does not say why it refuses), ErrLost, ErrClosed, the
	// context's.
	Open(ctx context.Context, r Request) (Outgoing, error)

	// Accept returns the next transfer that the peer offers. Each offer must
	// be admitted or refused. Errors: ErrLost, ErrClosed, the context's.
	Accept(ctx context.Context) (Offer, error)

	// Facts tells what this connection can do. They never change.
	Facts() Facts

	// Close ends all transfers of the connection and waits for its
	// goroutines. What was said before it, results above all, still goes out
	// to a peer that reads. It is idempotent.
	Close() error
}

// Offer is a transfer that the peer wants to send. Exactly one of Admit and
// Refuse takes effect, the first; it may be called from any goroutine.
type Offer interface {
	// Request is what the opener asked. It and its Meta are valid until the
	// incoming transfer ends; they must not be changed.
	Request() Request

	// Admit takes the transfer on; answer (at most Facts.MaxMeta bytes,
	// copied) reaches the opener as Outgoing.Answer. Errors: ErrTooLarge (the
	// answer; the offer stays undecided), ErrBusy (the receive ring has no
	// slot left to promise) or the system's (it has no memory for a ring): the
	// opener has then been refused; ErrDecided, ErrCancelled, ErrLost,
	// ErrClosed.
	Admit(answer []byte) (Incoming, error)

	// Refuse declines it. The reason is for people; it is made printable and
	// cut to MaxReason. Errors: ErrDecided, ErrCancelled, ErrLost, ErrClosed.
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
	// lease has ended when Send returns, whatever it returns; sending one that
	// has ended before panics. A nil error says that the frame is queued, not
	// that it arrived. An empty lease is given back and nothing is sent. The
	// lease may be another connection's, above all one that Request.Salvage
	// took: one of more than Facts.MaxPayload goes as several frames, each with
	// a grant, and it is copied where that one has another ring, which needs
	// free slots of this one. Errors: ErrCancelled, ErrLost, ErrClosed; the
	// context's: then what was not queued is lost, and the transfer lives on
	// without it. With Request.Salvage a lease whose connection ended is there,
	// not lost.
	Send(ctx context.Context, l *Lease) error

	// Flush returns nil when the peer has verified everything sent before the
	// call and has made it durable. Of a transfer that is not Replayable the
	// link keeps the bytes: pieces that arrived damaged it sends again at once,
	// those that the peer misses when it is asked, and Flush goes on until that is
	// settled; a connection that fails the same bytes time and again is lost, since
	// their slot would never come free. An error that Is ErrMissing lists pieces
	// that the caller has to send again; they are listed once. Errors:
	// ErrMissing, ErrCancelled, ErrLost, ErrClosed, the context's; a flush that
	// its context ended may be followed by another.
	Flush(ctx context.Context) error

	// Finish flushes, says that nothing more will come, and waits for the
	// peer's result (at most MaxMeta bytes). After an error that Is ErrMissing
	// the transfer lives on: send the pieces and call Finish again. After the
	// context's too: call Finish again, or Cancel. Otherwise it has ended when
	// Finish returns. The Outcome's Stats are there with an error too. Errors:
	// those of Flush.
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
	// the sender. Errors: ErrCancelled, ErrLost, ErrClosed.
	Ack(blocks ...uint32) error

	// Finish ends the transfer with a result for the sender. It may be called
	// before io.EOF was seen: the sender's calls then fail with ErrCancelled
	// until it calls Finish, which returns the result. Errors: ErrTooLarge
	// (the result is above Facts.MaxMeta; the transfer lives on), ErrCancelled,
	// ErrLost, ErrClosed.
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

	Repeats     uint64 // of Frames, those that the sending link sent again by itself (see Outgoing.Flush)
	RepeatBytes uint64 // of Bytes, those of such frames

	Saved uint64 // of Bytes, those that a codec of the link kept off the wire, of frames that are written
	Codec string // the last frame's that was coded; empty: none was
}

// Facts are what a connection can do. They are fixed when it is made.
type Facts struct {
	Link       string // scheme of the link: "mem", "tcp", "unix", "rdma"
	Local      string // this end's address, for people
	Remote     string // the peer's address, for people
	Peer       string // the peer's name: with Proven the one that this end pinned its key under, else what it calls itself, for people
	Proven     bool   // the peer has proven that it is Peer, by a key
	PeerBoot   ID     // changes when the peer's process restarts
	MaxPayload int    // payload bytes of the largest frame that both ends take
	MaxMeta    int    // bytes of Meta that both ends take
	Lanes      int    // data lanes
	Sum        string // checksum algorithm, one of Sums
	ZeroCopy   bool   // the link moves frames without copying them in user space
	Sealed     bool   // frames are encrypted and authenticated
	Codecs     string // names of what frames may be packed with, "bf16,lz4"; empty: they go as they are
}
