//go:build !linux

package prefill

import "os"

// makeMemory is not available here.
func makeMemory(int) (*os.File, error) { return nil, ErrUnavailable }

// mapMemory is not available here.
func mapMemory(*os.File, int) ([]byte, func() error, error) { return nil, nil, ErrUnavailable }
