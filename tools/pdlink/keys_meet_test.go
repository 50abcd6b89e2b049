package main

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"pdlink/tcp"
	"pdlink/tools/linkkeys"
	"pdlink/transport/keys"
)

// TestMeet: a listener with this host's own key is known by it, and knows who asked; of
// others it is said what they are.
func TestMeet(t *testing.T) {
	ours, theirs, remove, err := linkkeys.Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	choose := func(dir string) linkkeys.Choice {
		c, err := (&linkkeys.Flags{Dir: dir}).Choose(t.Context(), func(f string) bool { return f == "keys" }, func(error) {}, linkkeys.Place{Addr: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	mine, other := choose(ours), choose(theirs)
	for _, c := range []struct {
		what   string
		listen *keys.Store
		fails  error
		own    bool
	}{
		{"this host", mine.Store, nil, true},
		{"another key", other.Store, linkkeys.ErrOtherKey, false},
		{"no keys", nil, keys.ErrNoKeys, false},
	} {
		said := make(chan error, 8)
		l, err := tcp.New(tcp.Options{Keys: c.listen, OnReject: func(_ string, err error) { said <- err }}).Listen(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := mine.Meet(t.Context(), "tcp", l.Addr()); !errors.Is(err, c.fails) {
			t.Errorf("%s: %v", c.what, err)
		}
		select {
		case err := <-said:
			if mine.Own(err) != c.own || (linkkeys.Choice{}).Own(err) || other.Own(err) {
				t.Errorf("%s: the listener is told %v, by its own key %v", c.what, err, mine.Own(err))
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the listener is told nothing", c.what)
		}
		l.Close()
	}
	if err := mine.Meet(t.Context(), "tcp", "127.0.0.1:1"); err == nil || errors.Is(err, linkkeys.ErrOtherKey) {
		t.Errorf("nobody there: %v", err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := mine.Meet(ctx, "tcp", silent.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that says nothing: %v", err)
	}
}
