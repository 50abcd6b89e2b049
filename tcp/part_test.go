package tcp

import (
	"context"
	"errors"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
)

// governed connects two ends, and gives the one that dials a governor that decides.
func governed(t *testing.T) (a, b transport.Conn, l *Link, g *codec.Governor) {
	t.Helper()
	l, s, _ := listen(t, Options{})
	a, b = connect(t, l, s)
	return a, b, l, governs(a, l)
}

// governs puts a governor that decides into a connection.
func governs(c transport.Conn, l *Link) *codec.Governor {
	d := c.(*conn).d
	d.governor = codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4, Meter: &l.meter})
	return d.governor
}

// take admits the next transfer at b.
func take(ctx context.Context, b transport.Conn) (transport.Incoming, error) {
	offer, err := b.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return offer.Admit(nil)
}

// TestPartsShareTheLink: a transfer that others send parts of counts for its governor,
// from when the peer has taken it until it has ended, however that comes.
func TestPartsShareTheLink(t *testing.T) {
	ended := errors.New("ended")
	for name, tt := range map[string]struct {
		parts int
		end   func(ctx context.Context, out transport.Outgoing, in transport.Incoming) error // nil: it goes on
		rests bool
	}{
		"none said":      {0, nil, false},
		"two":            {2, nil, false},
		"four":           {4, nil, true},
		"as many as are": {transport.MaxParts, nil, true},
		"four, cancelled": {4, func(_ context.Context, out transport.Outgoing, _ transport.Incoming) error {
			out.Cancel("test")
			return ended
		}, false},
		"four, cancelled by the peer": {4, func(ctx context.Context, out transport.Outgoing, in transport.Incoming) error {
			in.Cancel("test")
			for {
				l, err := out.Lease(ctx)
				if err != nil {
					return err
				}
				l.Release()
			}
		}, false},
		"four, and an empty lease": {4, func(ctx context.Context, out transport.Outgoing, _ transport.Incoming) error {
			l, err := out.Lease(ctx)
			if err != nil {
				return err
			}
			return errors.Join(ended, out.Send(ctx, l))
		}, true},
		"four, a flush that was given up": {4, func(ctx context.Context, out transport.Outgoing, _ transport.Incoming) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			_, err := out.Finish(ctx)
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _, g := governed(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for _, parts := range []int{tt.parts, 1} { // a transfer of its own beside it changes nothing
				var in transport.Incoming
				took := make(chan error, 1)
				go func() {
					var err error
					in, err = take(ctx, b)
					took <- err
				}()
				out, err := a.Open(ctx, transport.Request{ID: transport.NewID(), Kind: "test", Parts: parts})
				if err := errors.Join(err, <-took); err != nil {
					t.Fatal(err)
				}
				if tt.end != nil && parts == tt.parts {
					if err := tt.end(ctx, out, in); err == nil || ctx.Err() != nil {
						t.Fatal("it has no end", err)
					}
				}
			}
			fastLink(g, 150e6)
			if g.Resting() != tt.rests {
				t.Errorf("%d hosts of 150 MB/s each: the governor rests: %v", tt.parts, g.Resting())
			}
		})
	}
}

// TestFinishedPartsShareNoMore: neither a transfer that was finished counts, nor one that
// the peer did not take.
func TestFinishedPartsShareNoMore(t *testing.T) {
	a, b, _, g := governed(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- receiveAll(ctx, b, 0) }()
	r := transport.Request{ID: transport.NewID(), Kind: "test", Parts: 4}
	out, err := a.Open(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	go func() {
		offer, err := b.Accept(ctx)
		if err == nil {
			err = offer.Refuse(transport.RefuseBusy, "test")
		}
		received <- err
	}()
	r.ID = transport.NewID()
	if out, err := a.Open(ctx, r); out != nil || !errors.Is(err, transport.ErrRefused) {
		t.Fatal(out, err)
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	fastLink(g, 150e6)
	if g.Resting() {
		t.Error("the governor counts four hosts")
	}
}

// TestClosedConnectionCountsNoMore: what a connection measured is not part of the Link's
// rate once it is closed, and may be closed again.
func TestClosedConnectionCountsNoMore(t *testing.T) {
	for _, closes := range []bool{false, true} {
		a, _, l, g := governed(t)
		fastLink(g, 250e6)
		if closes {
			a.Close()
			a.Close()
			g.Wrote(1<<20, 1<<20, 0, time.Millisecond, time.Now()) // a lane that was still at it
		}
		other := codec.NewGovernor(codec.Auto, codec.All(), codec.Place{Lanes: 1, Cores: 4, Meter: &l.meter})
		fastLink(other, 250e6)
		if other.Resting() == closes {
			t.Errorf("250 MB/s beside as many of a connection that is closed, %v: it rests: %v", closes, other.Resting())
		}
	}
}
