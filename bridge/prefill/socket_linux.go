package prefill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenSocket binds the socket, readable and writable by its owner only, and
// takes the lock that says that a sidecar lives. stale says that one was here that
// left workers behind. release gives the lock back. Error: ErrInUse.
func listenSocket(ctx context.Context, path string) (l *net.UnixListener, stale bool, release func() error, err error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, false, nil, err
	}
	defer func() {
		if err != nil {
			lock.Close() //nolint:errcheck // nothing was written
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, false, nil, fmt.Errorf("%w: %s: stop the other sidecar or choose another path", ErrInUse, path)
		}
		return nil, false, nil, os.NewSyscallError("flock", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, false, nil, fmt.Errorf("%w: %s is there and no socket", ErrInUse, path)
		}
		stale = true
		if err := os.Remove(path); err != nil {
			return nil, false, nil, err
		}
	}
	// The mode is set before the name exists, so nobody slips in.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	got, err := c.Listen(ctx, "unixpacket", path)
	if err != nil {
		return nil, false, nil, err
	}
	l, ok := got.(*net.UnixListener)
	if !ok {
		return nil, false, nil, errors.Join(fmt.Errorf("listen at %s: not a Unix socket", path), got.Close())
	}
	l.SetUnlinkOnClose(false)
	return l, stale, lock.Close, nil
}

// peer is the process at the other end of a socket.
type peer struct {
	uid  uint32
	gone *os.File // readable when the process has ended; nil where it cannot be told
}

// peerOf asks the kernel who connected.
func peerOf(c *net.UnixConn) (peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var p peer
	var cred *unix.Ucred
	pidfd := -1
	var inner error
	err = raw.Control(func(fd uintptr) {
		if cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		p.uid = cred.Uid
		var e error
		if pidfd, e = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); e != nil { // before Linux 6.5
			pidfd = -1
			if cred.Pid > 0 {
				if pidfd, e = unix.PidfdOpen(int(cred.Pid), 0); e != nil {
					pidfd = -1
				}
			}
		}
	})
	if err := errors.Join(err, inner); err != nil {
		return peer{}, fmt.Errorf("ask for the peer's credentials: %w", err)
	}
	if pidfd >= 0 {
		unix.CloseOnExec(pidfd)
		if unix.SetNonblock(pidfd, true) == nil { // so that the runtime can wait for it
			p.gone = os.NewFile(uintptr(pidfd), "peer")
		} else {
			unix.Close(pidfd) //nolint:errcheck // nothing was written
		}
	}
	return p, nil
}

// known reports whether the end of the process will be told.
func (p peer) known() bool { return p.gone != nil }

// await returns when the process has ended, or the peer was closed: then false.
func (p peer) await() bool {
	if p.gone == nil {
		return false
	}
	raw, err := p.gone.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		ended = err == nil && n > 0
		return ended
	})
	return err == nil && ended
}

// close ends a wait.
func (p peer) close() {
	if p.gone != nil {
		p.gone.Close() //nolint:errcheck // nothing was written
	}
}

// receive reads one packet and the files that came with it, which belong to the
// caller.
func receive(c *net.UnixConn, buf []byte) (n int, files []*os.File, err error) {
	var oob [64]byte // more than one descriptor, so that a second is seen
	n, m, _, _, err := c.ReadMsgUnix(buf, oob[:])
	if err != nil {
		return 0, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil {
		return 0, nil, fmt.Errorf("read control message: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "ring"))
		}
	}
	return n, files, nil
}

// send writes one packet, with a file or without.
func send(c *net.UnixConn, p []byte, f *os.File) error {
	var oob []byte
	if f != nil {
		oob = unix.UnixRights(int(f.Fd()))
	}
	_, _, err := c.WriteMsgUnix(p, oob, nil)
	return err
}
