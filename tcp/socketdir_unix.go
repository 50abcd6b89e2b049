//go:build unix

package tcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"pdlink/transport"
)

// checkUser refuses a Unix socket whose other end is another user's than this
// process's or root: what was at the path may be anybody's.
func checkUser(c socket) error {
	uid, known, err := userOf(c)
	if err != nil {
		return fmt.Errorf("ask whose the other end is: %w", err)
	}
	return checkUID(uid, known, os.Geteuid())
}

// checkUID is checkUser's rule.
func checkUID(uid uint32, known bool, me int) error {
	if known && int64(uid) != int64(me) && uid != 0 {
		return fmt.Errorf("%w: the other end is a process of user %d and this one of user %d: run both as one user, or use keys",
			transport.ErrInsecure, uid, me)
	}
	return nil
}

// pathLock is the right to listen at a path. It ends with the process at the
// latest.
type pathLock struct{ f *os.File }

// lockPath takes the right to a path, or fails with syscall.EADDRINUSE when
// somebody has it. The file that is locked is removed when it is given back, under
// the lock: what was locked counts only if it is still the one that others find.
func lockPath(path string) (*pathLock, error) {
	name := path + lockSuffix
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			err = fmt.Errorf("%w: somebody listens at %s", syscall.EADDRINUSE, path)
		case err != nil && !errors.Is(err, unix.EINTR):
			err = os.NewSyscallError("flock", err)
		case err == nil:
			var found, mine fs.FileInfo
			if mine, err = f.Stat(); err != nil {
				break
			}
			if found, err = os.Lstat(name); err == nil && os.SameFile(mine, found) {
				return &pathLock{f}, nil
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		default:
			err = nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// release gives the right back.
func (l *pathLock) release() error {
	mine, err := l.f.Stat()
	if err == nil {
		var found fs.FileInfo
		if found, err = os.Lstat(l.f.Name()); err == nil && os.SameFile(mine, found) {
			err = os.Remove(l.f.Name())
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // somebody removed it
	}
	return errors.Join(err, l.f.Close())
}
