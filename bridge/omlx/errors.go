package omlx

import "errors"

// Sentinel errors; each stands for one decision that a caller can take.
var (
	// ErrSpec reports a layout that cannot exist or is not supported: fix the
	// configuration or decline the transfer.
	ErrSpec = errors.New("unusable block layout")
	// ErrPlan reports a malformed or oversized plan: refuse the peer's message.
	ErrPlan = errors.New("unusable transfer plan")
	// ErrMismatch reports a plan whose hashes are not those of its tokens: the two
	// ends do not agree about the prompt or the model id.
	ErrMismatch = errors.New("plan does not match its tokens")
	// ErrNoSpace reports a full disk or an exhausted quota: end the transfer at
	// its last whole prefix.
	ErrNoSpace = errors.New("no space left in the block store")
	// ErrConflict reports that the block's name is taken by a file that is not
	// this block. It is never overwritten: end the transfer before it.
	ErrConflict = errors.New("block name is taken by another file")
	// ErrRange reports a block index or byte range outside the plan.
	ErrRange = errors.New("outside the plan")
	// ErrOrder reports a call that came before one that it needs: the previous
	// block is not sealed or not published yet, or bytes are missing.
	ErrOrder = errors.New("block is not ready")
	// ErrSealed reports a write to a block that is sealed, published or already
	// present: the bytes are not needed.
	ErrSealed = errors.New("block is already sealed")
	// ErrTooManyOpen reports that too many blocks are open at once: finish some first.
	ErrTooManyOpen = errors.New("too many open blocks")
	// ErrCorrupt reports that what was read back differs from what was written:
	// the disk or another process damaged the temporary file.
	ErrCorrupt = errors.New("block file was damaged while it was written")
	// ErrBlock reports a file that is not a well-formed block: do not use it.
	ErrBlock = errors.New("malformed block")
)
