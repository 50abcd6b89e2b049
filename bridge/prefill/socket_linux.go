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

// place is a name in the file system where a sidecar listens.
type place struct {
	path  string
	stale bool     // one was here that left workers behind
	lock  *os.File // says that a sidecar lives
	made  *os.File // what was made there; open, its inode is no other file's
}

// listenSocket binds the socket, which its owner may use only, or everybody: then who
// connected has to be asked for. Error: ErrInUse.
func listenSocket(ctx context.Context, path string, everybody bool) (_ *net.UnixListener, _ *place, err error) {
	lock, err := takeLock(path)
	if err != nil {
		return nil, nil, err
	}
	p := &place{path: path, lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.leave(false))
		}
	}()
	if p.stale, err = clearSocket(path); err != nil {
		return nil, nil, err
	}
	// The mode is set before the name exists, so nobody slips in.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	got, err := c.Listen(ctx, "unixpacket", path)
	if err != nil {
		return nil, nil, err
	}
	l, ok := got.(*net.UnixListener)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("listen at %s: not a Unix socket", path), got.Close())
	}
	l.SetUnlinkOnClose(false)
	if err := p.noteMade(everybody); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, p, nil
}

// takeLock takes the lock that says that a sidecar lives.
func takeLock(path string) (lock *os.File, err error) {
	name := path + ".lock"
	if lock, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close() //nolint:errcheck // nothing was written
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s: stop the other sidecar or choose another path", ErrInUse, path)
		}
		return nil, os.NewSyscallError("flock", err)
	}
	if info, err := os.Lstat(name); err != nil || !sameInode(lock, info) {
		return nil, fmt.Errorf("%w: %s was replaced meanwhile: start again", ErrInUse, name)
	}
	return lock, nil
}

// clearSocket removes the socket of a sidecar that is gone, and reports whether there was
// one. A live one may be of a program that knows nothing of the lock.
func clearSocket(path string) (stale bool, err error) {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return false, fmt.Errorf("%w: %s is there and no socket", ErrInUse, path)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	unix.Close(fd) //nolint:errcheck // nothing was written
	if errors.Is(err, os.ErrPermission) {
		return false, fmt.Errorf("connect to %s: %w", path, err)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		if err == nil {
			err = errors.New("it answers")
		}
		return false, fmt.Errorf("%w: %s is another program's (%w): stop that or choose another path", ErrInUse, path, err)
	}
	return true, os.Remove(path)
}

// noteMade notes what was made, and lets everybody connect to it.
func (p *place) noteMade(everybody bool) error {
	made, err := os.OpenFile(p.path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	info, err := made.Stat()
	if err == nil && info.Mode()&os.ModeSocket == 0 {
		err = fmt.Errorf("%w: %s was replaced meanwhile", ErrInUse, p.path)
	}
	if err != nil {
		return errors.Join(err, made.Close())
	}
	p.made = made
	if everybody { // by its descriptor: the umask took from the mode, and the name may be another's by now
		return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", made.Fd()), 0o666)
	}
	return nil
}

// leave gives the lock back and removes the socket unless its name is to be kept, or is
// another file's by now.
func (p *place) leave(keep bool) error {
	var err error
	if p.made != nil {
		if info, errStat := os.Lstat(p.path); !keep && errStat == nil && sameInode(p.made, info) {
			err = os.Remove(p.path)
		}
		err = errors.Join(err, p.made.Close())
	}
	return errors.Join(err, p.lock.Close())
}

// sameInode reports whether an open file is the one that was looked at.
func sameInode(f *os.File, info os.FileInfo) bool {
	is, err := f.Stat()
	return err == nil && os.SameFile(is, info)
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
// caller. With an error there are none.
func receive(c *net.UnixConn, buf []byte) (n int, files []*os.File, err error) {
	var oob [64]byte // more than one descriptor, so that a second is seen
	n, m, _, _, err := c.ReadMsgUnix(buf, oob[:])
	files, errFiles := filesIn(oob[:m]) // with an error too: one without bytes reads as the end, and may bring some
	if err == nil {
		err = errFiles
	}
	if err != nil {
		for _, f := range files {
			f.Close() //nolint:errcheck // nothing was written
		}
		return 0, nil, err
	}
	return n, files, nil
}

// filesIn are the files of control messages, those before an error too.
func filesIn(oob []byte) (files []*os.File, err error) {
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return files, fmt.Errorf("read control message: %w", err)
		}
		oob = rest
		fds, err := unix.ParseUnixRights(&unix.SocketControlMessage{Header: h, Data: data})
		if err != nil {
			continue // of another kind
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "ring"))
		}
	}
	return files, nil
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
