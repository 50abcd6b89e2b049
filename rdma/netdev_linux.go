package rdma

import (
	"fmt"
	"net/netip"

	"github.com/Mellanox/rdmamap"
	"github.com/vishvananda/netlink"
)

// netdevOf is the interface that has an address, of that index where it is not 0, with
// its RDMA device; the zero value where none has.
func netdevOf(ip netip.Addr, index int) netdev {
	d, ok := findNetdev(ip, index)
	if !ok {
		return d
	}
	if name, err := rdmamap.GetRdmaDeviceForNetdevice(d.name); err == nil {
		d.rdma = name
	}
	if l, err := netlink.LinkByIndex(d.index); err == nil {
		a := l.Attrs()
		d.note = fmt.Sprintf("%s, MTU %d", a.OperState, a.MTU)
	}
	return d
}
