//go:build faults

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"pdlink/bridge"
)

// What the test binary can be beside pdlink.
const (
	receiverMode = "receiver" // a `pdlink decode` whose disk obeys its standard input
	senderMode   = "sender"   // pdlink with a word about what it left behind
	looperMode   = "looper"   // a `pdlink replay` again and again

	breakWriteMode = "break write" // see TestBreakCalls
	breakSyncMode  = "break sync"
)

// Words on a receiver's standard input. Each is answered by an event.
const (
	saySlow       = "slow"        // the disk takes its time from now on
	sayFast       = "fast"        // it does not any more
	sayBreakWrite = "break write" // writing a file fails from now on
	sayBreakSync  = "break sync"  // making it durable fails
)

// How long a slow disk takes: a tired one of spinning kind, shared with others.
const (
	slowWrite = 2 * time.Millisecond
	slowSync  = 60 * time.Millisecond
)

// leftEvent is what a process says of itself at its end.
type leftEvent struct {
	Event      string `json:"event"` // "left"
	Goroutines int    `json:"goroutines"`
	Before     int    `json:"goroutines_before"`
	Files      int    `json:"files"`
	FilesFirst int    `json:"files_before"`
	RingInUse  int    `json:"ring_in_use"`
	Promised   int    `json:"ring_promised"`
	HeapBytes  uint64 `json:"heap_bytes"`
	Stacks     string `json:"stacks,omitempty"` // of goroutines that should not be there
}

// leak says what was not given back, "" if all was.
func (l leftEvent) leak() string {
	var found []string
	if l.Goroutines > l.Before {
		found = append(found, fmt.Sprintf("%d goroutines, %d at the start:\n%s", l.Goroutines, l.Before, l.Stacks))
	}
	if l.Files > l.FilesFirst {
		found = append(found, fmt.Sprintf("%d files, %d at the start", l.Files, l.FilesFirst))
	}
	if l.RingInUse+l.Promised > 0 {
		found = append(found, fmt.Sprintf("%d slots in use, %d promised", l.RingInUse, l.Promised))
	}
	return strings.Join(found, "; ")
}

// before takes the measure that after compares with.
func before() leftEvent {
	// The runtime's own descriptors come with the first socket.
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close()
	}
	return leftEvent{Event: "left", Before: runtime.NumGoroutine(), FilesFirst: fdCount(os.Getpid())}
}

// after waits until nothing is left, for as long as a busy machine may take, and says
// what is.
func (l leftEvent) after() leftEvent {
	eventually(processLimit/2, func() bool { return runtime.NumGoroutine() <= l.Before && fdCount(os.Getpid()) <= l.FilesFirst })
	l.Goroutines, l.Files = runtime.NumGoroutine(), fdCount(os.Getpid())
	if l.Goroutines > l.Before {
		var text strings.Builder
		pprof.Lookup("goroutine").WriteTo(&text, 1)
		l.Stacks = text.String()
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	l.HeapBytes = m.HeapAlloc
	return l
}

// mainOf is what a child of these tests runs. It does not return.
func mainOf(mode string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	std := newStreams(os.Stdout, os.Stderr)
	switch mode {
	case senderMode:
		b := before()
		status := run(ctx, os.Args[1:], std)
		if ctx.Err() == nil { // else a goroutine that waited for the signal is gone
			json.NewEncoder(os.Stderr).Encode(b.after())
		}
		os.Exit(status)
	case looperMode:
		os.Exit(looperMain(ctx, std, os.Args[1:]))
	case receiverMode:
		os.Exit(receiverMain(ctx, std, os.Args[1:]))
	case breakWriteMode:
		os.Exit(breakMain(os.Args[2], writeCalls()))
	case breakSyncMode:
		os.Exit(breakMain(os.Args[2], syncCalls()))
	}
	fmt.Fprintf(os.Stderr, "%s=%s: unknown\n", mainEnv, mode)
	os.Exit(exitUsage)
}

// looperMain runs `pdlink replay` for each line of standard input. The command is made
// once: package cobra keeps all flags that ever had completions.
func looperMain(ctx context.Context, std streams, args []string) int {
	c := newReplay(std)
	c.SetContext(ctx)
	if err := c.ParseFlags(args); err != nil {
		std.complain(err)
		return exitUsage
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := c.RunE(c, c.Flags().Args()); err != nil && !quiet(err) {
			std.complain(err)
		}
	}
	return exitOK
}

// receiverMain is `pdlink decode` on a disk that can go bad. Its arguments are the size
// of the ring and a command line.
func receiverMain(ctx context.Context, std streams, args []string) int {
	mib, err := strconv.Atoi(args[0])
	if err != nil {
		std.complain(err)
		return exitUsage
	}
	ring, err := newRing(mib)
	if err != nil {
		std.complain(err)
		return exitFailed
	}
	d := &disk{}
	go d.obey(std)
	b := before()
	c := (&decodeFlags{seams: decodeSeams{ring: ring, wrap: func(t bridge.Target) bridge.Target { return onDisk{t, d} }}}).command(std)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args[1:])
	err = c.ExecuteContext(ctx)
	if err != nil && !quiet(err) {
		std.complain(err)
	}
	b.Before-- // the goroutine that waited for the signal
	left := b.after()
	left.RingInUse, left.Promised = ring.InUse(), ring.Slots()-ring.Unpromised()
	std.json(left)
	if err != nil {
		return exitFailed
	}
	return exitOK
}

// disk is one that can go bad.
type disk struct{ slow atomic.Bool }

// obey does what standard input says. It ends with whoever holds the other end,
// and the process with it.
func (d *disk) obey(std streams) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		err := errors.New("not understood")
		switch lines.Text() {
		case saySlow:
			d.slow.Store(true)
			err = nil
		case sayFast:
			d.slow.Store(false)
			err = nil
		case sayBreakWrite:
			err = breakCalls(writeCalls()...)
		case sayBreakSync:
			err = breakCalls(syncCalls()...)
		}
		e := struct {
			Event string `json:"event"`
			Said  string `json:"said"`
			Err   string `json:"err,omitempty"`
		}{"disk", lines.Text(), ""}
		if err != nil {
			e.Err = err.Error()
		}
		std.json(e)
	}
	os.Exit(exitStopped)
}

// onDisk is a target on such a disk.
type onDisk struct {
	bridge.Target
	disk *disk
}

// take is how long the disk needs.
func (t onDisk) take(d time.Duration) {
	if t.disk.slow.Load() {
		time.Sleep(d)
	}
}

func (t onDisk) Write(block int, off int64, p []byte) error {
	t.take(slowWrite)
	return t.Target.Write(block, off, p)
}

func (t onDisk) Sync(block int) error {
	t.take(slowSync)
	return t.Target.Sync(block)
}

func (t onDisk) Seal(block int) error {
	t.take(slowSync)
	return t.Target.Seal(block)
}

func (t onDisk) Settle(first, n int) (int, error) {
	t.take(slowSync)
	return t.Target.Settle(first, n)
}
