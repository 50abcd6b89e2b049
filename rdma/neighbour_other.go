//go:build !linux

package rdma

import "net/netip"

// Neighbour is what the system knows of a neighbour on an interface: not known here, whatever the
// system has.
func Neighbour(string, netip.Addr) (n NeighbourEntry, known bool) { return n, false }
