package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"pdlink/transport"
	"pdlink/transport/keys"
)

// resolver is the part of net.Resolver that the link uses.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupPort(ctx context.Context, network, service string) (int, error)
}

// exposed is the error for an address that strangers can reach.
type exposed struct{ what string }

// Error says which.
func (e exposed) Error() string {
	return fmt.Sprintf("%v: %s is not loopback, and this link has no keys", transport.ErrInsecure, e.what)
}

// Unwrap makes it both.
func (e exposed) Unwrap() []error { return []error{transport.ErrInsecure, keys.ErrExposed} }

// insecure is the error for an address that strangers can reach.
func insecure(what string) error { return exposed{what} }

// resolve returns the socket addresses that addr ("host:port") means, IPv4
// first, at least one. With keys a missing host means every interface: one
// address without an IP. Without keys all of them are loopback, else the error
// Is ErrInsecure; that includes a missing host.
func resolve(ctx context.Context, r resolver, addr string, withKeys bool) ([]netip.AddrPort, error) {
	if addr == "" && !withKeys {
		return nil, insecure("an empty address (every interface)")
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: address %q: want host:port: %w", addr, err)
	}
	if host == "" && !withKeys {
		return nil, insecure(fmt.Sprintf("%q (every interface)", addr))
	}
	ips := []netip.Addr{{}}
	if host != "" {
		if ips, err = lookup(ctx, r, host); err != nil {
			return nil, fmt.Errorf("tcp: look up host of %q: %w", addr, err)
		}
	}
	for _, ip := range ips {
		if !withKeys && !ip.IsLoopback() {
			return nil, insecure(fmt.Sprintf("%q (%v)", addr, ip))
		}
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, fmt.Errorf("tcp: look up port of %q: %w", addr, err)
	}
	out := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		out[i] = netip.AddrPortFrom(ip, uint16(port))
	}
	return out, nil
}

// socketAddr is the text of an address that resolve returned.
func socketAddr(a netip.AddrPort) string {
	if !a.Addr().IsValid() {
		return fmt.Sprintf(":%d", a.Port())
	}
	return a.String()
}

// lookup returns the distinct addresses of host, IPv4 first, at least one.
func lookup(ctx context.Context, r resolver, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(ips) == 0 {
		return nil, errors.New("no address")
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	slices.SortFunc(ips, func(a, b netip.Addr) int { return a.Compare(b) })
	return slices.Compact(ips), nil
}

// checkSocket looks at the addresses that a socket really has: what was
// resolved, routed or redirected on the way counts for nothing.
func checkSocket(c net.Conn) error {
	for _, a := range [...]net.Addr{c.RemoteAddr(), c.LocalAddr()} {
		t, ok := a.(*net.TCPAddr)
		if !ok {
			return insecure(fmt.Sprintf("socket address %v", a))
		}
		if !t.AddrPort().Addr().Unmap().IsLoopback() {
			return insecure(fmt.Sprintf("socket address %v", t))
		}
	}
	return nil
}
