package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program in a namespace.
type process struct {
	cmd  *exec.Cmd
	out  said
	done chan struct{} // closed when it has ended
	err  error         // how; read after done
}

// said is what a process wrote, bounded.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// maxSaid is how much of a process's output is kept.
const maxSaid = 8 << 20

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.b.Len() < maxSaid {
		s.b.Write(p)
	}
	return len(p), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// tail is the end of the output, for an error.
func (s *said) tail() string {
	text := strings.TrimSpace(s.String())
	return text[max(0, len(text)-500):]
}

// startIn runs a program in an end's namespace with further environment
// variables, until ctx ends at the latest.
func startIn(ctx context.Context, e end, env []string, program string, args ...string) (*process, error) {
	// ip replaces itself by the program, so its CPU time is the program's.
	p := &process{done: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", e.namespace, program}, args...)...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// until waits for the output to match, at most grace, and returns the groups of
// the match.
func (p *process) until(pattern *regexp.Regexp) ([]string, error) {
	for end := time.Now().Add(grace); ; time.Sleep(poll) {
		if m := pattern.FindStringSubmatch(p.out.String()); m != nil {
			return m, nil
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("%s ended: %w: %s", p.cmd.Args[4], errors.Join(p.err, errors.New("too early")), p.out.tail())
		default:
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s did not get ready: %s", p.cmd.Args[4], p.out.tail())
		}
	}
}

// wait returns when the program has ended by itself, in time and well.
func (p *process) wait(limit time.Duration) error {
	select {
	case <-p.done:
	case <-time.After(limit):
		p.kill()
		return fmt.Errorf("%s did not end: %s", p.cmd.Args[4], p.out.tail())
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.cmd.Args[4], p.err, p.out.tail())
	}
	return nil
}

// stop ends the program, by a signal first.
func (p *process) stop(s syscall.Signal) {
	p.cmd.Process.Signal(s) //nolint:errcheck // it may have ended
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		p.kill()
	}
}

func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-p.done
}

// cpu is the CPU seconds of the whole life of the program, which has ended.
func (p *process) cpu() float64 {
	if p.cmd.ProcessState == nil {
		return 0
	}
	return (p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds()
}
