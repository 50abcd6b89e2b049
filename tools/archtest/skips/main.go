// Command skips reads the events of `go test -json` from its input, prints what go test prints without -v, and ends with a
// line "N passed, M failed". It exits with 1 when a test failed, when a test was skipped without being on the allow list, or
// when no test ran at all: a test that does not run proves nothing, and must not look like one that passed.
package main

import (
	"fmt"
	"os"
)

// allowed lists the tests that may be skipped: "package.Test" and the reason why it cannot run where the tests are run.
func allowed() map[string]string {
	return map[string]string{}
}

func main() {
	good, err := summarize(os.Stdin, os.Stdout, allowed())
	if err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(1)
	}
	if !good {
		os.Exit(1)
	}
}
