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

	"github.com/spf13/cobra"

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
const statusText = `Exit status: 0 all that was expected is there; 1 it is not, or this host cannot
have the link; 2 the command line or the input cannot be used, and nothing was done;
130 interrupted.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], newStreams(os.Stdout, os.Stderr)))
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, std streams) int {
	root := newRoot(std)
	err := cmdline.Execute(ctx, root, args, std.out, std.err)
	lost := std.out.failure()
	code, told := judge(ctx, err, lost)
	if told == nil {
		return code
	}
	if lost == nil && forPrograms(root, args) && !answered(err) && !quiet(err) { // a reader that hangs is waited for no longer
		std.json(failure{"error", cmdline.Plain(told), code}) //nolint:errcheck // people are told all the same
	}
	std.complain(told)
	return code
}

// judge is the exit status of a command that ended with err, and what is to be said of
// it; nil: it has been said, or there is nothing. lost is why its output could not be
// written.
func judge(ctx context.Context, err, lost error) (code int, told error) {
	var status *statusError
	switch {
	case err != nil && ctx.Err() != nil:
		if quiet(err) || errors.Is(err, context.Canceled) {
			err = errStopped
		}
		return exitStopped, err
	case lost != nil && (err == nil || quiet(err) || errors.Is(err, lost)):
		return exitFailed, fmt.Errorf("output is lost: %w", lost)
	case err == nil:
		return exitOK, nil
	case !errors.As(err, &status):
		return exitUsage, err
	case status.err == nil:
		return status.code, nil
	}
	return status.code, err
}

// failure is what --json prints last where a command ends with an error that no other
// object told of.
type failure struct {
	Event  string `json:"event"`  // error
	Error  string `json:"error"`  // what people are told
	Status int    `json:"status"` // the exit status
}

// forPrograms reports that a command line, a variable or the config file asks for JSON,
// also where the rest of the command line cannot be used.
func forPrograms(root *cobra.Command, args []string) bool {
	c, _, err := root.Find(args)
	if err == nil {
		if f := c.Flag("json"); f != nil && f.Value.String() == "true" {
			return true
		}
	}
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

// answeredError is an error that an object of --json has told of.
type answeredError struct{ error }

// Unwrap is the error itself.
func (e answeredError) Unwrap() error { return e.error }

// answered reports that an object of --json has told of an error.
func answered(err error) bool {
	var a answeredError
	return errors.As(err, &a)
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
