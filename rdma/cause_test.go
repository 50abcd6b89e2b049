package rdma

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// TestRefusal says a cause and hears it: of its kind, and with one prefix.
func TestRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want string
		kind error
		last bool
	}{
		"passing":       {string(reason{lost(errors.New("port is down"))}.append(nil)), "port is down", transport.ErrLost, false},
		"lasting":       {string(reason{unavailable(errors.New("no device"))}.append(nil)), "no device", transport.ErrUnavailable, true},
		"incompatible":  {string(reason{fmt.Errorf("rdma: %w", transport.ErrIncompatible)}.append(nil)), transport.ErrIncompatible.Error(), transport.ErrUnavailable, true},
		"older peer":    {"rdma: transport: link unavailable: rdma: transport: link unavailable: no device", "no device", transport.ErrUnavailable, false},
		"nothing":       {"", "", transport.ErrUnavailable, false},
		"long and cold": {string(reason{lost(errors.New(strings.Repeat("x", 2*transport.MaxReason)))}.append(nil)), strings.Repeat("x", 100), transport.ErrLost, false},
	} {
		err := refusal([]byte(c.body))
		if !errors.Is(err, c.kind) || errors.As(err, &lasting{}) != c.last || !strings.HasPrefix(err.Error(), c.kind.Error()+": the other end says: "+c.want) {
			t.Errorf("%s: %q, want one of %v that says %q", name, err, c.kind, c.want)
		}
		if len(c.body) > transport.MaxReason+len("rdma: ") {
			t.Errorf("%s: %d bytes", name, len(c.body))
		}
	}
}

// TestFirstTrialFails loses the frame that tries the first connection of both ends: it
// may come the next time.
func TestFirstTrialFails(t *testing.T) {
	for name, host := range map[string]func(e *ends) *fakeverbs.Host{
		"here": func(e *ends) *fakeverbs.Host { return e.a }, "there": func(e *ends) *fakeverbs.Host { return e.b },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fakeverbs.MLX5, Options{NoImmediate: true}, func(t *testing.T, e *ends) {
				host(e).FailAfter(1, verbs.StatusRetries)
				a, b := e.carry(t.Context())
				for who, c := range map[string]carried{"client": a, "server": b} {
					if !errors.Is(c.err, transport.ErrLost) || errors.Is(c.err, transport.ErrUnavailable) {
						t.Errorf("%s: %v", who, c.err)
					}
					if c.err == nil {
						c.d.Close()
					}
				}
			})
		})
	}
}

// TestPeersDeviceIsBad gives up the peer's device after the link has worked: the other
// end is not told to try again.
func TestPeersDeviceIsBad(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		closeBoth(e.mustConnect(t))
		e.lb.setBad(e.b.Device(), syscall.EBUSY)
		for who, c := range map[string]func() carried{
			"client": func() carried { a, _ := e.carry(t.Context()); return a },
			"server": func() carried { _, b := e.carry(t.Context()); return b },
		} {
			err := c().err
			if !errors.Is(err, transport.ErrUnavailable) || errors.Is(err, transport.ErrLost) || !strings.Contains(err.Error(), "not used again") {
				t.Errorf("%s: %v", who, err)
			}
			if err != nil && strings.Count(err.Error(), transport.ErrUnavailable.Error()) != 1 {
				t.Errorf("%s: it is said more than once: %v", who, err)
			}
		}
	})
}
