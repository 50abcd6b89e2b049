//go:build unix

package omlx

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Flags for files under a temporary file's name. Neither follows a symbolic link;
// openOther, for somebody else's, does not wait for a pipe's other end either.
const (
	openNew   = unix.O_NOFOLLOW
	openOther = unix.O_NOFOLLOW | unix.O_NONBLOCK
)

// canLock says that a lock tells a live writer's file from a dead one's.
const canLock = true

// lockFile takes an exclusive lock that lives as long as the open file, so the
// kernel gives it up when the process dies. It returns errHeld instead of waiting,
// and where a network file system does not lock a file that is open for reading
// only; errNoLock where the file system has no locks.
func lockFile(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return lockError(err)
		}
	}
}

// lockError says what an error of flock means.
func lockError(err error) error {
	switch {
	case errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EBADF):
		return errHeld
	case errors.Is(err, unix.ENOLCK) || errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("%w: %w", errNoLock, os.NewSyscallError("flock", err))
	}
	return os.NewSyscallError("flock", err)
}

// dirError explains why a directory was not made durable.
func dirError(path string, err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("sync directory %s: %w (this file system cannot make directories durable: a store on it needs --no-sync)", path, err)
	}
	return fmt.Errorf("sync directory %s: %w", path, err)
}

// syncDir makes the names of a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return dirError(path, err)
	}
	return nil
}
