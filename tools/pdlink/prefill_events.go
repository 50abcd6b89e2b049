package main

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"pdlink/bridge"
	"pdlink/bridge/prefill"
	"pdlink/bridge/prefill/calls"
	"pdlink/tools/cmdline"
	"pdlink/transport/failover"
)

// sidecarStarted is the event that prefill prints first.
type sidecarStarted struct {
	Event   string   `json:"event"`
	To      string   `json:"to"`               // the preferred way
	Routes  []string `json:"routes,omitempty"` // all of them, where there are several
	Engine  string   `json:"engine,omitempty"` // empty: another host of the group asks it
	Socket  string   `json:"socket"`
	Name    string   `json:"name"`
	Group   string   `json:"group,omitempty"`
	Rank    string   `json:"rank,omitempty"`
	Keys    string   `json:"keys"` // with keys: their directory
	Encrypt string   `json:"encrypt"`
	Watch   string   `json:"watch,omitempty"` // where the live page is
}

func (s *sidecar) started(o linkOptions) sidecarStarted {
	e := sidecarStarted{
		Event: "started", To: s.ways[0].String(), Socket: s.socket, Name: s.name, Group: s.group, Rank: s.rank,
		Keys: o.keys.Dir.Path, Encrypt: o.keys.Encrypt, Watch: s.watched.url(),
	}
	if s.engineURL != nil {
		e.Engine = s.engineURL.String()
	}
	if len(s.ways) > 1 {
		for _, u := range s.ways {
			e.Routes = append(e.Routes, u.String())
		}
	}
	return e
}

func (e sidecarStarted) text(std streams) {
	keys := ""
	if e.Keys != "" {
		keys = fmt.Sprintf(", keys of %s, encrypt %s", e.Keys, e.Encrypt)
	}
	engine := "engine " + e.Engine
	if e.Group != "" {
		engine = fmt.Sprintf("host %s of the engine of group %s", e.Rank, e.Group)
		if e.Engine != "" {
			engine += ", " + e.Engine
		}
	}
	std.printf("prefill host %s for %s, %s, workers at %s%s%s\n", e.Name, cmp.Or(strings.Join(e.Routes, ", else "), e.To), engine, e.Socket, keys, watchText(e.Watch))
}

// sidecarReady is the event of a change of what is waited for.
type sidecarReady struct {
	Event   string   `json:"event"` // ready, waiting
	Models  []string `json:"models"`
	Workers int      `json:"workers"`
	Served  []string `json:"served"`           // the engine's ids
	Reason  string   `json:"reason,omitempty"` // what is waited for, and what to do
	Part    string   `json:"part,omitempty"`   // of a group that this host is
}

// listed is a list as programs read it: one with nothing in it is no null.
func listed(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// readyEvent tells whether prompts can be read, and what to do where not.
func (s *sidecar) readyEvent(r prefill.Readiness) {
	e := sidecarReady{Event: "ready", Models: listed(r.Models), Workers: r.Workers, Served: listed(r.Served)}
	if s.member != nil {
		e.Part = s.member.String()
	}
	if e.Reason = s.lacks(r); e.Reason != "" {
		e.Event = "waiting"
	}
	s.waits.Store(&e.Reason)
	s.say(e)
}

// lacks says what is waited for, and what to do about it; "" when prompts can be read.
func (s *sidecar) lacks(r prefill.Readiness) string {
	switch {
	case r.Err != nil:
		return fmt.Sprintf("the engine does not answer at %s (%v): start it, or name its address with --engine", s.engineURL, r.Err)
	case r.Workers == 0:
		engine := "the engine answers, but "
		if s.engineURL == nil {
			engine = ""
		}
		return fmt.Sprintf("%snone of its workers is connected to %s: start it with the connector "+
			"(--kv-transfer-config, see `pdlink prefill --help`) and with this socket, as this user or one of --uid", engine, s.socket)
	case r.Workers < r.Expected:
		return fmt.Sprintf("%d of the %d workers of the engine on this host are connected to %s", r.Workers, r.Expected, s.socket)
	case s.engineURL == nil: // the one that asks it knows
		return ""
	case len(r.Models) == 0:
		return fmt.Sprintf("the engine serves %s, and no --model names one of these", servedList(r.Served))
	}
	for decoder, engine := range s.mapped {
		if !slices.Contains(r.Served, engine) {
			s.journal.say("pdlink: warning: --model %s=%s: the engine serves %s\n", decoder, engine, servedList(r.Served))
		}
	}
	return ""
}

func (e sidecarReady) text(std streams) {
	if e.Reason != "" {
		std.printf("waiting: %s\n", e.Reason)
		return
	}
	what := "reads prompts for " + servedList(e.Models)
	if e.Part != "" {
		what = "takes its share as " + e.Part
		if len(e.Models) > 0 {
			what += ", for " + servedList(e.Models)
		}
	}
	std.printf("ready: %s, %s connected\n", what, count(e.Workers, "worker"))
}

// sidecarLink is the event of a connection that came or was lost.
type sidecarLink struct {
	Event string `json:"event"` // connected, lost
	To    string `json:"to"`
	Again bool   `json:"again"`
	Why   string `json:"why,omitempty"` // of a loss; of a connection that is not the preferred way, what became of that
}

func (e sidecarLink) text(std streams) {
	switch {
	case e.Event == string(failover.Lost):
		std.printf("lost the connection to %s: %s\n", e.To, e.Why)
	case e.Again:
		std.printf("connected to %s again%s\n", e.To, e.better())
	default:
		std.printf("connected to %s%s\n", e.To, e.better())
	}
}

// better says why it is no better way.
func (e sidecarLink) better() string {
	if e.Why == "" {
		return ""
	}
	return ", no better route: " + e.Why
}

// linkEvent tells of connections, and of dials that fail: the first ones, then
// fewer and fewer, each with what is the matter with the other ways. Calls come one
// after the other.
func (s *sidecar) linkEvent(ctx context.Context, e failover.Event) {
	s.watched.dialled(e)
	switch e.Kind {
	case failover.Connected:
		delete(s.down, s.way(e))
		s.say(sidecarLink{string(e.Kind), s.way(e), e.Again, reasonText(lookedFor(e.Err))})
	case failover.Lost:
		s.say(sidecarLink{string(e.Kind), s.way(e), false, reasonText(e.Err)})
	case failover.Barred:
		s.down[s.way(e)] = e.Err
	case failover.Failed:
		others := s.others(e)
		s.down[s.way(e)] = e.Err
		if bits.OnesCount(uint(e.Tries)) == 1 {
			s.journal.warn("cannot connect, trying on", fmt.Errorf("%w (%s)%s", dialError(ctx, e.Err), times(e.Tries), others))
		}
	}
}

// others says what is the matter with the ways that an event is not of.
func (s *sidecar) others(e failover.Event) (text string) {
	for _, u := range s.ways {
		if err := s.down[u.String()]; err != nil && u.String() != s.way(e) {
			text += "; " + reasonText(err)
		}
	}
	return text
}

// reasonText is an error on one line; "" where there is none.
func reasonText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(cmdline.Plain(err), "\n", "; ")
}

// sidecarCall is the event of a prompt that was read.
type sidecarCall struct {
	Event    string   `json:"event"`
	Transfer string   `json:"transfer"`
	Model    string   `json:"model"`
	Tokens   int      `json:"tokens"`
	Part     int      `json:"part,omitempty"`  // of a group's transfer that this host sent, from 1
	Parts    int      `json:"parts,omitempty"` // that there are
	Peers    []string `json:"peers,omitempty"`
	calls.Result
	Ports []bridge.PortUse `json:"ports,omitempty"` // what this host's RDMA ports counted since the call that ended before
}

func (s *sidecar) callEvent(e prefill.Ended) {
	c := sidecarCall{
		Event: "call", Transfer: e.Transfer.String(), Model: e.Model, Tokens: e.Tokens, Peers: s.peers.take(e.Transfer), Result: e.Result,
	}
	if e.Parts > 1 {
		c.Part, c.Parts = e.Part+1, e.Parts
	}
	c.Ports = s.ports.next()
	s.watched.call(c)
	s.say(c)
}

func (e sidecarCall) text(std streams) {
	verdict := e.State
	if e.State == calls.Partial {
		verdict += fmt.Sprintf(" %d/%d", e.Blocks, e.Total)
	}
	if e.Reason != "" {
		verdict += ": " + e.Reason
	}
	part := ""
	if e.Parts > 1 {
		part = fmt.Sprintf(", part %d of %d", e.Part, e.Parts)
	}
	std.printf("prompt %s%s: %s, %d tokens of %s, %d of %d blocks visible (%d before), %s in %.3f s (engine %.3f s)\n",
		e.Transfer, part, std.verdict(verdict, e.State == calls.Complete), e.Tokens, e.Model, e.Blocks, e.Total, e.Present,
		bytesText(e.Bytes), e.Seconds, e.EngineSeconds)
	printPorts(std, "its ports", e.Ports)
}

// sidecarEnded is the event that prefill prints last.
type sidecarEnded struct {
	Event   string `json:"event"`
	PeakRSS uint64 `json:"peak_rss_bytes"`
	Ring    uint64 `json:"ring_bytes"`
}

func (e sidecarEnded) text(std streams) {
	ring := ""
	if e.Ring < e.PeakRSS { // its memory is taken when it is used
		ring = ", of which the ring at most " + bytesText(e.Ring)
	}
	std.printf("ended: peak RSS %s%s\n", bytesText(e.PeakRSS), ring)
}

// texter is an event that says how people read it.
type texter interface{ text(std streams) }

// say prints an event. Where it cannot be printed prompts are read on, and that is
// said once.
func (s *sidecar) say(e texter) {
	if s.asJSON {
		s.std.json(e) //nolint:errcheck // see below
	} else {
		e.text(s.std)
	}
	if err := s.std.out.failure(); err != nil {
		s.told.Do(func() { s.std.warnf("events are lost from here on, prompts are read on: %v", err) })
	}
}
