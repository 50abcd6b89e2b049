package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/transport/keys"
)

// slowLink is the speed in Mbit/s below which a link is slow for blocks: a prompt of
// 81,000 tokens of DeepSeek-V4-Flash has 800 MB.
const slowLink = 2500

// lookLink looks at what a link leads over: an interface, a device, a socket.
func lookLink(ctx context.Context, u linkURL) []finding {
	switch u.scheme {
	case schemeUnix:
		return lookSocket(u)
	case schemeRDMA:
		return append(lookDevice(u), lookRoute(ctx, u)...)
	}
	return lookRoute(ctx, u)
}

// lookDevice looks whether this host has what an rdma link needs.
func lookDevice(u linkURL) []finding {
	if err := rdma.New(rdma.Options{Device: u.device}).Available(); err != nil {
		return []finding{bad(fmt.Sprintf("%s: %s", u, cmdline.Plain(err)), rdmaCure(u))}
	}
	return []finding{good("%s: this host has RDMA", u)}
}

// rdmaCure is what to do where there is no RDMA.
func rdmaCure(u linkURL) string {
	plain := linkURL{scheme: schemeTCP, addr: u.addr}
	cure := "`pdlink doctor rdma` says what is missing and how to mend it"
	if u.device != "" {
		cure += "; leave ?" + paramDevice + "= out or name one of those that it lists"
	}
	return cure + "; without RDMA use " + plain.String() + ", which is the same port"
}

// lookSocket looks whether somebody can be met at a Unix socket.
func lookSocket(u linkURL) []finding {
	info, err := os.Stat(u.addr)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []finding{bad(fmt.Sprintf("%s: nothing is there", u), fmt.Sprintf("start `pdlink decode --listen %s` on this host: a Unix socket does not lead to another one", u))}
	case errors.Is(err, fs.ErrPermission):
		return []finding{bad(fmt.Sprintf("%s: %v", u, err), "run both ends as one user, or let this one enter the directory")}
	case err != nil:
		return []finding{bad(fmt.Sprintf("%s: %v", u, err), "name the socket at which `pdlink decode` listens")}
	case info.Mode()&fs.ModeSocket == 0:
		return []finding{bad(fmt.Sprintf("%s is no socket", u), "name the socket at which `pdlink decode` listens")}
	}
	if owner, ok := ownerOf(info); ok && owner != os.Geteuid() {
		return []finding{doubt(fmt.Sprintf("%s is user %d's, and this is user %d", u, owner, os.Geteuid()), "run both ends as one user, or use keys")}
	}
	return []finding{good("over a Unix socket on this host")}
}

// lookRoute looks at the interface that a link leads over.
func lookRoute(ctx context.Context, u linkURL) []finding {
	host, port, err := net.SplitHostPort(u.addr)
	if err != nil {
		return nil
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(host, port)) // a route, no packet
	if err != nil {
		return []finding{bad(fmt.Sprintf("there is no way to %s: %v", u.addr, err), wayCure(host, err))}
	}
	defer c.Close() // nothing was sent
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
	case wireless(iface.Name):
		return []finding{doubt(text+": a wireless link", "use a cable: blocks are gigabytes")}
	case known && speed < slowLink:
		return []finding{doubt(text, "use a faster port or cable, 10 Gbit/s at best: `pdperf` measures what it gives")}
	}
	return []finding{good("%s", text)}
}

// wayCure is what to do where the system knows no way to a host.
func wayCure(host string, err error) string {
	var name *net.DNSError
	if errors.As(err, &name) {
		return fmt.Sprintf("name an address in place of %s, or a name that `ping %[1]s` finds", keys.ShellPath(host))
	}
	return "give this host an address in the same network, and look at its routes (`ip route get " + keys.ShellPath(host) + "`)"
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
