package omlx

import "errors"

// Sentinel errors; each stands for one decision that a caller can take. All other
// errors are the file system's, or os.ErrClosed after Job.Close.
var (
	// ErrPlan reports a plan, or the layout in it, that is malformed, too large,
	// not supported or not that of its tokens: refuse the transfer and say why.
	// Trying again does not help.
	ErrPlan = errors.New("unusable transfer plan")
	// ErrNoSpace reports a full disk or an exhausted quota: write no more of this
	// block and of those behind it, and end the transfer at its last whole prefix.
	// Blocks before it can still be finished.
	ErrNoSpace = errors.New("no space left in the block store")
	// ErrConflict reports that the block's name is taken by a file that is not
	// this block, or that cannot be read to find out. It is never overwritten: end
	// the transfer before it, or decline it.
	ErrConflict = errors.New("block name is taken by another file")
	// ErrCall reports a call that does not fit the plan or what was done so far: an
	// index or range outside the plan, bytes that were taken already, a block that
	// is not ready or is finished. Nothing was changed: do first what the text
	// names, or leave the call out.
	ErrCall = errors.New("call does not fit the job")
	// ErrFull reports a write to a further block while as many are open as the
	// store, or the system, allows. Nothing was changed: write it again when one was
	// published, or another job of the store was closed.
	ErrFull = errors.New("too many open blocks")
	// ErrBlock reports a file that is not a well-formed block, or a temporary file
	// that does not read back as it was written: do not use it.
	ErrBlock = errors.New("malformed block")
)
