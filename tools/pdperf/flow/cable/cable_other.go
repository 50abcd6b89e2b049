//go:build !linux

package cable

// Cable is none.
type Cable struct{}

// New says that there is none.
func New(Options) (*Cable, error) { return nil, ErrUnavailable }

// In says that there is none.
func (*Cable) In(End, func() error) error { return ErrUnavailable }

// Close does nothing.
func (*Cable) Close() error { return nil }
