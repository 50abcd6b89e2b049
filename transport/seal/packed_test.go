package seal_test

import (
	"errors"
	"testing"

	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// TestPacked: a packed frame passes where a codec was agreed, and nowhere else.
func TestPacked(t *testing.T) {
	f := makeFrame(t, 5000, 3, 9)
	if err := wire.Pack(f.header, 2, 700); err != nil {
		t.Fatal(err)
	}
	f.payload = f.payload[:700]
	p := newPair(t, seal.Options{Packed: true})
	for range 3 {
		if got, err := p.open(p.seal(f), 0); err != nil || !got.equal(f) {
			t.Fatalf("another frame came out: %v", err)
		}
	}
	plain := makeFrame(t, 5000, 3, 9)
	if got, err := p.open(p.seal(plain), 0); err != nil || !got.equal(plain) {
		t.Errorf("plain: another frame came out: %v", err)
	}
	p = newPair(t, seal.Options{})
	if _, err := p.open(p.seal(f), 0); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("without a codec: %v", err)
	}
}
