package mem_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// lostWithin is how long a silence lasts at most with the defaults: 6 s, and the
// look before it.
const lostWithin = 7 * time.Second

// linger is what a farewell may take that the peer does not read.
const linger = time.Second

// faulty is a pair with faults at the dialling end, and a transfer from there.
func faulty(t *testing.T, change func(*session.Options)) (f *transporttest.Faults, a, b transport.Conn, out transport.Outgoing, in transport.Incoming) {
	t.Helper()
	f = transporttest.NewFaults(1)
	o := session.Options{Window: 2}
	if change != nil {
		change(&o)
	}
	at := o
	at.Intercept = f.Intercept
	a, b = pair(t, mem.Options{Session: at}, mem.Options{Session: o})
	out, in = open(t, a, b, transport.Request{Replayable: true})
	return f, a, b, out, in
}

// send sends one frame.
func send(ctx context.Context, out transport.Outgoing, block uint32) error {
	l, err := out.Lease(ctx)
	if err != nil {
		return err
	}
	l.Append(block, 0, []byte{byte(block)})
	return out.Send(ctx, l)
}

// TestHalfOpen has both ends notice that nothing passes any more, in both
// directions or in one. Where one end still hears, it is told why the other one
// gave up; where none does, the first to notice closes, which the other sees.
func TestHalfOpen(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*transporttest.Faults)
		told  int32 // calls of an end
	}{
		"black hole": {(*transporttest.Faults).BlackHole, 2},
		"deaf":       {(*transporttest.Faults).Deafen, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, a, b, out, in := faulty(t, nil)
				time.Sleep(10 * time.Second) // nothing but pings
				c.fault(f)
				begin := time.Now()
				var calls sync.WaitGroup
				var told atomic.Int32
				for what, call := range map[string]func() error{
					"flush":             func() error { return out.Flush(t.Context()) },
					"recv":              func() error { _, err := in.Recv(t.Context()); return err },
					"accept":            func() error { _, err := a.Accept(t.Context()); return err },
					"accept at the end": func() error { _, err := b.Accept(t.Context()); return err },
				} {
					calls.Go(func() {
						err := call()
						if !errors.Is(err, transport.ErrLost) {
							t.Errorf("%s: %v", what, err)
						} else if strings.Contains(err.Error(), "nothing was heard for ") {
							told.Add(1)
						}
						if took := time.Since(begin); took > lostWithin+linger {
							t.Errorf("%s: lost after %v", what, took)
						}
					})
				}
				calls.Wait()
				if n := told.Load(); n < c.told {
					t.Errorf("%d of 4 calls say for how long nothing was heard, want %d", n, c.told)
				}
			})
		})
	}
}

// TestIdleHalfOpen is the same without a transfer.
func TestIdleHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a, b, out, _ := faulty(t, nil)
		out.Cancel("idle from here")
		time.Sleep(time.Hour)
		f.BlackHole()
		begin := time.Now()
		for _, c := range []transport.Conn{a, b} {
			if _, err := c.Accept(t.Context()); !errors.Is(err, transport.ErrLost) {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took < 30*time.Second || took > 62*time.Second {
			t.Errorf("lost after %v", took)
		}
	})
}

// TestSlowReceiver lets a receiver take its time over every frame, and a sender
// over the next one: that is no silence of the connection.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, _, out, in := faulty(t, nil)
		sent := make(chan error, 1)
		go func() {
			for block := range uint32(5) {
				if err := send(t.Context(), out, block); err != nil {
					sent <- err
					return
				}
			}
			time.Sleep(3 * time.Minute)
			_, err := out.Finish(t.Context())
			sent <- err
		}()
		for {
			d, err := in.Recv(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if d.Mark() {
				err = d.Flushed(nil)
			} else {
				d.Release()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if err := errors.Join(in.Finish(nil), <-sent); err != nil {
			t.Error(err)
		}
	})
}

// TestDelay survives with the defaults that all which one end says is 3 s late.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := session.Options{Window: 2, Intercept: func(d session.Driver) session.Driver { return newLate(d, 3*time.Second) }}
		a, b := pair(t, mem.Options{Session: late}, mem.Options{Session: session.Options{Window: 2}})
		out, in := open(t, a, b, transport.Request{Replayable: true})
		back, _ := open(t, b, a, transport.Request{Replayable: true})
		for block := range uint32(20) {
			if err := send(t.Context(), out, block); err != nil {
				t.Fatal(err)
			}
			d, err := in.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d.Release()
			time.Sleep(time.Duration(block) * time.Second)
		}
		out.Cancel("done")
		time.Sleep(10 * time.Minute) // the other transfer is open, and nothing happens
		back.Cancel("done")
		time.Sleep(10 * time.Minute) // idle
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, c := range []transport.Conn{a, b} {
			if _, err := c.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
	})
}

// late delays what an end says, without holding up what comes after it.
type late struct {
	session.Driver
	delay  time.Duration
	queue  chan delayed
	closed chan struct{}
	done   sync.WaitGroup
}

// delayed is a control message on its way.
type delayed struct {
	at  time.Time
	msg []byte
}

func newLate(d session.Driver, delay time.Duration) *late {
	l := &late{Driver: d, delay: delay, queue: make(chan delayed, 1000), closed: make(chan struct{})}
	l.done.Go(func() {
		for {
			select {
			case m := <-l.queue:
				select {
				case <-time.After(time.Until(m.at)):
				case <-l.closed:
					return
				}
				if err := d.WriteControl(m.msg); err != nil {
					return
				}
			case <-l.closed:
				return
			}
		}
	})
	return l
}

func (l *late) WriteControl(msg []byte) error {
	l.queue <- delayed{time.Now().Add(l.delay), append([]byte(nil), msg...)}
	return nil
}

func (l *late) WriteFrame(lane int, header, payload []byte) error {
	time.Sleep(l.delay)
	return l.Driver.WriteFrame(lane, header, payload)
}

func (l *late) Close() error {
	close(l.closed)
	err := l.Driver.Close()
	l.done.Wait()
	return err
}
