package rdma

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// oddHost is a host some of whose calls fail. What is not set works.
type oddHost struct {
	verbs.Provider
	newQP func(o verbs.QPOptions) error
	event func() error // what waiting for an event ends with
}

func (h *oddHost) Open(name string) (verbs.Device, error) {
	d, err := h.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return &oddDevice{d, h}, nil
}

type oddDevice struct {
	verbs.Device
	h *oddHost
}

func (d *oddDevice) Event(ctx context.Context) (verbs.Event, error) {
	if d.h.event == nil {
		return d.Device.Event(ctx)
	}
	return verbs.Event{}, d.h.event()
}

func (d *oddDevice) NewPD() (verbs.PD, error) {
	pd, err := d.Device.NewPD()
	if err != nil {
		return nil, err
	}
	return &oddPD{pd, d.h}, nil
}

type oddPD struct {
	verbs.PD
	h *oddHost
}

func (p *oddPD) NewQP(o verbs.QPOptions) (verbs.QP, error) {
	if p.h.newQP != nil {
		if err := p.h.newQP(o); err != nil {
			return nil, err
		}
	}
	return p.PD.NewQP(o)
}

// odd makes both hosts of ends odd in the same way.
func (e *ends) odd(a, b oddHost) {
	for _, x := range []struct {
		h    *oddHost
		host *fakeverbs.Host
		l    **Link
	}{{&a, e.a, &e.la}, {&b, e.b, &e.lb}} {
		x.h.Provider = x.host
		*x.l = NewOver(x.h, (*x.l).o)
	}
}

// TestFallBackToUC: where a provider refuses reliable pairs those that it made before go
// again.
func TestFallBackToUC(t *testing.T) {
	second := func() oddHost {
		made := 0
		return oddHost{newQP: func(o verbs.QPOptions) error {
			if o.Kind != verbs.RC {
				return nil
			}
			if made++; made > 1 {
				return verbs.ErrUnsupported
			}
			return nil
		}}
	}
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		e.lanes = 2
		e.odd(second(), second())
		a, b := e.mustConnect(t)
		if e.tapA.t.mode != stride {
			t.Errorf("mode %v", e.tapA.t.mode)
		}
		if n := e.a.Counts().Pairs; n != 2 {
			t.Errorf("%d queue pairs for 2 lanes", n)
		}
		if err := errors.Join(move(t, a, b, 5, 100_000), closeBoth(a, b)); err != nil {
			t.Error(err)
		}
	})
}

// TestNoMemoryForPairs: want of memory is no reason to fall back to another kind of
// queue pair, whatever else was refused on the way.
func TestNoMemoryForPairs(t *testing.T) {
	none := func() oddHost {
		return oddHost{newQP: func(o verbs.QPOptions) error {
			switch {
			case o.Kind != verbs.RC:
				return nil
			case o.MaxInline > 0:
				return verbs.ErrUnsupported
			}
			return syscall.ENOMEM
		}}
	}
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		e.odd(none(), none())
		a, b := e.carry(t.Context())
		for _, err := range []error{a.err, b.err} {
			if !errors.Is(err, transport.ErrUnavailable) {
				t.Errorf("%v", err)
			}
		}
		if !errors.Is(a.err, syscall.ENOMEM) {
			t.Errorf("%v: want one that says that there is no memory", a.err)
		}
	})
}

// TestNoEvents: a device whose events cannot be waited for any more does not carry on
// unheard.
func TestNoEvents(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		broken := make(chan struct{})
		e.odd(oddHost{event: func() error { <-broken; return syscall.EIO }}, oddHost{})
		a, b := e.mustConnect(t)
		if err := move(t, a, b, 2, 1000); err != nil {
			t.Error(err)
		}
		close(broken)
		if _, err := a.Accept(t.Context()); !errors.Is(err, transport.ErrLost) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), e.a.Device()) {
			t.Errorf("events cannot be waited for: %v", err)
		}
		closeBoth(a, b)
		time.Sleep(time.Second) // in the bubble
	})
}
