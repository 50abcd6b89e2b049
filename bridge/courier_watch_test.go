package bridge

import (
	"context"
	"testing"
	"testing/synctest"

	"pdlink/transport"
)

// fading is a connection that is lost when the test says so, and its transfer.
type fading struct {
	transport.Conn
	transport.Outgoing
	lost chan struct{}
}

func (f *fading) Accept(ctx context.Context) (transport.Offer, error) {
	select {
	case <-f.lost:
		return nil, transport.ErrLost
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fading) Close() error               { return nil }
func (f *fading) Cancel(string)              {}
func (f *fading) Facts() (t transport.Facts) { return t }

func (f *fading) Finish(context.Context) (transport.Outcome, error) {
	return transport.Outcome{}, transport.ErrLost
}

// told is a dialler that says what it was told.
type told struct {
	Dialer
	words []string
}

func (d *told) Dial(ctx context.Context) (transport.Conn, error) {
	d.words = append(d.words, "dial")
	return nil, ctx.Err()
}

func (d *told) Lost(transport.Conn, error) { d.words = append(d.words, "lost") }
func (d *told) Done(transport.Conn)        { d.words = append(d.words, "done") }

// TestLossAtClose: a connection is lost in the moment in which the courier is closed.
func TestLossAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 { // whoever waits takes either way out
			conn, d := &fading{lost: make(chan struct{})}, new(told)
			c := &Courier{d: d, use: make(chan struct{}, 1), conn: conn}
			c.life, c.stop = context.WithCancel(t.Context())
			c.now.Store(&sender{out: conn})
			c.watches.Go(func() { c.watch(conn) })
			c.use <- struct{}{}
			close(conn.lost)
			synctest.Wait() // it waits for its turn
			c.stop()
			<-c.use
			synctest.Wait()
			if len(d.words) != 0 {
				t.Fatalf("told of %q", d.words)
			}
			c.Close()
			if len(d.words) != 1 || d.words[0] != "done" {
				t.Fatalf("told of %q", d.words)
			}
		}
	})
}
