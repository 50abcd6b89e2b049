package tcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/keys"
)

// UnixLink makes connections over Unix sockets, between processes of one user on
// one host. It is as [Link] in everything but addresses, which are paths, and
// what the kernel does for TCP alone: there are no low-water marks, no keep-alive
// and no SocketFacts. It may be used concurrently.
type UnixLink struct{ l *Link }

var (
	_ transport.Link = (*UnixLink)(nil)
	_ socket         = (*net.UnixConn)(nil)
)

// NewUnix returns a link. It opens nothing. Keys are not needed: the socket's
// mode says who may connect, and both ends refuse a process of another user than
// their own or root. Where keys are set they count as for TCP, and users do not.
// Options.LowWater is not used, Options.Congestion must be empty and Options.Carrier
// nil: else Dial and Listen fail with an error that Is transport.ErrUnavailable.
func NewUnix(o Options) *UnixLink {
	o.Compress = codec.Off
	l := New(o)
	l.kind, l.o.LowWater = unixSockets{}, 1
	return &UnixLink{l}
}

// Dial connects to the listener whose socket is at path. Errors: those of
// Link.Dial.
func (u *UnixLink) Dial(ctx context.Context, path string) (transport.Conn, error) {
	conn, err := u.dial(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("unix: dial %s: %w", path, err)
	}
	return conn, nil
}

func (u *UnixLink) dial(ctx context.Context, path string) (transport.Conn, error) {
	if err := errors.Join(u.tunable(), u.l.wants(), checkLength(path, 0)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, u.l.o.DialTimeout)
	defer cancel()
	dial := func(ctx context.Context) (socket, error) { return u.dialSocket(ctx, path) }
	c, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	return u.l.connect(ctx, c, dial)
}

// dialSocket returns a socket to a listener that may be trusted.
func (u *UnixLink) dialSocket(ctx context.Context, path string) (socket, error) {
	c, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := u.l.check(c); err != nil {
		closeSocket(c) //nolint:errcheck // the error that counts is returned
		return nil, err
	}
	return c, nil
}

// checkLength refuses a path that no socket can have. Listen needs more bytes.
func checkLength(path string, more int) error {
	if limit := maxSocketPath - more; len(path) > limit {
		return fmt.Errorf("%w: the path has %d bytes, at most %d: use a shorter one", transport.ErrInvalid, len(path), limit)
	}
	return nil
}

func dialUnix(ctx context.Context, path string) (socket, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	k, ok := c.(socket)
	if !ok {
		closeSocket(c) //nolint:errcheck // the error that counts is returned
		return nil, fmt.Errorf("got %T", c)
	}
	return k, nil
}

// tunable refuses an option that only TCP has.
func (u *UnixLink) tunable() error {
	switch o := &u.l.o; {
	case o.Congestion != "":
		return fmt.Errorf("%w: congestion control %q of a Unix socket", transport.ErrUnavailable, o.Congestion)
	case o.Carrier != nil:
		return fmt.Errorf("%w: %s with a Unix socket as its control channel: it finds its device by the socket's address, use one of TCP",
			transport.ErrUnavailable, o.Carrier.Link())
	}
	return nil
}

// Listen accepts connections at path, a socket of mode 0600 in a directory that
// others cannot write; else the error Is ErrInsecure. A socket there that nobody
// listens at is replaced; anything else there is not touched. While it listens a
// file path.lock is there. Close removes both. Other errors: syscall.EADDRINUSE,
// ErrInvalid for a path that is too long, what the system said.
func (u *UnixLink) Listen(ctx context.Context, path string) (transport.Listener, error) {
	nl, err := u.listen(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("unix: listen at %s: %w", path, err)
	}
	return u.l.serve(nl, path), nil
}

func (u *UnixLink) listen(ctx context.Context, path string) (net.Listener, error) {
	if err := u.tunable(); err != nil {
		return nil, err
	}
	if err := checkLength(path, len(newSuffix)); err != nil {
		return nil, err
	}
	if err := checkSocketDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := stale(ctx, path); err != nil { // so that nothing is made beside a file that is not ours
		return nil, err
	}
	lock, err := lockPath(path)
	if err != nil {
		return nil, err
	}
	l, err := bind(ctx, path)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	l.lock = lock
	return l, nil
}

// checkSocketDir refuses a directory in which another user could put a socket in
// ours' place.
func checkSocketDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if keys.OthersWrite(fi) {
		return fmt.Errorf("%w: others can write %s (mode %04o): use a directory of your own, or run `chmod go-w %s`",
			transport.ErrInsecure, dir, fi.Mode().Perm(), keys.ShellPath(dir))
	}
	if owner, foreign := keys.Foreign(fi); foreign {
		return fmt.Errorf("%w: %s belongs to user %d and this process runs as user %d: use a directory of your own",
			transport.ErrInsecure, dir, owner, os.Geteuid())
	}
	return nil
}

// bind makes the socket. It is called under the path's lock. The socket is made in
// a directory of its own, in which nobody else can reach it before its mode is
// right, and renamed, so that a stale one is replaced in one step.
func bind(ctx context.Context, path string) (_ *unixListener, err error) {
	if err := stale(ctx, path); err != nil {
		return nil, err
	}
	temp := path + newSuffix
	dir := filepath.Dir(temp)
	if err := clearAway(dir, temp); err != nil { // of a process that was killed
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if e := clearAway(dir, temp); err != nil {
			err = errors.Join(err, e)
		}
	}()
	var lc net.ListenConfig
	nl, err := lc.Listen(ctx, "unix", temp)
	if err != nil {
		return nil, err
	}
	un, ok := nl.(*net.UnixListener)
	if !ok {
		nl.Close() //nolint:errcheck // the error that counts is returned
		return nil, fmt.Errorf("got %T", nl)
	}
	un.SetUnlinkOnClose(false) // it would remove temp
	own, err := publish(temp, path)
	if err != nil {
		nl.Close() //nolint:errcheck // the error that counts is returned
		return nil, err
	}
	return &unixListener{Listener: nl, path: path, own: own}, nil
}

// clearAway removes a directory that bind makes, and the socket in it. Anything
// else there stays, and is an error.
func clearAway(dir, temp string) error {
	there, err := isThere(dir, fs.ModeDir)
	if !there || err != nil {
		return err
	}
	there, err = isThere(temp, fs.ModeSocket)
	if there && err == nil {
		err = os.Remove(temp)
	}
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

// isThere says whether there is a file, which has to be of a kind.
func isThere(path string, kind fs.FileMode) (bool, error) {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err == nil && fi.Mode().Type() != kind:
		err = fmt.Errorf("%w: %s is in the way: remove it, or use another path", fs.ErrExist, path)
	}
	return true, err
}

// publish gives a new socket its mode and its name, and returns what it is.
func publish(temp, path string) (fs.FileInfo, error) {
	if err := os.Chmod(temp, 0o600); err != nil {
		return nil, err
	}
	own, err := os.Lstat(temp)
	if err != nil {
		return nil, err
	}
	return own, os.Rename(temp, path)
}

// stale returns nil when path is free, or a socket that nobody listens at.
func stale(ctx context.Context, path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w: %s is there and is no socket: use another path", fs.ErrExist, path)
	}
	c, err := dialUnix(ctx, path)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("%w: somebody listens at %s", syscall.EADDRINUSE, path), c.Close())
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// unixListener removes its socket when it closes.
type unixListener struct {
	net.Listener
	path string
	own  fs.FileInfo
	lock *pathLock
}

// Close implements net.Listener.
func (l *unixListener) Close() error {
	err := l.Listener.Close()
	if err != nil {
		return err // the second call
	}
	fi, err := os.Lstat(l.path)
	if err == nil && os.SameFile(fi, l.own) {
		err = os.Remove(l.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // somebody removed it
	}
	return errors.Join(err, l.lock.release())
}

// remoteOf is the address of a socket's peer, for people.
func remoteOf(c net.Conn) string { return endName(c.RemoteAddr(), c.LocalAddr()) }

// endName is an address for people. The end of a Unix socket that dialled has
// none; it is told by the other's. The other end has the name that its socket was
// made under.
func endName(a, other net.Addr) string {
	u, ok := a.(*net.UnixAddr)
	switch {
	case !ok:
		return a.String()
	case u.Name == "" || u.Name == "@":
		return "client of " + strings.TrimSuffix(other.String(), newSuffix)
	}
	return strings.TrimSuffix(u.Name, newSuffix)
}

const (
	newSuffix  = ".new/s" // ends the name of a socket until its mode is right
	lockSuffix = ".lock"  // ends the name of the file that is locked while somebody listens
)
