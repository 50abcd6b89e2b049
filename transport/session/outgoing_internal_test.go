package session

import (
	"context"
	"errors"
	"testing"

	"pdlink/transport"
)

// TestAtOnce returns a transfer that the peer admitted and ended in one breath,
// whatever else there is to hear: its result is there for Finish.
func TestAtOnce(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a choice at random would show
		o := newOutgoing(&conn{}, 1, transport.Request{}, nil)
		close(o.opened)
		o.end(errFinished)
		if err := o.await(ended); err != nil {
			t.Fatal(err)
		}
	}
	o := newOutgoing(&conn{}, 1, transport.Request{}, nil)
	o.end(errClosed)
	if err := o.await(ended); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("error %v of a transfer that was not admitted", err)
	}
}

// TestNotYetFinished says no Finish while a flush that was asked for at the same
// time has pieces sent again.
func TestNotYetFinished(t *testing.T) {
	o := newOutgoing(&conn{}, 1, transport.Request{}, nil)
	o.next = 3
	f := &txFrame{o: o, pieces: make([]transport.Piece, 1), seq: 2}
	o.kept = []*txFrame{f}
	if err := o.lacks(f, span{0, 1}); err != nil {
		t.Fatalf("a frame that was sent once was sent often enough: %v", err)
	}
	if said, err := o.sayFinish(3); said || err != nil {
		t.Errorf("finish was said: %v, %v", said, err)
	}
	o.forgive(f)
	if said, err := o.sayFinish(2); said || err != nil {
		t.Errorf("finish was said after a flush of fewer frames: %v, %v", said, err)
	}
	if said, err := o.sayFinish(3); !said || err != nil {
		t.Errorf("finish was not said: %v, %v", said, err)
	}
}
