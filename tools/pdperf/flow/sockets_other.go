//go:build !linux && !darwin

package flow

import "net/netip"

// Sockets says that this system does not tell.
func Sockets(func(local, remote netip.AddrPort) bool) ([]Counters, error) { return nil, ErrUnknown }

// EachSocket says that this system does not tell.
func EachSocket(func(local, remote netip.AddrPort) bool, func(fd int, local, remote netip.AddrPort)) error {
	return ErrUnknown
}

// poller looks at nothing.
type poller struct{}

func (*poller) look(func(local, remote netip.AddrPort) bool, func(remote netip.AddrPort, waiting bool)) {
}
