//go:build !linux

package transport

// preferHugePages does nothing here: the system chooses the pages itself.
func preferHugePages([]byte) {}
