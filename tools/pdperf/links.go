package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"pdlink/tcp"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// linkSchemes are the URL schemes of this build.
func linkSchemes() []string { return []string{"mem", "tcp", "unix"} }

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
	}
	return nil, "", fmt.Errorf("link %q: %w: this build has %s", url, transport.ErrUnavailable, strings.Join(linkSchemes(), ", "))
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
