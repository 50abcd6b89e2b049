package wire

import "pdlink/transport"

// Message is one control message: a pointer to one of the message types of this
// package.
type Message interface {
	// Type is the message's type on the wire.
	Type() Type
}

// Major and Minor are the protocol version of this package (section 4).
const (
	Major = 1
	Minor = 0
)

// Hello is the first message of each end on a control connection. The client,
// which is the end that dialled, speaks first.
type Hello struct {
	Major, Minor uint16
	Boot         transport.ID // drawn when the process started, not zero
	Epoch        uint32       // from the server: the connection's epoch; from the client: 0, not looked at
	MaxPayload   uint32       // bytes of the largest frame payload that this end takes, at least MinPayload
	MaxMeta      uint32       // bytes of the longest Meta that this end takes
	Lanes        uint16       // data lanes that this end wants, at least 1
	Token        [16]byte     // from the server: what LaneHello must show; from the client: zero, not looked at
	Name         string       // for people, at most MaxName bytes
	Sums         []string     // checksums by preference, at least one, at most MaxNames
	Features     []string     // optional parts of the protocol that this end speaks, at most MaxNames
}

// LaneHello is the first message on a stream that is to be a data lane; it comes
// from the client.
type LaneHello struct {
	Token [16]byte        // the server's, not zero
	Lane  uint16          // 0 <= Lane < agreed lanes
	Proof [ProofSize]byte // of the client, where the link has keys (section 10.2); zero: none
}

// LaneOK is the server's answer to a LaneHello that it took. Frames follow it,
// in both directions.
type LaneOK struct {
	Lane  uint16
	Proof [ProofSize]byte // of the server, where the link has keys (section 10.2); zero: none
}

// Bye says that the sender ends the connection in order. Nothing follows it.
type Bye struct {
	Reason string // for people; encoders make it printable and cut it to MaxReason
}

// FeaturePing is the feature that an end names in its Hello when it answers
// pings (section 4.4). Where both name it, either may ask.
const FeaturePing = "ping"

// Ping asks the peer for a sign of life. It is said only where FeaturePing was
// agreed. Either end may send it.
type Ping struct {
	Token uint64 // not zero; greater than that of every earlier ping of this end on the connection
}

// Pong answers a Ping and, with it, all earlier ones. Either end may send it.
type Pong struct {
	Token uint64 // of the latest ping that was read
}

// Open offers a transfer. Messages about a transfer name it by Handle, a number
// that its opener chose and uses once on a connection; each direction of a
// connection has its own numbers. From opener to admitter.
type Open struct {
	Handle     uint32
	ID         transport.ID // not zero
	Part       uint16       // 0 <= Part < Parts
	Parts      uint16       // 1 to MaxParts
	Replayable bool         // the opener can make any piece again
	Kind       string       // at most MaxKind bytes, printable
	Meta       []byte       // at most MaxMeta; a decoded one is part of the message's memory
}

// Admit takes a transfer on. From admitter to opener.
type Admit struct {
	Handle uint32
	Window uint32 // the first grant: frames that may be sent, 1 to MaxWindow
	Meta   []byte // the answer, at most MaxMeta; a decoded one is part of the message's memory
}

// Refuse declines a transfer and ends its handle. From admitter to opener.
type Refuse struct {
	Handle uint32
	Code   transport.RefuseCode // decoders read codes that they do not know as RefuseOther
	Reason string               // for people; encoders make it printable and cut it to MaxReason
}

// Grant says how many frames may have been sent since the transfer began. From
// admitter to opener.
type Grant struct {
	Handle uint32
	Epoch  uint32 // the connection's; a grant of another epoch is ignored
	Total  uint64 // cumulative, so a lost or doubled one does no harm
}

// BlockRange is the blocks First, First+1, ... Count of them.
type BlockRange struct{ First, Count uint32 }

// Ack says that blocks are durable. From admitter to opener.
type Ack struct {
	Handle uint32
	Ranges []BlockRange // 1 to MaxRanges, none empty or past 2^32; order and overlap are free
}

// Nack says that pieces of a frame arrived with a wrong checksum and were
// dropped. From admitter to opener.
type Nack struct {
	Handle uint32
	Seq    uint64
	Pieces []transport.Piece // 1 to MaxPieces, as the frame listed them
}

// Flush asks for an answer when everything sent so far is durable. From opener
// to admitter.
type Flush struct {
	Handle uint32
	Token  uint64 // returned by Flushed; drawn so that no two open flushes share one
	Frames uint64 // every frame with Seq < Frames was sent before
}

// Flushed answers a Flush: all of it is durable except Missing. From admitter to
// opener.
type Flushed struct {
	Handle  uint32
	Token   uint64
	More    bool              // Missing was cut at MaxMissing
	Missing []transport.Piece // at most MaxMissing; Sum means nothing here
}

// Finish says that no frame will follow. From opener to admitter.
type Finish struct {
	Handle uint32
	Frames uint64 // how many frames the transfer had
}

// Result ends a transfer and its handle. From admitter to opener.
type Result struct {
	Handle uint32
	Meta   []byte // at most MaxMeta; a decoded one is part of the message's memory
}

// Cancel ends a transfer early. Either end may send it.
type Cancel struct {
	Handle     uint32
	FromOpener bool   // says whose handle it is: the sender's own (true) or the receiver's
	Reason     string // for people; encoders make it printable and cut it to MaxReason
}

// Link is a message that the two ends of one kind of link say to each other, beside
// what all links say: its body is that link's affair. It is said only between ends
// whose hellos named the link's feature. Either end may send it.
type Link struct {
	Of       Type   // FirstLink to LastLink
	Optional bool   // an end that does not know Of skips it; else that ends the connection
	Body     []byte // at most MaxLinkBody; a decoded one is part of the message's memory
}

// Unknown is an optional message of a type that this version does not know. It
// is to be skipped.
type Unknown struct {
	Of Type
}

// Type returns TypeHello.
func (*Hello) Type() Type { return TypeHello }

// Type returns TypeLaneHello.
func (*LaneHello) Type() Type { return TypeLaneHello }

// Type returns TypeLaneOK.
func (*LaneOK) Type() Type { return TypeLaneOK }

// Type returns TypeBye.
func (*Bye) Type() Type { return TypeBye }

// Type returns TypePing.
func (*Ping) Type() Type { return TypePing }

// Type returns TypePong.
func (*Pong) Type() Type { return TypePong }

// Type returns TypeOpen.
func (*Open) Type() Type { return TypeOpen }

// Type returns TypeAdmit.
func (*Admit) Type() Type { return TypeAdmit }

// Type returns TypeRefuse.
func (*Refuse) Type() Type { return TypeRefuse }

// Type returns TypeGrant.
func (*Grant) Type() Type { return TypeGrant }

// Type returns TypeAck.
func (*Ack) Type() Type { return TypeAck }

// Type returns TypeNack.
func (*Nack) Type() Type { return TypeNack }

// Type returns TypeFlush.
func (*Flush) Type() Type { return TypeFlush }

// Type returns TypeFlushed.
func (*Flushed) Type() Type { return TypeFlushed }

// Type returns TypeFinish.
func (*Finish) Type() Type { return TypeFinish }

// Type returns TypeResult.
func (*Result) Type() Type { return TypeResult }

// Type returns TypeCancel.
func (*Cancel) Type() Type { return TypeCancel }

// Type returns Of.
func (m *Link) Type() Type { return m.Of }

// Type returns the type that is not known.
func (m *Unknown) Type() Type { return m.Of }
