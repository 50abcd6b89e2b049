package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// slowLink is the speed in Mbit/s below which a link is slow for blocks: a prompt of
// 81,000 tokens of DeepSeek-V4-Flash has 800 MB.
const slowLink = 2500

// lookLink looks at the interface that a link leads over.
func lookLink(ctx context.Context, u linkURL) []finding {
	host, port, err := net.SplitHostPort(u.addr)
	if err != nil || u.scheme != schemeTCP {
		return nil
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(host, port)) // a route, no packet
	if err != nil {
		return []finding{bad(fmt.Sprintf("there is no way to %s: %v", u.addr, err), "look at this host's addresses and routes")}
	}
	defer c.Close() //nolint:errcheck // nothing was sent
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return nil
	}
	iface, ok := interfaceOf(local.Addr().Unmap())
	if !ok {
		return nil
	}
	if iface.Flags&net.FlagLoopback != 0 {
		return []finding{good("over this host's loopback")}
	}
	speed, known := linkSpeed(iface.Name)
	mtu, path := fmt.Sprintf("MTU %d", iface.MTU), pathMTU(c)
	if path > 0 && path < iface.MTU {
		mtu += fmt.Sprintf(", %d on the way", path)
	}
	text := fmt.Sprintf("over %s (%s, %s", iface.Name, local.Addr(), mtu)
	if known {
		text += fmt.Sprintf(", %d Mbit/s", speed)
	}
	text += ")"
	switch {
	case strings.HasPrefix(iface.Name, "wl"):
		return []finding{doubt(text+": a wireless link", "use a cable: blocks are gigabytes")}
	case known && speed < slowLink:
		return []finding{doubt(text, "use a faster port or cable, 10 Gbit/s at best: `pdperf` measures what it gives")}
	}
	return []finding{good("%s", text)}
}

// interfaceOf is the interface that has an address.
func interfaceOf(ip netip.Addr) (net.Interface, bool) {
	list, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, false
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip {
				return i, true
			}
		}
	}
	return net.Interface{}, false
}
