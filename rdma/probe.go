package rdma

import (
	"errors"
	"fmt"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// pair is a queue pair with its queues.
type pair struct {
	qp         verbs.QP
	send, recv verbs.CQ
	ch         verbs.Channel // nil: there are none
	info       verbs.QPInfo
	psn        uint32 // of what it sends
	gone       bool   // qp is destroyed: the device does nothing for it any more
}

// wish is what a queue pair should have.
type wish struct {
	kind       verbs.QPKind
	sends      int // work requests
	recvs      int
	inline     int
	noChannel  bool
	leastRecvs int
}

// errNoKind is why there is no queue pair where the provider has none of that kind, of
// whatever depth.
var errNoKind = errors.New("the device has no queue pairs of that kind")

// newPair makes a queue pair of at most the wished depth: where the provider refuses
// it, with less. What it refuses for good is the error. With an error it returns a pair
// where some of it does not go again: it is of no use, and to be closed. Errors:
// errNoKind; transport.ErrUnavailable when the wish itself is for less than is needed,
// since that is all that the device has.
func newPair(pd verbs.PD, w wish, psn uint32) (*pair, error) {
	if w.recvs < w.leastRecvs {
		return nil, fmt.Errorf("%w: the device gives queues of %d requests, %d are needed", transport.ErrUnavailable, w.recvs, w.leastRecvs)
	}
	p := &pair{psn: psn}
	var err error
	if !w.noChannel {
		p.ch, err = pd.NewChannel()
		if err != nil && !errors.Is(err, verbs.ErrUnsupported) {
			return nil, fmt.Errorf("make a completion channel: %w", err)
		}
	}
	var errs []error
	kind := errNoKind
	for _, depth := range []int{max(w.sends, w.recvs), scarceDepth, leastDepth} {
		sends, recvs := min(w.sends, depth), min(w.recvs, depth)
		if recvs < w.leastRecvs {
			break
		}
		for _, inline := range []int{w.inline, 0} {
			if err = p.make(pd, w.kind, sends, recvs, inline); err == nil {
				return p, nil
			}
			errs = append(errs, err)
			if !errors.Is(err, verbs.ErrUnsupported) {
				kind = nil // another reason, memory for example: that of the kind says nothing
			}
			if busy := persist(p.closeQueues); busy != nil {
				return p, errors.Join(append(errs, busy)...)
			}
			if kind != nil && inline == 0 {
				return p.refused(fmt.Errorf("%w: %w", kind, errors.Join(errs...)))
			}
		}
	}
	return p.refused(errors.Join(errs...))
}

// refused is newPair's result where the provider makes none of the pairs.
func (p *pair) refused(err error) (*pair, error) {
	if busy := persist(p.close); busy != nil {
		return p, errors.Join(err, busy)
	}
	return nil, err
}

// make makes the queues and the pair. The caller frees what there is when it fails.
func (p *pair) make(pd verbs.PD, kind verbs.QPKind, sends, recvs, inline int) (err error) {
	if p.send, err = pd.NewCQ(sends, p.ch); err == nil {
		p.recv, err = pd.NewCQ(recvs, p.ch)
	}
	if err == nil {
		p.qp, err = pd.NewQP(verbs.QPOptions{
			Kind: kind, SendCQ: p.send, RecvCQ: p.recv, MaxSend: sends, MaxRecv: recvs, SendSegments: 1, MaxInline: inline,
		})
	}
	if err != nil {
		return fmt.Errorf("make a queue pair of %d and %d requests: %w", sends, recvs, err)
	}
	p.info = p.qp.Info()
	return nil
}

// destroy frees the queue pair alone.
func (p *pair) destroy() error {
	if p == nil || p.qp == nil {
		return nil
	}
	err := p.qp.Close()
	p.gone = err == nil || errors.Is(err, verbs.ErrLeft)
	return err
}

// closeQueues frees all but the channel.
func (p *pair) closeQueues() error {
	if err := p.destroy(); err != nil {
		return err
	}
	for _, q := range []verbs.CQ{p.send, p.recv} {
		if q == nil {
			continue
		}
		if err := q.Close(); err != nil {
			return err
		}
	}
	return nil
}

// close frees everything, in order. What does not go is the error. It may be called
// again.
func (p *pair) close() error {
	if p == nil {
		return nil
	}
	if err := p.closeQueues(); err != nil || p.ch == nil {
		return err
	}
	return p.ch.Close()
}

// path is what two connected queue pairs have in common.
type path struct {
	port  int
	attr  verbs.PortAttr
	index int // of this end's GID
	gid   verbs.GID
	lid   uint16
	mtu   verbs.MTU
	hops  uint8
	reads [2]uint8 // in, out
}

// initialise moves the pair to INIT, where it takes receives.
func (p *pair) initialise(port int, access verbs.Access) error {
	return p.qp.Modify(verbs.StateInit, verbs.QPAttr{Port: uint8(port), Access: access})
}

// receive moves it to RTR: it takes what the peer sends.
func (p *pair) receive(w *path, to pairPlace) error {
	return p.qp.Modify(verbs.StateRTR, verbs.QPAttr{
		Port: uint8(w.port), PathMTU: w.mtu, RemoteQP: to.number, RemotePSN: to.psn, RemoteGID: w.gid, RemoteLID: w.lid,
		NoRoute: w.attr.LinkLayer == verbs.LinkInfiniBand, GIDIndex: uint8(w.index), HopLimit: w.hops,
		MaxReadIn: w.reads[0], MinRNRTimer: minRNRTimer,
	})
}

// transmit moves it to RTS: it sends.
func (p *pair) transmit(w *path) error {
	return p.qp.Modify(verbs.StateRTS, verbs.QPAttr{
		LocalPSN: p.psn, MaxReadOut: w.reads[1], Timeout: ackTimeout, Retries: retries, RNRRetries: rnrRetries,
	})
}
