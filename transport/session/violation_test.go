package session_test

import (
	"strings"
	"testing"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// h is the header of a frame of transfer 1.
func h(seq uint64) wire.FrameHeader {
	return wire.FrameHeader{Handle: 1, Epoch: testEpoch, Seq: seq}
}

// TestOpenerViolates lets a peer that sends break each rule once. The connection
// ends with the fault named at both ends, and nothing is left behind.
func TestOpenerViolates(t *testing.T) {
	flush := func(token, frames uint64) *wire.Flush { return &wire.Flush{Handle: 1, Token: token, Frames: frames} }
	finish := func(frames uint64) *wire.Finish { return &wire.Finish{Handle: 1, Frames: frames} }
	for name, breach := range map[string]func(b *bench){
		"frame 2 of transfer":   func(b *bench) { b.frame(h(testFirst), []uint32{0}) },
		"beyond the 2":          func(b *bench) { b.frame(h(1<<63), []uint32{0}) },
		"frame 1 of":            func(b *bench) { b.frame(h(1), []uint32{0}); b.frame(h(1), []uint32{0}) },
		"came twice":            func(b *bench) { b.frame(h(0), []uint32{0}); b.frame(h(0), []uint32{0}) },
		"checksum of the frame": func(b *bench) { b.damagedHeader() },
		"handle 1 opened twice": func(b *bench) { b.say(&wire.Open{Handle: 1, ID: transport.NewID(), Parts: 1}) },
		"3 frames":              func(b *bench) { b.say(flush(1, testFirst+1)) },
		"more than 4 flushes": func(b *bench) {
			for i := range uint64(5) {
				b.say(flush(i, 0))
			}
		},
		"after its finish":       func(b *bench) { b.say(finish(0)); b.say(flush(1, 0)) },
		"finished twice":         func(b *bench) { b.say(finish(0)); b.say(finish(0)) },
		"finished with 3 frames": func(b *bench) { b.say(finish(testFirst + 1)) },
		"more have come":         func(b *bench) { b.frame(h(0), []uint32{0}); b.arrived(1); b.say(finish(0)) },
		"more have come ":        func(b *bench) { b.say(flush(1, 2)); b.say(finish(1)) },
		"which finished with 1":  func(b *bench) { b.finishThen(1) },
		"hello message":          func(b *bench) { b.say(hello()) },
		"lane ok message":        func(b *bench) { b.say(&wire.LaneOK{}) },
		"unknown type 99":        func(b *bench) { b.raw(99, 0) },
		"inside a field":         func(b *bench) { b.raw(wire.TypeFlush, 0, 1) },
		"message of 0 bytes":     func(b *bench) { b.said <- []byte{} },
		"checksum of a message":  func(b *bench) { b.damagedMessage(0) },
		"checksum of the body":   func(b *bench) { b.damagedMessage(wire.ControlPrefix) },
		"meta of 65537 bytes": func(b *bench) {
			b.say(&wire.Open{Handle: 2, ID: transport.NewID(), Parts: 1, Meta: make([]byte, testMeta+1)})
		},
		"never opened":           func(b *bench) { b.say(&wire.Ack{Handle: 9, Ranges: []wire.BlockRange{{First: 0, Count: 1}}}) },
		"agreed limit 8192":      func(b *bench) { b.frame(h(0), make([]uint32, 1)); b.oversized() },
		"transfer 0, which this": func(b *bench) { b.say(&wire.Result{}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			in := b.incoming(1)
			b.breached(in, strings.TrimSpace(name), breach)
		})
	}
}

// breached commits a breach and checks its end.
func (b *bench) breached(in transport.Incoming, fault string, breach func(*bench)) {
	b.tb.Helper()
	breach(b)
	_, err := b.c.Accept(b.tb.Context())
	is(b.tb, err, transport.ErrProtocol)
	is(b.tb, err, transport.ErrLost)
	if !strings.Contains(err.Error(), fault) || !strings.Contains(err.Error(), "script") {
		b.tb.Errorf("error %q names neither %q nor the peer", err, fault)
	}
	if m := hear[*wire.Bye](b.script); !strings.Contains(m.Reason, fault) {
		b.tb.Errorf("the peer was told %q", m.Reason)
	}
	<-b.closed
	if in == nil {
		return
	}
	for {
		d, err := in.Recv(b.tb.Context())
		if err != nil {
			is(b.tb, err, transport.ErrProtocol)
			return
		}
		d.Release()
	}
}

func (b *bench) damagedHeader() {
	f := b.encode(h(0), []uint32{0})
	f.header[70] ^= 1
	b.frames <- f
}

// damagedMessage asks for a flush; one bit of the message is wrong.
func (b *bench) damagedMessage(at int) {
	msg, err := wire.AppendFlush(nil, &wire.Flush{Handle: 1})
	must(b.tb, err)
	msg[at] ^= 1
	b.said <- msg
}

func (b *bench) oversized() {
	piece := transport.Piece{Length: testPayload + 1}
	header, err := wire.AppendFrame(nil, &wire.FrameHeader{
		Handle: 1, Epoch: testEpoch, Seq: 1, Payload: piece.Length, Pieces: []transport.Piece{piece},
	})
	must(b.tb, err)
	b.frames <- frame{header, nil}
}

// arrived waits until n slots carry frames.
func (b *bench) arrived(n int) {
	eventually(b.tb, "frames arrive", func() bool { return b.recv.InUse() == n })
}

// finishThen finishes with one frame, which has come, and sends another.
func (b *bench) finishThen(seq uint64) {
	b.frame(h(0), []uint32{0})
	b.arrived(1)
	b.say(&wire.Finish{Handle: 1, Frames: 1})
	b.say(&wire.Open{Handle: 2, ID: transport.NewID(), Parts: 1})
	if _, err := b.c.Accept(b.tb.Context()); err != nil { // the finish is taken by now
		b.tb.Fatal(err)
	}
	b.frame(h(seq), []uint32{0})
}

func hello() *wire.Hello {
	return &wire.Hello{
		Major: wire.Major, Boot: transport.NewID(), MaxPayload: wire.MaxPayload, MaxMeta: testMeta,
		Lanes: 1, Sums: []string{"xxh3-64"},
	}
}

// TestNotAdmitted lets a peer go on as if its offer had been admitted.
func TestNotAdmitted(t *testing.T) {
	for name, breach := range map[string]func(b *bench){
		"beyond the 0 granted": func(b *bench) { b.frame(h(0), []uint32{0}) },
		"flush of transfer":    func(b *bench) { b.say(&wire.Flush{Handle: 1}) },
		"finish of transfer":   func(b *bench) { b.say(&wire.Finish{Handle: 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			o := b.offer(1)
			b.breached(nil, name, breach)
			_, err := o.Admit(nil)
			is(t, err, transport.ErrProtocol)
		})
	}
}

// TestAdmitterViolates lets a peer that receives break each rule once.
func TestAdmitterViolates(t *testing.T) {
	for name, breach := range map[string]func(b *bench, handle uint32){
		"admitted twice":      func(b *bench, n uint32) { b.say(&wire.Admit{Handle: n, Window: 1}) },
		"refused after":       func(b *bench, n uint32) { b.say(&wire.Refuse{Handle: n}) },
		"nack of frame 1":     func(b *bench, n uint32) { b.say(&wire.Nack{Handle: n, Seq: 1, Pieces: []transport.Piece{{Length: 1}}}) },
		"answer to flush 9":   func(b *bench, n uint32) { b.say(&wire.Flushed{Handle: n, Token: 9}) },
		"result of 65537":     func(b *bench, n uint32) { b.say(&wire.Result{Handle: n, Meta: make([]byte, testMeta+1)}) },
		"message about trans": func(b *bench, n uint32) { b.say(&wire.Grant{Handle: n + 1, Epoch: testEpoch, Total: 9}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			out, n := b.outgoing(transport.Request{})
			must(t, put(t.Context(), out, 5))
			b.sent()
			b.breached(nil, name, func(b *bench) { breach(b, n) })
			_, err := out.Lease(t.Context())
			is(t, err, transport.ErrProtocol)
		})
	}
}

// TestAnswerTooEarly lets a peer speak of a transfer that it has not admitted.
func TestAnswerTooEarly(t *testing.T) {
	for name, m := range map[string]func(handle uint32) wire.Message{
		"grant for":       func(n uint32) wire.Message { return &wire.Grant{Handle: n, Epoch: testEpoch, Total: 9} },
		"nack for":        func(n uint32) wire.Message { return &wire.Nack{Handle: n, Pieces: []transport.Piece{{Length: 1}}} },
		"answer to flush": func(n uint32) wire.Message { return &wire.Flushed{Handle: n} },
		"result for":      func(n uint32) wire.Message { return &wire.Result{Handle: n} },
		"answer of 65537": func(n uint32) wire.Message { return &wire.Admit{Handle: n, Window: 1, Meta: make([]byte, testMeta+1)} },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			n, opened := b.opening(transport.Request{})
			b.breached(nil, name, func(b *bench) { b.say(m(n)) })
			_, err := wait(t, opened)
			is(t, err, transport.ErrProtocol)
		})
	}
}

// TestFlood lets a peer offer without end and without reading the answers.
func TestFlood(t *testing.T) {
	b := start(t, nil)
	b.heard = make(chan wire.Message) // nobody reads
	for i := range uint32(3000) {
		b.say(&wire.Open{Handle: i + 1, ID: transport.NewID(), Parts: 1})
	}
	<-b.closed
	_, err := b.c.Open(t.Context(), transport.Request{})
	is(t, err, transport.ErrProtocol)
}
