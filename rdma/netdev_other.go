//go:build !linux

package rdma

import "net/netip"

// netdevOf is the interface that has an address; the zero value where none has.
func netdevOf(ip netip.Addr) netdev {
	d, _ := findNetdev(ip)
	return d
}
