package rdma

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Neighbour is what the kernel knows of a neighbour on an interface: an address of this
// host's links that is not known cannot be connected to when it is link-local, since
// cards of RDMA ask nobody. known is false too where the system does not tell.
func Neighbour(iface string, ip netip.Addr) (n NeighbourEntry, known bool) {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return n, false
	}
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	list, err := netlink.NeighList(i.Index, family)
	if err != nil {
		return n, false
	}
	return findNeighbour(list, ip)
}

// findNeighbour looks for an address in the kernel's answer.
func findNeighbour(list []netlink.Neigh, ip netip.Addr) (entry NeighbourEntry, known bool) {
	const useful = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	for _, n := range list {
		if a, ok := netip.AddrFromSlice(n.IP); !ok || a.Unmap() != ip.WithZone("") || n.State&useful == 0 || len(n.HardwareAddr) == 0 {
			continue
		}
		return NeighbourEntry{n.HardwareAddr.String(), n.State&netlink.NUD_PERMANENT != 0}, true
	}
	return entry, false
}
