package session_test

import (
	"errors"
	"io"
	"testing"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// FuzzPeer lets a peer say anything in any order, with transfers open in both
// directions: the session survives or ends with ErrProtocol, and gives back all
// that it took.
func FuzzPeer(f *testing.F) {
	for op := range byte(peerOps) {
		f.Add([]byte{op, 1, 0, op, 1, 1, op, 2, 5})
	}
	f.Add([]byte{9, 1, 0, 9, 1, 1, 4, 1, 2, 5, 1, 2, 10, 1, 0})                  // frames, flush, finish, late frame
	f.Add([]byte{0, 1, 3, 1, 3, 1, 9, 3, 0, 6, 3, 1, 3, 1, 4, 2, 1, 1, 7, 1, 0}) // offers, acknowledgements
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 300 {
			return
		}
		b := start(t, nil, wire.FeaturePing)
		out, _ := b.outgoing(transport.Request{})
		in := b.incoming(1)
		for block := range uint32(2) {
			if err := put(t.Context(), out, block); err != nil {
				t.Fatal(err)
			}
		}
		received := asyncErr(func() error { return receive(t, in) })
		for ; len(script) >= 3; script = script[3:] {
			b.act(script[0]%peerOps, uint32(script[1]%4), uint64(script[2]))
		}
		b.say(&wire.Bye{})
		_, err := b.c.Accept(t.Context())
		for err == nil {
			_, err = b.c.Accept(t.Context())
		}
		is(t, err, transport.ErrLost)
		if _, err := wait(t, received); !errors.Is(err, transport.ErrLost) &&
			!errors.Is(err, transport.ErrCancelled) && !errors.Is(err, io.EOF) {
			t.Errorf("the receiver got %v", err)
		}
	})
}

// receive takes what comes, like an application.
func receive(t *testing.T, in transport.Incoming) error {
	for {
		d, err := in.Recv(t.Context())
		switch {
		case err != nil:
			return err
		case d.Mark():
			d.Flushed(nil)
		default:
			for i := range d.Pieces() {
				if len(d.Data(i)) != int(d.Pieces()[i].Length) {
					t.Errorf("piece %v with %d bytes", d.Pieces()[i], len(d.Data(i)))
				}
			}
			in.Ack(d.Pieces()[0].Block)
			d.Release()
		}
	}
}

// peerOps is the number of things that act can say.
const peerOps = 16

// act says one thing about transfer n.
func (b *bench) act(op byte, n uint32, v uint64) {
	switch op {
	case 0:
		b.say(&wire.Open{Handle: n, ID: transport.ID{1, byte(v)}, Parts: 1})
	case 1:
		b.say(&wire.Admit{Handle: n, Window: uint32(v) + 1})
	case 2:
		b.say(&wire.Refuse{Handle: n})
	case 3:
		b.say(&wire.Grant{Handle: n, Epoch: testEpoch, Total: v << 56 >> v})
	case 4:
		b.ack(n, uint32(v), 1+uint32(v)<<22, 0, 1)
	case 5:
		b.say(&wire.Nack{Handle: n, Seq: v, Pieces: []transport.Piece{{Block: uint32(v), Length: 1}}})
	case 6:
		b.say(&wire.Flush{Handle: n, Token: v, Frames: v % 8})
	case 7:
		b.say(&wire.Flushed{Handle: n, Token: v % 4})
	case 8:
		b.say(&wire.Finish{Handle: n, Frames: v % 8})
	case 9:
		b.frame(wire.FrameHeader{Handle: n, Epoch: testEpoch, Seq: v % 16}, []uint32{uint32(v), 3})
	case 10:
		b.frame(wire.FrameHeader{Handle: n, Epoch: testEpoch, Seq: v % 16}, []uint32{1, 2, 3}, int(v)%3)
	case 11:
		b.say(&wire.Result{Handle: n})
	case 12:
		b.say(&wire.Cancel{Handle: n, FromOpener: v%2 == 0})
	case 13:
		b.say(&wire.Ping{Token: v + 1})
	case 14:
		b.say(&wire.Pong{Token: v + 1})
	case 15:
		b.raw(wire.Type(v), byte(n), byte(v), 0, 0, 0)
	}
}
