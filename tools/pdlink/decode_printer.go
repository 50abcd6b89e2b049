package main

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// printerRoom is how many events may wait to be printed: minutes of transfers.
	// What comes when it is full, because nobody reads them, is counted.
	printerRoom = 1 << 10

	// printerSteps is how many steps of the progress may wait; what comes then is
	// left out.
	printerSteps = 16

	// printerFlush bounds how long the end of the command waits for events that are
	// not printed yet.
	printerFlush = 2 * time.Second
)

// errNotRead is why events are lost that wait in front of a reader that is stuck.
var errNotRead = errors.New("nobody reads it")

// printer prints the events of `pdlink decode` in a goroutine of its own, so that a
// reader that is stuck holds neither transfers nor the end up. Its methods may be
// used concurrently and do not wait, but for close.
type printer struct {
	write  func(event any)            // prints one event
	step   func(visible, total int64) // draws the progress
	queue  chan any                   // events, in order
	steps  chan [2]int64              // what step is called with
	lost   atomic.Int64               // events that there was no room for, since they were told of
	ending sync.Once                  // guards left
	left   error                      // of close
	quit   chan struct{}
	done   chan struct{}
}

// lostEvent stands for events that nobody read in time.
type lostEvent struct {
	Event string `json:"event"`
	Count int64  `json:"count"`
}

func newPrinter(write func(event any), step func(visible, total int64)) *printer {
	p := &printer{
		write: write, step: step, queue: make(chan any, printerRoom), steps: make(chan [2]int64, printerSteps),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	go p.run()
	return p
}

// say prints an event after those before it. It reports false for the first of
// those for which there is no room.
func (p *printer) say(event any) (first bool) {
	select {
	case p.queue <- event:
		return true
	default:
		return p.lost.Add(1) > 1
	}
}

// advance draws the progress.
func (p *printer) advance(visible, total int) {
	select {
	case p.steps <- [2]int64{int64(visible), int64(total)}:
	default:
	}
}

// close prints what is there and ends the printer. It waits for a bounded time, and
// fails with errNotRead when something is left then. It is idempotent.
func (p *printer) close() error {
	p.ending.Do(func() {
		close(p.quit)
		t := time.NewTimer(printerFlush)
		defer t.Stop()
		select {
		case <-p.done:
		case <-t.C:
			p.left = errNotRead
		}
	})
	return p.left
}

func (p *printer) run() {
	defer close(p.done)
	for {
		select {
		case e := <-p.queue:
			p.one(e)
		case s := <-p.steps:
			p.step(s[0], s[1])
		case <-p.quit:
			for len(p.queue) > 0 {
				p.one(<-p.queue)
			}
			p.gap()
			return
		}
	}
}

// one prints an event; when it was the last that waited, those that are lost come
// between it and the next.
func (p *printer) one(event any) {
	p.write(event)
	if len(p.queue) == 0 {
		p.gap()
	}
}

func (p *printer) gap() {
	if n := p.lost.Swap(0); n > 0 {
		p.write(lostEvent{"lost", n})
	}
}
