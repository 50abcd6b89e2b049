//go:build rdmavm

package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
)

// TestVMWriteThenSend moves blocks by WRITE and announces each by a SEND on the same
// pair: the receive's completion says that the block is there.
func TestVMWriteThenSend(t *testing.T) {
	const size, slots, blocks, notice = 4 << 20, 4, 24, 32
	const notices = slots * size // receives, then what is sent
	a, b := connected(t, slots*size+2*depth*notice, QPOptions{MaxInline: notice, MaxSend: depth, MaxRecv: depth})
	for i := range slots {
		a.postRecv(RecvWR{ID: uint64(i), Local: a.segment(notices+i*notice, notice)})
		b.postRecv(RecvWR{ID: uint64(i), Local: b.segment(notices+i*notice, notice)})
	}
	begun := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range blocks {
			c := a.good1(a.recv)
			got := a.mem[notices+int(c.ID)*notice:]
			if n := binary.LittleEndian.Uint64(got); n != uint64(i) || c.Length != notice || c.Op != WCRecv || c.QP != a.qp.Info().Number {
				t.Errorf("completion %+v of block %d, want %d", c, n, i)
			}
			slot := i % slots
			if err := same(a.mem[slot*size:(slot+1)*size], uint64(i)); err != nil {
				t.Error(err)
			}
			a.postRecv(RecvWR{ID: c.ID, Local: a.segment(notices+int(c.ID)*notice, notice)})
			// The way back says that the slot is free; without bytes.
			a.post(SendWR{ID: uint64(i), Op: OpSend, Flags: FlagSignalled})
			a.good(a.send, 1)
		}
	})
	free := slots
	for i := range blocks {
		if free == 0 {
			b.postRecv(RecvWR{ID: b.good1(b.recv).ID})
			free++
		}
		slot := i % slots
		fill(b.mem[slot*size:(slot+1)*size], uint64(i))
		n := b.mem[notices+(depth+slot)*notice:]
		binary.LittleEndian.PutUint64(n, uint64(i))
		b.post(
			SendWR{ID: 1, Op: OpWrite, RemoteAddr: a.mr.Info().Addr + uint64(slot*size), RemoteKey: a.mr.Info().Remote, Local: one(b.segment(slot*size, size))},
			SendWR{ID: 2, Op: OpSend, Flags: FlagSignalled | FlagInline, Local: one(b.segment(notices+(depth+slot)*notice, notice))},
		)
		binary.LittleEndian.PutUint64(n, 1<<63) // inline: it was taken
		if c := b.good1(b.send); c.ID != 2 || c.Op != WCSend {
			t.Errorf("completion %+v, want that of the notice alone", c)
		}
		free--
	}
	wg.Wait()
	took := time.Since(begun)
	t.Logf("%d blocks of %d bytes, made and checked: %.1f MB/s", blocks, size, blocks*size/1e6/took.Seconds())
}

// good1 is one good completion.
func (e *end) good1(q CQ) Completion {
	e.t.Helper()
	var out [1]Completion
	c := e.next(q, out[:])[0]
	if err := c.Err(); err != nil {
		e.t.Error(err)
		runtime.Goexit()
	}
	return c
}

func TestVMOperations(t *testing.T) {
	const half = 1 << 16
	for name, kind := range map[string]QPKind{"RC": RC, "UC": UC} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, 2*half, QPOptions{Kind: kind, MaxSend: depth, MaxRecv: depth, SendSegments: 2})
			peer := a.mr.Info()
			fill(b.mem[:half], 7)

			// Two segments, the other way round.
			b.post(SendWR{ID: 5, Op: OpWrite, Flags: FlagSignalled, RemoteAddr: peer.Addr, RemoteKey: peer.Remote,
				Local: [2]Segment{b.segment(half/2, half/2), b.segment(0, half/2)}})
			if c := b.good1(b.send); c.ID != 5 || c.Op != WCWrite {
				t.Errorf("completion %+v of a WRITE", c)
			}
			a.postRecv(RecvWR{ID: 9})
			const number = 0xfeed0123
			b.post(SendWR{Op: OpWriteImm, Flags: FlagSignalled, Imm: number, RemoteAddr: peer.Addr + half, RemoteKey: peer.Remote, Local: one(b.segment(0, half))})
			if c := a.good1(a.recv); c.ID != 9 || c.Op != WCRecvImm || !c.HasImm || c.Imm != number || c.Length != half {
				t.Errorf("completion %+v of a WRITE with immediate", c)
			}
			if err := errors.Join(same(a.mem[half:], 7), equal(a.mem[:half/2], b.mem[half/2:half]), equal(a.mem[half/2:half], b.mem[:half/2])); err != nil {
				t.Error(err)
			}
			b.good(b.send, 1)
			a.postRecv(RecvWR{ID: 10, Local: a.segment(0, half)})
			b.post(SendWR{Op: OpSendImm, Flags: FlagSignalled, Imm: 1, Local: one(b.segment(0, 100))})
			if c := a.good1(a.recv); c.Op != WCRecv || !c.HasImm || c.Imm != 1 || c.Length != 100 {
				t.Errorf("completion %+v of a SEND with immediate", c)
			}
			b.good(b.send, 1)
			if kind == UC {
				return
			}
			clear(b.mem[half:])
			b.post(SendWR{ID: 6, Op: OpRead, Flags: FlagSignalled, RemoteAddr: peer.Addr + half, RemoteKey: peer.Remote, Local: one(b.segment(half, half))})
			if c := b.good1(b.send); c.ID != 6 || c.Op != WCRead {
				t.Errorf("completion %+v of a READ", c)
			}
			if err := same(b.mem[half:], 7); err != nil {
				t.Error(err)
			}
		})
	}
}

func equal(got, want []byte) error {
	if string(got) != string(want) {
		return errors.New("bytes differ")
	}
	return nil
}

// TestVMWrongKey writes where it may not: the WRITE fails, what is behind it is
// flushed, and receives of both ends are too.
func TestVMWrongKey(t *testing.T) {
	a, b := connected(t, 8192, QPOptions{})
	a.postRecv(RecvWR{ID: 1})
	b.postRecv(RecvWR{ID: 11}, RecvWR{ID: 12})
	b.post(
		SendWR{ID: 1, Op: OpWrite, Flags: FlagSignalled, RemoteAddr: a.mr.Info().Addr, RemoteKey: a.mr.Info().Remote ^ 0x55, Local: one(b.segment(0, 4096))},
		SendWR{ID: 2, Op: OpSend, Flags: FlagSignalled},
	)
	got := b.statuses(b.send, 2)
	if got[0] != (Completion{ID: 1, Status: StatusRemoteAccess}) || got[1] != (Completion{ID: 2, Status: StatusFlushed}) {
		t.Errorf("completions %+v", got)
	}
	if err := got[0].Err(); err == nil || !strings.Contains(err.Error(), "remote access error") {
		t.Errorf("in words: %v", err)
	}
	// Soft-RoCE flushes the receives of the requester itself when it is moved.
	if err := b.qp.Modify(StateError, QPAttr{}); err != nil {
		t.Fatal(err)
	}
	flushed := b.statuses(b.recv, 2)
	if flushed[0] != (Completion{ID: 11, Status: StatusFlushed}) || flushed[1] != (Completion{ID: 12, Status: StatusFlushed}) {
		t.Errorf("receives %+v", flushed)
	}
}

// statuses are the next n completions, with what a failed one says.
func (e *end) statuses(q CQ, n int) []Completion {
	e.t.Helper()
	var all []Completion
	for len(all) < n {
		var out [4]Completion
		for _, c := range e.next(q, out[:]) {
			all = append(all, Completion{ID: c.ID, Status: c.Status})
		}
	}
	return all
}

// TestVMErrorThenAgain takes a pair through the walk a second time.
func TestVMErrorThenAgain(t *testing.T) {
	a, b := connected(t, 8192, QPOptions{})
	for _, e := range []*end{a, b} {
		e.postRecv(RecvWR{ID: 3})
		if err := e.qp.Modify(StateError, QPAttr{}); err != nil {
			t.Fatal(err)
		}
		if got := e.statuses(e.recv, 1); got[0].Status != StatusFlushed {
			t.Errorf("receive ended with %v", got[0].Status)
		}
		if err := e.qp.Modify(StateReset, QPAttr{}); err != nil {
			t.Fatal(err)
		}
	}
	a.move(b, StateInit, StateRTR, StateRTS)
	b.move(a, StateInit, StateRTR, StateRTS)
	a.postRecv(RecvWR{ID: 4})
	b.post(SendWR{Op: OpSend, Flags: FlagSignalled})
	if c := a.good1(a.recv); c.ID != 4 {
		t.Errorf("completion %+v", c)
	}
	b.good(b.send, 1)
	if err := b.qp.Modify(StateRTR, b.attr(a)); err == nil {
		t.Error("a pair goes back")
	}
	if err := b.qp.Modify(QPState(5), b.attr(a)); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("move to a state that is not of the walk: %v", err)
	}
}

// TestVMFull fills queues whose peer takes nothing.
func TestVMFull(t *testing.T) {
	a, b := connected(t, 8192, QPOptions{MaxSend: 16, MaxRecv: 16})
	if err := a.qp.Modify(StateReset, QPAttr{}); err != nil {
		t.Fatal(err)
	}
	room := b.qp.Info().MaxSend
	if room < 16 || b.qp.Info().MaxRecv < 16 {
		t.Fatalf("granted %+v", b.qp.Info())
	}
	list := make([]SendWR, room+chainMax+3)
	for i := range list {
		list[i] = SendWR{ID: uint64(i), Op: OpSend, Flags: FlagSignalled}
	}
	n, err := b.qp.PostSend(list)
	if !errors.Is(err, ErrFull) || n < 16 || n > 2*room {
		t.Errorf("posted %d of %d requests to a queue of %d: %v", n, len(list), room, err)
	}
	if more, err := b.qp.PostSend(list[:1]); more != 0 || !errors.Is(err, ErrFull) {
		t.Errorf("posted %d more: %v", more, err)
	}
	recvs := make([]RecvWR, 200)
	n, err = b.qp.PostRecv(recvs)
	if !errors.Is(err, ErrFull) || n < 16 || n > 2*b.qp.Info().MaxRecv {
		t.Errorf("posted %d receives to a queue of %d: %v", n, b.qp.Info().MaxRecv, err)
	}
	if _, err := b.qp.PostSend([]SendWR{{Op: 77}}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an operation that nobody knows: %v", err)
	}
}

// TestVMLongList posts more than one chain holds, with every tenth completing.
func TestVMLongList(t *testing.T) {
	const n = 3*chainMax + 5
	a, b := connected(t, 8192, QPOptions{MaxSend: n + 1, MaxRecv: n + 1})
	recvs, sends := make([]RecvWR, n), make([]SendWR, n)
	for i := range n {
		recvs[i] = RecvWR{ID: uint64(i), Local: a.segment(i*8, 8)}
		sends[i] = SendWR{ID: uint64(i), Op: OpSend, Local: one(b.segment(i*8, 8))}
		if i%10 == 9 || i == n-1 {
			sends[i].Flags = FlagSignalled
		}
		binary.LittleEndian.PutUint64(b.mem[i*8:], uint64(i)*3)
	}
	a.postRecv(recvs...)
	b.post(sends...)
	for i, c := range a.good(a.recv, n) {
		if c.ID != uint64(i) || binary.LittleEndian.Uint64(a.mem[i*8:]) != uint64(i)*3 {
			t.Fatalf("completion %d is %+v", i, c)
		}
	}
	if got := len(b.good(b.send, n/10+1)); got != n/10+1 {
		t.Errorf("%d sends completed", got)
	}
}

func TestVMChannel(t *testing.T) {
	a, b := connected(t, 8192, QPOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	if err := a.ch.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait without an event: %v", err)
	}
	cancel()
	// Woken before, woken while it waits, and nothing left over.
	a.ch.Wake()
	a.ch.Wake()
	if err := a.ch.Wait(t.Context()); err != nil {
		t.Errorf("wait after wake: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.ch.Wait(t.Context()) }()
	time.Sleep(10 * time.Millisecond) // more likely to find it waiting; right either way
	a.ch.Wake()
	if err := <-ended; err != nil {
		t.Errorf("wait that is woken: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.ch.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait after all wakes were seen: %v", err)
	}
	// One event for either queue; a completion before arming gives none.
	if err := errors.Join(a.recv.Arm(), b.send.Arm()); err != nil {
		t.Fatal(err)
	}
	a.postRecv(RecvWR{ID: 1}, RecvWR{ID: 2})
	b.post(SendWR{Op: OpSend, Flags: FlagSignalled})
	for _, e := range []*end{a, b} {
		if err := e.ch.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a.good(a.recv, 1)
	b.good(b.send, 1)
	noChannel := must(a.pd.NewCQ(4, nil))(t)
	defer noChannel.Close()
	if err := noChannel.Arm(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("arm without a channel: %v", err)
	}
}
