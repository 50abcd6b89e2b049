package seal_test

import (
	"bytes"
	"testing"

	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// Numbers of PROTOCOL.md, section 10.3.
const (
	keyFrames = 1 << 14 // frames that a key seals
	maxFrames = 1 << 48 // frames that a direction of a lane has
)

// testBytes are the bytes 0 to 31.
func testBytes() (b [seal.SecretSize]byte) {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// testSecret is of a connection whose TLS session exports testBytes.
func testSecret() *seal.Secret { return secretOf(testBytes()) }

// secretOf is of a connection whose TLS session exports b.
func secretOf(b [seal.SecretSize]byte) *seal.Secret {
	s, err := seal.Export(func(string, []byte, int) ([]byte, error) { return b[:], nil }, [16]byte{1})
	if err != nil {
		panic(err) // the exporter gives what it is asked for
	}
	return s
}

// pattern is n bytes that repeat with no power of two.
func pattern(n, start int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte((i + start) * 7 % 251)
	}
	return p
}

// frame is a frame before or after its journey.
type frame struct{ header, payload []byte }

// makeFrame is a frame of n bytes in so many pieces, of sequence number seq.
func makeFrame(tb testing.TB, n, pieces int, seq uint64) frame {
	tb.Helper()
	h := wire.FrameHeader{Handle: 5, Epoch: 6, Seq: seq, Payload: uint32(n)}
	for i := range pieces {
		length := 1
		if i == 0 {
			length = n - pieces + 1
		}
		h.Pieces = append(h.Pieces, transport.Piece{Block: uint32(i), Length: uint32(length), Offset: seq, Sum: 1<<63 + uint64(i)})
	}
	header, err := wire.AppendFrame(nil, &h)
	if err != nil {
		tb.Fatal(err)
	}
	return frame{header, pattern(n, int(seq))}
}

// sealed is a frame on its way.
type sealed struct{ head, body []byte }

func (s sealed) clone() sealed { return sealed{bytes.Clone(s.head), bytes.Clone(s.body)} }

// pair is one direction of a lane.
type pair struct {
	tb testing.TB
	s  *seal.Sealer
	o  *seal.Opener
}

func newPair(tb testing.TB, o seal.Options) pair {
	tb.Helper()
	return pair{tb, newSealer(tb, testSecret(), 0, seal.ToServer, o), newOpener(tb, testSecret(), 0, seal.ToServer, o)}
}

func newSealer(tb testing.TB, s *seal.Secret, lane int, d seal.Direction, o seal.Options) *seal.Sealer {
	tb.Helper()
	x, err := s.Sealer(lane, d, o)
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

func newOpener(tb testing.TB, s *seal.Secret, lane int, d seal.Direction, o seal.Options) *seal.Opener {
	tb.Helper()
	x, err := s.Opener(lane, d, o)
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

// seal seals f into memory of its own.
func (p pair) seal(f frame) sealed {
	p.tb.Helper()
	s := sealed{make([]byte, p.s.HeadLen(len(f.header), len(f.payload))), make([]byte, len(f.payload))}
	n, err := p.s.Seal(s.head, s.body, f.header, f.payload)
	if err != nil || n != len(s.head) {
		p.tb.Fatalf("seal: head of %d bytes, want %d: %v", n, len(s.head), err)
	}
	return s
}

// open opens s, whose body arrives in steps of so many bytes (0: at once).
func (p pair) open(s sealed, step int) (frame, error) {
	s = s.clone()
	var header [wire.MaxHeader]byte
	if len(s.head) < seal.HeadSize {
		return frame{}, seal.ErrForged // a stream's reader never gets here
	}
	headerLen, payloadLen, err := p.o.OpenHead(header[:], s.head[:seal.HeadSize])
	if err != nil {
		return frame{}, err
	}
	rest := s.head[seal.HeadSize:]
	// A reader takes as many bytes as the head says, wherever they come from.
	stream := append(bytes.Clone(rest), s.body...)
	if n := p.o.RestLen(); len(stream) < n+payloadLen {
		stream = append(stream, make([]byte, n+payloadLen-len(stream))...)
	}
	if err := p.o.OpenRest(header[:], stream[:p.o.RestLen()]); err != nil {
		return frame{}, err
	}
	body := stream[p.o.RestLen():][:payloadLen:payloadLen]
	payload := make([]byte, payloadLen)
	if step < 1 {
		step = payloadLen
	}
	for have := 0; have < payloadLen; {
		n := copy(payload[have:], body[have:min(have+step, payloadLen)])
		have += n
		if _, err := p.o.OpenPayload(payload, have); err != nil {
			return frame{}, err
		}
	}
	return frame{bytes.Clone(header[:headerLen]), payload}, nil
}

func (f frame) equal(g frame) bool {
	return bytes.Equal(f.header, g.header) && bytes.Equal(f.payload, g.payload)
}
