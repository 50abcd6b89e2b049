package failover_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/transport"
	"pdlink/transport/failover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("nobody listens")

// link is a link whose dials go as a script says.
type link struct {
	mu    sync.Mutex
	dials []time.Time
	does  func(n int) error // what dial n, from 1, ends with
	takes time.Duration
}

func (l *link) Dial(ctx context.Context, _ string) (transport.Conn, error) {
	l.mu.Lock()
	l.dials = append(l.dials, time.Now())
	n := len(l.dials)
	l.mu.Unlock()
	if l.takes > 0 {
		select {
		case <-time.After(l.takes):
		case <-ctx.Done():
			return nil, fmt.Errorf("dial: %w", ctx.Err())
		}
	}
	if err := l.does(n); err != nil {
		return nil, err
	}
	return &conn{l: l}, nil
}

func (l *link) Listen(context.Context, string) (transport.Listener, error) {
	return nil, transport.ErrUnavailable
}

func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.dials)
}

// conn is a connection that is only looked at.
type conn struct {
	transport.Conn
	l *link
}

func up(int) error   { return nil }
func down(int) error { return errDown }

// after fails the first n dials.
func after(n int) func(int) error {
	return func(i int) error {
		if i <= n {
			return fmt.Errorf("dial %d: %w", i, errDown)
		}
		return nil
	}
}

// log gathers events.
type log struct {
	mu  sync.Mutex
	all []failover.Event
}

func (l *log) add(e failover.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

func (l *log) kinds() (s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.all {
		if i > 0 {
			s += " "
		}
		s += string(e.Kind)
		if e.Route != "" {
			s += ":" + e.Route
		}
	}
	return s
}

// dialer makes one whose routes are called a, b, … in order.
func dialer(t *testing.T, o failover.Options, links ...*link) (*failover.Dialer, *log) {
	t.Helper()
	l := &log{}
	o.OnEvent = l.add
	for i, k := range links {
		name := string(rune('a' + i))
		o.Routes = append(o.Routes, failover.Route{Name: name, Link: k, Addr: name + ":1"})
	}
	d, err := failover.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d, l
}

// must dials and says over which link.
func must(t *testing.T, d *failover.Dialer) *conn {
	t.Helper()
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c.(*conn)
}
