package transporttest

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// guarded is the testing.TB that a check sees. The check runs on a goroutine of
// its own so that the watchdog can give up on it, and its cleanups run before
// the search for leaks.
type guarded struct {
	testing.TB
	mu       sync.Mutex // guards what follows
	dead     bool       // the watchdog gave up: say nothing more
	failed   bool
	cleanups []func()
}

// guard runs body under a watchdog and looks for what it left behind.
func guard(tb testing.TB, limit time.Duration, body func(testing.TB)) {
	tb.Helper()
	before, files := goleak.IgnoreCurrent(), openFiles()
	g := &guarded{TB: tb}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer g.runCleanups()
		defer func() {
			if v := recover(); v != nil {
				g.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		body(g)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		g.kill()
		tb.Errorf("hung for %v; all goroutines:\n%s", limit, stacks())
		return
	}
	if err := goleak.Find(before); err != nil {
		tb.Errorf("goroutines left behind: %v", err)
	}
	if left := filesLeft(files); left > 0 {
		tb.Errorf("%d open files left behind:\n%s", left, strings.Join(openFiles(), "\n"))
	}
}

// filesLeft waits a little for files to be closed and returns how many more
// are open than before.
func filesLeft(before []string) int {
	deadline := time.Now().Add(time.Second)
	for {
		left := len(openFiles()) - len(before)
		if left <= 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(poll)
	}
}

// stacks is the stacks of all goroutines, at most 1 MiB of them.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func (g *guarded) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = true
}

func (g *guarded) runCleanups() {
	g.mu.Lock()
	n := len(g.cleanups)
	if n == 0 {
		g.mu.Unlock()
		return
	}
	f := g.cleanups[n-1]
	g.cleanups = g.cleanups[:n-1]
	g.mu.Unlock()
	defer g.runCleanups() // also when f ends its goroutine by FailNow
	f()
}

// Cleanup implements testing.TB.
func (g *guarded) Cleanup(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cleanups = append(g.cleanups, f)
}

// Failed implements testing.TB.
func (g *guarded) Failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// Fail implements testing.TB.
func (g *guarded) Fail() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = true
	if !g.dead {
		g.TB.Fail()
	}
}

// FailNow implements testing.TB: it ends the calling goroutine, which is not
// the one of the underlying test.
func (g *guarded) FailNow() {
	g.Fail()
	runtime.Goexit()
}

// Error implements testing.TB.
func (g *guarded) Error(args ...any) {
	g.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = true
	if !g.dead {
		g.TB.Error(args...)
	}
}

// Errorf implements testing.TB.
func (g *guarded) Errorf(format string, args ...any) {
	g.Helper()
	g.Error(fmt.Sprintf(format, args...))
}

// Fatal implements testing.TB.
func (g *guarded) Fatal(args ...any) {
	g.Helper()
	g.Error(args...)
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (g *guarded) Fatalf(format string, args ...any) {
	g.Helper()
	g.Error(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// Log implements testing.TB.
func (g *guarded) Log(args ...any) {
	g.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.dead {
		g.TB.Log(args...)
	}
}

// Logf implements testing.TB.
func (g *guarded) Logf(format string, args ...any) {
	g.Helper()
	g.Log(fmt.Sprintf(format, args...))
}
