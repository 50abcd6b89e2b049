//go:build !(faults && linux)

package main

import (
	"fmt"
	"os"
)

// mainOf has nothing to offer in this build.
func mainOf(mode string) {
	fmt.Fprintf(os.Stderr, "%s=%s: this build of the tests knows only 1\n", mainEnv, mode)
	os.Exit(exitUsage)
}
