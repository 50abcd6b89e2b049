package omlx

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate reserves the space, of holes too, so that a full disk shows itself before the bytes
// arrive. File systems that cannot (some network ones) only get the size.
func allocate(f *os.File, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS):
			return f.Truncate(size)
		}
		return os.NewSyscallError("fallocate", err)
	}
}

// writeBack starts write-back of a range; it does not wait for it.
func writeBack(f *os.File, off, n int64) error {
	err := unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) {
		return nil // only a hint; dataSync does the work
	}
	return os.NewSyscallError("sync_file_range", err)
}

// dataSync makes the bytes durable, and the metadata needed to read them.
func dataSync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return os.NewSyscallError("fdatasync", err)
	}
}

// renameNew renames without ever replacing; file systems that lack the flag get
// a hard link instead.
func renameNew(temp, final string) error {
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return linkNew(temp, final)
	}
	if err != nil {
		return &os.LinkError{Op: "renameat2", Old: temp, New: final, Err: err}
	}
	return nil
}
