package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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

// TestACopiedKeyIsNotTheDoctors: a peer with this host's own key is its doctor only from
// this host, and only where all of the key is the same.
func TestACopiedKeyIsNotTheDoctors(t *testing.T) {
	dir, _, remove, err := linkkeys.Temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	mine, err := (&linkkeys.Flags{Dir: dir}).Choose(t.Context(), func(f string) bool { return f == "keys" }, func(error) {}, linkkeys.Place{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	begins := mine.Store.Public() // as this host's own, which logs show no more of
	begins[len(begins)-1]++
	if begins.Short() != mine.Store.Public().Short() {
		t.Fatal("these two are to look alike")
	}
	for _, c := range []struct {
		remote string
		key    keys.PublicKey
		say    string
	}{
		{"127.0.0.1:4", mine.Store.Public(), "`pdlink doctor` looked"},
		{"[::ffff:127.0.0.1]:4", mine.Store.Public(), "`pdlink doctor` looked"},
		{"client of /run/x.sock", mine.Store.Public(), "`pdlink doctor` looked"},
		{"192.0.2.7:4", mine.Store.Public(), "warning: peer 192.0.2.7:4 dropped: "},
		{"[2001:db8::7]:4", mine.Store.Public(), "`pdlink keys init --replace`"},
		{"127.0.0.1:4", begins, "warning: peer 127.0.0.1:4 dropped: "},
	} {
		var out output
		j := newJournal(newStreams(&out, &out))
		j.rejects(&mine)(c.remote, fmt.Errorf("handshake: %w", &keys.UnknownKeyError{Key: c.key, File: "peers"}))
		j.close()
		<-j.done // however long that takes
		if !strings.Contains(out.String(), c.say) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s with %v: %q", c.remote, c.key, out.String())
		}
	}
}
