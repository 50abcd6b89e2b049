package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// FuzzReadMessage: whatever arrives, a message is exactly what was sent, the
// bytes after it are left alone, and memory follows what arrived. With fix the
// prefix's checksum is made right first, or else no length gets past it.
func FuzzReadMessage(f *testing.F) {
	for _, m := range [][]byte{
		nil, {1}, message(wire.TypeGrant, 16, 0), message(wire.TypeHello, 4000, 1),
		message(wire.TypeOpen, 70_000, 2), message(wire.TypeOpen, 1<<20, 0)[:100],
		resum([]byte{4: byte(wire.TypeOpen), 15: 0}, 1<<32-1), damaged(message(wire.TypeOpen, 100, 0), 2), []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		f.Add(m, 1<<20, false)
		f.Add(append(m, 1, 2, 3), 1000, true)
	}
	f.Fuzz(func(t *testing.T, sent []byte, limit int, fix bool) {
		if fix && len(sent) >= wire.ControlPrefix {
			sent = bytes.Clone(sent)
			resum(sent, int(binary.LittleEndian.Uint32(sent)))
		}
		r := bytes.NewReader(sent)
		got, err := readMessage(r, nil, limit)
		read := len(sent) - r.Len()
		if limit := 2*read + 2*controlStep; cap(got) > limit {
			t.Errorf("%d bytes of memory for %d bytes read", cap(got), read)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("error %v is none of the three", err)
			}
			if errors.Is(err, io.EOF) && len(sent) > 0 {
				t.Errorf("end in order inside a message of %d bytes", len(sent))
			}
			return
		}
		if !bytes.Equal(got, sent[:read]) || len(got) > wire.ControlPrefix+limit {
			t.Errorf("message of %d bytes is not what was sent, limit %d", len(got), limit)
		}
		if n, _, err := wire.ControlLength(got); err != nil || n+wire.ControlPrefix != len(got) {
			t.Errorf("message of %d bytes: prefix says %d, error %v", len(got), n, err)
		}
	})
}

func TestHeldMessagesGoOutInOrder(t *testing.T) {
	a, b := socketPair(t)
	c := newControl(a, wire.MaxHello)
	c.hold = true
	one, two, three := message(wire.TypeGrant, 16, 1), message(wire.TypeGrant, 16, 2), message(wire.TypeGrant, 16, 3)
	for _, m := range [][]byte{one, two} {
		if err := c.WriteControl(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.release(); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteControl(three); err != nil {
		t.Fatal(err)
	}
	in := newControl(b, wire.MaxHello)
	in.first = []byte("first")
	for i, want := range [][]byte{[]byte("first"), one, two, three} {
		if got, err := in.ReadControl(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("message %d: %q, error %v", i, got, err)
		}
	}
}
