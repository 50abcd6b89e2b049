package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
	}
	os.Exit(status)
}

// list is a flag that may be given several times.
type list []string

// String returns the values with commas.
func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds a value.
func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

var errUsage = errors.New("usage: vmtest image|headers|run|exec [flags] [-- COMMAND...] (go doc ./rdma/vmtest says more)")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	if len(args) == 0 {
		return 2, errUsage
	}
	m := machine{stdout: stdout, stderr: stderr}
	var j job
	flags := flag.NewFlagSet("vmtest "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	cache := flags.String("cache", ".build/rdma", "directory for packages and images")
	flags.IntVar(&m.cpus, "cpus", 2, "processors")
	flags.IntVar(&m.memory, "memory", 1024, "memory in MiB; everything of the job lies in it, its files too")
	flags.IntVar(&m.mtu, "mtu", 9000, "MTU of the link; 9000 gives RDMA packets of 4096 bytes, 1500 of 1024")
	flags.IntVar(&m.steady, "steady", 0, "let the machine's clock count instructions of so many nanoseconds each, a power of two; 0: the clock is the host's")
	flags.DurationVar(&m.limit, "limit", 5*time.Minute, "longest time for all of it")
	flags.StringVar(&m.log, "log", "", "keep the kernel's messages in this file")
	flags.StringVar(&j.dir, "dir", "", "its content is the directory that COMMAND starts in")
	flags.Var((*list)(&j.files), "add", "file or directory to put there; may be repeated")
	flags.Var((*list)(&j.env), "env", "NAME=VALUE for COMMAND; may be repeated")
	if err := flags.Parse(args[1:]); err != nil {
		return 2, errUsage
	}
	if m.steady > 0 {
		j.env = append(j.env, fmt.Sprintf("RDMA_STEADY=%d", m.steady))
	}
	if m.steady < 0 || m.steady&(m.steady-1) != 0 {
		return 2, fmt.Errorf("-steady %d: want a power of two, or 0", m.steady)
	}
	j.command = flags.Args()
	// apt takes a relative name for one below its own directory.
	dir, err := filepath.Abs(*cache)
	if err != nil {
		return statusNone, err
	}
	if args[0] == "headers" {
		include, err := packages{filepath.Join(dir, "headers")}.headers(ctx)
		if err != nil {
			return statusNone, err
		}
		fmt.Fprintln(stdout, include)
		return 0, nil
	}
	if m.image, err = prepare(ctx, dir); err != nil {
		return statusNone, err
	}
	switch {
	case args[0] == "image" && len(j.command) == 0:
		fmt.Fprintln(stdout, filepath.Dir(m.image.base))
		return 0, nil
	case args[0] == "run" && len(j.command) > 0:
		return m.run(ctx, j)
	case args[0] == "exec" && len(j.command) > 0:
		return m.run(ctx, ofGoTest(j))
	}
	return 2, errUsage
}

// ofGoTest turns a command as go test gives it, which starts in the package's
// directory, into a job.
func ofGoTest(j job) job {
	binary := j.command[0]
	j.files = append(j.files, binary)
	if info, err := os.Stat("testdata"); err == nil && info.IsDir() {
		j.files = append(j.files, "testdata")
	}
	words := []string{"./" + filepath.Base(binary)}
	for _, arg := range j.command[1:] {
		// What it names lies outside.
		if !strings.HasPrefix(arg, "-test.testlogfile=") {
			words = append(words, arg)
		}
	}
	// Two words at least, so that they are words.
	j.command = append([]string{"exec"}, words...)
	return j
}
