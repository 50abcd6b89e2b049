//go:build unix

package main

import "io/fs"

// worldReads reports that everybody on this host can read a file.
func worldReads(fi fs.FileInfo) bool { return fi.Mode()&0o004 != 0 }
