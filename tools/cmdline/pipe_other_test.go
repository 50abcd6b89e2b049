//go:build !unix

package cmdline

import "testing"

// makePipe makes none: there are no pipes among files here.
func makePipe(*testing.T, string) bool { return false }
