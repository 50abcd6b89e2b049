package rdma

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/wire"
)

// inBubble runs a test where time is virtual, and checks that nothing is left.
func inBubble(t *testing.T, p func() fakeverbs.Personality, o Options, f func(t *testing.T, e *ends)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(p, 1, o)
		f(t, e)
		if err := e.left(); err != nil {
			t.Error(err)
		}
	})
}

// move moves n blocks of size bytes.
func move(t *testing.T, a, b transport.Conn, n, size int) error {
	t.Helper()
	load := &cargo{had: make([]bool, n)}
	for range n {
		load.sizes = append(load.sizes, size)
	}
	return load.move(t.Context(), a, b)
}

// TestOldEpoch writes with what was said on a connection that is gone: with the old
// queue pair, and with the old key on a new one.
func TestOldEpoch(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustCarry(t)
		old := a.d.lanes[0]
		peer := old.peer
		// The peer's end is gone; this one is not yet, as after a fault.
		if err := b.d.Close(); err != nil {
			t.Error(err)
		}
		wr := verbs.SendWR{
			ID: 99, Op: verbs.OpWrite, RemoteAddr: peer.heads.addr, RemoteKey: peer.heads.key,
			Local: one(old.out.heads.segment(old.out.heads.slot(0))),
		}
		if err := old.post([]verbs.SendWR{wr}, new(bool)); err != nil {
			t.Fatal(err)
		}
		<-a.d.dead
		if err := a.d.why(); !strings.Contains(err.Error(), "retries") {
			t.Errorf("the old queue pair's write: %v", err)
		}
		if err := a.d.Close(); err != nil {
			t.Error(err)
		}
		if _, err := old.qp.PostSend([]verbs.SendWR{wr}); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("post to the old queue pair: %v", err)
		}
		a, b = e.mustCarry(t)
		fresh := a.d.lanes[0]
		if fresh.peer.heads.key == peer.heads.key {
			t.Error("the new connection has the old one's key")
		}
		wr.Local = one(fresh.out.heads.segment(fresh.out.heads.slot(0)))
		if err := fresh.post([]verbs.SendWR{wr}, new(bool)); err != nil {
			t.Fatal(err)
		}
		<-a.d.dead
		if err := a.d.why(); !strings.Contains(err.Error(), "remote access") {
			t.Errorf("a write with the old key: %v", err)
		}
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestStall kills the peer's host in the middle: the watch ends the connection in time.
func TestStall(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustCarry(t)
		e.net.Latency = time.Microsecond
		e.b.Kill()
		begin := time.Now()
		header, payload := make([]byte, wire.FixedHeader+wire.PieceSize), make([]byte, 100)
		// With bytes that are copied nobody waits for the first frames.
		var err error
		for n := 0; err == nil && n < 100; n++ {
			err = a.d.WriteFrame(0, header, payload)
		}
		if !errors.Is(err, transport.ErrLost) {
			t.Errorf("write to a host that is gone: %v", err)
		}
		if took := time.Since(begin); took > stallTime+2*watchEvery {
			t.Errorf("it took %v to notice", took)
		}
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestReadsStall kills the sender's host while its frames are read.
func TestReadsStall(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{NoRemoteWrite: true}, func(t *testing.T, e *ends) {
		a, b := e.mustCarry(t)
		e.net.Latency = 100 * time.Millisecond
		header, payload := make([]byte, wire.FixedHeader+wire.PieceSize), make([]byte, 100)
		if err := a.d.QueueFrame(0, header, payload, func() {}); err != nil {
			t.Fatal(err)
		}
		for b.d.lanes[0].in.progress() == 1 { // the trial
			time.Sleep(time.Millisecond)
		}
		e.a.Kill()
		begin := time.Now()
		<-b.d.dead
		if took := time.Since(begin); took > stallTime+2*watchEvery {
			t.Errorf("it took %v to notice", took)
		}
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
			t.Error(err)
		}
	})
}

// progress is how many frames are or were read.
func (in *inbound) progress() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.asked
}

// TestLostMessages loses every message of an unreliable connection.
func TestLostMessages(t *testing.T) {
	inBubble(t, fakeverbs.Apple, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustConnect(t)
		e.net.Odds.Drop = 1
		begin := time.Now()
		if err := move(t, a, b, 3, 1000); !errors.Is(err, transport.ErrLost) {
			t.Errorf("every message is lost: %v", err)
		}
		if took := time.Since(begin); took > 2*stallTime {
			t.Errorf("it took %v to notice", took)
		}
		closeBoth(a, b)
	})
}

// TestSeveralAreOnTheirWay queues frames whose writes take a second each.
func TestSeveralAreOnTheirWay(t *testing.T) {
	for name, p := range map[string]func() fakeverbs.Personality{"mlx5": fakeverbs.MLX5, "mcdma": fakeverbs.MCDMA} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, p, Options{}, func(t *testing.T, e *ends) {
				free := e.rings(t, 16, 32<<10)
				a, b := e.mustConnect(t)
				e.net.Latency = time.Second
				begin, done := time.Now(), 0
				ended := make(chan struct{}, 8)
				payload := e.oa.SendRing.Memory()[:1000]
				for range 8 {
					header := make([]byte, wire.FixedHeader+wire.PieceSize)
					if err := e.tapA.QueueFrame(0, header, payload, func() { ended <- struct{}{} }); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(begin); took != 0 {
					t.Errorf("queueing waited for %v", took)
				}
				if len(ended) != 0 {
					t.Errorf("%d frames ended before their writes did", len(ended))
				}
				for range 8 {
					<-ended
					done++
				}
				if took := time.Since(begin); done != 8 || took == 0 {
					t.Errorf("%d frames in %v", done, took)
				}
				closeBoth(a, b)
				free()
			})
		})
	}
}

// TestRing registers the send ring where it can, in parts as the provider wants them,
// and copies where it cannot.
func TestRing(t *testing.T) {
	for name, c := range map[string]struct {
		p       func() fakeverbs.Personality
		o       Options
		limit   int64
		parts   int
		noParts bool
	}{
		"whole":                    {p: fakeverbs.MLX5, parts: 1},
		"parts of 4 MiB":           {p: fakeverbs.MCDMA, parts: 5},
		"mode without ring":        {p: fakeverbs.MLX5, o: Options{NoRemoteWrite: true}, noParts: true},
		"too little locked memory": {p: fakeverbs.MLX5, limit: 12 << 20, noParts: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.p, c.o, func(t *testing.T, e *ends) {
				free := e.rings(t, 64, 256<<10+transport.HeaderRoom)
				e.a.LimitMemory(c.limit)
				a, b := e.mustConnect(t)
				if got := len(e.tapA.parts); !c.noParts && got != c.parts || c.noParts && got != 0 {
					t.Errorf("ring of %d bytes registered in %d parts, want %d", len(e.oa.SendRing.Memory()), got, c.parts)
				}
				if err := move(t, a, b, 50, 200_000); err != nil {
					t.Error(err)
				}
				for _, chosen := range e.chosen {
					if c.limit == 0 && chosen.Copies != "" || c.limit > 0 && chosen.Device == e.a.Device() && !strings.Contains(chosen.String(), "RLIMIT_MEMLOCK") {
						t.Errorf("chosen: %v", chosen)
					}
				}
				closeBoth(a, b)
				free()
			})
		})
	}
}

// TestUnavailable makes lanes where that cannot be: both ends say why.
func TestUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		p    func() fakeverbs.Personality
		do   func(e *ends)
		here string // of the end that cannot
	}{
		"port down":     {fakeverbs.MLX5, func(e *ends) { e.a.SetPort(false) }, "port is down"},
		"locked memory": {fakeverbs.MLX5, func(e *ends) { e.a.LimitMemory(1 << 20) }, "RLIMIT_MEMLOCK"},
		"peer's port":   {fakeverbs.MLX5, func(e *ends) { e.b.SetPort(false) }, "the other end says"},
		"peer's memory": {fakeverbs.MCDMA, func(e *ends) { e.b.LimitMemory(1 << 20) }, "the other end says"},
		"short queues":  {queuesOf(fakeverbs.MLX5, 8), func(*ends) {}, "queues of 8 requests, 16 are needed"},
		"short strides": {queuesOf(fakeverbs.Apple, 8), func(*ends) {}, "queues of 8 requests, 16 are needed"},
		"shorter ones":  {queuesOf(fakeverbs.MLX5, 2), func(e *ends) { e.slots(leastSlots) }, "write mode needs 3"},
		"queue pairs":   {fakeverbs.Apple, func(e *ends) { e.lanes = 11 }, "queue pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.p, Options{}, func(t *testing.T, e *ends) {
				c.do(e)
				a, b := e.carry(t.Context())
				kind := transport.ErrUnavailable
				if strings.Contains(name, "port") { // it may come up
					kind = transport.ErrLost
				}
				if !errors.Is(a.err, kind) || errors.Is(a.err, transport.ErrLost) && errors.Is(a.err, transport.ErrUnavailable) || !strings.Contains(a.err.Error(), c.here) {
					t.Errorf("client: %v, want one that says %q", a.err, c.here)
				}
				if !errors.Is(b.err, transport.ErrUnavailable) && !errors.Is(b.err, transport.ErrLost) {
					t.Errorf("server: %v", b.err)
				}
			})
		})
	}
}

// TestIncompatible meets ends without a mode in common, and one without the feature.
func TestIncompatible(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		other := newEnds(fakeverbs.Apple, 1, Options{})
		e.lb = other.lb
		a, b := e.carry(t.Context())
		if !errors.Is(a.err, transport.ErrIncompatible) || b.err == nil {
			t.Errorf("mlx5 to apple: %v, %v", a.err, b.err)
		}
		if err := other.left(); err != nil {
			t.Error(err)
		}
	})
}

// TestFlap takes the port down and up: the connection is lost at once, and the next one
// is there when the port is. Meanwhile nobody is told that there is no RDMA at all.
func TestFlap(t *testing.T) {
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustConnect(t)
		e.a.SetPort(false)
		if _, err := a.Accept(t.Context()); !errors.Is(err, transport.ErrLost) || !strings.Contains(err.Error(), "is down") {
			t.Errorf("the port went down: %v", err)
		}
		closeBoth(a, b)
		if _, _, err := e.connect(t.Context()); !errors.Is(err, transport.ErrLost) || errors.Is(err, transport.ErrUnavailable) {
			t.Errorf("connect while it is down: %v", err)
		}
		e.a.SetPort(true)
		a, b = e.mustConnect(t)
		if err := move(t, a, b, 5, 10_000); err != nil {
			t.Error(err)
		}
		closeBoth(a, b)
	})
}

// TestBadPeer says what no peer may say.
func TestBadPeer(t *testing.T) {
	say := func(of wire.Type, n count) []byte {
		msg, err := wire.AppendLink(nil, &wire.Link{Of: of, Body: n.append(nil)})
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustCarry(t) // nobody reads the control channels
		c := a.d.conn
		epoch, slots := c.t.epoch, uint64(c.t.slots)
		granted := c.lanes[0].out.granted
		five := &count{epoch, 0, 5}
		for name, v := range map[string]struct {
			msg []byte
			bad bool
		}{
			"grant again":             {say(typeGrant, count{epoch, 0, granted}), false},
			"grant of less":           {say(typeGrant, count{epoch, 0, 0}), false},
			"grant of another epoch":  {say(typeGrant, count{epoch + 1, 0, 1 << 60}), false},
			"grant of too much":       {say(typeGrant, count{epoch, 0, slots + 1000}), true},
			"grant of no lane":        {say(typeGrant, count{epoch, 1, slots}), true},
			"count in the wrong mode": {say(typeSent, count{epoch, 0, 5}), true},
			"offer":                   {say(typeOffer, count{epoch, 0, 5}), true},
			"half a grant":            {must(wire.AppendLink(nil, &wire.Link{Of: typeGrant, Body: []byte{1, 2}})), true},
			"unknown":                 {must(wire.AppendLink(nil, &wire.Link{Of: wire.LastLink, Body: five.append(nil)})), true},
			"unknown and optional":    {must(wire.AppendLink(nil, &wire.Link{Of: wire.LastLink, Optional: true, Body: []byte("tomorrow")})), false},
			"optional offer":          {must(wire.AppendLink(nil, &wire.Link{Of: typeOffer, Optional: true, Body: five.append(nil)})), true},
			"not for lanes":           {must(wire.AppendBye(nil, &wire.Bye{})), true},
			"garbage":                 {[]byte("garbage"), true},
		} {
			if err := c.Take(v.msg); (err != nil) != v.bad || v.bad && !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if now := c.lanes[0].out.granted; now != granted {
			t.Errorf("granted %d, then %d", granted, now)
		}
		if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestMessagesOfLaterVersions: one that is optional is skipped while the lanes come
// about and later, another one ends the connection.
func TestMessagesOfLaterVersions(t *testing.T) {
	later := func(optional bool) []byte {
		return must(wire.AppendLink(nil, &wire.Link{Of: wire.LastLink, Optional: optional, Body: []byte("tomorrow")}))
	}
	ready := must(wire.AppendLink(nil, &wire.Link{Of: typeReady}))
	for name, v := range map[string]struct {
		msgs [][]byte
		err  error
	}{
		"in time":                {[][]byte{ready}, nil},
		"behind optional ones":   {[][]byte{later(true), later(true), ready}, nil},
		"behind another":         {[][]byte{later(true), later(false), ready}, transport.ErrProtocol},
		"another in its place":   {[][]byte{must(wire.AppendLink(nil, &wire.Link{Of: typeSent, Optional: true})), ready}, transport.ErrProtocol},
		"nothing but what is so": {[][]byte{later(true)}, transport.ErrLost},
	} {
		s := &setUp{b: carrier.Base{Control: &script{v.msgs}}}
		if _, err := s.hear(typeReady); !errors.Is(err, v.err) {
			t.Errorf("%s: %v, want %v", name, err, v.err)
		}
	}
	inBubble(t, fakeverbs.MLX5, Options{}, func(t *testing.T, e *ends) {
		a, b := e.mustConnect(t)
		say := *e.tapA.say.Load()
		if err := errors.Join(say(later(true)), move(t, a, b, 5, 10_000), say(later(false))); err != nil {
			t.Error(err)
		}
		if _, err := b.Accept(t.Context()); !errors.Is(err, transport.ErrLost) || !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("one that is not optional: %v", err)
		}
		closeBoth(a, b)
	})
}

// script is a control channel that says what a test wants said.
type script struct{ msgs [][]byte }

func (*script) WriteControl([]byte) error { return nil }

func (s *script) ReadControl() ([]byte, error) {
	if len(s.msgs) == 0 {
		return nil, io.EOF
	}
	msg := s.msgs[0]
	s.msgs = s.msgs[1:]
	return msg, nil
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestBadNotice announces frames that there are not.
func TestBadNotice(t *testing.T) {
	for name, change := range map[string]func(n *notice){
		"epoch":          func(n *notice) { n.epoch++ },
		"number":         func(n *notice) { n.number++ },
		"slot":           func(n *notice) { n.slot++ },
		"long head":      func(n *notice) { n.head = headRoom + 1 },
		"long body":      func(n *notice) { n.body = 1 << 30 },
		"no head":        func(n *notice) { n.head = 0 },
		"no body":        func(n *notice) { n.body = 0 },
		"another length": nil,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fakeverbs.MCDMA, Options{}, func(t *testing.T, e *ends) {
				a, b := e.mustCarry(t)
				l := a.d.lanes[0]
				n := notice{epoch: a.d.t.epoch, number: 1, slot: 1, head: 96, body: 100} // frame 0 was the trial
				note := l.out.notes.slot(1)[:noticeSize]
				if change == nil {
					note = note[:noticeSize-1]
				} else {
					change(&n)
				}
				n.put(l.out.notes.slot(1))
				wr := verbs.SendWR{Op: verbs.OpSend, Local: one(l.out.notes.segment(note))}
				if err := l.post([]verbs.SendWR{wr}, &l.out.signalAll); err != nil {
					t.Fatal(err)
				}
				<-b.d.dead
				if err := b.d.why(); !errors.Is(err, transport.ErrProtocol) || !errors.Is(err, transport.ErrLost) {
					t.Errorf("the peer says: %v", err)
				}
				if err := errors.Join(a.d.Close(), b.d.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
