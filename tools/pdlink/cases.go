package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/bridge/replay"
)

// bundled are small cases with the blocks that a real decoder wrote for them;
// testdata/README.md says how they were made. state.safetensors, which only verify
// reads, is bundledStates.
//
//go:embed testdata/cases/*/case.json testdata/cases/*/capture.safetensors
//go:embed testdata/cases/*/weights.safetensors testdata/cases/*/expected
var bundled embed.FS

const (
	bundledRoot   = "testdata/cases"
	bundledPrefix = "bundled:" // of the name of a bundled case on a command line
)

// bundledCases are the names of the bundled cases.
func bundledCases() ([]string, error) {
	entries, err := fs.ReadDir(bundled, bundledRoot)
	if err != nil {
		return nil, fmt.Errorf("bundled cases: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// bundledArgs are the bundled cases as a command line names them.
func bundledArgs() []string {
	names, err := bundledCases()
	if err != nil { // what is compiled in is there
		return nil
	}
	for i := range names {
		names[i] = bundledPrefix + names[i]
	}
	return names
}

// completeCase completes a case: a directory, or a bundled one.
func completeCase(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
	for _, name := range bundledArgs() {
		if strings.HasPrefix(name, typed) {
			found = append(found, name)
		}
	}
	if typed != "" && len(found) > 0 {
		return found, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveDefault
}

// unpackCase writes a bundled case below dir and returns where it is.
func unpackCase(name, dir string) (string, error) {
	to := filepath.Join(dir, name)
	sub, err := fs.Sub(bundled, bundledRoot+"/"+name)
	if err != nil {
		return "", fmt.Errorf("bundled case %s: %w", name, err)
	}
	if err := os.CopyFS(to, sub); err != nil {
		return "", fmt.Errorf("unpack case %s: %w", name, err)
	}
	return to, nil
}

// loadCase loads the case that a command line names: a directory, or
// "bundled:NAME", which is unpacked into a temporary directory. The files are
// there until release is called, which must be, unless there is an error.
func loadCase(arg string) (c *replay.Case, release func(), err error) {
	release = func() {}
	defer func() {
		if err != nil {
			release()
		}
	}()
	dir := arg
	if name, ok := strings.CutPrefix(arg, bundledPrefix); ok {
		if !slices.Contains(bundledArgs(), arg) {
			return nil, release, fmt.Errorf("no case %q is bundled, only %s", arg, listText(bundledArgs()))
		}
		temp, err := makeTemp("pdlink-case-")
		if err != nil {
			return nil, release, err
		}
		release = func() { os.RemoveAll(temp) } //nolint:errcheck // the system's own clean-up takes what is left
		if dir, err = unpackCase(name, temp); err != nil {
			return nil, release, err
		}
	} else if err := checkCaseDir(dir); err != nil {
		return nil, release, err
	}
	c, err = replay.Load(dir)
	return c, release, err
}

// makeTemp makes a directory for what is needed for a moment. Its error is the user's to
// mend.
func makeTemp(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", fmt.Errorf("make a temporary directory in %s: %w: set $TMPDIR to a directory that this user can write", os.TempDir(), err)
	}
	return dir, nil
}

// maxWorkers bounds --workers: the kernels take no more.
const maxWorkers = 1024

// checkWorkers looks at --workers.
func checkWorkers(n int) error {
	if n < 0 || n > maxWorkers {
		return fmt.Errorf("--workers %d: want 1 to %d, or 0 for one for each core", n, maxWorkers)
	}
	return nil
}

// checkCaseDir says what is wrong with a directory that holds no case.
func checkCaseDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case dir == "":
		return errors.New("the case is empty: name a directory")
	case errors.Is(err, fs.ErrNotExist) && slices.Contains(bundledArgs(), bundledPrefix+dir):
		return fmt.Errorf("no case at %s: there is no such directory; the bundled case of that name is %s%s", dir, bundledPrefix, dir)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no case at %s: there is no such directory, hence no case.json in it", dir)
	case err != nil:
		return fmt.Errorf("case: %w", err)
	case !info.IsDir():
		return fmt.Errorf("no case at %s: it is a file: name the directory that holds case.json", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "case.json")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if below := casesBelow(dir); len(below) > 0 {
		return fmt.Errorf("no case at %s: there is no case.json in it, but there are cases below it: name one of %s", dir, listText(below))
	}
	return fmt.Errorf("no case at %s: there is no case.json in it", dir)
}

// casesBelow are the directories in dir that hold a case.
func casesBelow(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		sub := filepath.Join(dir, e.Name())
		if _, err := os.Stat(filepath.Join(sub, "case.json")); err == nil {
			found = append(found, sub)
		}
	}
	return found
}
