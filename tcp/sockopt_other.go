//go:build !linux && !darwin

package tcp

import (
	"fmt"

	"pdlink/transport"
)

// tuneSocket sets nothing here.
func tuneSocket(_ int, congestion string) error {
	if congestion != "" {
		return fmt.Errorf("%w: congestion control %q: this system has no choice for one socket", transport.ErrUnavailable, congestion)
	}
	return nil
}

// readSocket knows nothing of the kernel here.
func readSocket(int, *SocketFacts) bool { return false }

// left knows nothing either.
func left(int) (uint64, bool) { return 0, false }
