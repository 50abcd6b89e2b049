package main

import (
	"context"
	"errors"

	"pdlink/bridge/watch"
	"pdlink/bridge/watch/pages"
	"pdlink/transport"
	"pdlink/transport/failover"
)

// watch begins to watch a `pdlink prefill`, whose frames are sent from one ring and arrive
// in another.
func (s *sidecar) watch(ctx context.Context, send, receive *transport.Ring) (err error) {
	s.watched, err = s.watching.open(ctx, s.journal, watch.Options{Program: "prefill"})
	s.watched.ring("send", send)
	s.watched.ring("receive", receive)
	return err
}

// seen has the connections of routes be seen.
func (s *sidecar) seen(list []failover.Route) []failover.Route {
	for i := range list {
		list[i].Link = s.watched.link(list[i].Link)
	}
	return list
}

// checks are what has to be so for prompts to be taken.
func (s *sidecar) checks() []pages.Check {
	return []pages.Check{
		{Name: "decode host", Probe: func(context.Context) error {
			if s.watched.Connections() == 0 {
				return errors.New("there is no connection to it")
			}
			return nil
		}},
		{Name: "engine", Probe: func(context.Context) error {
			switch why := s.waits.Load(); {
			case why == nil:
				return errors.New("it was not looked at yet")
			case *why != "":
				return errors.New(*why)
			}
			return nil
		}},
	}
}

// dialled tells how an attempt to connect went.
func (w *watched) dialled(e failover.Event) {
	if w == nil {
		return
	}
	switch e.Kind {
	case failover.Connected:
		w.Dial(e.Route, watch.Connected)
	case failover.Failed:
		w.Dial(e.Route, watch.Failed)
	case failover.Lost:
		w.Dial(e.Route, watch.Lost)
	}
}

// call tells of a prompt that was read.
func (w *watched) call(e sidecarCall) {
	if w == nil {
		return
	}
	w.Ended(watch.Transfer{
		Transfer: e.Transfer, State: e.State, Reason: e.Reason, Blocks: e.Blocks, Total: e.Total, Present: e.Present,
		Bytes: e.Bytes, Seconds: e.Seconds, Engine: e.EngineSeconds, Peers: e.Peers,
	})
}
