package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// drained is what the session has said and nobody has taken yet.
func (s *script) drained() (list []wire.Message) {
	synctest.Wait()
	for {
		select {
		case m := <-s.heard:
			list = append(list, m)
		default:
			return list
		}
	}
}

// tokens are those of the pings among messages.
func tokens(list []wire.Message) (tokens []uint64) {
	for _, m := range list {
		if p, ok := m.(*wire.Ping); ok {
			tokens = append(tokens, p.Token)
		}
	}
	return tokens
}

// TestSilentPeer gives a peer that is gone up, asks it first, and tells it why.
func TestSilentPeer(t *testing.T) {
	for name, c := range map[string]struct {
		open  func(b *bench)
		pings int
		after time.Duration // from the start of the connection
		says  string
	}{
		"receiving": {func(b *bench) { b.incoming(1) }, 5, 7 * time.Second, "nothing was heard for 6s"},
		"sending":   {func(b *bench) { b.outgoing(transport.Request{}) }, 5, 7 * time.Second, "nothing was heard for 6s"},
		"opening":   {func(b *bench) { b.opening(transport.Request{}) }, 5, 6 * time.Second, "nothing was heard for 6s"},
		"idle":      {func(*bench) {}, 2, 45 * time.Second, "nothing was heard for 45s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil, wire.FeaturePing)
				c.open(b)
				begin := time.Now()
				_, err := b.c.Accept(t.Context())
				if is(t, err, transport.ErrLost); !strings.Contains(err.Error(), c.says) {
					t.Errorf("error %v, want one with %q", err, c.says)
				}
				if errors.Is(err, transport.ErrProtocol) || errors.Is(err, transport.ErrClosed) {
					t.Errorf("error %v has another kind too", err)
				}
				if took := time.Since(begin); took != c.after {
					t.Errorf("lost after %v, want %v", took, c.after)
				}
				list := b.drained()
				got := tokens(list)
				if len(got) != c.pings {
					t.Errorf("pings %v, want %d", got, c.pings)
				}
				for i, token := range got {
					if token != uint64(i)+1 {
						t.Errorf("ping %d has token %d", i, token)
					}
				}
				bye, ok := list[len(list)-1].(*wire.Bye)
				if !ok || !strings.Contains(bye.Reason, c.says) {
					t.Errorf("the last word is %+v", list[len(list)-1])
				}
			})
		})
	}
}

// TestSilenceEndsCalls has every waiting call ended, and slots given back (see
// start).
func TestSilenceEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil, wire.FeaturePing)
		out, _ := b.outgoing(transport.Request{})
		in := b.incoming(1)
		for range testWindow {
			must(t, put(t.Context(), out, 1))
		}
		calls := map[string]<-chan result[struct{}]{
			"send":   asyncErr(func() error { return put(t.Context(), out, 1) }),
			"flush":  asyncErr(func() error { return out.Flush(t.Context()) }),
			"recv":   asyncErr(func() error { _, err := in.Recv(t.Context()); return err }),
			"accept": asyncErr(func() error { _, err := b.c.Accept(t.Context()); return err }),
			"open":   asyncErr(func() error { _, err := b.c.Open(t.Context(), transport.Request{}); return err }),
		}
		for what, call := range calls {
			if _, err := wait(t, call); !errors.Is(err, transport.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestLivingPeer never gives a peer up that says anything, and asks nothing while
// it is heard.
func TestLivingPeer(t *testing.T) {
	const span = 10 * time.Minute
	stray := wire.FrameHeader{Handle: 99, Epoch: testEpoch}
	for name, c := range map[string]struct {
		every time.Duration
		says  func(b *bench)
		asked bool
	}{
		"messages":      {900 * time.Millisecond, func(b *bench) { b.raw(99, wire.FlagOptional) }, false},
		"frames":        {900 * time.Millisecond, func(b *bench) { b.frame(stray, []uint32{1}) }, false},
		"pings":         {900 * time.Millisecond, func(b *bench) { b.say(&wire.Ping{Token: 1}) }, false},
		"seldom":        {4 * time.Second, func(b *bench) { b.raw(99, wire.FlagOptional) }, true},
		"frames seldom": {4 * time.Second, func(b *bench) { b.frame(stray, []uint32{1}) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil, wire.FeaturePing)
				b.incoming(1)
				for begin := time.Now(); time.Since(begin) < span; time.Sleep(c.every) {
					c.says(b)
				}
				if got := tokens(b.drained()); len(got) > 0 != c.asked {
					t.Errorf("%d pings, asked: %v", len(got), c.asked)
				}
				_, err := b.c.Accept(expired(t))
				if errors.Is(err, transport.ErrLost) {
					t.Error(err)
				}
			})
		})
	}
}

// TestAnsweringPeer lives as long as it answers, however late within the bound.
func TestAnsweringPeer(t *testing.T) {
	for name, delay := range map[string]time.Duration{"at once": 0, "after 3 s": 3 * time.Second, "after 5 s": 5*time.Second - 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil, wire.FeaturePing)
				b.incoming(1)
				pings := 0
				for begin := time.Now(); time.Since(begin) < 10*time.Minute; {
					select {
					case m := <-b.heard:
						if p, ok := m.(*wire.Ping); ok {
							pings++
							time.AfterFunc(delay, func() { b.say(&wire.Pong{Token: p.Token}) })
						}
					case <-b.closed:
						_, err := b.c.Accept(t.Context())
						t.Fatal(err)
					}
				}
				if pings < 100 || pings > 600 {
					t.Errorf("%d pings in 10 minutes", pings)
				}
			})
		})
	}
}

// TestPingsAreAgreed neither asks nor gives up a peer that does not know pings.
func TestPingsAreAgreed(t *testing.T) {
	quietFor := func(change func(*session.Options), features ...string) func(t *testing.T) {
		return func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, change, features...)
				b.incoming(1)
				time.Sleep(24 * time.Hour)
				if list := b.drained(); len(list) > 0 {
					t.Errorf("the session said %v: %+v", list[0].Type(), list[0])
				}
				if _, err := b.c.Accept(expired(t)); errors.Is(err, transport.ErrLost) {
					t.Error(err)
				}
			})
		}
	}
	t.Run("peer without the feature", quietFor(nil))
	t.Run("peer with another feature", quietFor(nil, "other"))
	t.Run("switched off", quietFor(func(o *session.Options) { o.PingEvery = -1 }, wire.FeaturePing))
	t.Run("all switched off", quietFor(func(o *session.Options) { o.PingEvery, o.IdlePingEvery = -1, -1 }, wire.FeaturePing))
}

// TestAsksForEver goes on asking where silence is to end nothing.
func TestAsksForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *session.Options) { o.LostAfter, o.PingEvery = -1, 10*time.Second }, wire.FeaturePing)
		b.incoming(1)
		time.Sleep(time.Hour + time.Second)
		if got := tokens(b.drained()); len(got) != 359 { // the first look heard the offer
			t.Errorf("%d pings in an hour, want one every 10 s", len(got))
		}
		if _, err := b.c.Accept(expired(t)); errors.Is(err, transport.ErrLost) {
			t.Error(err)
		}
	})
}

// TestPingAnswered answers with the token that was asked with, also where this
// end asks nothing itself, and answers that wait merge.
func TestPingAnswered(t *testing.T) {
	b := start(t, func(o *session.Options) { o.PingEvery, o.IdlePingEvery = -1, -1 }, wire.FeaturePing)
	b.say(&wire.Ping{Token: 1<<64 - 1})
	if p := hear[*wire.Pong](b.script); p.Token != 1<<64-1 {
		t.Errorf("token %x", p.Token)
	}
	const asked = 1000
	for token := range uint64(asked) {
		b.say(&wire.Ping{Token: token + 1})
	}
	for p := hear[*wire.Pong](b.script); p.Token != asked; p = hear[*wire.Pong](b.script) {
	}
	b.silent()
}

// TestPingFlood does not grow by questions whose answers nobody reads.
func TestPingFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil, wire.FeaturePing)
		b.heard = make(chan wire.Message) // nobody listens
		for token := range uint64(5000) {
			b.say(&wire.Ping{Token: token + 1})
		}
		synctest.Wait()
		// The writer may have come to it before the last ping was read, or after.
		last := (<-b.heard).(*wire.Pong).Token
		if last != 5000 {
			last = (<-b.heard).(*wire.Pong).Token
		}
		if last != 5000 {
			t.Errorf("the second answer is to ping %d, want the last", last)
		}
		if list := b.drained(); len(list) > 0 {
			t.Errorf("%d more answers", len(list))
		}
	})
}

// TestPulseViolations ends a connection for what was not agreed or cannot be.
func TestPulseViolations(t *testing.T) {
	for name, c := range map[string]struct {
		says     wire.Message
		features []string
		want     string
	}{
		"ping":           {&wire.Ping{Token: 1}, nil, "ping, which was not agreed"},
		"pong":           {&wire.Pong{Token: 1}, nil, "pong, which was not agreed"},
		"pong unasked":   {&wire.Pong{Token: 1}, []string{wire.FeaturePing}, "pong to ping 1, the last one was 0"},
		"pong of others": {&wire.Pong{Token: 1 << 63}, []string{wire.FeaturePing}, "the last one was 0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil, c.features...)
			b.say(c.says)
			_, err := b.c.Accept(t.Context())
			if is(t, err, transport.ErrProtocol); !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			is(t, err, transport.ErrLost)
		})
	}
}

// TestStuckPeer gives a peer that reads nothing up too, later than one that only
// does not answer.
func TestStuckPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil, wire.FeaturePing)
		out, _ := b.outgoing(transport.Request{})
		b.heard = make(chan wire.Message) // nobody listens
		begin := time.Now()
		is(t, out.Flush(t.Context()), transport.ErrLost)
		if took := time.Since(begin); took < 30*time.Second || took > 40*time.Second {
			t.Errorf("lost after %v", took)
		}
	})
}

// expired is a context that has ended: a call with it says how things are.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
