package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport"
	"pdlink/transport/keys"
)

// stuckWriter is a terminal that was stopped: a write does not return before it is
// released.
type stuckWriter struct {
	began, release chan struct{}
	said           output
}

func newStuckWriter() *stuckWriter {
	return &stuckWriter{began: make(chan struct{}, 1), release: make(chan struct{})}
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	select {
	case w.began <- struct{}{}:
	default:
	}
	<-w.release
	return w.said.Write(p)
}

// TestTheJournalIsBounded: in lines of one kind, and in what waits while nobody
// reads.
func TestTheJournalIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e output
		j := newJournal(newStreams(io.Discard, &e))
		protocol := fmt.Errorf("no pdlink: %w", transport.ErrProtocol)
		for i := range 500 {
			j.dropped(fmt.Sprint("host-", i), protocol)
			synctest.Wait()
		}
		j.dropped("mac", keys.ErrRevoked)
		j.warn("peers are not as they should be", keys.ErrBadFile)
		synctest.Wait()
		if n := strings.Count(e.String(), "warning: peer "); n != journalBurst+1 || !strings.Contains(e.String(), "warning: peer mac dropped: revoked\n") ||
			!strings.Contains(e.String(), "peers are not as they should be") {
			t.Errorf("%d lines: %s", n, e.String())
		}
		e.reset()
		time.Sleep(journalWindow + time.Second)
		if got := e.String(); strings.Count(got, "\n") != 1 || got != "pdlink: warning: 495 more peers dropped: protocol violation\n" {
			t.Errorf("the sum: %s", got)
		}
		e.reset()
		j.dropped("again", protocol)
		j.close()
		j.close()
		if got := e.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "peer again dropped") {
			t.Errorf("a new window: %s", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newStuckWriter()
		j := newJournal(newStreams(io.Discard, w))
		for range 1000 {
			j.say("x\n")
		}
		begin := time.Now()
		j.close()
		if took := time.Since(begin); took > 2*journalFlush {
			t.Errorf("the end took %v", took)
		}
		close(w.release)
		<-j.done
		if got := w.said.String(); !strings.Contains(got, " more lines are lost, which nobody read in time") || strings.Count(got, "x\n") > journalRoom+1 {
			t.Errorf("%s", got)
		}
	})
}

func TestKindOf(t *testing.T) {
	for want, err := range map[string]error{
		keys.ErrRevoked.Error():              fmt.Errorf("%w: %w: %w", transport.ErrLost, keys.ErrUnknownPeer, keys.ErrRevoked),
		keys.ErrUnknownPeer.Error():          fmt.Errorf("%w: %w", transport.ErrInsecure, keys.ErrUnknownPeer),
		transport.ErrProtocol.Error():        fmt.Errorf("tcp: handshake: %w", transport.ErrProtocol),
		context.DeadlineExceeded.Error():     context.DeadlineExceeded,
		"other reasons":                      errors.New("x"),
		transport.ErrTooLarge.Error():        transport.ErrTooLarge,
		errors.Join(keys.ErrNoKeys).Error():  keys.ErrNoKeys,
		errors.Join(keys.ErrRefused).Error(): keys.ErrRefused,
	} {
		if got := kindOf(err); got != want {
			t.Errorf("%v: %q", err, got)
		}
	}
}

// TestDecodeStopsWhileNobodyReadsItsLog: strangers that are dropped meanwhile cost
// no more and more, and an interrupt ends it.
func TestDecodeStopsWhileNobodyReadsItsLog(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newStuckWriter()
	defer close(w.release)
	var out output
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"decode", "--json", "--listen", "tcp://127.0.0.1:0", "--discard", "--ring", "8"}, newStreams(&out, w))
	}()
	if !eventually(processLimit, func() bool { return len(out.events("listening")) > 0 }) {
		t.Fatal("it does not listen")
	}
	_, addr, _ := bytes.Cut(out.events("listening")[0], []byte("tcp://"))
	addr, _, _ = bytes.Cut(addr, []byte(`"`))
	for i := range 2 * journalRoom {
		c, err := net.Dial("tcp", string(addr))
		if err != nil {
			t.Fatal(err)
		}
		c.Write(make([]byte, 64))
		c.Close()
		if i == 0 {
			<-w.began // it is stuck from now on
		}
	}
	cancel()
	select {
	case got := <-status:
		if got != exitOK || len(out.events("ended")) != 1 {
			t.Errorf("status %d: %s", got, out.String())
		}
	case <-time.After(processLimit):
		t.Error("it does not stop")
	}
}
