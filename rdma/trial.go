package rdma

import (
	"context"
	"time"

	"pdlink/rdma/internal/verbs"
)

// trialReceives makes the trial's queue pair ready to receive.
func (s *setUp) trialReceives() error {
	if err := s.trial.initialise(s.c.seat.port, verbs.AccessRemoteWrite); err != nil {
		return err
	}
	if _, err := s.trial.qp.PostRecv([]verbs.RecvWR{{ID: 1}}); err != nil {
		return err
	}
	return s.trial.receive(&s.path, s.there.trial)
}

// trialNumber is what the trial's immediate says.
const trialNumber = 0x50444c49

// immediates tries a WRITE with immediate, on a queue pair that nothing depends on.
// Where it cannot be sent the peer waits for it in vain, for a moment.
func (s *setUp) immediates(ctx context.Context) error {
	t := s.trial
	if t == nil {
		return nil
	}
	if err := t.transmit(&s.path); err != nil {
		return err
	}
	sent, came := !t.sendTrial(), false
	for deadline := time.Now().Add(immediateTime); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(napLeast) {
		var c verbs.Completion
		var works bool
		c, sent, came, works = t.look(sent, came)
		s.tried = s.tried || c.HasImm && c.Imm == trialNumber
		if sent && came || !works {
			break
		}
	}
	return nil
}

// sendTrial posts the trial's request, and reports whether it was taken.
func (p *pair) sendTrial() bool {
	wr := verbs.SendWR{ID: 2, Op: verbs.OpWriteImm, Flags: verbs.FlagSignalled, Imm: trialNumber}
	_, err := p.qp.PostSend([]verbs.SendWR{wr})
	return err == nil
}

// look polls for one more completion of a pair that has sent one request and waits for
// one receive. works is false when immediates are not for this pair of devices.
func (p *pair) look(sent, came bool) (c verbs.Completion, hasSent, hasCome, works bool) {
	var buf [1]verbs.Completion
	which, n, err := verbs.Spin(buf[:], 1, 0, p.send, p.recv)
	switch {
	case err != nil || n > 0 && buf[0].Status != verbs.StatusOK:
		return c, sent, came, false
	case n == 0:
		return c, sent, came, true
	}
	return buf[0], sent || which == 0, came || which == 1, true
}

// endTrial destroys the trial's queue pair. The peer may still wait for the
// acknowledgement of its immediate until its results came.
func (s *setUp) endTrial() error {
	t := s.trial
	if t == nil {
		return nil
	}
	s.trial = nil
	if t.qp != nil {
		t.qp.Modify(verbs.StateReset, verbs.QPAttr{}) //nolint:errcheck // destroying it is what counts
	}
	return persist(t.close)
}
