package prefill

import (
	"context"
	"sync"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/transport"
)

// sink is a carrier that throws everything away.
type sink struct {
	once sync.Once
	over chan struct{}
}

func newSink() *sink { return &sink{over: make(chan struct{})} }

func (c *sink) Wants(int) bool { return true }

func (c *sink) Give(_ context.Context, l *transport.Lease) error {
	l.Release()
	return nil
}

func (c *sink) Run(ctx context.Context, src bridge.Source) (bridge.Verdict, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	return bridge.Verdict{}, src.Run(ctx, nil)
}

func (c *sink) Close() { c.once.Do(func() { close(c.over) }) }

// FuzzWorker: whatever a worker says, the sidecar lives, and no slot is lost. A
// message is a type, a handle and the first bytes of its body.
func FuzzWorker(f *testing.F) {
	const size = 2 + 36
	script := func(messages ...message) (out []byte) {
		for _, m := range messages {
			out = append(out, byte(m.typ), byte(m.handle))
			out = append(out, m.body[:size-2]...)
		}
		return out
	}
	id := seqID(1)
	start := pack(typeBegin, 0, 1, &begin{Transfer: id, PromptTokens: 100, Mode: modePieces, DType: dtypeBF16})
	rowStart := pack(typeBegin, 0, 1, &begin{Transfer: id, PromptTokens: 100, Mode: modeRows, DType: dtypeBF16, RowBytes: 256})
	ask := pack(typeLease, 0, 1, &lease{Seq: 1})
	give := pack(typeCommit, 0, 1, &commit{Slot: 0, Generation: 1, Entries: 1, Payload: 64})
	f.Add(script(start, ask, give, pack(typeEnd, 0, 1, &end{})))
	f.Add(script(start, ask, pack(typeReturn, 0, 0, &commit{Slot: 0, Generation: 1}), pack(typeAbort, 0, 1, nil)))
	f.Add(script(rowStart, ask, give, give))
	f.Add(script(pack(typeReclaim, 0, 0, &reclaim{Transfer: id, Slot: 1, Generation: 1}), start, ask))
	d := newDecoder(f)
	h := newHost(f, d, Options{Slots: 8, LeaseWait: time.Millisecond, waits: waits{begin: time.Millisecond, back: time.Millisecond}})
	layout := d.newPrompt(f, "p", 3).layout
	f.Fuzz(func(t *testing.T, p []byte) {
		local := &host{Server: h.Server, tb: t, d: d}
		r := local.runJob(Job{ID: id, Carrier: newSink(), Layout: layout, Blocks: 3})
		c := &client{tb: t}
		must(t, c.open(h.socket, helloOf(0, 1, 1), nil))
		for i := range int(c.ring.Slots) { // lists that can be right
			copy(c.mem[pageSize+i*recordSize+recordHead:], entryOf(run{i % 3, 0, 64}))
		}
		for ; len(p) >= size; p = p[size:] {
			m := message{typ: msgType(p[0]), handle: uint32(p[1])}
			copy(m.body[:], p[2:size])
			if send(c.conn, m.appendTo(nil), nil) != nil {
				break // it was refused
			}
			if m.typ == typeBegin { // the answer, so that what follows is not too early
				c.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				var buf [messageSize]byte
				receive(c.conn, buf[:])
			}
		}
		c.close()
		eventually(t, "the connection is forgotten", func() bool { return h.count() == 0 })
		r.Cancel("enough")
		r.result()
		h.mu.Lock()
		for x := range h.orphans { // this process lives on
			delete(h.orphans, x)
			h.table.free(x)
		}
		h.mu.Unlock()
		eventually(t, "every slot is free", func() bool { return h.Ring().InUse() == 0 })
		if n := len(h.table.rowRoom); n != 4 {
			t.Fatalf("%d tokens for rows, want 4", n)
		}
	})
}

// BenchmarkCommit is what a slot of 1 MiB costs the sidecar, from LEASE to the link:
// two packets each way and the checksum.
func BenchmarkCommit(b *testing.B) {
	h := newHost(b, newDecoder(b), Options{Slots: 16, SlotSize: transport.DefaultSlot, LeaseWait: time.Second})
	spec := kvSpec()
	spec.BlockTokens, spec.HeadDim = 256, 256
	layout, err := omlx.NewLayout(spec)
	must(b, err)
	r := h.runJob(Job{ID: seqID(1), Carrier: newSink(), Layout: layout, Blocks: 1000})
	c := connect(b, h.socket, helloOf(0, 1, 1))
	handle, why, g, _ := c.begin(begin{Transfer: seqID(1), PromptTokens: 1 << 20, Mode: modePieces, DType: dtypeBF16})
	if why != codeOK {
		b.Fatal(why)
	}
	n := int64(min(1<<20, int(g.BlockBytes)))
	data := make([]byte, n)
	b.SetBytes(n)
	b.ReportAllocs()
	for b.Loop() {
		l, why := c.lease(handle, 0, time.Second)
		if why != codeOK {
			b.Fatal(why)
		}
		cm := c.fill(l, [][]byte{entryOf(run{0, 0, n})}, data[:0])
		cm.Payload = uint32(n)
		c.say(typeCommit, handle, &cm)
	}
	r.Cancel("enough")
	r.result()
}
