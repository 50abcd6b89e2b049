package prefill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/facts"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// ServiceOptions of a Service. Server, Open, and Engine or Group are required; the zero
// value of the rest works.
type ServiceOptions struct {
	// Server has the slots and the workers of the engine.
	Server *Server

	// Engine reads the prompts. Nil: another member of Group has it do that.
	Engine Engine

	// Group is the engine that this host has workers of, together with others. It
	// leads where there is an Engine, and only there. Nil: all workers are here.
	Group *calls.Group

	// Open opens a transfer towards the decode host, as Keeper.Open does.
	Open func(ctx context.Context, r transport.Request, shape bridge.Shape) (Carrier, int, error)

	// Models names the engine's model for decoder's ones that have another id there.
	// A decoder's model that is neither here nor served under its own id is
	// declined: blocks of another model would be wrong without an error.
	Models map[string]string

	// Name is this host's, for people.
	Name string

	// OnReady is told whenever it changes whether calls can be taken, from one
	// goroutine. Nil: nobody is told.
	OnReady func(Readiness)

	// OnResult is told how a call ended, from its goroutine, before its caller.
	// Nil: nobody is told.
	OnResult func(Ended)

	// Waits says for people what calls wait for, and what to do, where a Readiness says that
	// they cannot be taken. The decode host is told. Nil: it is told nothing meanwhile.
	Waits func(Readiness) string

	// OnRefused is told when the decode host takes no announcement, with the reason.
	// Nil: nobody is told.
	OnRefused func(error)

	probe, grace time.Duration // tests shorten them
}

// Readiness says whether calls can be taken.
type Readiness struct {
	Ready  bool     // they can
	Models []string // the decoder's ids of what can be read; without an engine those that were named
	Err    error    // why not: the engine's, as Engine.Models returned it; nil: it answers
	Served []string // the engine's ids, where it answers

	// Workers of the engine that are connected, and Expected of those that there are on
	// this host, as they say. Without any the engine was started without the
	// connector, or with another socket.
	Workers, Expected int

	// Facts is what the workers have loaded, as FACTS.md of bridge/facts says; nil:
	// there are none.
	Facts json.RawMessage
}

// Ended is a call that ended.
type Ended struct {
	Transfer transport.ID
	Model    string
	Tokens   int
	Part     int // that this host sent, from 0
	Parts    int // of the transfer; at least 1
	calls.Result
}

// Service takes the calls that decode hosts make over their connections, and has
// them done. It may be used concurrently.
type Service struct {
	o    ServiceOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	nudge  chan struct{} // capacity 1: the engine is to be looked at now
	forgo  func()        // ends that the server nudges
	text   *facts.Text   // what the engine makes of the probe text; of watch
	textOf string        // with the tokenizer of this model

	mu      sync.Mutex // guards the fields below
	ready   sight
	changed chan struct{} // closed, and made anew, when ready changes
	jobs    map[transport.ID]*job
	serving int // calls
	closed  bool
}

// NewService returns a service that has begun to look at its engine, the only one of its
// server until it is closed. The caller closes it, before the server. Errors: ErrJob;
// ErrClosed, the server's.
func NewService(o ServiceOptions) (*Service, error) {
	if o.Server == nil || o.Engine == nil && o.Group == nil || o.Open == nil {
		return nil, fmt.Errorf("%w: a service needs a server, an engine or a group, and a way to the decode host", ErrJob)
	}
	if _, err := (calls.Host{Group: o.Group}).Encode(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJob, err)
	}
	if leads := o.Engine != nil; o.Group != nil && o.Group.Leads != leads {
		return nil, fmt.Errorf("%w: the one of group %s that has the engine leads: this one has it: %t, leads: %t", ErrJob, o.Group.Name, leads, o.Group.Leads)
	}
	if o.OnReady == nil {
		o.OnReady = func(Readiness) {}
	}
	if o.OnResult == nil {
		o.OnResult = func(Ended) {}
	}
	if o.OnRefused == nil {
		o.OnRefused = func(error) {}
	}
	if o.probe <= 0 {
		o.probe = probeEvery
	}
	if o.grace <= 0 {
		o.grace = callGrace
	}
	s := &Service{o: o, nudge: make(chan struct{}, 1), changed: make(chan struct{}), jobs: make(map[transport.ID]*job)}
	var err error
	if s.forgo, err = o.Server.watch(func() { signal(s.nudge) }); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(s.watch)
	return s, nil
}

// Close ends the calls that run, down to the engine, and waits for them. It is
// idempotent.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.forgo()
	s.stop()
	s.wg.Wait()
	return nil
}

// goes starts a goroutine that Close waits for; false when it is too late.
func (s *Service) goes(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Go(f)
	}
	return !s.closed
}

// Serve announces this host on a connection and takes its calls, until the
// connection or the context ends, and returns why. It does not wait for them.
func (s *Service) Serve(ctx context.Context, conn transport.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.goes(func() { s.announce(ctx, conn) })
	for {
		offer, err := conn.Accept(ctx)
		if err != nil {
			return err
		}
		if !s.goes(func() { s.take(conn.Facts(), offer) }) {
			offer.Refuse(transport.RefuseOther, "the prefill host is stopping") //nolint:errcheck // it fails when nobody is left to tell
		}
	}
}

// sight is what was found out, and what of it is announced.
type sight struct {
	Readiness
	host  calls.Host
	known bool // it was looked
}

// watch looks at the engine until Close.
func (s *Service) watch() {
	failures := 0
	for first := true; ; {
		r, settled := s.look()
		if r.Err != nil {
			failures++
		} else {
			failures = 0
		}
		pause := s.o.probe
		switch {
		case !settled: // who is new says in a moment what it has loaded
			pause = s.o.Server.settles()
		case r.Err == nil || first || failures >= probeTries:
			s.settle(r, first)
			first = false
		}
		if r.Ready && settled {
			pause *= probeRarely
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-s.nudge:
		case <-s.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// look finds out what can be done now. settled is false while a worker is so new that it
// has not said what it has loaded.
func (s *Service) look() (r sight, settled bool) {
	ctx, cancel := context.WithTimeout(s.ctx, probeWait)
	defer cancel()
	r.Workers, r.Expected = s.o.Server.Present()
	loaded, settled := s.o.Server.Loaded()
	var text *facts.Text
	if s.o.Engine != nil {
		if r.Served, r.Err = s.o.Engine.Models(ctx); r.Err != nil || r.Workers == 0 {
			return r, settled
		}
		if loaded != nil && loaded.Text == nil {
			text = s.probeText(ctx, r.Served)
		}
	}
	r.host = s.o.Host(r.Served, loaded, text)
	r.Models, r.Facts = r.host.Models, r.host.Facts
	r.Ready = r.Workers > 0 && r.Workers >= r.Expected && (s.o.Engine == nil || len(r.Models) > 0)
	return r, settled
}

// Host is what a service with these options announces, of which only Engine (whether there
// is one), Group, Models and Name are looked at: served are the ids that Engine.Models
// returned, loaded is what Server.Loaded did, and text what ProbeText did; the latter two may
// be nil. Who wants to know what a decode host would make of it encodes it for a transfer of
// kind calls.KindProbe.
func (o ServiceOptions) Host(served []string, loaded *facts.Facts, text *facts.Text) calls.Host {
	h := calls.Host{Name: o.Name, Group: o.Group, Models: o.ids(served)}
	if loaded != nil {
		doc := *loaded
		if doc.Text == nil {
			doc.Text = text
		}
		h.Facts = encodeFacts(&doc)
	}
	return h
}

// ids are the decoder's ids of what can be read, in order and as many as may be
// announced.
func (o ServiceOptions) ids(served []string) (ids []string) {
	for _, id := range served {
		if o.Models[id] == "" {
			ids = append(ids, id)
		}
	}
	for id, engine := range o.Models {
		if o.Engine == nil || slices.Contains(served, engine) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), calls.MaxModels)]
}

// settle takes a new readiness and tells of it where it changed.
func (s *Service) settle(r sight, first bool) {
	s.mu.Lock()
	same := s.ready.known && slices.Equal(r.Models, s.ready.Models) && slices.Equal(r.Served, s.ready.Served) && bytes.Equal(r.Facts, s.ready.Facts) && r.Ready == s.ready.Ready && (r.Err == nil) == (s.ready.Err == nil) &&
		(r.Ready || r.Workers == s.ready.Workers && r.Expected == s.ready.Expected)
	r.known = true
	s.ready = r
	if !same {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.mu.Unlock()
	if (!same || first) && s.ctx.Err() == nil {
		s.o.OnReady(r.Readiness)
	}
}

// state is what can be done now, and a channel that is closed when that changes.
func (s *Service) state() (sight, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready, s.changed
}

// engineModel is the engine's id of a decoder's model; "" when there is none.
func (s *Service) engineModel(id string) string {
	if e := s.o.Models[id]; e != "" {
		return e
	}
	if r, _ := s.state(); slices.Contains(r.Served, id) {
		return id
	}
	return ""
}

// announce says on a connection that calls are taken, whenever that is so, and what they
// wait for when not.
func (s *Service) announce(ctx context.Context, conn transport.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	release := context.AfterFunc(s.ctx, cancel)
	defer release()
	for ctx.Err() == nil {
		r, changed := s.state()
		var again <-chan time.Time
		switch {
		case r.Ready:
			err := s.announced(ctx, conn, calls.KindHost, r.host, changed)
			if err == nil {
				continue
			}
			if ctx.Err() == nil && !errors.Is(err, transport.ErrLost) && !errors.Is(err, transport.ErrClosed) {
				s.o.OnRefused(err)
			}
			again = time.After(announceAgain)
		case r.known && s.o.Waits != nil:
			host := calls.Host{Name: s.o.Name, Group: s.o.Group, Waits: s.o.Waits(r.Readiness)}
			s.announced(ctx, conn, calls.KindWait, host, changed) //nolint:errcheck // a decode host that does not take it can do without
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// announced keeps an announcement until what can be done changes or the context ends.
// Its error says why the decode host did not take it, or not for so long.
func (s *Service) announced(ctx context.Context, conn transport.Conn, kind string, host calls.Host, changed <-chan struct{}) error {
	meta, err := host.Encode()
	if err != nil {
		return err
	}
	out, err := conn.Open(ctx, transport.Request{ID: transport.NewID(), Kind: kind, Replayable: true, Meta: meta})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { // it returns when the transfer ends, at either end
		_, err := out.Finish(context.WithoutCancel(ctx))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			err = transport.ErrCancelled
		}
		return fmt.Errorf("the decode host takes no calls any more: %w", err)
	case <-changed:
	case <-ctx.Done():
	}
	out.Cancel("it is not so any more")
	<-ended //nolint:errcheck // it says that
	return nil
}

// names returns the decoder's ids of Models, for messages.
func (s *Service) names() []string { return slices.Sorted(maps.Keys(s.o.Models)) }
