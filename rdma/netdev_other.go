//go:build !linux

package rdma

import "net/netip"

// netdevOf is the interface that has an address, of that index where it is not 0; the
// zero value where none has.
func netdevOf(ip netip.Addr, index int) netdev {
	d, _ := findNetdev(ip, index)
	return d
}
