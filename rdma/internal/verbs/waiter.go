//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// waiter waits for a descriptor of the library in Go's poller, so that no thread is
// held. wait may be called by one goroutine at a time, the rest by any.
type waiter struct {
	file   *os.File // a duplicate: os.File closes what it has, and so does the library
	conn   syscall.RawConn
	woken  atomic.Bool
	closed atomic.Bool
}

func newWaiter(name string, fd int) (*waiter, error) {
	dup, err := duplicate(fd)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor for %s: %w", name, err)
	}
	// Both numbers stand for one open file: the library's reads do not block either.
	if err := syscall.SetNonblock(dup, true); err != nil {
		return nil, errors.Join(fmt.Errorf("make descriptor for %s non-blocking: %w", name, err), syscall.Close(dup))
	}
	w := &waiter{file: os.NewFile(uintptr(dup), name)}
	if w.conn, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // fails where the poller does not take it
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for %s: %w", name, err), w.file.Close())
	}
	return w, nil
}

// wait calls try until it returns something else than EAGAIN, and in between waits
// for the descriptor. It returns true when wake ended it. Errors: those of try,
// ErrClosed, the context's.
func (w *waiter) wait(ctx context.Context, try func() error) (bool, error) {
	stop := context.AfterFunc(ctx, w.interrupt)
	defer stop()
	for {
		// The deadline is lifted before the reasons for one are looked at: an
		// interrupt that comes in between is seen by the read.
		err := w.file.SetReadDeadline(time.Time{})
		switch {
		case w.closed.Load():
			return false, ErrClosed
		case ctx.Err() != nil:
			return false, ctx.Err()
		case w.woken.Swap(false):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("wait for %s: %w", w.file.Name(), err)
		}
		var result error
		err = w.conn.Read(func(uintptr) bool {
			for result = try(); errnoIs(result, syscall.EINTR); result = try() {
			}
			return !errnoIs(result, syscall.EAGAIN)
		})
		if err == nil {
			return false, result
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) && !w.closed.Load() {
			return false, fmt.Errorf("wait for %s: %w", w.file.Name(), err)
		}
	}
}

// wake ends the wait that is under way, else the next one.
func (w *waiter) wake() {
	w.woken.Store(true)
	w.interrupt()
}

// interrupt makes wait look at its reasons to end.
func (w *waiter) interrupt() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) } // fails only when it is closed

// close ends every wait; when it returns none is in the library any more.
func (w *waiter) close() {
	w.closed.Store(true)
	_ = w.file.Close() // a second close fails, and a duplicate has nothing to lose
}
