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
	"strings"
	"sync"
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
	said := &heldOutput{to: s.err}
	cmd.Stderr = said
	cmd.WaitDelay = childGrace
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the other end: %w", err)
	}
	cmd.Cancel = stdin.Close // it takes no signals, which a terminal gives to both
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
		ended := c.end()
		if text := said.last(); text != "" { // it says why itself
			return nil, fmt.Errorf("the other end: %s", text)
		}
		return nil, fmt.Errorf("start the other end: %w", errors.Join(ended, err))
	}
	said.release()
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

// heldOutput keeps what is written to it until release, and hands it on from then on.
type heldOutput struct {
	to io.Writer

	mu   sync.Mutex // guards what follows
	kept []byte     // at most maxLine
	free bool
}

func (h *heldOutput) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.free {
		return h.to.Write(p)
	}
	h.kept = append(h.kept, p[:min(len(p), maxLine-len(h.kept))]...)
	return len(p), nil
}

func (h *heldOutput) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.to.Write(h.kept) //nolint:errcheck // nobody is left to tell
	h.kept, h.free = nil, true
}

// last is the last line of what is kept, without the name of the program.
func (h *heldOutput) last() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.TrimPrefix(lastLine(h.kept), "pdperf: ")
}
