package main

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/tools/cmdline"
	"pdlink/transport"
	"pdlink/transport/keys"
)

const (
	// journalRoom is how many entries may wait to be written. What comes when it
	// is full, because nobody reads them, is counted.
	journalRoom = 64

	// journalBurst is how many peers dropped for the same kind of reason are told
	// of one by one in each journalWindow; the others are counted. Strangers can
	// make thousands a second.
	journalBurst  = 5
	journalWindow = 10 * time.Second

	// journalFlush bounds how long the end of the command waits for entries that
	// are not written yet.
	journalFlush = time.Second
)

// journal is what `pdlink decode` says besides its results: one goroutine writes
// it, so that a reader that is stuck holds nothing else up. Its methods may be used
// concurrently and do not wait, but for close.
type journal struct {
	std     streams
	entries chan entry
	lost    atomic.Int64 // entries that there was no room for
	ending  sync.Once
	quit    chan struct{}
	done    chan struct{}
}

// entry is something to be written.
type entry struct {
	write  func()
	reason string // of peers dropped; "": it is always written
}

// newJournal returns one that writes to err. The caller closes it.
func newJournal(std streams) *journal {
	j := &journal{std: std, entries: make(chan entry, journalRoom), quit: make(chan struct{}), done: make(chan struct{})}
	go j.run()
	return j
}

// say writes a text as it is.
func (j *journal) say(format string, args ...any) {
	j.add(entry{write: func() { j.std.notef(format, args...) }})
}

// warn tells of something that does not end the command.
func (j *journal) warn(what string, why error) {
	j.add(entry{write: func() { j.std.warnf("%s: %v", what, why) }})
}

// dropped tells of a peer that was dropped, and why.
func (j *journal) dropped(remote string, why error) {
	j.add(entry{func() { j.std.warnf("peer %s dropped: %v", cmp.Or(remote, "that is not known"), why) }, kindOf(why)})
}

func (j *journal) add(e entry) {
	select {
	case j.entries <- e:
	default:
		j.lost.Add(1)
	}
}

// close writes what is there and ends the journal. It waits for a bounded time: a
// writer that hangs ends with the process. It is idempotent.
func (j *journal) close() {
	j.ending.Do(func() { close(j.quit) })
	t := time.NewTimer(journalFlush)
	defer t.Stop()
	select {
	case <-j.done:
	case <-t.C:
	}
}

func (j *journal) run() {
	defer close(j.done)
	t := time.NewTicker(journalWindow)
	defer t.Stop()
	told := map[string]int{} // entries of each reason in this window
	for {
		select {
		case e := <-j.entries:
			j.write(e, told)
		case <-t.C:
			j.sum(told)
		case <-j.quit:
			for len(j.entries) > 0 {
				j.write(<-j.entries, told)
			}
			j.sum(told)
			return
		}
	}
}

func (j *journal) write(e entry, told map[string]int) {
	if e.reason != "" {
		if told[e.reason]++; told[e.reason] > journalBurst {
			return
		}
	}
	e.write()
}

// sum tells how many were not told of one by one, and begins a new window.
func (j *journal) sum(told map[string]int) {
	for reason, n := range told {
		if n > journalBurst {
			j.std.warnf("%d more peers dropped: %s", n-journalBurst, cmdline.PlainText(reason))
		}
	}
	clear(told)
	if n := j.lost.Swap(0); n > 0 {
		j.std.warnf("%d more lines are lost, which nobody read in time", n)
	}
}

// kindOf sorts the reasons why a peer was dropped, so that the many of one kind do
// not hide another.
func kindOf(err error) string {
	for _, kind := range []error{
		keys.ErrRevoked, keys.ErrUnknownPeer, keys.ErrRefused, keys.ErrNoKeys, transport.ErrInsecure, transport.ErrIncompatible,
		transport.ErrTooLarge, transport.ErrProtocol, transport.ErrLost, context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return "other reasons"
}
