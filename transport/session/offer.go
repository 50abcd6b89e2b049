package session

import (
	"errors"
	"fmt"
	"slices"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// offer implements transport.Offer.
type offer struct{ in *incoming }

// Request implements transport.Offer.
func (f *offer) Request() transport.Request { return f.in.req }

// Admit implements transport.Offer.
func (f *offer) Admit(answer []byte) (transport.Incoming, error) {
	in := f.in
	if n, limit := len(answer), in.c.facts.MaxMeta; n > limit {
		return nil, fmt.Errorf("admit: %w: answer of %d bytes, agreed limit %d", transport.ErrTooLarge, n, limit)
	}
	if err := in.decide(); err != nil {
		return nil, err
	}
	ring, err := in.c.recv.get()
	if err != nil {
		return nil, in.decline(transport.RefuseOther, "no memory to receive into", fmt.Errorf("admit: %w", err))
	}
	// Little at first: what is promised cannot be taken back until it was used,
	// and others may need it more. See widen.
	first := firstWindow
	if ring.Unpromised() < ring.Slots()/2 {
		first = firstScarce
	}
	n := ring.Promise(min(first, in.c.o.Window))
	if n == 0 {
		return nil, in.decline(transport.RefuseBusy, "every slot of the receive ring is promised",
			fmt.Errorf("admit: %w: every slot of the receive ring is promised", transport.ErrBusy))
	}
	msg, err := wire.AppendAdmit(nil, &wire.Admit{Handle: in.handle, Window: uint32(n), Meta: answer})
	if err != nil {
		ring.Unpromise(n)
		return nil, in.decline(transport.RefuseOther, "the answer cannot be sent", fmt.Errorf("admit: %w", err))
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.shut(); err != nil {
		ring.Unpromise(n)
		return nil, err
	}
	in.ring, in.window, in.sent = ring, n, uint64(n)
	in.most = min(in.c.o.Window, ring.Slots())
	in.queue = make(chan *rxFrame, in.most+wire.MaxFlushes+1)
	in.admitted = true
	in.c.out.add(msg)
	return in, nil
}

// Refuse implements transport.Offer.
func (f *offer) Refuse(code transport.RefuseCode, reason string) error {
	if err := f.in.decide(); err != nil {
		return err
	}
	return f.in.decline(code, reason, nil)
}

// decide lets one decision about an offer pass.
func (in *incoming) decide() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.decided:
		return errDecided
	case in.ended:
		return in.shut()
	}
	in.decided = true
	return nil
}

// decline refuses an offer and returns err, or what stood in the way.
func (in *incoming) decline(code transport.RefuseCode, reason string, err error) error {
	msg, encodeErr := wire.AppendRefuse(nil, &wire.Refuse{Handle: in.handle, Code: code, Reason: reason})
	if encodeErr != nil {
		return errors.Join(err, fmt.Errorf("refuse: %w", encodeErr))
	}
	if !in.endWith(errFinished, msg) && err == nil {
		return in.why()
	}
	return err
}

// onOpen takes an offer of the peer, or refuses it where the connection's own
// rules say so.
func (c *conn) onOpen(m *wire.Open) error {
	if len(m.Meta) > c.facts.MaxMeta {
		return wire.Violation("meta of %d bytes, agreed limit %d", len(m.Meta), c.facts.MaxMeta)
	}
	in := &incoming{
		c: c, handle: m.Handle,
		req: transport.Request{
			ID: m.ID, Kind: m.Kind, Part: int(m.Part), Parts: int(m.Parts), Replayable: m.Replayable,
		},
		done: make(chan struct{}), eof: make(chan struct{}),
	}
	full := c.out.backlog() > maxBacklog
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return errDone
	}
	code, reason := transport.RefuseBusy, ""
	switch {
	case c.ins[m.Handle] != nil:
		c.mu.Unlock()
		return wire.Violation("handle %d opened twice", m.Handle)
	case c.live[in.key()] != nil:
		code, reason = transport.RefuseDuplicate, "the same transfer and part is live on this connection"
	case len(c.ins) >= transport.MaxTransfers:
		reason = "too many transfers on this connection"
	case len(c.offers) >= c.o.MaxOffers:
		reason = "too many transfers wait to be accepted"
	case c.metaHeld > 0 && c.metaHeld+len(m.Meta) > maxMetaHeld:
		reason = "the plans of this connection's transfers take too much memory"
	case full:
		reason = "too many answers wait to be sent"
	default:
		in.req.Meta = slices.Clone(m.Meta)
		c.metaHeld += len(in.req.Meta)
		c.ins[in.handle], c.live[in.key()] = in, in
		c.offers = append(c.offers, in)
		signal(c.offered)
	}
	c.mu.Unlock()
	if reason == "" {
		return nil
	}
	return c.refuse(m.Handle, code, reason)
}

// refuse declines an offer without asking the application.
func (c *conn) refuse(handle uint32, code transport.RefuseCode, reason string) error {
	msg, err := wire.AppendRefuse(nil, &wire.Refuse{Handle: handle, Code: code, Reason: reason})
	if err != nil {
		return fmt.Errorf("refuse: %w", err)
	}
	if c.out.put(msg, true) > maxAnswers {
		return wire.Violation("%d offers without reading the answers", maxAnswers)
	}
	return nil
}
