// Package transporttest holds the conformance suite of package transport: what
// every link must do, as one call in the link's own test, and the tools that
// the suite and other tests need (a fault-injecting driver wrapper, a byte-level
// proxy, benchmarks).
//
// A link's test is a constructor and a call:
//
//	func TestSuite(t *testing.T) {
//		transporttest.Run(t, transporttest.Harness{Name: "mem", Links: links})
//	}
//
// Every check gets fresh connections, rings of its own, a watchdog that dumps
// all goroutines, and is searched for leaks afterwards: goroutines, slots,
// promises and open files. Random choices come from one seed, which a failing
// check prints and which the environment variable SeedVariable sets.
package transporttest

import (
	"context"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

// Pair is a connection by its two ends: A dialled, B accepted. Close closes
// both ends and is idempotent.
type Pair struct {
	A, B  transport.Conn
	Close func()
}

// Links makes what the two ends of a link need: dial with the options a for
// its Dial, listen with the options b for its Listen at addr. They may be one
// value where a and b allow it. What a and b leave open is the link's to choose,
// but without Sums it offers all of transport.Sums that check something, in their
// order. Resources end by tb.Cleanup.
type Links func(tb testing.TB, a, b session.Options) (dial, listen transport.Link, addr string)

// Harness describes a link to the suite.
type Harness struct {
	// Name is the Facts.Link of the link's connections.
	Name string

	// Links constructs the link.
	Links Links

	// Lanes is the largest number of lanes to test; 0 means 4.
	Lanes int

	// Sockets says that addresses are host:port of TCP on this host, so that
	// the checks which damage raw bytes by a Proxy apply too.
	Sockets bool

	// ControlOnly says that the sockets carry the control channel alone: what a Proxy
	// would do to frames is left out.
	ControlOnly bool

	// Tries is how many connections the check of random cuts makes; 0 means
	// 200.
	Tries int

	// Patience is how long the suite waits for what has to happen; 0 means 8 s. A check
	// has two and a half times that in all, some for a hundred connections: an emulated
	// machine needs more.
	Patience time.Duration
}

// soon bounds everything that has to happen.
func (h Harness) soon() time.Duration {
	if h.Patience == 0 {
		return soon
	}
	return h.Patience
}

// deadline bounds the calls of one check, after anything that is waited for on
// its own and before the watchdog: a check that can say what it was waiting for
// does so.
func (h Harness) deadline() time.Duration { return h.soon() * 5 / 2 }

// watchdog ends a check that hangs.
func (h Harness) watchdog() time.Duration { return h.soon() * 4 }

// Pair connects the two ends of the link. It fails tb when that does not work.
func (h Harness) Pair(tb testing.TB, a, b session.Options) Pair {
	tb.Helper()
	p, err := h.connect(tb, a, b, nil)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	return p
}

// connect is Pair with an error; route maps the listener's address to the one
// that is dialled, nil for none.
func (h Harness) connect(tb testing.TB, a, b session.Options, route func(addr string) string) (Pair, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), h.soon())
	defer cancel()
	dial, listen, addr := h.Links(tb, a, b)
	l, err := listen.Listen(ctx, addr)
	if err != nil {
		return Pair{}, err
	}
	defer l.Close() //nolint:errcheck // accepted connections live on; checks of Listener look at its error
	to := l.Addr()
	if route != nil {
		to = route(to)
	}
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	accepted := start(func() (transport.Conn, error) { return l.Accept(accepting) })
	conn, err := dial.Dial(ctx, to)
	if err != nil {
		stop()
		if r := <-accepted; r.err == nil {
			r.v.Close() //nolint:errcheck // the dialler's error is the one that counts
		}
		return Pair{}, err
	}
	r := <-accepted
	if r.err != nil {
		conn.Close() //nolint:errcheck // the acceptor's error is the one that counts
		return Pair{}, r.err
	}
	return newPair(conn, r.v), nil
}

func newPair(a, b transport.Conn) Pair {
	var once sync.Once
	return Pair{A: a, B: b, Close: func() {
		once.Do(func() {
			other := start(func() (struct{}, error) { return struct{}{}, b.Close() })
			a.Close() //nolint:errcheck // closing a connection that a check has broken may say so
			<-other
		})
	}}
}

func (h Harness) lanes() int {
	if h.Lanes == 0 {
		return 4
	}
	return h.Lanes
}

func (h Harness) tries() int {
	if h.Tries == 0 {
		return 200
	}
	return h.Tries
}

// outcome is what a call that ran on its own goroutine returned.
type outcome[T any] struct {
	v   T
	err error
}

// start runs f on its own goroutine.
func start[T any](f func() (T, error)) <-chan outcome[T] {
	c := make(chan outcome[T], 1)
	go func() {
		v, err := f()
		c <- outcome[T]{v, err}
	}()
	return c
}

// call is start for functions that return only an error.
func call(f func() error) <-chan outcome[struct{}] {
	return start(func() (struct{}, error) { return struct{}{}, f() })
}
