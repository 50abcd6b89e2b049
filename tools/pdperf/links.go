package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
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
	note    func(format string, args ...any) // is told which device an rdma link takes, and why; nil: nobody is
}

// openLink returns the link of a URL "scheme://address" and the address.
func openLink(url string, o linkOptions) (transport.Link, string, error) {
	scheme, addr, ok := strings.Cut(url, "://")
	if !ok {
		return nil, "", errScheme(url)
	}
	opts := tcp.Options{
		Session: o.session, OnReject: o.reject, Keys: o.keys.Store, Peer: o.keys.Peer, Encrypt: o.keys.Suite,
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
		return openRDMA(opts, addr, o.note)
	}
	return nil, "", fmt.Errorf("link %q: %w: this build has %s", url, transport.ErrUnavailable, strings.Join(linkSchemes(), ", "))
}

// openRDMA returns the link of an rdma URL: host:port?device=NAME. Peers without RDMA
// are refused: what is measured is what was asked for.
func openRDMA(opts tcp.Options, addr string, note func(string, ...any)) (transport.Link, string, error) {
	addr, query, _ := strings.Cut(addr, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, "", fmt.Errorf("link %s://%s: %w", rdma.Scheme, addr, err)
	}
	r := rdma.Options{Device: q.Get("device")}
	if note != nil {
		r.OnChoice = func(c rdma.Choice) { note("%s: %s\n", rdma.Scheme, c.String()) }
	}
	opts.Carrier, opts.CarrierOnly = rdma.New(r), true
	return tcp.New(opts), addr, nil
}

// openKeys opens the keys that flags and a link's URL mean. The caller closes
// them.
func openKeys(ctx context.Context, io streams, f *linkkeys.Flags, url string, given func(string) bool) (linkkeys.Choice, error) {
	scheme, addr, _ := strings.Cut(url, "://")
	c, err := f.Choose(ctx, given, func(err error) { io.warn([]string{"peers are not as they should be: " + err.Error()}) },
		linkkeys.Place{Addr: addr, Socket: scheme == "unix"})
	if err == nil && c.Store != nil && !c.Dir.Named {
		io.notef("%s\n", c.Text())
	}
	return c, err
}

// tcpAddress returns host:port of a URL "tcp://host:port" or of a bare address.
func tcpAddress(url string) (string, error) {
	scheme, addr, ok := strings.Cut(url, "://")
	if !ok {
		scheme, addr = "tcp", url
	}
	if _, _, err := net.SplitHostPort(addr); err != nil || scheme != "tcp" {
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
