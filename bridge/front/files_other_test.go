//go:build !linux

package front

import "os"

// openFiles is how many descriptors this process has open.
func openFiles() (int, error) {
	list, err := os.ReadDir("/dev/fd")
	return len(list), err
}
