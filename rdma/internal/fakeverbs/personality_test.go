package fakeverbs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pdlink/rdma/internal/verbs"
)

// limit is one thing that a provider does not do.
type limit struct {
	name string
	lift func(p *Personality)
	// try does it and returns why it did not work.
	try func(b *bed) error
}

func depth(n int) func(b *bed) error {
	return func(b *bed) error {
		cq, err := b.a.pd.NewCQ(8, nil)
		if err != nil {
			return err
		}
		b.a.undo = append(b.a.undo, cq.Close)
		kind := verbs.RC
		if !b.a.h.p.RC {
			kind = verbs.UC
		}
		q, err := b.a.pd.NewQP(verbs.QPOptions{Kind: kind, SendCQ: cq, RecvCQ: cq, MaxSend: n, MaxRecv: 1})
		if err == nil {
			b.a.undo = append(b.a.undo, q.Close)
		}
		return err
	}
}

func entries(n int) func(b *bed) error {
	return func(b *bed) error {
		cq, err := b.a.pd.NewCQ(n, nil)
		if err == nil {
			b.a.undo = append(b.a.undo, cq.Close)
		}
		return err
	}
}

// regions registers n regions of size bytes beside the one that there is.
func regions(n, size int, access verbs.Access) func(b *bed) error {
	return func(b *bed) error {
		mem, unmap, err := verbs.Map(size)
		if err != nil {
			return err
		}
		b.a.undo = append(b.a.undo, unmap)
		for range n {
			mr, err := b.a.pd.Register(mem, access)
			if err != nil {
				return err
			}
			b.a.undo = append(b.a.undo, mr.Deregister)
		}
		return nil
	}
}

func pairsOf(n int) func(b *bed) error {
	return func(b *bed) error {
		for range n {
			if err := depth(1)(b); err != nil {
				return err
			}
		}
		return nil
	}
}

// op sends one request to a receive of the same size.
func op(wr verbs.SendWR, n int) func(b *bed) error {
	return func(b *bed) error {
		w, err := b.connect(verbs.QPOptions{MaxInline: inlineOf(wr, n)})
		if err != nil {
			return err
		}
		if _, err := w.b.PostRecv([]verbs.RecvWR{{ID: 7, Local: b.b.segment(0, n)[0]}}); err != nil {
			return err
		}
		for i := range b.a.mem[:n] {
			b.a.mem[i] = byte(i + 1)
		}
		wr.Local = b.a.segment(0, n)
		wr.RemoteAddr, wr.RemoteKey = b.b.mr.Addr+memSize/2, b.b.mr.Remote
		if err := w.send(wr); err != nil {
			return err
		}
		if wr.Op == verbs.OpWrite && b.b.mem[memSize/2] != 1 {
			return errors.New("the bytes are not where they were written to")
		}
		if wr.Op != verbs.OpWriteImm && wr.Op != verbs.OpSendImm {
			return nil
		}
		c, err := await(w.recvB)
		if err == nil {
			err = c.Err()
		}
		if err == nil && (!c.HasImm || c.Imm != wr.Imm) {
			err = fmt.Errorf("immediate %v %d", c.HasImm, c.Imm)
		}
		if err == nil && wr.Op == verbs.OpWriteImm && c.Op != verbs.WCRecvImm {
			err = errors.New("it looks like a plain receive")
		}
		return err
	}
}

func inlineOf(wr verbs.SendWR, n int) int {
	if wr.Flags&verbs.FlagInline != 0 {
		return n
	}
	return 0
}

func plain(b *bed) error {
	w, err := b.connect(verbs.QPOptions{})
	if err != nil {
		return err
	}
	list := []verbs.SendWR{
		{ID: 1, Op: verbs.OpSend, Local: b.a.segment(0, 4096)},
		{ID: 2, Op: verbs.OpSend, Flags: verbs.FlagSignalled, Local: b.a.segment(0, 4096)},
	}
	w.b.PostRecv([]verbs.RecvWR{{Local: b.b.segment(0, 4096)[0]}, {Local: b.b.segment(0, 4096)[0]}})
	if _, err := w.a.PostSend(list); err != nil {
		return err
	}
	c, err := await(w.sendA)
	if err == nil && c.ID != 2 {
		err = fmt.Errorf("completion of request %d", c.ID)
	}
	return err
}

func channelOf(b *bed) error {
	ch, err := b.a.pd.NewChannel()
	if err == nil {
		b.a.undo = append(b.a.undo, ch.Close)
	}
	return err
}

func kind(k verbs.QPKind) func(b *bed) error {
	return func(b *bed) error {
		_, _, _, err := b.a.pairOf(verbs.QPOptions{Kind: k})
		return err
	}
}

// walk moves a queue pair with attributes that change changes.
func walk(change func(at *verbs.QPAttr)) func(b *bed) error {
	return func(b *bed) error {
		q, _, _, err := b.a.pairOf(verbs.QPOptions{})
		if err != nil {
			return err
		}
		at := b.a.attr(verbs.AccessRemoteWrite, q, b.b)
		change(&at)
		for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
			if err := q.Modify(s, at); err != nil {
				return err
			}
		}
		return nil
	}
}

func toError(b *bed) error {
	w, err := b.connect(verbs.QPOptions{})
	if err != nil {
		return err
	}
	return w.a.Modify(verbs.StateError, verbs.QPAttr{})
}

// told waits for the event of a queue pair that broke.
func told(b *bed) error {
	if _, err := b.connect(verbs.QPOptions{}); err != nil {
		return err
	}
	b.a.h.Break()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := b.a.dev.Event(ctx)
	return err
}

// closeBusy destroys a queue pair that has a receive posted.
func closeBusy(b *bed) error {
	w, err := b.connect(verbs.QPOptions{})
	if err != nil {
		return err
	}
	if _, err := w.b.PostRecv([]verbs.RecvWR{{Local: b.b.segment(0, 4096)[0]}}); err != nil {
		return err
	}
	return w.b.Close()
}

// limits are the rows of the table of what providers do, where the answer is no.
func limits() map[string][]limit {
	write := verbs.SendWR{Op: verbs.OpWrite}
	return map[string][]limit{
		"mlx5": {
			{"inline of 513 bytes", func(p *Personality) { p.MaxInline = 513 }, op(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline}, 513)},
			{"queue of 8193", func(p *Personality) { p.MaxQPWR = 8193 }, depth(8193)},
		},
		"mcdma": {
			{"queue of 32", func(p *Personality) { p.MaxQPWR = 32 }, depth(32)},
			{"completion queue of 32", func(p *Personality) { p.MaxCQE = 32 }, entries(32)},
			{"completion channel", func(p *Personality) { p.NoChannel = false }, channelOf},
			{"unsignalled", func(p *Personality) { p.MustSignal = false }, plain},
			{"region above 4 MiB", func(p *Personality) { p.MaxMRSize = 8 << 20 }, regions(1, 4<<20+4096, 0)},
			{"65 regions", func(p *Personality) { p.MaxMR = 65 }, regions(64, 4096, 0)},
			{"128 MiB in all", func(p *Personality) { p.MaxPinned = 256 << 20 }, regions(32, 4<<20, 0)},
			{"257 queue pairs", func(p *Personality) { p.MaxQP = 257 }, pairsOf(257)},
			{"UC", func(p *Personality) { p.UC = true }, kind(verbs.UC)},
			{"local write in INIT", func(p *Personality) { p.InitAccess |= verbs.AccessLocalWrite }, walk(func(at *verbs.QPAttr) { at.Access |= verbs.AccessLocalWrite })},
			{"two READs", func(p *Personality) { p.ExactRead, p.MaxRead = false, 2 }, walk(func(at *verbs.QPAttr) { at.MaxReadIn, at.MaxReadOut = 2, 2 })},
			{"no READ", func(p *Personality) { p.ExactRead = false }, walk(func(at *verbs.QPAttr) { at.MaxReadIn, at.MaxReadOut = 0, 0 })},
			{"GID index 1", func(p *Personality) { p.GIDZero, p.GIDs = false, 1 }, walk(func(at *verbs.QPAttr) { at.GIDIndex = 1 })},
			{"error state", func(p *Personality) { p.NoError = false }, toError},
			{"event of a queue pair", func(p *Personality) { p.PortEvents = false }, told},
			{"inline", func(p *Personality) { p.MaxInline = 32 }, op(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline}, 32)},
			{"receiving an immediate", func(p *Personality) { p.BadImm = false }, op(verbs.SendWR{Op: verbs.OpWriteImm, Imm: 5}, 64)},
			{"destroying what is busy", func(p *Personality) { p.SlowClose = false }, closeBusy},
		},
		"melondma": {
			{"queue of 4097", func(p *Personality) { p.MaxQPWR = 4097 }, depth(4097)},
			{"completion queue of 2049", func(p *Personality) { p.MaxCQE = 2049 }, entries(2049)},
			{"129 regions", func(p *Personality) { p.MaxMR = 129 }, regions(128, 4096, 0)},
			{"512 MiB in all", func(p *Personality) { p.MaxPinned = 1 << 30 }, regions(8, 64<<20, 0)},
			{"65 queue pairs", func(p *Personality) { p.MaxQP = 65 }, pairsOf(65)},
			{"inline of 513 bytes", func(p *Personality) { p.MaxInline = 513 }, op(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline}, 513)},
			{"error state", func(p *Personality) { p.NoError = false }, toError},
			{"opcode of an immediate", func(p *Personality) { p.PlainImm = false }, op(verbs.SendWR{Op: verbs.OpWriteImm, Imm: 5}, 64)},
		},
		"apple": {
			{"RC", func(p *Personality) { p.RC = true }, kind(verbs.RC)},
			{"WRITE", func(p *Personality) { p.RC, p.MaxRead, p.NoWrite = true, 1, false }, op(write, 4096)},
			{"READ", func(p *Personality) { p.RC, p.MaxRead, p.NoRead = true, 1, false }, op(verbs.SendWR{Op: verbs.OpRead}, 4096)},
			{"immediate", func(p *Personality) { p.NoImmediate = false }, op(verbs.SendWR{Op: verbs.OpSendImm, Imm: 9}, 4096)},
			{"message of 5,000 bytes", func(p *Personality) { p.Frames = 0 }, messageOf(5000)},
			{"completion channel", func(p *Personality) { p.NoChannel = false }, channelOf},
			{"unsignalled", func(p *Personality) { p.MustSignal = false }, plain},
			{"region above 16.4 MB", func(p *Personality) { p.MaxMRSize = 32 << 20 }, regions(1, 0xfa0000+4096, 0)},
			{"101 regions", func(p *Personality) { p.MaxMR = 101 }, regions(100, 4096, 0)},
			{"11 queue pairs", func(p *Personality) { p.MaxQP = 11 }, pairsOf(11)},
			{"error state", func(p *Personality) { p.NoError = false }, toError},
			{"events", func(p *Personality) { p.NoEvents = false }, told},
			{"inline", func(p *Personality) { p.MaxInline = 32 }, op(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline}, 32)},
			{"queue of 4096", func(p *Personality) { p.MaxQPWR = 4096 }, depth(4096)},
		},
	}
}

// messageOf sends a message of n bytes to a receive of as many and looks whether it
// arrived.
func messageOf(n int) func(b *bed) error {
	return func(b *bed) error {
		w, err := b.connect(verbs.QPOptions{})
		if err != nil {
			return err
		}
		if _, err := w.b.PostRecv([]verbs.RecvWR{{Local: b.b.segment(0, n)[0]}}); err != nil {
			return err
		}
		if err := w.send(verbs.SendWR{Op: verbs.OpSend, Local: b.a.segment(0, n)}); err != nil {
			return err
		}
		c, err := await(w.recvB)
		if err == nil {
			err = c.Err()
		}
		return err
	}
}

func all() map[string]func() Personality {
	return map[string]func() Personality{"mlx5": MLX5, "mcdma": MCDMA, "melondma": MelonDMA, "apple": Apple}
}

// TestLimits tries what each provider does not do: it fails, and works when the limit
// is lifted, so that nothing else is in the way.
func TestLimits(t *testing.T) {
	for name, rows := range limits() {
		for _, l := range rows {
			t.Run(name+"/"+l.name, func(t *testing.T) {
				t.Parallel()
				p := all()[name]()
				if err := l.try(newBed(t, p)); err == nil {
					t.Error("it works")
				}
				l.lift(&p)
				if err := l.try(newBed(t, p)); err != nil {
					t.Errorf("without the limit: %v", err)
				}
			})
		}
	}
}

// TestWorks does what each provider does.
func TestWorks(t *testing.T) {
	reliable := map[string]func(b *bed) error{
		"WRITE": op(verbs.SendWR{Op: verbs.OpWrite}, 5000), "READ": op(verbs.SendWR{Op: verbs.OpRead}, 5000),
		"SEND": messageOf(5000), "queue of 31": depth(31), "31 entries": entries(31), "region of 4 MiB": regions(1, 4<<20, remoteAccess),
	}
	rows := map[string]map[string]func(b *bed) error{
		"mcdma": reliable, "melondma": reliable, "mlx5": reliable,
		"apple": {"SEND of frames": messageOf(8192), "SEND to nobody": func(b *bed) error {
			w, err := b.connect(verbs.QPOptions{})
			if err != nil {
				return err
			}
			return w.send(verbs.SendWR{Op: verbs.OpSend, Local: b.a.segment(0, 4096)})
		}},
	}
	for name, list := range rows {
		for what, try := range list {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				if err := try(newBed(t, all()[name]())); err != nil {
					t.Error(err)
				}
			})
		}
	}
	more := map[string]func(b *bed) error{
		"channel": channelOf, "unsignalled": plain, "immediate": op(verbs.SendWR{Op: verbs.OpWriteImm, Imm: 77}, 100),
		"UC": kind(verbs.UC), "error state": toError, "events": told, "inline": op(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline}, 512),
	}
	for what, try := range more {
		t.Run("mlx5/"+what, func(t *testing.T) {
			t.Parallel()
			if err := try(newBed(t, MLX5())); err != nil {
				t.Error(err)
			}
		})
	}
}
