package session

import (
	"errors"
	"fmt"

	"pdlink/transport"
)

var (
	// errClosed is what calls get after this end closed the connection.
	errClosed = fmt.Errorf("session: %w: connection closed by this end", transport.ErrClosed)

	// errFinished is what calls get after a transfer has ended as it should.
	errFinished = fmt.Errorf("session: %w: transfer finished", transport.ErrClosed)

	// errDecided is for the second decision about an offer.
	errDecided = fmt.Errorf("session: %w: offer decided before", transport.ErrClosed)

	// errLease is for a lease that has ended before it was sent.
	errLease = fmt.Errorf("session: %w: lease ended before", transport.ErrClosed)

	// errDone ends the goroutines of a session that is going down.
	errDone = errors.New("session: done")

	// errBye is the peer's orderly end.
	errBye = errors.New("the peer closed the connection")
)

// violation is something that the peer may not say.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", transport.ErrProtocol, fmt.Sprintf(format, args...))
}
