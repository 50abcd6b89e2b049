package transporttest

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

func peerChecks() []check {
	return []check{
		{name: "peer/sends beyond its grants", run: peerOverrun},
		{name: "peer/grants are made up", run: peerGrants},
		{name: "peer/malformed messages", run: peerMessages},
		{name: "peer/malformed frames", run: peerFrames},
		{name: "peer/unknown but optional", run: peerOptional},
		{name: "peer/frames of no transfer", run: peerStray},
	}
}

func (e *env) message(m wire.Message) []byte {
	e.Helper()
	msg, err := wire.Append(nil, m)
	e.must(err, "encode")
	return msg
}

// seal makes a message that was built or changed by hand say the length that it
// has, and carry the checksums that belong to it.
func seal(msg []byte) []byte {
	le, body := binary.LittleEndian, msg[wire.ControlPrefix:]
	le.PutUint32(msg, uint32(len(body)))
	le.PutUint32(msg[8:], uint32(xxh3.Hash(body)))
	le.PutUint32(msg[12:], uint32(xxh3.Hash(msg[:12])))
	return msg
}

// raw is a sealed message of any type and any body.
func raw(t wire.Type, flags byte, body ...byte) []byte {
	return seal(append([]byte{4: byte(t), 5: flags, wire.ControlPrefix - 1: 0}, body...))
}

// spy is a pair with faults at the dialling end that note what the session
// says about its transfers.
type spy struct {
	Pair
	*Faults
	mu     sync.Mutex // guards what follows
	handle uint32     // of the last transfer that A opened
	epoch  uint32     // of the connection
}

func (e *env) spied(b session.Options) *spy {
	e.Helper()
	s := &spy{}
	s.Pair, s.Faults = e.broken(session.Options{}, b)
	s.Hook(Hooks{
		SendControl: func(msg []byte) []byte {
			if m, err := wire.Decode(msg); err == nil {
				if open, ok := m.(*wire.Open); ok {
					s.mu.Lock()
					s.handle = open.Handle
					s.mu.Unlock()
				}
			}
			return msg
		},
		SendFrame: func(header []byte) bool {
			if h, err := wire.DecodeFrame(header, wire.MaxPayload, nil); err == nil {
				s.mu.Lock()
				s.epoch = h.Epoch
				s.mu.Unlock()
			}
			return true
		},
	})
	return s
}

// last is the handle of the last transfer that A opened.
func (s *spy) last() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handle
}

// open opens a transfer and sends one frame, so that its handle and the epoch
// are known.
func (s *spy) open(e *env) (transport.Outgoing, transport.Incoming) {
	e.Helper()
	out, in := e.open(s.A, s.B, transport.Request{Replayable: true})
	e.must(e.send(out, piece{0, 0, 100}), "send")
	e.frame(in).Release()
	return out, in
}

// frame is an encoded frame of one piece with the right checksums.
func (s *spy) frame(tb testing.TB, data content, change func(*wire.FrameHeader)) (header, payload []byte) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, err := transport.SumByName(s.A.Facts().Sum)
	if err != nil {
		tb.Fatalf("checksum: %v", err)
	}
	payload = make([]byte, 100)
	data.fill(payload, 1, 0)
	h := &wire.FrameHeader{
		Handle: s.handle, Epoch: s.epoch, Seq: 1, Payload: 100,
		Pieces: []transport.Piece{{Block: 1, Length: 100, Sum: sum(payload)}},
	}
	if change != nil {
		change(h)
	}
	header, err = wire.AppendFrame(nil, h)
	if err != nil {
		tb.Fatalf("encode: %v", err)
	}
	return header, payload
}

// violates checks that B ends the connection for a protocol violation, that A
// loses it. How the sending of what violates ends is no part of it: a driver may
// refuse it itself, and the receiver may end the connection before the call returns.
func (s *spy) violates(e *env, in transport.Incoming, what string) {
	e.Helper()
	// Receiving comes second: what it releases may make a frame right that came
	// too early.
	_, err := s.B.Accept(e.ctx)
	e.is(err, transport.ErrProtocol, "accept after: "+what)
	e.is(e.drain(in), transport.ErrProtocol, "receive after: "+what)
	_, err = s.A.Accept(e.ctx)
	e.is(err, transport.ErrLost, "accept of the violator after: "+what)
}

// peerOverrun: a peer that sends frames nobody granted breaks the protocol.
func peerOverrun(e *env) {
	ring := e.ring(testSlots, testPayload)
	other := e.pair(session.Options{}, session.Options{RecvRing: ring})
	s := e.spied(session.Options{RecvRing: ring})
	_, in := s.open(e)
	for seq := range uint64(testWindow + 2) {
		header, payload := s.frame(e, e.data, func(h *wire.FrameHeader) { h.Seq = seq + 1 })
		if err := s.SendFrame(header, payload); err != nil {
			break // closed already
		}
	}
	s.violates(e, in, "frames beyond the grants")
	e.usable(other.A, other.B)
}

// peerGrants: a sender that believes in grants which the receiver never gave
// sends too much, and the receiver ends the connection instead of taking it.
func peerGrants(e *env) {
	f := NewFaults(e.seed)
	f.Hook(Hooks{TakeControl: func(msg []byte) []byte {
		if m, err := wire.Decode(msg); err == nil {
			if g, ok := m.(*wire.Admit); ok {
				g.Window = 1000
				return e.message(g)
			}
		}
		return msg
	}})
	p := e.pair(session.Options{Intercept: f.Intercept}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	for {
		if err := e.send(out, piece{0, 0, 100}); err != nil {
			e.is(err, transport.ErrLost, "send beyond the grants")
			break
		}
	}
	e.is(e.drain(in), transport.ErrProtocol, "receive beyond the grants")
}

// peerMessages: each malformed or misplaced message ends its connection with
// ErrProtocol, and nothing else.
func peerMessages(e *env) {
	id := transport.NewID()
	le := binary.LittleEndian
	bad := map[string]func(s *spy) []byte{
		"unknown type":  func(*spy) []byte { return raw(200, 0) },
		"reserved bits": func(*spy) []byte { m := e.message(&wire.Bye{}); m[6] = 1; return seal(m) },
		"empty body":    func(*spy) []byte { return raw(wire.TypeOpen, 0) },
		"damaged body of an unknown type": func(*spy) []byte {
			m := raw(200, wire.FlagOptional, 1, 2, 3)
			m[wire.ControlPrefix]++
			return m
		},
		"damaged prefix of an unknown type": func(*spy) []byte { m := raw(200, wire.FlagOptional, 1, 2, 3); m[4]++; return m },
		"second hello":                      func(*spy) []byte { return e.message(hello()) },
		"part of no parts": func(s *spy) []byte {
			m := e.message(&wire.Open{Handle: 77, ID: id, Parts: 1})
			le.PutUint16(m[wire.ControlPrefix+22:], 0)
			return seal(m)
		},
		"transfer without id": func(*spy) []byte {
			m := e.message(&wire.Open{Handle: 77, ID: id, Parts: 1})
			clear(m[wire.ControlPrefix+4:][:16])
			return seal(m)
		},
		"handle in use": func(s *spy) []byte {
			return e.message(&wire.Open{Handle: s.last(), ID: transport.NewID(), Parts: 1})
		},
		"admit of nothing":  func(*spy) []byte { return e.message(&wire.Admit{Handle: 4711, Window: 1}) },
		"refuse of nothing": func(*spy) []byte { return e.message(&wire.Refuse{Handle: 4711}) },
	}
	for what, build := range bad {
		ring := e.ring(testSlots, testPayload)
		other := e.pair(session.Options{}, session.Options{RecvRing: ring})
		s := e.spied(session.Options{RecvRing: ring})
		_, in := s.open(e)
		s.SendControl(build(s)) //nolint:errcheck // see violates
		s.violates(e, in, what)
		e.usable(other.A, other.B)
		s.Close()
		other.Close()
	}
}

func hello() *wire.Hello {
	return &wire.Hello{
		Major: wire.Major, Minor: wire.Minor, Boot: transport.NewID(), Epoch: 1, MaxPayload: wire.MinPayload,
		MaxMeta: 1, Lanes: 1, Token: [16]byte{1}, Sums: transport.Sums(),
	}
}

// peerFrames: each malformed frame ends its connection with ErrProtocol, and
// nothing else.
func peerFrames(e *env) {
	for what, change := range map[string]func(h *wire.FrameHeader){
		"frame number used before": func(h *wire.FrameHeader) { h.Seq = 0 },
		"frame number far ahead":   func(h *wire.FrameHeader) { h.Seq = 1 << 60 },
	} {
		s := e.spied(session.Options{})
		_, in := s.open(e)
		header, payload := s.frame(e, e.data, change)
		s.SendFrame(header, payload) //nolint:errcheck // see violates
		s.violates(e, in, what)
		s.Close()
	}
	for what, at := range map[string]int{
		"pieces": 28, "payload length": 24, "piece length": wire.FixedHeader + 4, "checksum": 56, "magic": 0,
	} {
		s := e.spied(session.Options{})
		_, in := s.open(e)
		header, payload := s.frame(e, e.data, nil)
		header[at] ^= 0xff
		s.SendFrame(header, payload) //nolint:errcheck // see violates
		s.violates(e, in, "frame with damaged "+what)
		s.Close()
	}
}

// peerOptional: messages of a later version that say so are skipped.
func peerOptional(e *env) {
	s := e.spied(session.Options{})
	out, in := s.open(e)
	e.must(s.SendControl(raw(201, wire.FlagOptional, 1, 2, 3)), "send an optional message")
	longer := e.message(&wire.Cancel{Handle: 4711, FromOpener: true, Reason: "unknown transfer"})
	e.must(s.SendControl(seal(append(longer, 1, 2, 3, 4))), "send a message with appended fields")
	e.finishBoth(out, in)
	e.usable(s.B, s.A)
}

// peerStray: what concerns a transfer that has ended, or an epoch that is not
// this connection's, is dropped without harm.
func peerStray(e *env) {
	s := e.spied(session.Options{})
	old, oldIn := s.open(e)
	e.finishBoth(old, oldIn)
	header, payload := s.frame(e, e.data, nil)
	e.must(s.SendFrame(header, payload), "send a frame of an ended transfer")
	out, in := s.open(e)
	header, payload = s.frame(e, e.data, func(h *wire.FrameHeader) { h.Epoch++ })
	e.must(s.SendFrame(header, payload), "send a frame of another epoch")
	e.must(s.SendControl(e.message(&wire.Cancel{Handle: s.last() + 1000, FromOpener: true})), "cancel what is not there")
	e.nothing(in, "receive after stray frames")
	e.finishBoth(out, in)
}
