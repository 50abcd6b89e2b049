package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"pdlink/rdma"
	"pdlink/tcp"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// linkSchemes are the URL schemes of this build.
func linkSchemes() []string { return []string{"mem", "tcp", "unix", rdma.Scheme} }

// errScheme says what a link's URL looks like.
func errScheme(url string) error {
	return fmt.Errorf("link %q: want scheme://address, for example %s", url, defaultURL)
}

// linkOptions are what a command line says about a link. The caller closes the
// keys.
type linkOptions struct {
	session session.Options
	keys    linkkeys.Choice
	reject  func(remote string, err error)
	listens bool                             // the link is for the end that listens
	note    func(format string, args ...any) // is told which device an rdma link takes, and why; nil: nobody is
	ports   *rdma.Ports                      // follows the ports that rdma links take; nil: nobody does
}

// splitURL takes a link's URL apart. Case of the scheme and a slash at the end of host:port
// do not matter. The address is what Dial and Listen take, of an rdma URL without its
// parameters, which are in at.
func splitURL(url string) (scheme, addr string, at rdma.Addr, err error) {
	scheme, addr, ok := strings.Cut(url, "://")
	if !ok {
		return "", "", at, errScheme(url)
	}
	switch scheme = strings.ToLower(scheme); scheme {
	case "tcp":
		addr = strings.TrimSuffix(addr, "/")
		if strings.ContainsAny(addr, "/?#@ ") {
			return "", "", at, fmt.Errorf("link %q: want tcp://host:port, and nothing else", url)
		}
	case rdma.Scheme:
		if at, err = rdma.ParseAddr(addr); err != nil {
			return "", "", at, fmt.Errorf("link %q: %w", url, err)
		}
		addr = at.Host
	}
	return scheme, addr, at, nil
}

// openLink returns the link of a URL "scheme://address" and the address.
func openLink(url string, o linkOptions) (transport.Link, string, error) {
	scheme, addr, at, err := splitURL(url)
	if err != nil {
		return nil, "", err
	}
	opts := tcp.Options{
		Session: o.session, OnReject: o.reject, Keys: o.keys.Store, Peer: o.keys.Peer, Encrypt: o.keys.Suite,
		Compress: o.keys.Compress,
	}
	switch scheme {
	case "mem":
		if addr == "" {
			addr = "pdperf"
		}
		return mem.New(mem.Options{Session: o.session}), addr, nil
	case "tcp":
		return tcp.New(opts), addr, nil
	case "unix":
		return tcp.NewUnix(opts), addr, nil
	case rdma.Scheme:
		link, err := openRDMA(opts, at, o)
		if err != nil {
			return nil, "", fmt.Errorf("link %q: %w", url, err)
		}
		return link, addr, nil
	}
	return nil, "", fmt.Errorf("link %q: %w: this build has %s", url, transport.ErrUnavailable, strings.Join(linkSchemes(), ", "))
}

// openRDMA returns the link of an rdma URL. Peers without RDMA are refused: what is
// measured is what was asked for.
func openRDMA(opts tcp.Options, at rdma.Addr, o linkOptions) (transport.Link, error) {
	if !o.listens {
		if err := at.Dials(); err != nil {
			return nil, err
		}
	}
	if at.Falls {
		return nil, errors.New("fallback=yes: only what was asked for is measured: leave it out, or listen at tcp://host:port")
	}
	r := rdma.Options{Device: at.Device, OnChoice: o.chosen}
	opts.Carrier, opts.CarrierOnly = rdma.New(r), true
	return tcp.New(opts), nil
}

// rdmaHint is what to do about a link of rdma that a host cannot have.
const rdmaHint = "`pdlink doctor rdma` says what is missing"

// lacksRDMA reports that a host cannot have the link of a URL, which is of rdma.
func lacksRDMA(url string, err error) bool {
	return schemeOf(url) == rdma.Scheme && errors.Is(err, transport.ErrUnavailable)
}

// listenError is the error of an address that nobody can listen at: like that of a dial it
// is a matter of the command line only where that has to change.
func listenError(at string, err error) error {
	err = fmt.Errorf("listen on %s: %w", at, err)
	switch {
	case linkkeys.Misused(err):
		return err
	case lacksRDMA(at, err):
		err = fmt.Errorf("%w: %s", err, rdmaHint)
	}
	return failed(err)
}

// openKeys opens the keys that flags and a link's URL mean. The caller closes
// them.
func openKeys(ctx context.Context, io streams, f *linkkeys.Flags, url string, given func(string) bool) (linkkeys.Choice, error) {
	scheme, addr, _, err := splitURL(url)
	if err != nil {
		return linkkeys.Choice{}, err
	}
	c, err := f.Choose(ctx, given, func(err error) { io.warn([]string{"peers are not as they should be: " + err.Error()}) },
		linkkeys.Place{Addr: addr, Socket: scheme == "unix"})
	if err == nil && c.Store != nil && !c.Dir.Named {
		io.note("%s\n", c.Text())
	}
	return c, err
}

// tcpAddress returns host:port of a URL "tcp://host:port" or of a bare address.
func tcpAddress(url string) (string, error) {
	scheme, addr, ok := strings.Cut(url, "://")
	if !ok {
		scheme, addr = "tcp", url
	}
	addr = strings.TrimSuffix(addr, "/")
	if _, _, err := net.SplitHostPort(addr); err != nil || !strings.EqualFold(scheme, "tcp") || strings.ContainsAny(addr, "/?#@ ") {
		return "", fmt.Errorf("address %q: want tcp://host:port", url)
	}
	return addr, nil
}

// checkLoopback makes sure that every address that host:port means is loopback.
func checkLoopback(ctx context.Context, addr string) error {
	err := linkkeys.Place{Addr: addr}.Exposed(ctx)
	if errors.Is(err, linkkeys.ErrExposed) {
		return fmt.Errorf("%w; --any-address allows it", err)
	}
	return err
}
