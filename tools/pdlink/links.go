package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"pdlink/rdma"
	"pdlink/tcp"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// The schemes of link URLs.
const (
	schemeMem  = "mem"
	schemeTCP  = "tcp"
	schemeUnix = "unix"
	schemeRDMA = rdma.Scheme
)

// linkSchemes are the URL schemes of this build.
func linkSchemes() []string { return []string{schemeMem, schemeTCP, schemeUnix, schemeRDMA} }

// linkURL is a link and an address on it.
type linkURL struct {
	scheme, addr string
	device       string // of an rdma link: NAME or NAME:PORT; "": chosen by address
	only         bool   // of an rdma link that listens: peers without RDMA are refused
	falls        bool   // the other way is said too; as where nothing is
}

func (u linkURL) String() string {
	return u.scheme + "://" + u.rdma().String()
}

// rdma is the address with the parameters of an rdma URL; other links have none.
func (u linkURL) rdma() rdma.Addr {
	return rdma.Addr{Host: u.addr, Device: u.device, Only: u.only, Falls: u.falls}
}

// paramDevice is the parameter of rdma URLs that names the device.
const paramDevice = "device"

// at is the URL at which the other end dials one that listens at addr: without the
// parameters, which are this end's own.
func (u linkURL) at(addr string) linkURL { return linkURL{scheme: u.scheme, addr: addr} }

// route is what a way to the other end is called where there may be several: its scheme,
// or the whole URL where that names a device too, since two ways may differ in nothing
// else.
func (u linkURL) route() string {
	if u.device != "" {
		return u.String()
	}
	return u.scheme
}

// place is what decides about its keys.
func (u linkURL) place() linkkeys.Place {
	return linkkeys.Place{Addr: u.addr, Socket: u.scheme == schemeUnix}
}

// parseLink reads "scheme://address". Case of the scheme and a slash at the end
// do not matter, and ~/ at the beginning of a socket's path is this user's home
// directory, as in every other path. An error is the user's to mend.
func parseLink(text string) (linkURL, error) {
	scheme, addr, ok := strings.Cut(text, "://")
	if !ok {
		return linkURL{}, fmt.Errorf("link %q: want scheme://address, for example tcp://127.0.0.1:7411", text)
	}
	u := linkURL{scheme: strings.ToLower(scheme), addr: strings.TrimSuffix(addr, "/")}
	switch u.scheme {
	case schemeMem:
		return u, nil
	case schemeRDMA:
		a, err := rdma.ParseAddr(u.addr)
		if err != nil {
			return u, fmt.Errorf("link %q: %w", text, err)
		}
		u.addr, u.device, u.only, u.falls = a.Host, a.Device, a.Only, a.Falls
		return u, u.checkPort()
	case schemeTCP:
		return u, u.checkPort()
	case schemeUnix:
		if u.addr == "" {
			return u, fmt.Errorf("link %q: want unix://path, for example unix:///run/user/1000/pdlink.sock", text)
		}
		path, err := cmdline.Home(u.addr)
		if err != nil {
			return u, fmt.Errorf("link %q: %w", text, err)
		}
		u.addr = path
		return u, nil
	}
	return u, fmt.Errorf("link %q: %w: this build has %s", text, transport.ErrUnavailable, listText(linkSchemes()))
}

// checkPort demands a host and a port.
func (u linkURL) checkPort() error {
	if i := strings.IndexAny(u.addr, "/?#@ "); i >= 0 {
		why := "there is no path, user or fragment in it"
		if u.addr[i] == '?' {
			why = "only " + schemeRDMA + ":// has parameters"
		}
		return fmt.Errorf("link %q: want %[2]s://host:port, for example %[2]s://127.0.0.1:7411: %[3]s", u, u.scheme, why)
	}
	_, port, err := net.SplitHostPort(u.addr)
	if err != nil {
		return fmt.Errorf("link %q: want %[2]s://host:port, for example %[2]s://127.0.0.1:7411: %[3]w", u, u.scheme, err)
	}
	if n, err := strconv.Atoi(port); port == "" || err == nil && (n < 0 || n > 65535) {
		return fmt.Errorf("link %q: port %q is not in 0 to 65535", u, port)
	}
	return nil
}

// elsewhere refuses a URL that cannot lead to another process.
func (u linkURL) elsewhere(flag string) error {
	if u.scheme == schemeMem {
		return fmt.Errorf("--%s %s: a mem link is inside one process, nobody else can reach it: use tcp://127.0.0.1:7411 or the like", flag, u)
	}
	return nil
}

// target refuses a URL that nobody can be dialled at.
func (u linkURL) target(flag string) error {
	if err := u.elsewhere(flag); err != nil {
		return err
	}
	if _, port, err := net.SplitHostPort(u.addr); err == nil && strings.Trim(port, "0") == "" {
		return fmt.Errorf("--%s %s: port 0 is for listening only: `pdlink decode` prints the port that it took", flag, u)
	}
	if err := u.rdma().Dials(); err != nil {
		return fmt.Errorf("--%s %s: %w", flag, u, err)
	}
	return nil
}

// linkOptions are what a command line says about its links. The caller closes the
// keys.
type linkOptions struct {
	session session.Options
	keys    linkkeys.Choice
	peers   *peerNames // with keys
	reject  func(remote string, err error)
	choice  func(rdma.Choice) // of an rdma link: which device it took, and why; nil: nobody is told
}

// tellChoice has say told which device an rdma link takes, and why, for every
// connection.
func (o *linkOptions) tellChoice(say func(format string, args ...any)) {
	o.choice = func(c rdma.Choice) { say("%s: %s\n", schemeRDMA, c.String()) }
}

// open returns the link of a URL that parseLink returned.
func (u linkURL) open(o linkOptions) transport.Link {
	opts := tcp.Options{
		Session: o.session, OnReject: o.reject, Keys: o.keys.Store, Peer: o.keys.Peer, Encrypt: o.keys.Suite,
		Compress: o.keys.Compress,
	}
	switch u.scheme {
	case schemeTCP:
		return &keyedLink{tcp.New(opts), o}
	case schemeUnix:
		return &keyedLink{tcp.NewUnix(opts), o}
	case schemeRDMA:
		opts.Carrier = rdma.New(rdma.Options{Device: u.device, OnChoice: o.choice})
		opts.CarrierOnly = u.only
		return &keyedLink{tcp.New(opts), o}
	}
	return mem.New(mem.Options{Session: o.session})
}

// misused reports an error that is the command line's: trying again is of no
// use.
func misused(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.code == exitUsage
	}
	return linkkeys.Misused(err)
}

// What to do about a link that a host cannot have: rdma is the only kind that depends on
// the host.
const (
	rdmaHint    = "`pdlink doctor rdma` says what is missing"
	withoutRDMA = "without RDMA use " // before the address of another link
)

// lookedFor adds to the error of a way that was not taken where to look for what it lacks.
func lookedFor(err error) error {
	if !errors.Is(err, transport.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %s", err, rdmaHint)
}

// dialError adds to an error of Dial what to do about it.
func dialError(ctx context.Context, err error) error {
	return dialErrorOr(ctx, err, withoutRDMA+"tcp://host:port")
}

// dialErrorOr is dialError with what to do where there is no RDMA; "": nothing but to look
// what is missing.
func dialErrorOr(ctx context.Context, err error, instead string) error {
	var hint string
	var keyed keyedError
	withKeys := errors.As(err, &keyed)
	switch {
	case err == nil || ctx.Err() != nil || misused(err) || linkkeys.Refused(err) || errors.Is(err, tcp.ErrTurnedAway):
		return err
	case errors.Is(err, transport.ErrUnavailable):
		if hint = rdmaHint; instead != "" {
			hint += "; " + instead
		}
	case withKeys && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)):
		hint = "nobody listens there: is `pdlink decode` running?"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT): // no such socket
		hint = "nobody listens there: is `pdlink decode` running, and the ssh tunnel to it up?"
	case errors.Is(err, transport.ErrIncompatible):
		hint = "the ends need the same version: compare `pdlink version`"
	case errors.Is(err, context.DeadlineExceeded):
		hint = "no answer in time: is it `pdlink decode` that listens there, and does its host respond?"
	case errors.Is(err, transport.ErrProtocol):
		hint = "something other than `pdlink decode` answered: check the port"
	case withKeys && (errors.Is(err, transport.ErrLost) || errors.Is(err, syscall.ECONNRESET)):
		hint = "the other end hung up before it proved who it is: is it `pdlink decode` that listens there, and does its log say why?"
	case errors.Is(err, transport.ErrLost), errors.Is(err, syscall.ECONNRESET):
		hint = "the other end hung up at once: through an ssh tunnel this means that `pdlink decode` is not running at its end"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, hint)
}
