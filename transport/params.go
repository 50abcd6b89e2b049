package transport

// Limits of the contract. Connections agree on smaller values, never larger.
const (
	// HeaderRoom is the part of a slot that the frame header and piece list
	// may use; payload starts after it. One page, so that the payload of a
	// page-aligned ring is page-aligned too.
	HeaderRoom = 4 << 10

	// MaxSlot is the largest slot, header room included. Some RDMA providers
	// register at most 4 MiB as one region.
	MaxSlot = 4 << 20

	// DefaultSlot is the slot size of a ring made without a wish: the largest
	// write that TCP profits from is about 1 MiB, and a smaller slot shortens
	// the tail of a transfer.
	DefaultSlot = 1<<20 + HeaderRoom

	// DefaultSlots is the number of slots of a ring made without a wish:
	// enough for three busy transfers with DefaultWindow each, or for dozens
	// that share it.
	DefaultSlots = 64

	// DefaultWindow is the most frames that a receiver grants one transfer
	// ahead of what it has released: 16 MiB at DefaultSlot. 10 Gbit/s at 5 ms
	// have 6.25 MB under way; the rest is for frames that are being verified
	// and written while the next ones come.
	DefaultWindow = 16

	// MaxPieces is the number of pieces of one frame whose list fits in
	// HeaderRoom (see package wire).
	MaxPieces = 126

	// MaxKind is the longest Request.Kind in bytes.
	MaxKind = 64

	// MaxMeta is the longest Meta of a request, an answer or a result: a plan
	// of a 1,000,000-token prompt is about 4 MB.
	MaxMeta = 16 << 20

	// MaxReason is the longest reason text of a refusal or a cancel.
	MaxReason = 1 << 10

	// MaxMissing is the longest list of pieces in one answer to a flush.
	MaxMissing = 4096

	// MaxTransfers is how many transfers one connection carries at a time in
	// each direction.
	MaxTransfers = 64

	// MaxParts is how many senders may share one transfer.
	MaxParts = 64
)
