//go:build !unix

package main

import "io/fs"

// worldReads reports that everybody on this host can read a file: modes do not say so here.
func worldReads(fs.FileInfo) bool { return false }
