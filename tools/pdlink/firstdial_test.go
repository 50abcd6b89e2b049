package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"pdlink/bridge"
	"pdlink/transport"
)

// TestFirstDialsAreTriedAgain: a sender whose first dials are cut goes on, more often
// than any number that it could have counted to, and so it does when nobody is there
// for a moment after that. What it waits for it says once.
func TestFirstDialsAreTriedAgain(t *testing.T) {
	const cuts = 6
	want := expect(t, "kv-qwen3", "5")
	store := t.TempDir()
	r := startReceiver(t, store)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	var seen atomic.Int32
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		defer l.Close()
		for range cuts { // the link tries once more by itself each time
			for range 2 {
				c, err := l.Accept()
				if err != nil {
					return
				}
				seen.Add(1)
				c.Close()
			}
		}
	}()
	p := sending(t, want, addr)
	<-refused
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	go func() {
		for {
			in, err := again.Accept()
			if err != nil {
				return
			}
			go pipe(in, r.addr)
		}
	}()
	res := resultOf(t, p, exitOK)
	if res.State != bridge.Complete || res.Reconnects != 0 || seen.Load() != 2*cuts {
		t.Errorf("%d dials were cut: %+v", seen.Load(), res)
	}
	text := p.err.String()
	if strings.Count(text, "cannot connect, trying for") != 1 || strings.Count(text, "connected over tcp") != 1 || !strings.Contains(text, "hung up at once") {
		t.Errorf("said %q", text)
	}
	r.stop(t, want, store)
}

// pipe forwards a connection until one end has enough.
func pipe(in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go func() { io.Copy(out, in); out.Close() }()
	io.Copy(in, out)
}

// TestHopelessDials: what is told of at once, and what may be back.
func TestHopelessDials(t *testing.T) {
	lost, strange, refused := transport.ErrLost, transport.ErrProtocol, error(syscall.ECONNREFUSED)
	none, late, reset := error(syscall.ENOENT), context.DeadlineExceeded, error(syscall.ECONNRESET)
	noWay, noNet, down := error(syscall.EHOSTUNREACH), error(syscall.ENETUNREACH), error(syscall.ENETDOWN)
	noName := error(&net.DNSError{Err: "server misbehaving", Name: "mac", IsTemporary: true})
	for _, c := range []struct {
		what string
		errs []error // one dial after the other
		over bool    // the last of them ends it
	}{
		{"nobody there", []error{refused}, true},
		{"no socket there", []error{none}, true},
		{"no way there", []error{noWay}, true},
		{"no network", []error{noNet}, true},
		{"no such name", []error{noName}, true},
		{"another error", []error{errors.New("what nobody knows")}, true},
		{"no network for a moment", []error{lost, noWay, noNet, down, noName, noWay}, false},
		{"no answer from a host that is off", []error{syscall.ETIMEDOUT, noWay, refused}, false},
		{"cut again and again", []error{lost, lost, reset, late, lost, late, reset, lost}, false},
		{"gone for a moment", []error{lost, refused, none, refused}, false},
		{"damaged bytes", []error{strange, strange}, false},
		{"another program", []error{strange, strange, strange}, true},
		{"damaged bytes now and then", []error{strange, strange, lost, strange, strange, late, strange}, false},
		{"both", []error{fmt.Errorf("%w: %w", strange, lost)}, false},
	} {
		w := &way{s: &sender{}}
		for i, err := range c.errs {
			over := w.hopeless(fmt.Errorf("dial: %w", err))
			if last := i == len(c.errs)-1; over != (last && c.over) {
				t.Errorf("%s: dial %d of %d ends it: %t", c.what, i+1, len(c.errs), over)
			}
		}
		if w.s.connected.Store(true); w.hopeless(refused) {
			t.Errorf("%s: hopeless after a connection", c.what)
		}
	}
}

// TestHopelessRoutes: answers of another program count for the route that they came
// over; that the network was struck counts for all.
func TestHopelessRoutes(t *testing.T) {
	s := &sender{}
	a, b := &way{s: s}, &way{s: s}
	for i := range strangeAnswers {
		last := i == strangeAnswers-1
		if a.hopeless(transport.ErrProtocol) != last {
			t.Errorf("answer %d over the one", i+1)
		}
		if !last && b.hopeless(transport.ErrProtocol) {
			t.Errorf("answer %d over the other", i+1)
		}
	}
	if b.hopeless(syscall.EHOSTUNREACH) {
		t.Error("no way over the other, behind what came over the one")
	}
}

// TestAnotherProgramIsToldOfSoon: trying on would not mend a wrong port. Each of
// several is tried as often.
func TestAnotherProgramIsToldOfSoon(t *testing.T) {
	for _, routes := range []int{1, 2} {
		args := []string{"replay", filepath.Join(casesDir, "kv-qwen3"), "--retry", "1h"}
		dials := make([]*atomic.Int32, routes)
		for i := range dials {
			var addr string
			addr, dials[i] = anotherProgram(t)
			args = append(args, "--to", "tcp://"+addr)
		}
		status, _, errOut := cli(t, args...)
		if status != exitFailed || !strings.Contains(errOut, "something other than `pdlink decode` answered: check the port") {
			t.Errorf("%d routes: status %d: %s", routes, status, errOut)
		}
		for i, n := range dials {
			if got := n.Load(); got != strangeAnswers {
				t.Errorf("route %d of %d was dialled %d times", i+1, routes, got)
			}
		}
	}
}

// anotherProgram listens until the test ends, and returns where and how often it was
// dialled.
func anotherProgram(t *testing.T) (addr string, dials *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	dials = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			go func() {
				io.WriteString(c, "SSH-2.0-OpenSSH_9.9 a program that is not pdlink\r\n")
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	return l.Addr().String(), dials
}
