//go:build !unix

package omlx

import "os"

// The flags of other systems have no counterpart here.
const (
	openNew   = 0
	openOther = 0
)

// canLock is false: a temporary file that is already there counts as held, so
// that nobody's is ever removed.
const canLock = false

// lockFile cannot lock.
func lockFile(*os.File) error { return nil }

// syncDir does nothing: directories cannot be synchronised here.
func syncDir(string) error { return nil }
