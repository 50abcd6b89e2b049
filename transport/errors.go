package transport

import (
	"errors"
	"fmt"
	"net"
)

// Sentinels, one for each decision that a caller can take. They are wrapped
// with what, where and which peer; test with errors.Is.
var (
	// ErrClosed is returned by every call after this end ended the object in
	// order: it closed the connection or the listener, or finished the
	// transfer. It Is net.ErrClosed.
	ErrClosed = fmt.Errorf("transport: %w", net.ErrClosed)

	// ErrLost is returned when the connection ended without this end asking:
	// cut, reset, the peer died, closed, or went silent. The transfer may be
	// opened again on another connection.
	ErrLost = errors.New("transport: connection lost")

	// ErrDamaged is returned together with ErrLost when this end gave the connection
	// up because the same bytes arrived damaged, or did not, each time they were sent.
	// Another connection may do better, above all over another link; a few that do not
	// are reason enough to stop.
	ErrDamaged = errors.New("transport: the link damages what it carries")

	// ErrUnreachable is for whoever dials again and again: nobody was reached for
	// as long as that is tried, and the peer may be back later.
	ErrUnreachable = errors.New("transport: no way to the peer")

	// ErrRefused is returned by Open when the peer declined the transfer.
	// ErrDuplicate and ErrBusy are kinds of it; the cause is a *RefusedError.
	ErrRefused = errors.New("transport: transfer refused")

	// ErrDuplicate is returned by Open when the peer has a live transfer of
	// the same id and part: the caller has sent it already or must wait.
	ErrDuplicate = fmt.Errorf("%w: duplicate transfer id", ErrRefused)

	// ErrBusy is returned by Open when the peer has no room: try again later.
	ErrBusy = fmt.Errorf("%w: no room", ErrRefused)

	// ErrCancelled is returned by calls on a transfer that either end
	// cancelled; the cause is a *CancelledError.
	ErrCancelled = errors.New("transport: transfer cancelled")

	// ErrMissing is returned by Flush and Finish when some pieces are not
	// durable at the peer and this end cannot send them again by itself; the
	// cause is a *MissingError that lists what the caller has to send again.
	ErrMissing = errors.New("transport: pieces missing")

	// ErrTooLarge is returned when the caller asks for more than the limits
	// of the contract or the connection's facts allow: ask for less. Nothing
	// was sent.
	ErrTooLarge = errors.New("transport: too large")

	// ErrInvalid is returned for a value that would be wrong on every
	// connection: part 3 of 2, a piece of no bytes, a name that cannot be
	// shown. The calling program has to change. Nothing was sent.
	ErrInvalid = errors.New("transport: invalid value")

	// ErrDecided is returned by Admit and Refuse of an offer whose fate was
	// decided before: there is nothing left to do about it.
	ErrDecided = errors.New("transport: offer decided before")

	// ErrProtocol is returned when the peer said something that the protocol
	// does not allow; the connection is closed. Calls on an established
	// connection return it together with ErrLost.
	ErrProtocol = errors.New("transport: protocol violation")

	// ErrIncompatible is returned by Dial when the two ends share no protocol
	// version or no checksum. Upgrade the older end.
	ErrIncompatible = errors.New("transport: incompatible peer")

	// ErrUnavailable is returned by the constructors and calls of a link that
	// this build or this host does not have.
	ErrUnavailable = errors.New("transport: link unavailable")

	// ErrInsecure is returned when an address would be reachable by strangers
	// and no peer key protects it.
	ErrInsecure = errors.New("transport: address needs peer keys")
)

// RefuseCode tells an opener why its transfer was declined.
type RefuseCode uint8

// Codes of a refusal. Unknown codes of a newer peer read as RefuseOther.
const (
	RefuseOther     RefuseCode = iota // see the reason
	RefuseDuplicate                   // the same id and part is live
	RefuseBusy                        // no room for another transfer
)

// RefusedError says why a peer declined a transfer. It Is ErrRefused, and
// ErrDuplicate or ErrBusy by its code.
type RefusedError struct {
	Transfer ID
	Code     RefuseCode
	Reason   string // the peer's words, at most MaxReason bytes, printable
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v: transfer %v: %s", e.Unwrap(), e.Transfer, e.Reason)
}

// Unwrap returns the sentinel for the code.
func (e *RefusedError) Unwrap() error {
	switch e.Code {
	case RefuseDuplicate:
		return ErrDuplicate
	case RefuseBusy:
		return ErrBusy
	default:
		return ErrRefused
	}
}

// CancelledError says who ended a transfer early and why. It Is ErrCancelled.
type CancelledError struct {
	Transfer ID
	Remote   bool   // the peer cancelled, not this end
	Reason   string // at most MaxReason bytes, printable
}

func (e *CancelledError) Error() string {
	who := "here"
	if e.Remote {
		who = "by peer"
	}
	return fmt.Sprintf("%v %s: transfer %v: %s", ErrCancelled, who, e.Transfer, e.Reason)
}

// Unwrap returns ErrCancelled.
func (e *CancelledError) Unwrap() error { return ErrCancelled }

// MissingError lists pieces that a flush found not durable at the peer. It Is
// ErrMissing. More tells that the list was cut at MaxMissing entries.
type MissingError struct {
	Transfer ID
	Pieces   []Piece
	More     bool
}

func (e *MissingError) Error() string {
	more := ""
	if e.More {
		more = " or more"
	}
	return fmt.Sprintf("%v: transfer %v: %d%s", ErrMissing, e.Transfer, len(e.Pieces), more)
}

// Unwrap returns ErrMissing.
func (e *MissingError) Unwrap() error { return ErrMissing }
