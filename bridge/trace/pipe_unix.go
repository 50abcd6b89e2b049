//go:build unix

package trace

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openPipe opens a named pipe for writing, and does not wait for whoever might read it.
func openPipe(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("nobody reads the pipe: %w", err)
	}
	return f, err
}
