//go:build !nordma && (amd64 || arm64)

package verbs

import (
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// errnoLocation is the C library's function that tells where errno lies.
	errnoLocation = "__error"

	libraryCure = "librdma comes with macOS 26.2 and later"
	kernelCure  = "RDMA is off: rdma_ctl enable, in Recovery"
	openCure    = "does the provider know this build of macOS?"
	memoryCure  = "raise it: ulimit -l"
)

// The loader finds a system library that exists only in its cache by both names.
func libraryNames() []string { return []string{"librdma.dylib", "/usr/lib/librdma.dylib"} }

// classOf tells whose provider a device has, by the names that providers give.
func classOf(name string) Class {
	switch {
	case strings.HasPrefix(name, "rdma_mcrdma"):
		return ClassMCDMA
	case strings.HasPrefix(name, "rdma_en"):
		return ClassApple
	}
	return ClassOther
}

// memoryNow knows what one process may lock.
func memoryNow() memory {
	m := memory{limit: noLimit, group: noLimit}
	if limit, ok := lockedLimit(); ok {
		m.limit = limit
	}
	return m
}

// gidKind knows nothing: macOS says it nowhere.
func gidKind(string, int, int) (GIDKind, string) { return GIDUnknown, "" }

// duplicate makes another number for an open file, which programs that are started
// do not get.
func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
