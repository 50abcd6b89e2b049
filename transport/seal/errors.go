package seal

import (
	"errors"
	"fmt"

	"pdlink/transport"
)

var (
	// ErrForged is returned when what arrived is not what the peer sealed next
	// on this lane, or not for this end. The connection must end. It Is
	// transport.ErrProtocol.
	ErrForged = fmt.Errorf("seal: %w: not what the peer sealed", transport.ErrProtocol)

	// ErrInvalid is returned for arguments and calls that the package does not
	// allow: a fault of the calling program. Nothing was sealed or opened.
	ErrInvalid = errors.New("seal: invalid use")

	// ErrExhausted is returned when a lane has had all its frames. Connect again.
	ErrExhausted = errors.New("seal: frame numbers of the lane are used up")
)

func forged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrForged, fmt.Sprintf(format, args...))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
