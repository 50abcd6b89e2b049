package main

import (
	"fmt"
	"strings"

	"pdlink/tcp"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// linkSchemes are the URL schemes of this build.
func linkSchemes() []string { return []string{"mem", "tcp"} }

// linkOptions are what a command line says about its links.
type linkOptions struct {
	session session.Options
	reject  func(remote string, err error)
}

// openLink returns the link of a URL "scheme://address" and the address.
func openLink(url string, o linkOptions) (transport.Link, string, error) {
	scheme, addr, ok := strings.Cut(url, "://")
	if !ok {
		return nil, "", fmt.Errorf("link %q: want scheme://address, for example tcp://127.0.0.1:7411", url)
	}
	switch scheme {
	case "mem":
		if addr == "" {
			addr = "pdlink"
		}
		return mem.New(mem.Options{Session: o.session}), addr, nil
	case "tcp":
		return tcp.New(tcp.Options{Session: o.session, OnReject: o.reject}), addr, nil
	}
	return nil, "", fmt.Errorf("link %q: %w: this build has %s", url, transport.ErrUnavailable, strings.Join(linkSchemes(), ", "))
}
