package rdma

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestNeighbours finds peers in the kernel's answer.
func TestNeighbours(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0x77, 0, 2}
	list := []netlink.Neigh{
		{IP: net.ParseIP("fe80::1"), State: netlink.NUD_FAILED},
		{IP: net.ParseIP("fe80::2"), State: netlink.NUD_PERMANENT, HardwareAddr: mac},
		{IP: net.ParseIP("fe80::3"), State: netlink.NUD_STALE, HardwareAddr: mac},
		{IP: net.ParseIP("fe80::4"), State: netlink.NUD_INCOMPLETE, HardwareAddr: mac},
		{IP: net.ParseIP("fe80::5"), State: netlink.NUD_REACHABLE},
		{IP: net.IPv4(10, 0, 0, 9), State: netlink.NUD_REACHABLE, HardwareAddr: mac},
	}
	fixed, learned := NeighbourEntry{"02:00:00:77:00:02", true}, NeighbourEntry{"02:00:00:77:00:02", false}
	for addr, want := range map[string]NeighbourEntry{
		"fe80::1": {}, "fe80::2": fixed, "fe80::2%eth0": fixed, "fe80::3": learned, "fe80::4": {}, "fe80::5": {}, "fe80::6": {}, "10.0.0.9": learned,
	} {
		if n, known := findNeighbour(list, netip.MustParseAddr(addr)); n != want || known != (want.MAC != "") {
			t.Errorf("%s: %+v, %v, want %+v", addr, n, known, want)
		}
	}
	if n, known := Neighbour("no-such-if0", netip.MustParseAddr("fe80::1")); known {
		t.Errorf("no interface: %+v", n)
	}
	if n, known := Neighbour("lo", netip.MustParseAddr("fe80::77")); known {
		t.Errorf("loopback: %+v", n)
	}
}
