//go:build !unix

package trace

import "os"

// openPipe opens a named pipe for writing.
func openPipe(name string) (*os.File, error) { return os.OpenFile(name, os.O_WRONLY, 0) }
