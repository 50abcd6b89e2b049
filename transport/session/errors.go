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
	errDecided = fmt.Errorf("session: %w", transport.ErrDecided)

	// errDone ends the goroutines of a session that is going down.
	errDone = errors.New("session: done")

	// errSilent is why a connection is given up whose peer went silent.
	errSilent = errors.New("nothing was heard")

	// errBye is the peer's orderly end.
	errBye = errors.New("the peer closed the connection")
)
