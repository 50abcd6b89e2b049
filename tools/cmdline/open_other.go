//go:build !unix

package cmdline

// openFlags: there are no pipes among files here.
const openFlags = 0

// isDevice reports that a name is one of something that is no file: not known here.
func isDevice(error) bool { return false }
