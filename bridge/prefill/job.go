package prefill

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// job is the work of a call; its result outlives a lost connection.
type job struct {
	peer   string
	digest [sha256.Size]byte // of what was asked
	opened chan struct{}     // closed when its transfer is open
	read   chan struct{}     // closed when the engine has read the prompt
	once   sync.Once         // closes read
	done   chan struct{}     // closed when result is there
	result calls.Result
	cancel context.CancelCauseFunc

	callers int // that wait; guarded by Service.mu
}

// hasRead notes that the engine has read the prompt: here, or at another host of it.
func (j *job) hasRead() { j.once.Do(func() { close(j.read) }) }

// digestOf tells calls apart.
func digestOf(c *calls.Call) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s\n%d %s\n%d\n%d %d %t\n", len(c.Model), c.Model, len(c.Kind), c.Kind, len(c.Plan), c.Part, c.Parts, c.Follows)
	h.Write(c.Plan)
	h.Write(calls.AppendIDs(make([]byte, 0, 4*len(c.IDs)), c.IDs))
	return [sha256.Size]byte(h.Sum(nil))
}

// join returns the job of a call, which begins unless it runs; nil when another call
// has its transfer. The caller owes leave.
func (s *Service) join(c *calls.Call, peer string) *job {
	digest := digestOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[c.Transfer]; j != nil {
		if j.peer != peer || j.digest != digest {
			return nil
		}
		j.callers++
		return j
	}
	j := &job{
		peer: peer, digest: digest, opened: make(chan struct{}), read: make(chan struct{}), done: make(chan struct{}), callers: 1,
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	j.cancel = cancel
	s.jobs[c.Transfer] = j
	s.wg.Go(func() { // the caller is one that Close waits for, so this is in time
		defer cancel(nil)
		if j.result = s.do(ctx, c, j); j.result.State == calls.Failed {
			signal(s.nudge)
		}
		s.o.OnResult(Ended{c.Transfer, c.Model, c.Tokens, c.Part, max(c.Parts, 1), j.result})
		close(j.done)
	})
	return j
}

// leave says that a caller does not wait any more. The last one ends the work, unless
// its connection was lost: then that, or the result, waits for another call.
func (s *Service) leave(id transport.ID, j *job, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.callers--
	switch {
	case j.callers > 0:
	case !lost:
		s.forget(id, j)
	default:
		s.wg.Go(func() {
			t := time.NewTimer(s.o.grace)
			defer t.Stop()
			select {
			case <-t.C:
			case <-s.ctx.Done():
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if j.callers == 0 {
				s.forget(id, j)
			}
		})
	}
}

// errLeft is why work ends that nobody waits for.
var errLeft = errors.New("nobody waits for it any more")

// forget ends a job. It is called with mu held.
func (s *Service) forget(id transport.ID, j *job) {
	j.cancel(errLeft)
	if s.jobs[id] == j {
		delete(s.jobs, id)
	}
}

// do reads a prompt.
func (s *Service) do(ctx context.Context, c *calls.Call, j *job) calls.Result {
	began := time.Now()
	r := s.try(ctx, c, j, began)
	r.Seconds = time.Since(began).Seconds()
	return r
}

// fault is a result of a call that came to nothing.
func fault(state, format string, args ...any) calls.Result {
	return calls.Result{State: state, Reason: fmt.Sprintf(format, args...)}
}

// try is do, but for the whole time.
func (s *Service) try(ctx context.Context, c *calls.Call, j *job, began time.Time) calls.Result {
	if why := s.declines(c); why != "" {
		return fault(calls.Declined, "%s", why)
	}
	plan, layout, err := planOf(c)
	if err != nil {
		return fault(calls.Declined, "%v", err)
	}
	switch here, expected := s.o.Server.Present(); {
	case here == 0:
		return fault(calls.Failed, "no worker of the engine is connected: start it with the connector, and with this host's socket")
	case here < expected:
		return fault(calls.Failed, "%d of %d workers of the engine on this host are connected", here, expected)
	}
	shape := bridge.Shape{Blocks: len(plan.Hashes), BlockBytes: layout.WireSize()}
	carrier, room, err := s.o.Open(ctx, transport.Request{
		ID: c.Transfer, Kind: c.Kind, Part: c.Part, Parts: max(c.Parts, 1), Meta: c.Plan,
	}, shape)
	switch {
	case errors.Is(err, transport.ErrRefused):
		return fault(calls.Declined, "the decode host refused the transfer: %v", err)
	case err != nil:
		return fault(calls.Failed, "%v", err)
	}
	missing := false
	for b := range shape.Blocks {
		missing = missing || carrier.Wants(b)
	}
	t, err := s.o.Server.Open(Job{ID: c.Transfer, Carrier: carrier, Layout: layout, Blocks: shape.Blocks, Tokens: c.Tokens, Room: room})
	if err != nil {
		carrier.Close()
		return fault(calls.Failed, "%v", err)
	}
	close(j.opened)
	opened := time.Since(began)
	r := work(ctx, t, s.reading(c, j, missing))
	r.OpenSeconds = opened.Seconds()
	return r
}

// reading is how the prompt of a call is read, if any block of it is missing. It returns
// when it was.
func (s *Service) reading(c *calls.Call, j *job, missing bool) func(context.Context) error {
	switch {
	case c.Follows: // the one that leads has it read, and the caller tells
		return func(ctx context.Context) error {
			select {
			case <-j.read:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	case !missing:
		return func(context.Context) error { j.hasRead(); return nil }
	}
	model := s.engineModel(c.Model)
	return func(ctx context.Context) error {
		err := s.o.Engine.Prefill(ctx, Prompt{Model: model, IDs: c.IDs, Transfer: c.Transfer})
		if err == nil {
			j.hasRead()
		}
		return err
	}
}

// declines says why a call is none for this host; "" for one that is.
func (s *Service) declines(c *calls.Call) string {
	g := s.o.Group
	switch {
	case g == nil && (c.Parts > 1 || c.Follows):
		return fmt.Sprintf("this host is in no group, and was asked for part %d of %d", c.Part+1, c.Parts)
	case g != nil && c.Parts < 2:
		return fmt.Sprintf("this host is %v, and was asked for all of it: the decode host needs the same version of pdlink", g)
	case g != nil && (c.Part != g.Member || c.Parts != g.Members || c.Follows == g.Leads):
		return fmt.Sprintf("this host is %v (it asks the engine: %t), and was asked for part %d of %d (it is to ask the engine: %t)",
			g, g.Leads, c.Part+1, c.Parts, !c.Follows)
	case c.Follows && len(s.o.Models) > 0 && s.o.Models[c.Model] == "":
		return fmt.Sprintf("no model %q here: --model names %s", c.Model, list(s.names()))
	case !c.Follows && s.engineModel(c.Model) == "":
		ready, _ := s.state()
		return fmt.Sprintf("no model %q here: the engine serves %s, and --model names %s: say which is meant with --model %s=ENGINE_MODEL",
			c.Model, list(ready.Served), list(s.names()), c.Model)
	}
	return ""
}

// planOf reads the plan of a call.
func planOf(c *calls.Call) (plan omlx.Plan, layout *omlx.Layout, err error) {
	if c.Kind != omlx.Kind {
		return plan, nil, fmt.Errorf("transfers of kind %q are not known here, only %q", c.Kind, omlx.Kind)
	}
	if err := plan.UnmarshalBinary(c.Plan); err != nil {
		return plan, nil, err
	}
	if layout, err = plan.Check(); err != nil {
		return plan, nil, err
	}
	n, size := len(plan.Hashes), plan.Spec.BlockTokens
	rest := n*size - c.Tokens // of an unfinished last block
	if n < 1 || n > bridge.MaxBlocks || rest != 0 && (rest < 0 || rest >= size || plan.Spec.Kind != omlx.KindKV) {
		return plan, nil, fmt.Errorf("a plan of %d blocks of %d tokens for a prompt of %d", n, size, c.Tokens)
	}
	return plan, layout, nil
}

// work has the engine read while the transfer sends, and waits for both.
func work(ctx context.Context, t *Transfer, engine func(context.Context) error) calls.Result {
	reading, stop := context.WithCancel(ctx)
	type end struct {
		took time.Duration
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		began := time.Now()
		err := engine(reading)
		t.EngineDone(err)
		if err != nil && !t.begun() { // no worker will come
			t.Cancel(err.Error())
		}
		ended <- end{time.Since(began), err}
	}()
	res, err := t.Run(ctx)
	stop() // the receiver may have ended the transfer before the engine has read all
	e := <-ended
	r := resultOf(res, err)
	r.EngineSeconds = e.took.Seconds()
	unread := errors.Is(e.err, ErrEngine) || errors.Is(e.err, ErrPrompt)
	if unread && r.State == calls.Partial && res.Blocks <= res.Present && !t.begun() { // the receiver's verdict was first
		r.State = calls.Failed
		if !strings.Contains(r.Reason, e.err.Error()) {
			r.Reason = e.err.Error()
		}
	}
	if r.State == calls.Failed && errors.Is(e.err, ErrPrompt) {
		r.State = calls.Declined
	}
	return r
}

// begun reports whether a worker has begun the transfer.
func (t *Transfer) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.parts) > 0
}

// resultOf puts a transfer's end in a caller's words.
func resultOf(res Result, err error) calls.Result {
	r := calls.Result{
		State: calls.Partial, Blocks: res.Blocks, Total: res.Total, Present: res.Present, Bytes: res.Bytes, Reason: res.Reason,
	}
	switch {
	case err != nil && res.Why != "":
		r.State, r.Reason = calls.Failed, res.Why
	case err != nil:
		r.State, r.Reason = calls.Failed, err.Error()
	case res.State == bridge.Complete:
		r.State = calls.Complete
	}
	if r.State != calls.Complete && res.Why != "" && !strings.Contains(r.Reason, res.Why) {
		r.Reason = strings.TrimPrefix(r.Reason+": "+res.Why, ": ")
	}
	for _, l := range res.Links {
		r.Clear = r.Clear || !l.Sealed && l.Bytes > 0
	}
	for _, w := range res.Reports {
		r.Workers = append(r.Workers, calls.Worker{
			Rank: w.Rank, Tokens: w.Tokens, Fault: w.Fault,
			Capture: w.Capture.Seconds(), Project: w.Project.Seconds(), Wait: w.Wait.Seconds(),
		})
	}
	return r
}

// list is names for a message.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
