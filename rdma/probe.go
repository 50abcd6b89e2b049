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

// newPair makes a queue pair of at most the wished depth: where the provider refuses
// it, with less. What it refuses for good is the error. Errors:
// transport.ErrUnavailable when the wish itself is for less than is needed, since that
// is all that the device has.
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
			if errors.Is(err, verbs.ErrUnsupported) && inline == 0 {
				return nil, errors.Join(err, p.close())
			}
		}
	}
	return nil, errors.Join(errors.Join(errs...), p.close())
}

// make makes the queues and the pair.
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
		return errors.Join(fmt.Errorf("make a queue pair of %d and %d requests: %w", sends, recvs, err), p.closeQueues())
	}
	p.info = p.qp.Info()
	return nil
}

// closeQueues frees all but the channel.
func (p *pair) closeQueues() error {
	if p.qp != nil {
		if err := persist(p.qp.Close); err != nil {
			return err
		}
	}
	for _, q := range []verbs.CQ{p.send, p.recv} {
		if q == nil {
			continue
		}
		if err := persist(q.Close); err != nil {
			return err
		}
	}
	return nil
}

// close frees everything, in order. What does not go is the error.
func (p *pair) close() error {
	if p == nil {
		return nil
	}
	if err := p.closeQueues(); err != nil || p.ch == nil {
		return err
	}
	return persist(p.ch.Close)
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
