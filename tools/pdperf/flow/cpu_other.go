//go:build !linux

package flow

// ReadCPU says that this system does not tell.
func ReadCPU() (CPU, error) { return CPU{}, ErrUnknown }
