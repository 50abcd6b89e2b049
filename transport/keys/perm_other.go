//go:build !unix

package keys

import (
	"io/fs"
	"os"
)

// openFlags have no counterpart here.
const openFlags = 0

// isLink does not know.
func isLink(error) bool { return false }

// checkOwner cannot tell who owns a file.
func checkOwner(string, fs.FileInfo) error { return nil }

// checkMode has no modes to check.
func checkMode(string, fs.FileInfo, fs.FileMode, string) error { return nil }

// lock cannot lock a directory: two changes at the same time may lose one.
func lock(*os.File) error { return nil }
