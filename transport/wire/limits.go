package wire

import "pdlink/transport"

// Sizes of the fixed parts (sections 2 and 3).
const (
	// FixedHeader is the length of a frame header without its piece list.
	FixedHeader = 64

	// PieceSize is the length of one entry of a piece list.
	PieceSize = 32

	// MaxHeader is the longest encoded frame header: the header room of a
	// slot, filled by MaxPieces entries.
	MaxHeader = FixedHeader + transport.MaxPieces*PieceSize

	// MaxPayload is the largest payload of any frame; a connection agrees on
	// this or less.
	MaxPayload = transport.MaxSlot - transport.HeaderRoom

	// MinPayload is the least that an end may offer in its Hello: the payload
	// of the smallest slot that a ring can have.
	MinPayload = transport.HeaderRoom

	// ControlPrefix is the length of what comes before a message's body: its
	// length, its type and the checksums of both.
	ControlPrefix = 16
)

// Limits of control messages, prefix included (section 3.2). Every bound leaves
// room for fields that a later minor version appends.
const (
	// MaxControl bounds the messages that carry Meta: Open, Admit, Result.
	MaxControl = transport.MaxMeta + 4<<10

	// MaxSmallControl bounds every other message, also those of types that
	// this version does not know. The largest is a Flushed of MaxMissing
	// pieces, 128 KiB.
	MaxSmallControl = 256 << 10

	// MaxLink bounds a link message: the queue pairs of MaxLanes lanes, and the
	// memory of each in the smallest pieces that providers register.
	MaxLink = 64 << 10

	// MaxLinkBody bounds what the link itself says in one.
	MaxLinkBody = MaxLink - 1<<10

	// MaxHello bounds a Hello, which is read before the peer is known.
	MaxHello = 4 << 10

	maxFixed = 256      // messages of a few numbers: Ping, Pong, Grant, Flush, Finish, LaneHello, LaneOK
	maxText  = 4 << 10  // Refuse, Cancel, Bye: a reason of MaxReason and room
	maxNack  = 8 << 10  // MaxPieces pieces are 4,032 bytes
	maxAck   = 64 << 10 // MaxRanges ranges are 32 KiB
)

// Limits of single fields.
const (
	// MaxName is the longest Hello.Name in bytes.
	MaxName = 255

	// MaxNames is how many checksums, and how many features, a Hello lists.
	MaxNames = 32

	// MaxNameItem is the longest name of a checksum or a feature: two lists of
	// MaxNames of them and a name fit in MaxHello.
	MaxNameItem = 48

	// MaxLanes is how many data lanes a connection may have.
	MaxLanes = 64

	// ProofSize is the length of the proof in LaneHello and LaneOK in bytes.
	ProofSize = 32

	// MaxWindow is the largest first grant: no ring has more slots.
	MaxWindow = 1 << 16

	// MaxFlushes is how many flushes of one transfer may wait for their
	// answers. A flush waits for a disk, so more of them help nobody.
	MaxFlushes = 4

	// MaxRanges is how many ranges of blocks one Ack carries; an end with
	// more to say sends several.
	MaxRanges = 4096
)
