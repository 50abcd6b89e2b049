// Command pdperf measures what a link between two hosts costs: goodput, block
// times and CPU seconds per gigabyte, on blocks of the size that a decoder's
// store has, through the same transport that the product uses. It also has the
// floor to compare with, a bare sender and receiver, and a proxy that puts
// faults between two hosts. It is a composition root: here links are put
// together.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"pdlink/tools/cmdline"
)

// Exit statuses. They are part of the command's contract.
const (
	exitOK      = 0 // the run was complete and every block was verified
	exitFailed  = 1 // the run did not come to its end, or the two ends disagree, or there is no such link here
	exitUsage   = 2 // the command line cannot be used
	exitStopped = 130
)

// statusText explains the exit statuses in the help of commands.
const statusText = `Exit status: 0 the run was complete and every block verified; 1 it was not, or this
host cannot have the link; 2 the command line cannot be used, and nothing was done; 130
interrupted.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, io streams) int {
	err := cmdline.Execute(ctx, newRoot(io), args, io.out, io.err)
	var status *statusError
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		io.complain(errors.New("stopped"))
		return exitStopped
	case errors.As(err, &status):
		if status.err != nil {
			io.complain(status.err)
		}
		return status.code
	}
	io.complain(err)
	return exitUsage
}

// statusError is an error with its exit status. A nil err has been reported
// already.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// failed is the error of a job that ran and did not give what was expected.
func failed(err error) error { return &statusError{code: exitFailed, err: err} }
