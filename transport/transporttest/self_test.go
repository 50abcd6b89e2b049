package transporttest

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// TestSuiteCatches breaks a right link in one way at a time and wants the check
// that is there for it to say so.
func TestSuiteCatches(t *testing.T) {
	var hold sync.WaitGroup
	release := make(chan struct{})
	hold.Go(func() { <-release })
	defer hold.Wait()
	defer close(release)
	extra := func(f func()) func(transport.Conn) transport.Conn {
		return func(c transport.Conn) transport.Conn { return closer{c, &sync.Once{}, f} }
	}
	for _, c := range []struct {
		fault, check, says string
		s                  sabotage
	}{
		{"acks are dropped", "keep/until every block is acknowledged", "slots come back after blocks 1 and 2",
			sabotage{interceptB: dropSent(wire.TypeAck)}},
		{"acks are dropped", "traffic/kept until acknowledged", "deadline exceeded",
			sabotage{interceptB: dropSent(wire.TypeAck)}},
		{"slots are not kept", "keep/until every block is acknowledged", "are kept after nothing was acknowledged",
			sabotage{open: func(r *transport.Request) { r.Replayable = true }}},
		{"grants are dropped", "credit/receiver that does not release", "send with a window of",
			sabotage{interceptB: dropSent(wire.TypeGrant)}},
		{"grants are ignored", "credit/receiver that does not release", "send with a window of",
			sabotage{interceptA: overGrant}},
		{"window is larger than agreed", "credit/receiver that does not release", "5 frames passed",
			sabotage{options: func(_, b *session.Options) { b.Window += 2 }}},
		{"bytes are wrong", "traffic/random frames", "wrong byte",
			sabotage{in: func(in transport.Incoming) transport.Incoming { return corrupter{in} }}},
		{"a frame is lost", "traffic/random frames", "arrived, want the first",
			sabotage{in: func(in transport.Incoming) transport.Incoming { return dropper{in, &sync.Once{}} }}},
		{"a mark overtakes a frame", "traffic/mark after frames", "were sent before it",
			sabotage{in: func(in transport.Incoming) transport.Incoming { return &swapper{Incoming: in} }}},
		{"flush does not wait", "flush/waits for durable", "flush whose mark is not received: ended",
			sabotage{out: func(o transport.Outgoing) transport.Outgoing { return liar{o} }}},
		{"missing pieces are listed again", "flush/missing is listed once", "flush after the missing pieces were listed",
			sabotage{out: func(o transport.Outgoing) transport.Outgoing { return &repeater{Outgoing: o} }}},
		{"a loss is called a close", "fault/cut while calls wait", "want one that is",
			sabotage{out: func(o transport.Outgoing) transport.Outgoing { return denier{o} }}},
		{"damage is not reported", "fault/damaged payload", "as missing",
			sabotage{interceptB: dropSent(wire.TypeNack)}},
		{"damage is not reported", "keep/damaged pieces are sent again", "send with every slot kept",
			sabotage{interceptB: dropSent(wire.TypeNack)}},
		{"answers are dropped", "keep/missing pieces are sent again", "deadline exceeded",
			sabotage{interceptB: dropSent(wire.TypeFlushed)}},
		{"kept frames end with their connection", "salvage/kept frames outlive the connection", "slots in use after the end",
			sabotage{open: func(r *transport.Request) { r.Salvage = nil }}},
		{"frames are saved of a transfer that can be read again", "salvage/what ended leaves nothing", "slots come back after",
			sabotage{open: func(r *transport.Request) { r.Replayable = false }}},
		{"everything is sent", "salvage/only what the peer lacks is sent", "were sent, want those of",
			sabotage{out: func(o transport.Outgoing) transport.Outgoing { return widener{o} }}},
		{"what is not sent is not kept", "salvage/what the peer has is kept and not sent", "slot of a durable block comes back",
			sabotage{out: func(o transport.Outgoing) transport.Outgoing { return forgetter{o} }}},
		{"window is larger than agreed", "credit/idle transfers leave a ring to others", "17 frames passed",
			sabotage{options: func(_, b *session.Options) { b.Window += 2 }}},
		{"damage is mended", "damage/cancel by the dialling end", "want one that is",
			sabotage{interceptB: mend}},
		{"damage is mended", "damage/open by the dialling end", "was accepted",
			sabotage{interceptB: mend}},
		{"damage is mended", "fault/damaged control message", "accept at the end that read a damaged message",
			sabotage{interceptB: mend}},
		{"cancels are dropped", "cancel/by the sender", "cancelled",
			sabotage{interceptA: dropSent(wire.TypeCancel)}},
		{"cancels are dropped", "cancel/by the receiver", "cancelled",
			sabotage{interceptB: dropSent(wire.TypeCancel)}},
		{"nobody asks", "deadline/silent peer", "want one that is",
			sabotage{options: func(a, b *session.Options) { a.PingEvery, b.PingEvery = -1, -1 }}},
		{"silence ends nothing", "deadline/silent peer", "want one that is",
			sabotage{options: func(a, b *session.Options) { a.LostAfter, b.LostAfter = -1, -1 }}},
		{"the end that hears nothing asks nothing", "deadline/silent peer", "does not say for how long nothing was heard",
			sabotage{options: func(_, b *session.Options) { b.PingEvery = -1 }}},
		{"nobody answers", "deadline/slow but living receiver", "connection lost",
			sabotage{
				interceptA: dropSent(wire.TypePong), interceptB: dropSent(wire.TypePong),
				// Few looks, so that a machine that is late for some still sees it.
				options: func(a, b *session.Options) {
					a.PingEvery, a.LostAfter = 8*time.Millisecond, 16*time.Millisecond
					b.PingEvery, b.LostAfter = a.PingEvery, a.LostAfter
				},
			}},
		{"facts change", "facts/stable", "facts changed",
			sabotage{conn: func(c transport.Conn) transport.Conn { return &changeling{Conn: c} }}},
		{"facts promise too much", "facts/largest frame", "the rings take",
			sabotage{conn: func(c transport.Conn) transport.Conn { return braggart{c} }}},
		{"close has the wrong name", "close/here ends every call", "want one that is",
			sabotage{conn: func(c transport.Conn) transport.Conn { return misnamer{c} }}},
		{"results are cut", "finish/result", "outcome",
			sabotage{out: func(o transport.Outgoing) transport.Outgoing { return truncater{o} }}},
		{"ids are not compared", "admit/duplicate id", "open a live id",
			sabotage{open: func(r *transport.Request) { r.ID = transport.NewID() }}},
		{"close leaves a goroutine", "facts/stable", "goroutines left behind",
			sabotage{conn: extra(func() { hold.Go(func() { <-release }) })}},
		{"close hangs", "facts/checksum", "all goroutines:",
			sabotage{conn: extra(func() { <-release })}},
		{"a slot is lost", "facts/stable", "slots never came back",
			sabotage{options: func(a, _ *session.Options) { a.SendRing.Take(context.Background(), nil) }}},
		{"a promise is lost", "facts/stable", "promises never came back",
			sabotage{options: func(_, b *session.Options) { b.RecvRing.Promise(1) }}},
		{"a check panics", "facts/stable", "panic: sabotage",
			sabotage{options: func(_, _ *session.Options) { panic("sabotage") }}},
	} {
		t.Run(c.fault+"/"+c.check, func(t *testing.T) { catches(t, c.s, c.check, c.says) })
	}
}

// overGrant makes an end believe in an endless grant.
func overGrant(f *Faults) {
	f.Hook(Hooks{TakeControl: func(msg []byte) []byte {
		if m, err := wire.Decode(msg); err == nil {
			if g, ok := m.(*wire.Admit); ok {
				g.Window = 1000
				if msg, err = wire.Append(nil, g); err != nil {
					return nil
				}
			}
		}
		return msg
	}})
}

// mend makes an end believe every message that it reads, damaged or not.
func mend(f *Faults) {
	f.Hook(Hooks{TakeControl: func(msg []byte) []byte { return seal(bytes.Clone(msg)) }})
}

// catches runs one check on a broken link and wants it to fail with a reason.
func catches(t *testing.T, s sabotage, name, says string) {
	h := s.harness(memHarness())
	h.Patience = 300 * time.Millisecond
	for _, c := range checks() {
		if c.name != name {
			continue
		}
		r := &recorder{TB: t}
		c.guarded(r, h, 1)
		if ok, all := r.said(says); !ok {
			t.Errorf("the check did not say %q, it said:\n%s", says, all)
		}
		return
	}
	t.Fatalf("there is no check %q", name)
}

// TestOpenFilesAreCaught: a file that a check leaves open is a failure where
// the system can tell.
func TestOpenFilesAreCaught(t *testing.T) {
	if openFiles() == nil {
		t.Log("this system does not tell about open files")
		return
	}
	r := &recorder{TB: t}
	var f *os.File
	guard(r, time.Second, func(tb testing.TB) {
		var err error
		if f, err = os.Open(os.DevNull); err != nil {
			tb.Fatal(err)
		}
	})
	defer f.Close()
	if ok, all := r.said("open files left behind"); !ok {
		t.Errorf("an open file was not noticed: %s", all)
	}
}

// TestGuard: cleanups run in reverse order even when one fails, and after a
// fatal failure of the body.
func TestGuard(t *testing.T) {
	r := &recorder{TB: t}
	var order strings.Builder
	guard(r, time.Second, func(tb testing.TB) {
		tb.Cleanup(func() { order.WriteString("1") })
		tb.Cleanup(func() { order.WriteString("2"); tb.Fatalf("in cleanup") })
		tb.Cleanup(func() { order.WriteString("3") })
		tb.Fatal("in body")
	})
	if order.String() != "321" {
		t.Errorf("cleanups ran in order %q, want 321", order.String())
	}
	if _, all := r.said(""); all != "in body\nin cleanup" {
		t.Errorf("failures %q", all)
	}
}

// TestNamesAreUnique: a name finds one check.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range checks() {
		if seen[c.name] {
			t.Errorf("two checks are called %q", c.name)
		}
		seen[c.name] = true
	}
}

// TestContent: filling in any cuts gives the same bytes, and one wrong byte is
// found where it is.
func TestContent(t *testing.T) {
	c, rng := content(7), newRand(7)
	whole := make([]byte, 1000)
	c.fill(whole, 3, 12345)
	parts := make([]byte, 1000)
	for at := 0; at < len(parts); {
		n := min(1+rng.IntN(50), len(parts)-at)
		c.fill(parts[at:at+n], 3, 12345+uint64(at))
		at += n
	}
	if !bytes.Equal(whole, parts) {
		t.Fatal("content depends on how it is cut")
	}
	if err := c.check(whole, 3, 12345); err != nil {
		t.Error(err)
	}
	for at := range whole {
		whole[at] ^= 0x40
		if err := c.check(whole, 3, 12345); err == nil {
			t.Fatalf("wrong byte %d was not found", at)
		}
		whole[at] ^= 0x40
	}
	if c.check(whole, 4, 12345) == nil || c.check(whole, 3, 12346) == nil || content(8).check(whole, 3, 12345) == nil {
		t.Error("content of another block, offset or seed is the same")
	}
}
