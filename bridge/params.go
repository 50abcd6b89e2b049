package bridge

import "time"

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

	// sealers is how many blocks of one transfer are sealed at a time. An
	// engine's chunk completes about four blocks with its last layer; their
	// data syncs overlap in the device.
	sealers = 4

	// leaseWait is how long a sender that keeps its frames waits for a slot
	// before it asks whether anything was damaged: rarely enough that the sync
	// which the question costs the receiver does not count.
	leaseWait = time.Second

	// MaxPasses is how often a sender sends what the receiver asks for again:
	// a link that corrupts three times in a row will not do better.
	MaxPasses = 3
)
