//go:build unix

package cmdline

import (
	"errors"
	"syscall"
)

// openFlags open a pipe without a wait for its other end, and a terminal without
// becoming its process.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOCTTY

// isDevice reports that a name is one of something that cannot be opened as files are:
// a socket, or a device that is not there.
func isDevice(err error) bool { return errors.Is(err, syscall.ENXIO) }
