package pages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Addr is where a Server listens.
type Addr struct {
	Network string // tcp, unix
	Text    string // host:port, path
}

// unixScheme begins an address that is a Unix socket.
const unixScheme = "unix://"

// ParseAddr reads "PORT" or ":PORT" (on loopback), "HOST:PORT", or "unix://PATH". An error
// says what is wanted.
func ParseAddr(text string) (Addr, error) {
	if path, ok := strings.CutPrefix(text, unixScheme); ok {
		if path == "" || strings.HasPrefix(path, "~") {
			return Addr{}, fmt.Errorf("%q: want unix://PATH with a whole path, for example unix:///run/pdlink/watch.sock", text)
		}
		return Addr{"unix", path}, nil
	}
	if !strings.Contains(text, ":") {
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil {
		return Addr{}, fmt.Errorf("%q: want a port (9411, on loopback), HOST:PORT or unix://PATH", strings.TrimPrefix(text, ":"))
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return Addr{"tcp", net.JoinHostPort(host, strconv.FormatUint(n, 10))}, nil
}

// Listen listens there. A socket that a process left that is gone is replaced; who may
// connect to a socket is decided by the umask and its directory.
func (a Addr) Listen(ctx context.Context) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, a.Network, a.Text)
	if a.Network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	info, errStat := os.Lstat(a.Text)
	if errStat != nil || info.Mode().Type() != fs.ModeSocket {
		return nil, err
	}
	c, errDial := new(net.Dialer).DialContext(ctx, a.Network, a.Text)
	if errDial == nil {
		return nil, errors.Join(err, c.Close())
	}
	if !errors.Is(errDial, syscall.ECONNREFUSED) {
		return nil, err
	}
	if err := os.Remove(a.Text); err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, a.Network, a.Text)
}

// URL is where a listener of an Addr is found.
func URL(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return unixScheme + l.Addr().String()
	}
	return "http://" + l.Addr().String() + "/"
}

// Reachable reports that other hosts can connect to a listener.
func Reachable(l net.Listener) bool {
	a, err := netip.ParseAddrPort(l.Addr().String())
	return err == nil && !a.Addr().Unmap().IsLoopback()
}
