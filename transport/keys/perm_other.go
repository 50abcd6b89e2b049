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

// Foreign cannot tell who owns a file.
func Foreign(fs.FileInfo) (owner int, foreign bool) { return 0, false }

// OthersWrite has no modes to look at.
func OthersWrite(fs.FileInfo) bool { return false }

// checkOwner cannot tell who owns a file.
func checkOwner(string, fs.FileInfo) error { return nil }

// checkMode has no modes to check.
func checkMode(string, fs.FileInfo, fs.FileMode, string) error { return nil }

// tryLock cannot lock a file: two changes at the same time may lose one.
func tryLock(*os.File) (bool, error) { return true, nil }

// outOfFiles does not know.
func outOfFiles(error) bool { return false }
