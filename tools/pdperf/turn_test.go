package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// TestTurns: one owner at a time; the others wait so long, and the turn that they get is
// theirs.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turns
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := new(int), new(int)
		for _, what := range []string{"it was free", "it was its own"} {
			if !turn.take(ctx, a) {
				t.Fatal(what)
			}
		}
		begin := time.Now()
		if turn.take(ctx, b) || time.Since(begin) != turnWait {
			t.Errorf("another one has it after %v", time.Since(begin))
		}
		turn.give(b) // it does not have it
		turn.give(nil)
		got := make(chan bool)
		go func() { got <- turn.take(ctx, b) }()
		synctest.Wait()
		turn.give(a)
		if !<-got || turn.take(ctx, a) {
			t.Error("who waited does not have it alone")
		}
		go func() { got <- turn.take(ctx, a) }()
		synctest.Wait()
		cancel()
		if <-got {
			t.Error("an interrupt gave the turn away")
		}
		turn.give(b)
		if turn.take(ctx, a) {
			t.Error("who is gone has it")
		}
	})
}

// TestOneRunWhateverItsWay: while a connection is measured, another one is refused whatever
// it asks for, as is a floor; the first one may have the other direction too.
func TestOneRunWhateverItsWay(t *testing.T) {
	link := mem.New(mem.Options{Session: session.Options{}})
	ln, err := link.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := transport.NewRing(16, 64<<10+transport.HeaderRoom)
	if err != nil {
		t.Fatal(err)
	}
	end := newReceivingEnd(receiveOptions{slots: 64, window: 16, frame: 64 << 10})
	end.sender, end.turns.wait = newSender(ring), time.Millisecond
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	dial := func() transport.Conn {
		serving.Go(func() {
			if c, err := ln.Accept(ctx); err == nil {
				end.serve(ctx, c, func(served) {})
				c.Close()
			}
		})
		c, err := link.Dial(t.Context(), ln.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := dial(), dial()
	t.Cleanup(func() {
		cancel()
		a.Close()
		b.Close()
		ln.Close()
		serving.Wait()
	})
	push := transport.Request{Kind: kindPerf, Meta: askOf(64)}
	back, err := json.Marshal(ask{askVersion, 64 << 10, &pullAsk{Frame: 64 << 10, InFlight: 1, Seconds: 3600}})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []transport.Request{{Kind: kindPull, Meta: back}, push} { // both directions, in the order in which a run asks
		if _, err := a.Open(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []transport.Request{push, {Kind: kindPull, Meta: back}} {
		if _, err := b.Open(t.Context(), q); !errors.Is(err, transport.ErrRefused) || !strings.Contains(err.Error(), otherRun) {
			t.Errorf("another connection's %s: %v", q.Kind, err)
		}
	}
	if err := floorAt(t, floorHost{memory: floorMemory, turns: &end.turns}); err == nil || !strings.Contains(err.Error(), otherRun) {
		t.Errorf("a floor: %v", err)
	}
	a.Close()
	for end := time.Now().Add(testPatience); ; { // until the other end has noticed
		if _, err := b.Open(t.Context(), push); err == nil {
			return
		} else if !strings.Contains(err.Error(), otherRun) || time.Now().After(end) {
			t.Fatalf("after the first one's end: %v", err)
		}
	}
}

// TestNobodyWaitsForTheGone: a connection that ended while it waited does not get the turn,
// and nothing is told of it.
func TestNobodyWaitsForTheGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := mem.New(mem.Options{Session: session.Options{}})
		ln, err := link.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		end := newReceivingEnd(receiveOptions{slots: 64, window: 16, frame: 64 << 10})
		other := new(int)
		if !end.turns.take(t.Context(), other) {
			t.Fatal("it was free")
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			defer c.Close()
			end.serve(context.Background(), c, func(s served) { t.Errorf("told %+v", s) })
		})
		conn, err := link.Dial(t.Context(), ln.Addr())
		if err != nil {
			t.Fatal(err)
		}
		opened := make(chan error)
		go func() {
			_, err := conn.Open(t.Context(), transport.Request{Kind: kindPerf, Meta: askOf(64)})
			opened <- err
		}()
		synctest.Wait()
		begin := time.Now()
		conn.Close()
		if err := <-opened; err == nil {
			t.Error("it was admitted")
		}
		serving.Wait()
		if waited := time.Since(begin); waited >= turnWait {
			t.Errorf("its end was noticed after %v", waited)
		}
		end.turns.give(other)
		if !end.turns.take(t.Context(), other) {
			t.Error("it has the turn")
		}
	})
}

// TestFloorWaitsWithoutMemory: a floor that does not get the turn takes no memory.
func TestFloorWaitsWithoutMemory(t *testing.T) {
	ln := reserve(t)
	data, err := dialTCP(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	answer := make(chan error, 1)
	go func() {
		_, err := newTalk(there).ask(floorLine{Phase: "begin"})
		answer <- err
	}()
	busy := &turns{wait: time.Millisecond}
	if !busy.take(t.Context(), busy) {
		t.Fatal("it was free")
	}
	r := &floorReceiver{a: floorAsk{BlockBytes: 1, FrameBytes: maxBlock, RecvFrames: 1}}
	if err := r.converse(t.Context(), newTalk(here), data, busy); err == nil || err.Error() != otherRun || r.mem != nil {
		t.Errorf("%v, %d bytes taken", err, len(r.mem))
	}
	if err := <-answer; err == nil || !strings.Contains(err.Error(), otherRun) {
		t.Errorf("the other end was told %v", err)
	}
}

// floorAt asks an end for a floor, and returns what keeps it from being measured.
func floorAt(t *testing.T, h floorHost) error {
	t.Helper()
	ln := reserve(t)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer ln.Close() // it ends the serving, whatever the sender did
	serving.Go(func() { serveFloor(t.Context(), ln, h) })
	f := &floorFlags{block: 64 << 10, frame: 64 << 10, time: 10 * time.Millisecond, inFlight: 1, buffers: 1, recvFrames: 16, anyAddress: true}
	_, err := f.measure(t.Context(), ln.Addr().String(), nil)
	return err
}

// TestFloorIsBounded: nobody has a receiving end take more memory than it has for floors,
// and strangers get none.
func TestFloorIsBounded(t *testing.T) {
	free := new(turns)
	for name, c := range map[string]struct {
		h   floorHost
		say string
	}{
		"enough":    {floorHost{memory: 16 * 64 << 10, turns: free}, ""},
		"too much":  {floorHost{memory: 16*64<<10 - 1, turns: free}, "--recv-frames 16 of 64KiB: the receiving end has 1 to "},
		"strangers": {floorHost{memory: floorMemory, turns: free, admits: func(net.Addr) error { return errStranger }}, "measure a link first"},
	} {
		if err := floorAt(t, c.h); (err == nil) != (c.say == "") || err != nil && !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q", name, err, c.say)
		}
	}
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--floor-listen", "127.0.0.1:0")
	s.until(`"floor"`)
	to, _ := s.events()[1]["listen"].(string)
	if status, out, errOut := cli(t, "floor", "--to", to, "--recv-frames", "8192", "--time", "10ms"); status != exitFailed || !strings.Contains(errOut, "8192 of 1MiB: the receiving end has 1 to 64MiB") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	sound(t, measured(t, quick("floor", "--to", to)...))
}

// TestFloorsAreForHostsThatAreLetIn: this one, and those of a link's connections.
func TestFloorsAreForHostsThatAreLetIn(t *testing.T) {
	h := new(station)
	at := func(text string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, local := range []string{"127.0.0.1:1", "127.3.4.5:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		if err := h.admits(at(local)); err != nil {
			t.Errorf("%s: %v", local, err)
		}
	}
	h.remember("/run/socket")
	h.remember("[::ffff:192.0.2.1]:7")
	for remote, ok := range map[string]bool{"192.0.2.1:9": true, "192.0.2.2:7": false, "[2001:db8::1]:7": false} {
		if err := h.admits(at(remote)); (err == nil) != ok || !ok && !errors.Is(err, errStranger) {
			t.Errorf("%s: %v", remote, err)
		}
	}
	for i := range 2 * maxHosts {
		h.remember(net.JoinHostPort(net.IPv4(10, 0, byte(i>>8), byte(i)).String(), "1"))
	}
	if len(h.hosts) != maxHosts {
		t.Errorf("%d hosts are remembered", len(h.hosts))
	}
	if err := h.admits(at("10.0.7.255:9")); err != nil {
		t.Errorf("the last one of many: %v", err)
	}
}

// TestPullEnds: an end that takes the request and then says nothing is not waited for.
func TestPullEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := mem.New(mem.Options{Session: session.Options{}})
		ln, err := link.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		var serving sync.WaitGroup
		defer serving.Wait()
		over := make(chan struct{})
		defer close(over)
		conn, err := link.Dial(t.Context(), ln.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		serving.Go(func() {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			defer c.Close()
			if offer, err := c.Accept(context.Background()); err == nil {
				offer.Admit(nil) // and nothing else
				<-over
			}
		})
		o := sendOptions{block: 64 << 10, frame: 64 << 10, inFlight: 1, lanes: 1, time: time.Second, direction: pull}
		if err := o.check(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		r, err := (&sendingEnd{o: o, conn: conn, processes: 2}).ways(t.Context())
		if r != nil || err == nil || !strings.Contains(err.Error(), "has not answered") || time.Since(begin) > 10*patience {
			t.Errorf("%+v, %v after %v", r, err, time.Since(begin))
		}
	})
}
