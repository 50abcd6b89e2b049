package wire

import (
	"fmt"

	"pdlink/transport"
)

// fault is a broken rule, found in either direction.
type fault struct {
	what  string
	large bool // a limit was exceeded
}

func wrong(what string) *fault { return &fault{what: what} }

func tooMuch(what string, n, limit int) *fault {
	return &fault{what: fmt.Sprintf("%d %s, limit %d", n, what, limit), large: true}
}

// unencodable is the fault as this end's own.
func (f *fault) unencodable(of string) error {
	if f.large {
		return fmt.Errorf("%w: %s: %s", transport.ErrTooLarge, of, f.what)
	}
	return fmt.Errorf("%w: %s: %s", transport.ErrInvalid, of, f.what)
}

// violation is the fault as the peer's.
func (f *fault) violation(of string) error { return Violation("%s: %s", of, f.what) }

// Violation returns an error that Is transport.ErrProtocol: something that the
// peer may not say (section 8). The arguments are fmt.Sprintf's.
func Violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", transport.ErrProtocol, fmt.Sprintf(format, args...))
}
