package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// child is this program as another process, listening.
type child struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
	rest  chan struct{} // closed when its output has ended
}

// childGrace is how long a child may take to end on its own.
const childGrace = 5 * time.Second

// startChild runs a command of this program as a process of its own and returns
// when it listens. It ends when this process does, whatever the reason.
func startChild(ctx context.Context, s streams, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the other end: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, append(args, "--json", "--end-with-stdin")...)
	cmd.Stderr = s.err
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = childGrace
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the other end: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the other end: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the other end: %w", err)
	}
	c := &child{cmd: cmd, stdin: stdin, rest: make(chan struct{})}
	first := make(chan string, 1)
	go func() {
		defer close(c.rest)
		r := bufio.NewReaderSize(stdout, maxLine)
		line, _ := r.ReadSlice('\n') // a short or long line is no event
		first <- string(line)
		io.Copy(io.Discard, r) //nolint:errcheck // events that the sender knows better
	}()
	var l listening
	select {
	case line := <-first:
		err = json.Unmarshal([]byte(line), &l)
	case <-time.After(greeting):
		err = fmt.Errorf("it does not listen after %v", greeting)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil || l.Listen == "" {
		return nil, fmt.Errorf("start the other end: %w", errors.Join(c.end(), err))
	}
	c.url = l.Listen
	return c, nil
}

// end lets the child end and returns how it did.
func (c *child) end() error {
	c.stdin.Close()                                                     //nolint:errcheck // a child that has ended already
	stop := time.AfterFunc(childGrace, func() { c.cmd.Process.Kill() }) //nolint:errcheck // Wait says how it ended
	defer stop.Stop()
	<-c.rest
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the other end: %w", err)
	}
	return nil
}
