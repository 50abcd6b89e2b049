//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"pdlink/transport"
)

// pd is a struct ibv_pd.
type pd struct {
	dev  *device
	c    uintptr
	life life
}

func (p *pd) Close() error {
	return p.life.end("protection domain of "+p.dev.name, func() error {
		if err := p.dev.lib.code("free protection domain", p.dev.lib.deallocPD, p.c); err != nil {
			return err
		}
		p.dev.life.leave()
		return nil
	}, nothing)
}

// mr is a struct ibv_mr.
type mr struct {
	pd   *pd
	c    uintptr
	info MRInfo
	life life
}

func (p *pd) Register(mem []byte, access Access) (MR, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: registration of no memory", transport.ErrInvalid)
	}
	if err := p.life.use(); err != nil {
		return nil, err
	}
	lib, first, size := p.dev.lib, uintptr(Addr(mem)), uintptr(len(mem))
	doing := fmt.Sprintf("register %d bytes with %s", size, p.dev.name)
	c, err := lib.pointer(doing, lib.regMR, p.c, first, size, uintptr(access))
	if err != nil {
		p.life.leave()
		return nil, explain(err, access, uint64(size), memoryNow())
	}
	m := at[cMR](c)
	return &mr{pd: p, c: c, info: MRInfo{Addr: uint64(first), Length: len(mem), Local: m.LKey, Remote: m.RKey}}, nil
}

// memory is what limits the memory that a process may register.
type memory struct {
	limit   uint64 // bytes that it may lock; noLimit
	locked  uint64 // that it has locked with devices
	group   uint64 // bytes that its control group may have; noLimit
	charged uint64 // that this has
}

// noLimit stands for a limit that does not hold, or that is not known.
const noLimit = 1 << 62

// exceeded reports whether size more bytes than have are above a limit.
func exceeded(limit, have, size uint64) bool { return limit < noLimit && have+size > limit }

// explain gives a failed registration the sentinel of its most likely reason. What m
// does not explain is memory that the system or the device does not have now: less of it
// may do.
func explain(err error, access Access, size uint64, m memory) error {
	const known = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead
	switch {
	case errnoIs(err, syscall.EINVAL) && access&^known != 0:
		return fmt.Errorf("%w: access flags %#x: %w", ErrUnsupported, uint32(access), err)
	case !errnoIs(err, syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM):
		return err
	case exceeded(m.limit, m.locked, size):
		return fmt.Errorf("%w: %w: this process may lock %d KiB of memory in all and has locked %d, this needs %d KiB (%s)",
			transport.ErrUnavailable, err, m.limit>>10, m.locked>>10, size>>10, memoryCure)
	case exceeded(m.group, m.charged, size):
		return fmt.Errorf("%w: the control group of this process may have %d KiB of memory and has %d, this needs %d KiB (raise its memory.max: MemoryMax= of the service)",
			err, m.group>>10, m.charged>>10, size>>10)
	case errnoIs(err, syscall.ENOMEM):
		return fmt.Errorf("%w: out of memory or of resources of the device", err)
	}
	return err
}

func (m *mr) Info() MRInfo { return m.info }

func (m *mr) Deregister() error {
	return m.life.end("memory", func() error {
		if err := m.pd.dev.lib.code("deregister memory", m.pd.dev.lib.deregMR, m.c); err != nil {
			return err
		}
		m.pd.life.leave()
		return nil
	}, nothing)
}

// nothing is what an object has that has no memory of this end.
func nothing() error { return nil }

func (p *pd) NewQP(o QPOptions) (QP, error) {
	if o.Kind == 0 {
		o.Kind = RC
	}
	send, sok := o.SendCQ.(*cq)
	recv, rok := o.RecvCQ.(*cq)
	switch {
	case !sok || !rok || send.pd.dev != p.dev || recv.pd.dev != p.dev:
		return nil, fmt.Errorf("%w: queue pair without completion queues of its device", transport.ErrInvalid)
	case o.MaxSend < 0 || o.MaxRecv < 0 || o.MaxInline < 0 || o.SendSegments < 0 || o.SendSegments > MaxSegments:
		return nil, fmt.Errorf("%w: queue pair of %d and %d requests, %d segments, %d bytes inline", transport.ErrInvalid,
			o.MaxSend, o.MaxRecv, o.SendSegments, o.MaxInline)
	}
	users := []*life{&p.life, &send.life, &recv.life}
	for i, l := range users {
		if err := l.use(); err != nil {
			leaveAll(users[:i])
			return nil, err
		}
	}
	q, err := p.newQP(o, send, recv)
	if err != nil {
		leaveAll(users)
		return nil, err
	}
	q.users = users
	return q, nil
}

func leaveAll(users []*life) {
	for _, l := range users {
		l.leave()
	}
}

func (p *pd) newQP(o QPOptions, send, recv *cq) (*qp, error) {
	lib := p.dev.lib
	if ops := p.dev.table(); ops.PostSend == 0 || ops.PostRecv == 0 {
		return nil, fmt.Errorf("%w: make a queue pair on %s: its provider lacks ibv_post_send or ibv_post_recv", ErrUnsupported, p.dev.name)
	}
	var made uintptr
	var granted cQPCap
	err := with(p.dev, func(c *cQPInitAttr) error {
		*c = cQPInitAttr{SendCQ: send.c, RecvCQ: recv.c, QPType: uint32(o.Kind), Cap: cQPCap{
			MaxSendWR: uint32(o.MaxSend), MaxRecvWR: uint32(o.MaxRecv), MaxInlineData: uint32(o.MaxInline),
			MaxSendSGE: uint32(max(o.SendSegments, 1)), MaxRecvSGE: 1,
		}}
		var err error
		made, err = lib.pointer("make a queue pair on "+p.dev.name, lib.createQP, p.c, addrOf(c))
		granted = c.Cap
		return err
	})
	if err != nil {
		return nil, err
	}
	info := QPInfo{
		Number: at[cQP](made).QPNum, Kind: o.Kind, MaxSend: int(granted.MaxSendWR), MaxRecv: int(granted.MaxRecvWR),
		SendSegments: min(int(granted.MaxSendSGE), MaxSegments), MaxInline: int(granted.MaxInlineData),
	}
	q, err := newQPMemory(p.dev, made, info)
	if err != nil {
		return nil, errors.Join(err, lib.code("destroy queue pair", lib.destroyQP, made))
	}
	return q, nil
}

// table is the part of a context through which its queues are used.
func (d *device) table() *cContextOps { return &at[cContext](d.ctx).Ops }

// region hands out parts of one mapping, each aligned to a cache line.
type region struct{ rest []byte }

// take gives n values of T, zeroed.
func take[T any](r *region, n int) []T {
	var t T
	size := (n*int(unsafe.Sizeof(t)) + cacheLine - 1) &^ (cacheLine - 1)
	part := r.rest[:size]
	r.rest = r.rest[size:]
	return unsafe.Slice(at[T](uintptr(Addr(part))), n)
}

const cacheLine = 64
