package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"

	"pdlink/tcp"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/keys"
)

// lookListen looks whether the address can be listened on, or who does.
func (d *decodeDoctor) lookListen(ctx context.Context) (found []finding) {
	switch d.url.scheme {
	case schemeUnix:
		return d.listenSocket(ctx)
	case schemeRDMA:
		if found = lookDevice(d.url); found[0].Level != levelOK {
			return found
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", d.url.addr)
	if err == nil {
		l.Close() //nolint:errcheck // nobody has connected
		return append(found, good("%s is free", d.url))
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return append(found, bad(fmt.Sprintf("%s: %v", d.url, err), listenCure("listen", d.url.addr, err)))
	}
	if met, ok := d.meetings(ctx); ok {
		return append(found, met)
	}
	err = d.meet(ctx)
	if err == nil {
		return append(found, good("%s is in use by a pdlink that runs", d.url))
	}
	return append(found, bad(fmt.Sprintf("%s is in use by something else (%v)", d.url, err), listenCure("listen", d.url.addr, syscall.EADDRINUSE)))
}

// meetings is the finding on one that listens at the address and uses keys, where keys
// are used here; false where there is none, or it uses none. Its log has no warning of
// that where its keys are these.
func (d *decodeDoctor) meetings(ctx context.Context) (f finding, ok bool) {
	if d.keys.Store == nil {
		return f, false
	}
	network := "tcp"
	if d.url.scheme == schemeUnix {
		network = "unix"
	}
	switch err := d.keys.Meet(ctx, network, d.url.addr); {
	case err == nil:
		return good("%s is in use by a pdlink that runs, with the key of %s", d.url, d.keys.Dir.Path), true
	case errors.Is(err, keys.ErrNoKeys):
		return doubt(fmt.Sprintf("%s is in use by a pdlink that runs without keys, and there are keys in %s", d.url, d.keys.Dir.Path),
			"start it again, so that it uses them"), true
	case errors.Is(err, linkkeys.ErrOtherKey):
		return doubt(fmt.Sprintf("%s is in use by a pdlink that runs with another key than that of %s", d.url, d.keys.Dir.Path),
			"start it again if the key was replaced since; else give doctor its --keys"), true
	}
	return f, false
}

// meet reports why the one that listens at the address is no pdlink.
func (d *decodeDoctor) meet(ctx context.Context) error {
	u := d.url
	if u.scheme == schemeRDMA {
		u = linkURL{scheme: schemeTCP, addr: u.addr} // the port is the same, and it says who it is
	}
	c, err := u.open(linkOptions{keys: d.keys}).Dial(ctx, u.addr)
	if err == nil {
		c.Close() //nolint:errcheck // nothing was sent
	}
	// With keys the one that runs here does not accept itself as a peer, and says so.
	if linkkeys.Refused(err) || errors.Is(err, tcp.ErrTurnedAway) || errors.Is(err, transport.ErrInsecure) || errors.Is(err, transport.ErrIncompatible) {
		return nil
	}
	return err
}

// listenSocket looks whether a Unix socket can be made, or who has it.
func (d *decodeDoctor) listenSocket(ctx context.Context) []finding {
	if met, ok := d.meetings(ctx); ok {
		return []finding{met}
	}
	if d.meet(ctx) == nil {
		return []finding{good("%s is in use by a pdlink that runs", d.url)}
	}
	l, err := d.url.open(linkOptions{keys: d.keys}).Listen(ctx, d.url.addr)
	if err != nil {
		return []finding{bad(fmt.Sprintf("%s: %v", d.url, err), listenCure("listen", d.url.addr, err))}
	}
	l.Close() //nolint:errcheck // nobody has connected
	return []finding{good("%s is free", d.url)}
}

// listenCure is what to do about an address of a flag that cannot be listened on:
// host:port, or a socket's path.
func listenCure(flag, addr string, err error) string {
	_, port, e := net.SplitHostPort(addr)
	path := e != nil
	switch {
	case path && errors.Is(err, fs.ErrNotExist):
		return "make the directory: `mkdir -p " + keys.ShellPath(filepath.Dir(addr)) + "`"
	case path && errors.Is(err, syscall.EADDRINUSE):
		return "stop what listens there, or give --" + flag + " another path"
	case path:
		return "give --" + flag + " a path in a directory that is this user's, /run/user/UID/ for example"
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("stop what has it (`%s` shows it), or give --%s another port", whoHas(port), flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("give --%s an address of this host (`%s` lists them), or 0.0.0.0 for all", flag, listAddresses)
	case errors.Is(err, fs.ErrPermission):
		return "give --" + flag + " a port from 1024 on: lower ones are for root"
	}
	return "give --" + flag + " an address of this host"
}

// listenError adds to an error of listening on a flag's address what to do about it.
func listenError(flag, addr string, err error) error {
	var listening *net.OpError
	var named *fs.PathError // of a Unix socket's directory
	ours := errors.As(err, &listening) && listening.Op == "listen" || errors.As(err, &named) && named.Path == filepath.Dir(addr)
	if !ours {
		return err
	}
	return fmt.Errorf("%w: %s", err, listenCure(flag, addr, err))
}

// lookFront looks whether clients' address can be listened on, or who does.
func (d *decodeDoctor) lookFront(ctx context.Context) []finding {
	if d.f.door.url == nil {
		return nil
	}
	addr := d.f.door.addr
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err == nil {
		l.Close() //nolint:errcheck // nobody has connected
		return []finding{good("%s is free", addr)}
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return []finding{bad(fmt.Sprintf("%s: %v", addr, err), listenCure("front", addr, err))}
	}
	if status, body, _, err := fetch(ctx, "http://"+addr+"/pdlink/metrics", ""); err == nil && status == http.StatusOK && strings.Contains(string(body), "pdlink_requests_total") {
		return []finding{good("%s is in use by a pdlink decode that runs", addr)}
	}
	return []finding{bad(addr+" is in use by something else", listenCure("front", addr, err))}
}
