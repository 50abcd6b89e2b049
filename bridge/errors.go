package bridge

import (
	"errors"
	"fmt"

	"pdlink/transport"
)

// Sentinels, one for each decision that a caller can take.
var (
	// ErrClosed is returned by a Receiver that was closed. It Is
	// transport.ErrClosed.
	ErrClosed = fmt.Errorf("bridge: %w", transport.ErrClosed)

	// ErrAnswer is returned when the peer's answer or result cannot be
	// understood: it is no pdlink receiver, or of another version.
	ErrAnswer = errors.New("bridge: answer not understood")

	// ErrPlan is returned when a piece or a block does not fit the plan that
	// both ends agreed on. Sending it again does not help.
	ErrPlan = errors.New("bridge: does not fit the plan")

	// ErrRing is returned when a sender that must keep its bytes has a ring
	// too small for the blocks that are open at once: it would wait for ever.
	ErrRing = errors.New("bridge: ring too small")

	// ErrStore wraps a failure of the target.
	ErrStore = errors.New("bridge: store failed")

	// ErrFull is returned by Target.Write when too many blocks are open.
	ErrFull = errors.New("bridge: too many open blocks")

	// ErrIncomplete is returned by Courier.Run when pieces still did not arrive
	// after MaxPasses passes, or over more connections than that.
	ErrIncomplete = errors.New("bridge: pieces did not arrive")

	// errFailed ends a member's loop when the transfer cannot go on.
	errFailed = errors.New("bridge: transfer failed")

	// errYield ends a transfer in favour of an older one.
	errYield = errors.New("bridge: another transfer needs the open blocks")

	// errAgain ends a source's run whose connection was replaced.
	errAgain = errors.New("bridge: the connection was replaced")

	// errStopped is why a connection is replaced whose receiver is stopping.
	errStopped = errors.New("bridge: the receiver was stopped")

	// errOver is returned by assembly.join.
	errOver = errors.New("bridge: transfer is ending")
)
