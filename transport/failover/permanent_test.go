package failover

import (
	"errors"
	"fmt"
	"testing"

	"pdlink/transport"
)

// TestPermanent: what was lost on the way bars no route.
func TestPermanent(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{transport.ErrUnavailable, true},
		{transport.ErrIncompatible, true},
		{transport.ErrLost, false},
		{fmt.Errorf("%w: %w", transport.ErrLost, transport.ErrUnavailable), false},
		{errors.Join(transport.ErrLost, transport.ErrInsecure), true},
	} {
		if got := new(Dialer).permanent(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
