//go:build unix

package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFlags refuse a symbolic link, and do not wait for the writer of a pipe.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

// isLink says whether an open failed because of openFlags and a symbolic link.
func isLink(err error) bool { return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) }

// Foreign reports whether a file or directory belongs to another user than this
// process's or root, and to whom: such a user can put something else in its place. The
// owner -1 is one that is not known. Where the system has no owners nothing is foreign.
func Foreign(fi fs.FileInfo) (owner int, foreign bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, true
	}
	return int(st.Uid), int(st.Uid) != os.Geteuid() && st.Uid != 0
}

// OthersWrite reports whether a file or directory has a mode by which other users than
// its owner can write it. Where the system has no modes nobody else can.
func OthersWrite(fi fs.FileInfo) bool { return fi.Mode()&othersWrite != 0 }

// checkOwner refuses a file or directory of another user than this process's or
// root.
func checkOwner(path string, fi fs.FileInfo) error {
	switch owner, foreign := Foreign(fi); {
	case owner < 0:
		return fmt.Errorf("%w: %s: its owner is not known", ErrPermissions, path)
	case foreign:
		return fmt.Errorf("%w: %s belongs to user %d, and this process runs as user %d: run it as the owner, or make the file its own",
			ErrPermissions, path, owner, os.Geteuid())
	}
	return nil
}

// checkMode refuses the bits of the file mode that are in not.
func checkMode(path string, fi fs.FileInfo, not fs.FileMode, fix string) error {
	if m := fi.Mode().Perm(); m&not != 0 {
		return fmt.Errorf("%w: %s has mode %04o: run `chmod %s %s`", ErrPermissions, path, m, fix, ShellPath(path))
	}
	return nil
}

// tryLock takes the exclusive right to a file that the caller has open, unless
// somebody has it. It ends with the file, so the kernel gives it up when the
// process dies.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("keys: lock %s: %w", f.Name(), err)
		}
	}
}

// outOfFiles says whether an open failed for want of descriptors.
func outOfFiles(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }
