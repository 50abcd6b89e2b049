package bridge

import (
	"time"

	"pdlink/transport"
)

// Limits and times, each with its reason.
const (
	// MaxBlocks bounds a plan: 4,000,000 tokens of plain KV in blocks of 256
	// tokens, the finest grid in use.
	MaxBlocks = 1 << 14

	// MaxBlockBytes bounds a block's data: cumulative pools never travel, so
	// the largest in use is 2,048 tokens of plain KV of a 60-layer model with
	// 8 heads of 128 (500 MB).
	MaxBlockBytes = 1 << 30

	// DefaultPartWait is how long an incomplete transfer waits for senders
	// that are missing after the others finished or fell silent: a sender
	// restarts and dials again within seconds, and a request should not hang
	// for a minute on a host that is gone.
	DefaultPartWait = 10 * time.Second

	// DefaultIdleWait is how long a transfer may be without a frame while all
	// its senders are there. An engine that queues a long prompt behind
	// others is silent for a minute; a host that hangs is silent for ever.
	DefaultIdleWait = 2 * time.Minute

	// slowdown is how much longer than those before it a frame may take before its
	// sender counts as silent: another transfer or two on the same link or disk.
	slowdown = 4

	// maxSlow bounds what slow frames add to the patience: as long as a transfer is
	// waited for of which nothing comes at all.
	maxSlow = DefaultIdleWait

	// maxLive is how many transfers a receiver has at a time. Each holds its
	// plan in memory.
	maxLive = 256

	// maxRanges bounds the separate ranges of one block, whose map costs
	// memory and time. Layers of a chunk that arrive in order make a range
	// each; tensor-parallel heads of plain KV one for each head and layer.
	maxRanges = 1 << 14

	// maxAllRanges bounds the ranges of all blocks of all transfers: 16 MiB, and
	// as much again while lists grow. A 1,000,000-token prompt of plain KV from
	// two senders that share the heads, all of its blocks open, has half of that.
	maxAllRanges = 1 << 20

	// maxHeld bounds the ranges in an answer: 32 blocks of plain KV of 64 layers
	// in parts of heads, twice. What is beyond is sent again.
	maxHeld = 1 << 16

	// maxNumbers bounds the numbers in an answer, before they cost memory: two of
	// each range, one of each block, four of each run of blocks.
	maxNumbers = 2*maxHeld + 3*MaxBlocks

	// rejoinWait is how long a sender that comes again waits for what came over
	// its earlier connection to be written: a window of frames, on a disk that is
	// not overloaded.
	rejoinWait = 500 * time.Millisecond

	// fullPoll is how often a write is tried again while the target takes no
	// further block: half of what sealing one takes.
	fullPoll = 4 * time.Millisecond

	// stuckFor is how long two transfers must have waited for each other's open
	// blocks, with nothing being sealed, before the younger makes room: a write
	// into a block that is open takes milliseconds, on a disk that is busy a
	// second.
	stuckFor = 2 * time.Second

	// roomFor is how long after that, or after it was short of room again, the
	// older one has the open blocks for itself: its next chunk comes within
	// seconds, and whoever is refused waits for half a minute.
	roomFor = 5 * time.Second

	// heldFrames bounds the frames of one sender that wait for the disk here;
	// those behind them wait in the link. All that a ring of the default size
	// holds.
	heldFrames = transport.DefaultSlots

	// heldMarks is how many flushes of one sender may wait here: as many as a
	// link lets wait.
	heldMarks = 4

	// maxGroup is how many blocks are published at a time at most: more would
	// keep the first of them from the decoder without saving much.
	maxGroup = 16

	// sealers is how many blocks of one transfer are sealed at a time. An
	// engine's chunk completes about four blocks with its last layer; their
	// data syncs overlap in the device.
	sealers = 4

	// maxLists is how often a receiver is asked to end a transfer of which pieces
	// are missing that nobody has: each time it may name some thousands of them.
	maxLists = 1 << 10

	// MaxPasses is how often a sender sends what the receiver asks for again:
	// a link that corrupts three times in a row will not do better. So many
	// connections that damage the same bytes are replaced, so that the next link has
	// its turn (transport/failover takes it after as many).
	MaxPasses = 3
)
