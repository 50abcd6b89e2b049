//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"pdlink/transport"
)

// channel is a struct ibv_comp_channel.
type channel struct {
	pd     *pd
	c      uintptr
	life   life
	waiter *waiter
	out    []uintptr // what an event is of, for Wait alone
	unmap  func() error
}

func (p *pd) NewChannel() (Channel, error) {
	if err := p.life.use(); err != nil {
		return nil, err
	}
	ch, err := p.newChannel()
	if err != nil {
		p.life.leave()
		return nil, err
	}
	return ch, nil
}

func (p *pd) newChannel() (*channel, error) {
	lib, doing := p.dev.lib, "make a completion channel on "+p.dev.name
	if lib.getEvent == 0 || lib.ackCQ == 0 || lib.destroyChannel == 0 {
		return nil, fmt.Errorf("%w: %s: %s lacks functions for it", ErrUnsupported, doing, lib.path)
	}
	if p.dev.table().ReqNotifyCQ == 0 { // no queue could be armed
		return nil, fmt.Errorf("%w: %s: its provider has no ibv_req_notify_cq", ErrUnsupported, doing)
	}
	c, err := lib.pointer(doing, lib.createChannel, p.dev.ctx)
	if err != nil {
		return nil, err
	}
	ch := &channel{pd: p, c: c}
	if ch.waiter, err = newWaiter("completions of "+p.dev.name, int(at[cChannel](c).FD)); err != nil {
		return nil, errors.Join(err, lib.code(doing, lib.destroyChannel, c))
	}
	mem, unmap, err := Map(pageSize)
	if err != nil {
		ch.waiter.close()
		return nil, errors.Join(err, lib.code(doing, lib.destroyChannel, c))
	}
	ch.out, ch.unmap = take[uintptr](&region{mem}, 2), unmap
	return ch, nil
}

func (ch *channel) Wait(ctx context.Context) error {
	lib := ch.pd.dev.lib
	_, err := ch.waiter.wait(ctx, func() error {
		// Through the library, not by reading: providers count events.
		err := lib.code("get completion event", lib.getEvent, ch.c, addrOf(&ch.out[0]), addrOf(&ch.out[1]))
		if err == nil {
			// At once: the queue cannot be destroyed before.
			purego.SyscallN(lib.ackCQ, ch.out[0], 1)
		}
		return err
	})
	return err
}

func (ch *channel) Wake() { ch.waiter.wake() }

func (ch *channel) Close() error {
	return ch.life.end("completion channel", func() error {
		ch.waiter.close()
		if err := ch.pd.dev.lib.code("destroy completion channel", ch.pd.dev.lib.destroyChannel, ch.c); err != nil {
			return err
		}
		ch.pd.life.leave()
		return nil
	}, ch.unmap)
}

// cq is a struct ibv_cq.
type cq struct {
	pd    *pd
	ch    *channel // nil without one
	c     uintptr
	life  life
	unmap func() error

	armArgs []uintptr
	armFn   uintptr

	mu       sync.Mutex // guards the rest
	pollFn   uintptr
	pollArgs []uintptr
	wc       []cWC // of pollArgs
	dead     error // why Poll must not be called any more
	gone     bool
}

func (p *pd) NewCQ(depth int, on Channel) (CQ, error) {
	ch, ok := on.(*channel)
	switch {
	case depth < 1 || depth > 1<<22:
		return nil, fmt.Errorf("%w: completion queue of %d", transport.ErrInvalid, depth)
	case on != nil && (!ok || ch.pd.dev != p.dev):
		return nil, fmt.Errorf("%w: completion channel of another device", transport.ErrInvalid)
	}
	users := []*life{&p.life}
	if ch != nil {
		users = append(users, &ch.life)
	}
	for i, l := range users {
		if err := l.use(); err != nil {
			leaveAll(users[:i])
			return nil, err
		}
	}
	q, err := p.newCQ(depth, ch)
	if err != nil {
		leaveAll(users)
		return nil, err
	}
	return q, nil
}

func (p *pd) newCQ(depth int, ch *channel) (*cq, error) {
	ops := p.dev.table()
	if ops.PollCQ == 0 {
		return nil, fmt.Errorf("%w: make a completion queue on %s: its provider has no ibv_poll_cq", ErrUnsupported, p.dev.name)
	}
	mem, unmap, err := Map(pageSize)
	if err != nil {
		return nil, err
	}
	var on uintptr
	if ch != nil {
		on = ch.c
	}
	lib, doing := p.dev.lib, fmt.Sprintf("make a completion queue of %d on %s", depth, p.dev.name)
	c, err := lib.pointer(doing, lib.createCQ, p.dev.ctx, uintptr(depth), 0, on, 0)
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	q := &cq{
		pd: p, ch: ch, c: c, unmap: unmap,
		armFn: ops.ReqNotifyCQ, armArgs: []uintptr{c, 0}, pollFn: ops.PollCQ,
		wc: take[cWC](&region{mem}, pollBatch),
	}
	q.pollArgs = []uintptr{c, 0, addrOf(&q.wc[0])}
	return q, nil
}

func (q *cq) Poll(out []Completion) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	total := 0
	for total < len(out) {
		if q.gone {
			return total, ErrClosed
		}
		if q.dead != nil {
			return 0, q.dead
		}
		want := min(len(out)-total, pollBatch)
		q.pollArgs[1] = uintptr(want)
		r, _, _ := purego.SyscallN(q.pollFn, q.pollArgs...)
		got := int(int32(r))
		if got < 0 || got > want {
			q.dead = failure("poll completion queue", number(int32(min(got, 0))))
			if total > 0 {
				return total, nil // those are good; the next call says it
			}
			return 0, q.dead
		}
		for i := range got {
			out[total+i] = q.wc[i].translate()
		}
		total += got
		if got < want {
			break
		}
	}
	return total, nil
}

func (c *cWC) translate() Completion {
	return Completion{
		ID: c.WRID, Status: Status(c.Status), Vendor: c.VendorErr, Op: WCOp(c.Opcode), Length: c.ByteLen,
		Imm: immediate(c.ImmData), HasImm: c.WCFlags&wcWithImm != 0, QP: c.QPNum,
	}
}

func (q *cq) Arm() error {
	if q.ch == nil {
		return fmt.Errorf("%w: completion queue without a channel", ErrUnsupported)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		return ErrClosed
	}
	r, _, _ := purego.SyscallN(q.armFn, q.armArgs...)
	if v := int32(r); v != 0 {
		return failure("arm completion queue", number(v))
	}
	return nil
}

func (q *cq) Close() error {
	return q.life.end("completion queue", func() error {
		q.setGone(true)
		if err := q.pd.dev.lib.code("destroy completion queue", q.pd.dev.lib.destroyCQ, q.c); err != nil {
			q.setGone(false)
			return err
		}
		if q.ch != nil {
			q.ch.life.leave()
		}
		q.pd.life.leave()
		return nil
	}, q.unmap)
}

func (q *cq) setGone(gone bool) {
	q.mu.Lock()
	q.gone = gone
	q.mu.Unlock()
}

const _ = uint(pageSize - pollBatch*unsafe.Sizeof(cWC{})) // it fits one page
