package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// floorHost is what a receiving end does for floors. turns is required.
type floorHost struct {
	memory int64                     // bytes to receive into at most
	admits func(host net.Addr) error // says who gets none, and why; nil: whoever comes gets one
	turns  *turns
}

// serveFloor receives one run: the first connection is the conversation, the
// second one, from the same host, the blocks.
func serveFloor(ctx context.Context, ln net.Listener, h floorHost) error {
	c, err := ln.Accept()
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() }) //nolint:errcheck // it interrupts what waits
	defer stop()
	a, t, err := h.greet(c)
	if err != nil {
		return err
	}
	defer h.turns.give(t)
	r := &floorReceiver{a: a, received: make(chan error, 1)}
	if err := t.say(floorLine{}); err != nil {
		return err
	}
	data, err := acceptFrom(ln, c)
	if err != nil {
		return err
	}
	defer data.Close()
	stopData := context.AfterFunc(ctx, func() { data.Close() }) //nolint:errcheck // it interrupts what waits
	defer stopData()
	c.SetDeadline(time.Now().Add(2*maxRun + patience)) //nolint:errcheck // likewise
	talked := r.converse(ctx, t, data, h.turns)
	data.Close() //nolint:errcheck // it ends the receiving
	if r.mem == nil {
		return talked // it never had the turn
	}
	if err := <-r.received; talked == nil && err != nil && !errors.Is(err, net.ErrClosed) {
		talked = err
	}
	return talked
}

// greet hears what a sending end wants, and tells it where it does not get that.
func (h floorHost) greet(c net.Conn) (a floorAsk, t *talk, err error) {
	t = newTalk(c)
	var refused error
	wait := greeting
	if h.admits != nil {
		if refused = h.admits(c.RemoteAddr()); refused != nil {
			wait = strangerWait
		}
	}
	c.SetDeadline(time.Now().Add(wait)) //nolint:errcheck // a dead socket fails below
	if err := t.hear(&a); err != nil {
		return a, t, errors.Join(refused, err)
	}
	if refused == nil {
		refused = a.check(h.memory)
	}
	if refused != nil {
		return a, t, errors.Join(refused, t.say(floorLine{Error: refused.Error()}))
	}
	return a, t, nil
}

// acceptFrom accepts the next connection from the host of c, which has to come soon: others
// wait.
func acceptFrom(ln net.Listener, c net.Conn) (*net.TCPConn, error) {
	if t, ok := ln.(*net.TCPListener); ok {
		t.SetDeadline(time.Now().Add(greeting)) //nolint:errcheck // a listener that is closed fails below
		defer t.SetDeadline(time.Time{})        //nolint:errcheck // likewise
	}
	for {
		d, err := ln.Accept()
		if err != nil {
			return nil, fmt.Errorf("accept: %w", err)
		}
		tcp, ok := d.(*net.TCPConn)
		if ok && hostOf(d) == hostOf(c) {
			return tcp, nil
		}
		d.Close() //nolint:errcheck // a stranger
	}
}

func hostOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}

// floorReceiver reads blocks into its frames in turn.
type floorReceiver struct {
	a      floorAsk
	mem    []byte        // nil: it has not begun
	blocks atomic.Uint64 // whole ones
	reads  atomic.Uint64 // system calls that returned bytes

	received chan error // capacity 1: how the receiving ended, where it has begun
}

// begin takes the memory and receives into it, the first time.
func (r *floorReceiver) begin(data *net.TCPConn) {
	if r.mem != nil {
		return
	}
	r.mem = make([]byte, int64(r.a.RecvFrames)*r.a.FrameBytes)
	touch(r.mem)
	go func() { r.received <- r.receive(data) }()
}

// touch takes memory from the system.
func touch(p []byte) {
	for i := 0; i < len(p); i += 4096 {
		p[i] = 1
	}
}

// receive reads until the sender ends the stream.
func (r *floorReceiver) receive(c *net.TCPConn) error {
	w, err := newWaker(c, r.a.LowWater)
	if err != nil {
		return err
	}
	ack := []byte{1}
	for frame := int64(0); ; {
		for left := r.a.BlockBytes; left > 0; {
			n := min(left, r.a.FrameBytes)
			at := frame * r.a.FrameBytes
			frame = (frame + 1) % int64(r.a.RecvFrames)
			if err := r.fill(c, w, r.mem[at:at+n]); err != nil {
				if errors.Is(err, io.EOF) && left == r.a.BlockBytes {
					return nil
				}
				return fmt.Errorf("receive a block: %w", err)
			}
			left -= n
		}
		r.blocks.Add(1)
		if _, err := c.Write(ack); err != nil {
			return fmt.Errorf("acknowledge a block: %w", err)
		}
	}
}

// fill reads a whole frame; io.EOF before its first byte.
func (r *floorReceiver) fill(c *net.TCPConn, w *waker, p []byte) error {
	for at := 0; at < len(p); {
		if err := w.want(len(p) - at); err != nil {
			return err
		}
		n, err := c.Read(p[at:])
		if n > 0 {
			r.reads.Add(1)
		}
		at += n
		if err != nil && at < len(p) {
			if at > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// converse answers the sending end until it hangs up. Whenever it says
// something, every block that it sent is acknowledged, so nothing moves. It begins when
// it has the turn, and takes no memory before that.
func (r *floorReceiver) converse(ctx context.Context, t *talk, data *net.TCPConn, turns *turns) error {
	local, remote := data.LocalAddr().String(), data.RemoteAddr().String()
	var before reading
	defer func() { before.stop() }()
	var blocks, reads uint64
	for {
		var l floorLine
		err := t.hear(&l)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case l.Phase == "begin" && !turns.take(ctx, t):
			return errors.Join(errors.New(otherRun), t.say(floorLine{Error: otherRun}))
		case l.Phase == "begin":
			r.begin(data)
			blocks, reads = r.blocks.Load(), r.reads.Load()
			before.stop()
			before = beginReading(local, remote, nil, true)
			err = t.say(floorLine{})
		case l.Phase == "end":
			spent := readCPU()
			rep := report{Blocks: r.blocks.Load() - blocks, Frames: r.reads.Load() - reads}
			rep.Bytes = rep.Blocks * uint64(r.a.BlockBytes)
			if before.ports == nil {
				return errors.New("the other end ended what it did not begin")
			}
			rep.End = before.end(spent, rep.Bytes)
			rep.End.Buffers, rep.End.Owned, rep.End.Buffer = min(r.a.RecvFrames, r.framesOf(rep.Blocks)), r.a.RecvFrames, r.a.FrameBytes
			rep.End.Sockets = dataSockets(rep.End.Sockets)
			err = t.say(floorLine{Report: &rep})
		default:
			return fmt.Errorf("the other end said phase %q", printable(l.Phase))
		}
		if err != nil {
			return err
		}
	}
}

// framesOf is how many frames so many blocks fill.
func (r *floorReceiver) framesOf(blocks uint64) int {
	perBlock := (r.a.BlockBytes + r.a.FrameBytes - 1) / r.a.FrameBytes
	return int(min(blocks*uint64(perBlock), uint64(r.a.RecvFrames)))
}

// dataSockets leaves the socket that moved most, which has the blocks.
func dataSockets(s []socketFacts) []socketFacts { return s[:min(1, len(s))] }
