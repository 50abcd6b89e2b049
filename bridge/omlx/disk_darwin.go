package omlx

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate reserves the space behind the file's end, so that a full disk shows
// itself before the bytes arrive; holes in front of it are filled when they are
// written. File systems that cannot (network ones) only get the size.
func allocate(f *os.File, size int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() >= size {
		return f.Truncate(size)
	}
	want := unix.Fstore_t{Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: size - st.Size()}
	err = unix.FcntlFstore(f.Fd(), unix.F_PREALLOCATE, &want)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return os.NewSyscallError("fcntl F_PREALLOCATE", err)
	}
	return f.Truncate(size) // reserving does not change the size
}

// writeBack does nothing: macOS has no call that only starts write-back.
func writeBack(*os.File, int64, int64) error { return nil }

// dataSync makes the file durable. Sync is F_FULLFSYNC here, which empties the
// drive's own cache too, and fsync on network file systems, which lack it. A
// barrier for each file and F_FULLFSYNC for a group's directory would be less work
// for the drive, but rests on what a directory's F_FULLFSYNC covers, which Apple
// does not document.
func dataSync(f *os.File) error { return f.Sync() }

// renameNew renames without ever replacing; file systems that lack the flag get
// a hard link instead.
func renameNew(temp, final string) error {
	err := unix.RenamexNp(temp, final, unix.RENAME_EXCL)
	if errors.Is(err, errors.ErrUnsupported) {
		return linkNew(temp, final)
	}
	if err != nil {
		return &os.LinkError{Op: "renamex_np", Old: temp, New: final, Err: err}
	}
	return nil
}
