package prefill

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// seals keep everybody from changing the size: a mapping behind the end of its
// file is a fatal signal.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// makeMemory returns a new file of so many zero bytes whose size nobody can
// change, in memory and without a name.
func makeMemory(size int) (*os.File, error) {
	fd, err := unix.MemfdCreate("pdlink-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "pdlink-ring")
	if err := f.Truncate(int64(size)); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("size ring: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("seal ring: %w", err)
	}
	return f, nil
}

// mapMemory maps such a file, shared, and returns the way to unmap it. It refuses
// one whose size is another or could change: ErrRing.
func mapMemory(f *os.File, size int) (mem []byte, unmap func() error, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	have, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || have&(unix.F_SEAL_SHRINK|unix.F_SEAL_GROW) != unix.F_SEAL_SHRINK|unix.F_SEAL_GROW {
		return nil, nil, fmt.Errorf("%w: its size is not sealed", ErrRing)
	}
	if info.Size() != int64(size) {
		return nil, nil, fmt.Errorf("%w: %d bytes, want %d", ErrRing, info.Size(), size)
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	// Huge pages make first touches and copies cheaper, where shared memory has them.
	unix.Madvise(mem, unix.MADV_HUGEPAGE) //nolint:errcheck // advice that may be declined
	return mem, func() error { return unix.Munmap(mem) }, nil
}
