//go:build cables

package cable_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow/cable"
)

// send moves n bytes from A to B and returns how long that took.
func send(t *testing.T, c *cable.Cable, n int) time.Duration {
	t.Helper()
	var l net.Listener
	if err := c.In(cable.B, func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", cable.B.Addr().String()+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		in, err := l.Accept()
		if err != nil {
			got <- -1
			return
		}
		defer in.Close()
		m, _ := io.Copy(io.Discard, in)
		got <- m
	}()
	var out net.Conn
	if err := c.In(cable.A, func() (err error) {
		out, err = new(net.Dialer).DialContext(t.Context(), "tcp4", l.Addr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := out.Write(make([]byte, n)); err != nil {
		t.Error(err)
	}
	out.Close()
	if m := <-got; m != int64(n) {
		t.Errorf("%d of %d bytes arrived", m, n)
	}
	return time.Since(begin)
}

func lay(t *testing.T, o cable.Options) *cable.Cable {
	t.Helper()
	c, err := cable.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestRate says that a cable carries no more than its rate; less it may be, where
// the machine is busy.
func TestRate(t *testing.T) {
	const n = 4 << 20
	took := send(t, lay(t, cable.Options{Rate: 100e6}), n)
	if least := (n - 1<<20) * time.Second / 12_500_000; took < least { // the queue and a socket's buffer at most are ahead
		t.Errorf("%d bytes took %v at 100 Mbit/s", n, took)
	}
}

// TestTwo says that two cables at a time do not meet, and that all ends work.
func TestTwo(t *testing.T) {
	a, b := lay(t, cable.Options{MTU: 9000}), lay(t, cable.Options{Loss: 0.01, Buffer: 64 << 10})
	send(t, a, 1<<20)
	send(t, b, 1<<20)
}

// TestDelay says that a packet takes as long as it should, and no less.
func TestDelay(t *testing.T) {
	const delay = 20 * time.Millisecond
	if took := send(t, lay(t, cable.Options{Delay: delay}), 256<<10); took < delay {
		t.Errorf("a quarter of a megabyte was there after %v", took)
	}
}
