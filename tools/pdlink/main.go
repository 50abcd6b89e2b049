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

	"pdlink/tools/cmdline"
)

// Exit statuses. They are part of the command's contract.
const (
	exitOK      = 0   // everything that was expected is there
	exitFailed  = 1   // the job ran and the result is not what was expected
	exitUsage   = 2   // the command line or the input cannot be used; nothing was done
	exitStopped = 130 // interrupted before the job was done
)

// statusText explains the exit statuses in the help of commands.
const statusText = `Exit status: 0 all that was expected is there; 1 it is not; 2 the command line
or the input cannot be used, and nothing was done; 130 interrupted.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], newStreams(os.Stdout, os.Stderr)))
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, std streams) int {
	err := cmdline.Execute(ctx, newRoot(std), args, std.out, std.err)
	lost := std.out.failure()
	var status *statusError
	switch {
	case err != nil && ctx.Err() != nil:
		if quiet(err) || errors.Is(err, context.Canceled) {
			err = errStopped
		}
		std.complain(err)
		return exitStopped
	case lost != nil && (err == nil || quiet(err) || errors.Is(err, lost)):
		std.complain(fmt.Errorf("output is lost: %w", lost))
		return exitFailed
	case err == nil:
		return exitOK
	}
	if !quiet(err) {
		std.complain(err)
	}
	if errors.As(err, &status) {
		return status.code
	}
	return exitUsage
}

// errStopped is what a command says that was interrupted.
var errStopped = errors.New("stopped")

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

// quiet reports an error that has been reported already.
func quiet(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.err == nil
}

// failed is the error of a job that ran and did not give what was expected; nil
// says that the reason has been reported.
func failed(err error) error { return &statusError{code: exitFailed, err: err} }

// unusable is the error of a job that is cut short by something that the user
// has to mend first.
func unusable(err error) error { return &statusError{code: exitUsage, err: err} }
