//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"pdlink/transport"
)

// qp is a struct ibv_qp.
type qp struct {
	dev   *device
	c     uintptr
	info  QPInfo
	life  life
	users []*life // what it uses
	unmap func() error

	modifyMu sync.Mutex // guards attr
	attr     *cQPAttr

	sendMu sync.Mutex // guards send
	send   chain[cSendWR]
	recvMu sync.Mutex // guards recv
	recv   chain[cRecvWR]
}

// chain is the memory of a list of work requests while the library reads it.
type chain[T any] struct {
	fn   uintptr // of the table of functions
	wr   []T
	sge  []cSGE // MaxSegments each
	bad  *uintptr
	args []uintptr // queue pair, first request, where to write the bad one
	gone bool      // the queue pair is closed
}

func newQPMemory(d *device, c uintptr, info QPInfo) (*qp, error) {
	ops := d.table()
	const perSend, perRecv = unsafe.Sizeof(cSendWR{}) + MaxSegments*unsafe.Sizeof(cSGE{}), unsafe.Sizeof(cRecvWR{}) + unsafe.Sizeof(cSGE{})
	sends, recvs := min(max(info.MaxSend, 1), chainMax), min(max(info.MaxRecv, 1), chainMax)
	size := sends*int(perSend) + recvs*int(perRecv) + int(unsafe.Sizeof(cQPAttr{})) + 8*cacheLine
	mem, unmap, err := Map((size + pageSize - 1) &^ (pageSize - 1))
	if err != nil {
		return nil, err
	}
	r := &region{mem}
	q := &qp{dev: d, c: c, info: info, unmap: unmap, attr: &take[cQPAttr](r, 1)[0]}
	q.send = chain[cSendWR]{fn: ops.PostSend, wr: take[cSendWR](r, sends), sge: take[cSGE](r, MaxSegments*sends), bad: &take[uintptr](r, 1)[0]}
	q.recv = chain[cRecvWR]{fn: ops.PostRecv, wr: take[cRecvWR](r, recvs), sge: take[cSGE](r, recvs), bad: &take[uintptr](r, 1)[0]}
	q.send.args = []uintptr{c, addrOf(&q.send.wr[0]), addrOf(q.send.bad)}
	q.recv.args = []uintptr{c, addrOf(&q.recv.wr[0]), addrOf(q.recv.bad)}
	return q, nil
}

func (q *qp) Info() QPInfo { return q.info }

func (q *qp) PostSend(list []SendWR) (int, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.send.gone { // and with it the memory of the chain
		return 0, ErrClosed
	}
	done := 0
	for done < len(list) {
		n := min(len(list)-done, len(q.send.wr))
		if err := q.fillSends(list[done : done+n]); err != nil {
			return done, err
		}
		taken, err := q.send.post(n)
		done += taken
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// fillSends makes the chain of list, which fits.
func (q *qp) fillSends(list []SendWR) error {
	for i := range list {
		w := &list[i]
		if w.Op > OpRead {
			return fmt.Errorf("%w: operation %d", ErrUnsupported, w.Op)
		}
		sge := q.send.sge[i*MaxSegments : (i+1)*MaxSegments]
		n := 0
		for _, s := range w.Local {
			if s.Length > 0 {
				sge[n] = cSGE{Addr: s.Addr, Length: s.Length, LKey: s.Key}
				n++
			}
		}
		c := &q.send.wr[i]
		c.WRID, c.SGList, c.NumSGE, c.Opcode = w.ID, addrOf(&sge[0]), int32(n), uint32(w.Op)
		c.SendFlags, c.ImmData, c.RemoteAddr, c.RKey = uint32(w.Flags), immediate(w.Imm), w.RemoteAddr, w.RemoteKey
		c.Next = 0
		if i > 0 {
			q.send.wr[i-1].Next = addrOf(c)
		}
	}
	return nil
}

func (q *qp) PostRecv(list []RecvWR) (int, error) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	if q.recv.gone {
		return 0, ErrClosed
	}
	done := 0
	for done < len(list) {
		n := min(len(list)-done, len(q.recv.wr))
		for i := range n {
			w, c := &list[done+i], &q.recv.wr[i]
			q.recv.sge[i] = cSGE{Addr: w.Local.Addr, Length: w.Local.Length, LKey: w.Local.Key}
			*c = cRecvWR{WRID: w.ID, SGList: addrOf(&q.recv.sge[i]), NumSGE: 1}
			if w.Local.Length == 0 {
				c.NumSGE = 0
			}
			if i > 0 {
				q.recv.wr[i-1].Next = addrOf(c)
			}
		}
		taken, err := q.recv.post(n)
		done += taken
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// post hands the first n requests over as they are chained and returns how many were
// taken.
func (c *chain[T]) post(n int) (int, error) {
	*c.bad = 0
	r, _, _ := purego.SyscallN(c.fn, c.args...)
	v := int32(r)
	if v == 0 {
		return n, nil
	}
	errno := number(v)
	// The first that was not taken, so that those before it were.
	taken := int((*c.bad - c.args[1]) / unsafe.Sizeof(c.wr[0]))
	known := *c.bad >= c.args[1] && taken < n
	switch {
	case !known:
		return 0, fmt.Errorf("verbs: post work requests, unknown how many were taken: %w", errno)
	case errno == syscall.ENOMEM || errno == syscall.ENOBUFS:
		return taken, fmt.Errorf("%w: %w", ErrFull, errno)
	}
	return taken, failure("post work request", errno)
}

func (q *qp) Modify(to QPState, a QPAttr) error {
	if err := q.life.use(); err != nil {
		return err
	}
	defer q.life.leave()
	q.modifyMu.Lock()
	defer q.modifyMu.Unlock()
	mask, err := q.fill(to, a)
	if err != nil {
		return err
	}
	doing := fmt.Sprintf("move queue pair %d to %v", q.info.Number, to)
	return q.dev.lib.code(doing, q.dev.lib.modifyQP, q.c, addrOf(q.attr), uintptr(mask))
}

// fill writes what a move needs, no less and no more: some providers compare the mask
// with the set that the specification requires.
func (q *qp) fill(to QPState, a QPAttr) (mask uint32, err error) {
	c := q.attr
	*c = cQPAttr{QPState: uint32(to)}
	mask = attrState
	switch to {
	case StateReset, StateError:
	case StateInit:
		c.PortNum, c.QPAccessFlags = a.Port, uint32(a.Access)
		mask |= attrPkeyIndex | attrPort | attrAccessFlags
	case StateRTR:
		c.PathMTU, c.DestQPNum, c.RqPSN = uint32(a.PathMTU), a.RemoteQP, a.RemotePSN
		c.AHAttr = cAHAttr{DLID: a.RemoteLID, PortNum: a.Port}
		if !a.NoRoute {
			c.AHAttr.IsGlobal = 1
			c.AHAttr.GRH = cGlobalRoute{
				DGID: gidOf(a.RemoteGID), SGIDIndex: a.GIDIndex, HopLimit: a.HopLimit,
			}
		}
		mask |= attrAV | attrPathMTU | attrDestQPN | attrRqPSN
		if q.info.Kind == RC {
			c.MaxDestRdAtomic, c.MinRNRTimer = a.MaxReadIn, a.MinRNRTimer
			mask |= attrMaxDestRd | attrMinRNRTimer
		}
	case StateRTS:
		c.SqPSN = a.LocalPSN
		mask |= attrSqPSN
		if q.info.Kind == RC {
			c.MaxRdAtomic, c.Timeout, c.RetryCnt, c.RNRRetry = a.MaxReadOut, a.Timeout, a.Retries, a.RNRRetries
			mask |= attrMaxRdAtomic | attrTimeout | attrRetryCnt | attrRNRRetry
		}
	default:
		return 0, fmt.Errorf("%w: move a queue pair to %v", transport.ErrInvalid, to)
	}
	return mask, nil
}

func (q *qp) Close() error {
	return q.life.end("queue pair", func() error {
		q.setGone(true)
		if err := q.dev.lib.code(fmt.Sprintf("destroy queue pair %d", q.info.Number), q.dev.lib.destroyQP, q.c); err != nil {
			q.setGone(false)
			return err
		}
		leaveAll(q.users)
		return nil
	}, q.unmap)
}

func (q *qp) setGone(gone bool) {
	q.sendMu.Lock()
	q.send.gone = gone
	q.sendMu.Unlock()
	q.recvMu.Lock()
	q.recv.gone = gone
	q.recvMu.Unlock()
}
