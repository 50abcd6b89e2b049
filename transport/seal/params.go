package seal

import "pdlink/transport/wire"

// Sizes of the sealed form (section 10.4).
const (
	// MinRecord, DefaultRecord and MaxRecord bound the bytes of a payload that
	// have one tag; a record is a power of two. Below 64 KiB the cost of
	// starting a record shows; above 256 KiB a record leaves the second-level
	// cache between the copy to or from the socket and the cipher. 128 KiB is as
	// fast as both neighbours and fits the smaller caches.
	MinRecord     = 64 << 10
	DefaultRecord = 128 << 10
	MaxRecord     = 256 << 10

	// HeadSize is the length of the first part of a sealed head, which is always
	// there: prelude, sealed fixed part, tag.
	HeadSize = preludeSize + wire.FixedHeader + tagSize

	// MaxHead is the longest sealed head: a full piece list, and a payload of
	// wire.MaxPayload in the smallest records.
	MaxHead = HeadSize + maxRest

	preludeSize = 16 // magic, version, record size, frame number
	tagSize     = 16 // of AES-GCM; shorter ones are weaker and save nothing
	nonceSize   = 12 // of AES-GCM, without hashing
	maxTags     = (wire.MaxPayload + MinRecord - 1) / MinRecord
	maxRest     = wire.MaxHeader - wire.FixedHeader + tagSize + maxTags*tagSize
)

// Bounds of a key (section 10.3).
const (
	// keyFrames is how many frames one key seals; the next ones have the next
	// key. AES-GCM with unique nonces loses confidentiality as the blocks under
	// one key approach 2^64: with s blocks the advantage of an attacker is about
	// s^2/2^129 (RFC 8446, section 5.5, allows 2^34.5 blocks for 2^-57). 2^14
	// frames of at most 4 MiB are less than 2^32.1 blocks, so 2^-64. They take 13
	// seconds at 10 Gbit/s in 1 MiB frames, and a new key costs microseconds.
	//
	// Forgery: a guess succeeds with a probability of at most 2^-114 (records of
	// 2^14 blocks), and the first wrong one ends the connection.
	keyFrames = 1 << 14

	// maxFrames is how many frames a direction of a lane can have: the nonce has
	// 48 bits for the frame and 16 for the record in it. 2^48 frames are nine
	// years at a frame a microsecond.
	maxFrames = 1 << 48
)
