package bridge

// Target is where the blocks of one transfer go; package omlx has the real one.
// Write, Sync and Seal are called concurrently for different blocks, and Write
// also for different ranges of one block; Publish and Settle are called one at a
// time, in chain order; Close is called once, after everything else returned.
type Target interface {
	// Write stores bytes of a block's data, a range at most once. An error
	// that Is ErrFull says that nothing was stored because too many blocks
	// are open: it may be called again once one of them is published. One that
	// Is ErrNoSpace ends the transfer before this block: the blocks in front can
	// still be finished.
	Write(block int, off int64, p []byte) error

	// Sync makes durable what was written of a block that is not published yet.
	Sync(block int) error

	// Seal is called once for a block whose data is all there: it checks the
	// block against the plan and brings its bytes to where no power cut can leave
	// its name, once it has that, without them. It stays invisible.
	Seal(block int) error

	// Publish makes a sealed block visible under its name.
	Publish(block int) error

	// Settle makes n published blocks from first on durable, names and bytes. It
	// returns for how many of them, from first on, it did so: n without an error.
	Settle(first, n int) (int, error)

	// Close drops what was not published.
	Close() error
}

// Opened is a target that is ready for a transfer.
type Opened struct {
	Target     Target
	Blocks     int    // blocks of the plan
	BlockBytes int64  // bytes of each block's data
	Present    []bool // blocks that are visible already, len Blocks (nil: none)
	// Ordered says that a block can be sealed only after the block before it.
	Ordered bool
	// Visible reports whether a block of the prefix is still there when the
	// transfer ends; it is asked once for each. Nil: it is.
	Visible func(block int) bool
	// Ports tells what network ports counted since the target was opened, for the
	// verdict; it is asked once, when the transfer ended. Nil: nothing is told.
	Ports func() []PortUse
}

// Opener checks a transfer's kind and plan and opens its target. Its error is
// the reason that the sender is told.
type Opener func(kind string, meta []byte) (Opened, error)
