// Command pdlink moves finished prefix-cache blocks from a host that prefills to
// the store of a decoder. It is a composition root: here links, stores and
// kernels are put together.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit statuses. They are part of the command's contract.
const (
	exitOK      = 0 // everything that was expected is there
	exitFailed  = 1 // the job ran and the result is not what was expected
	exitUsage   = 2 // the command line or the input cannot be used
	exitStopped = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], streams{out: os.Stdout, err: os.Stderr}))
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, std streams) int {
	root := newRoot(std)
	root.SetArgs(args)
	root.SetOut(std.out)
	root.SetErr(std.err)
	err := root.ExecuteContext(ctx)
	var status *statusError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		if status.err != nil {
			std.complain(status.err)
		}
		return status.code
	case ctx.Err() != nil:
		std.complain(errors.New("stopped"))
		return exitStopped
	}
	std.complain(err)
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
