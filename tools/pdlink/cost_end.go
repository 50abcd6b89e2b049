package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/trace"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/session"
)

// The orders of `pdlink cost` to its ends.
const (
	costListen = "listen" // begin to receive
	costStop   = "stop"   // end that, and say what it took
	costSend   = "send"   // send a prompt's blocks, in one process with --link mem://
)

// costOrder is a line that `pdlink cost` says to one of its ends. Fields that an order has
// no use for are empty.
type costOrder struct {
	Do      string  `json:"do"`
	Link    string  `json:"link"` // URL to listen at or to send to
	Keys    string  `json:"keys"` // "": none
	Encrypt string  `json:"encrypt"`
	Store   string  `json:"store"` // "": nothing is kept
	NoSync  bool    `json:"no_sync"`
	Case    string  `json:"case"` // "": synthetic
	Model   string  `json:"model"`
	Tokens  int     `json:"tokens"`
	Seed    uint64  `json:"seed"`
	Chunk   int     `json:"chunk"`
	Pace    float64 `json:"pace"` // seconds that the whole prompt takes to be made; 0: as fast as it goes
}

// costAnswer is what an end answers.
type costAnswer struct {
	Error    string             `json:"error,omitempty"`
	Missing  bool               `json:"missing,omitempty"` // the link is not to be had on this host
	Listen   string             `json:"listen,omitempty"`
	Tokens   int                `json:"tokens,omitempty"` // that the blocks cover
	Blocks   int                `json:"blocks,omitempty"`
	Bytes    uint64             `json:"bytes,omitempty"`
	Link     string             `json:"link,omitempty"` // that carried them
	Sealed   bool               `json:"sealed,omitempty"`
	Seconds  float64            `json:"seconds,omitempty"` // from the first open to the last block visible
	Tail     float64            `json:"tail,omitempty"`    // from the source's last piece to the verdict
	CPU      float64            `json:"cpu,omitempty"`     // of this process
	Busy     map[string]float64 `json:"busy,omitempty"`    // seconds in which each phase was going on
	Spent    map[string]float64 `json:"spent,omitempty"`   // the same, each moment of an end counted once
	Made     bool               `json:"made,omitempty"`    // a case's pieces were made before the clock ran
	PerToken float64            `json:"per_token,omitempty"`
	Block    int                `json:"block,omitempty"`
	Layers   int                `json:"layers,omitempty"`
	Model    string             `json:"model,omitempty"`
}

// maxOrder bounds a line between `pdlink cost` and its ends.
const maxOrder = 1 << 16

// newCostEnd is one end of what `pdlink cost` measures, in a process of its own.
func newCostEnd(std streams) *cobra.Command {
	return &cobra.Command{
		Use:    "end",
		Short:  "be one end of what cost measures",
		Long:   "end carries out what cost says to it, a line of JSON at a time.\n\n" + statusText,
		Args:   wants(0),
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			e := costEnd{std: std}
			defer e.stop() //nolint:errcheck // nobody is left to tell
			lines := bufio.NewScanner(c.InOrStdin())
			lines.Buffer(nil, maxOrder)
			for lines.Scan() {
				var o costOrder
				a, err := costAnswer{}, json.Unmarshal(lines.Bytes(), &o)
				if err == nil {
					a, err = e.do(c.Context(), o)
				}
				if err != nil {
					a = costAnswer{Error: cmdline.Plain(err), Missing: errors.Is(err, transport.ErrUnavailable)}
				}
				if err := std.json(a); err != nil {
					return err
				}
			}
			return lines.Err()
		},
	}
}

// costEnd is an end. It carries out one order at a time.
type costEnd struct {
	std   streams
	ring  *transport.Ring // of all transfers: made once, as a receiver and a live source do
	keys  linkkeys.Choice
	names peerNames
	r     *receiving // nil: nothing is received
	rec   *trace.Recorder
	cpu   float64     // when receiving began
	held  *heldPieces // of the last case; nil: none
}

func (e *costEnd) do(ctx context.Context, o costOrder) (costAnswer, error) {
	switch o.Do {
	case costListen:
		return e.listen(ctx, o)
	case costStop:
		return e.stop()
	case costSend:
		return e.send(ctx, o)
	}
	return costAnswer{}, fmt.Errorf("no order %q", o.Do)
}

// costRingMiB is what `pdlink decode` takes by default.
const costRingMiB = 512

// open opens a link with the order's keys. The ring is of the direction that the end has.
func (e *costEnd) open(ctx context.Context, o costOrder, receives bool) (transport.Link, linkURL, error) {
	u, err := parseLink(o.Link)
	if err != nil {
		return nil, u, err
	}
	e.rec = trace.New(trace.Options{})
	lo := linkOptions{session: session.Options{Intercept: e.rec.Intercept(nil)}, peers: &e.names}
	if e.ring == nil {
		if e.ring, err = newRing(costRingMiB); err != nil {
			return nil, u, err
		}
	}
	if lo.session.SendRing = e.ring; receives {
		lo.session.SendRing, lo.session.RecvRing = nil, e.ring
	}
	if o.Keys != "" {
		f := linkkeys.Flags{Dir: o.Keys, Encrypt: o.Encrypt}
		if e.keys, err = f.Choose(ctx, func(flag string) bool { return flag != "peer" }, func(error) {}, u.place()); err != nil {
			return nil, u, err
		}
	}
	lo.keys = e.keys
	return u.open(lo), u, nil
}

// options are those of the order's receiver.
func (e *costEnd) options(o costOrder) (bridge.Options, error) {
	open := openDiscard
	if o.Store != "" {
		_, store, err := place{o.Store, false}.open(e.std, o.NoSync)
		if err != nil {
			return bridge.Options{}, err
		}
		open = openStore(store)
	}
	return bridge.Options{Open: e.rec.Opener(open), OnBlock: e.rec.OnBlock(nil)}, nil
}

func (e *costEnd) listen(ctx context.Context, o costOrder) (costAnswer, error) {
	if _, err := e.stop(); err != nil {
		return costAnswer{}, err
	}
	link, u, err := e.open(ctx, o, true)
	if err != nil {
		return costAnswer{}, err
	}
	e.r, err = startReceiving(ctx, link, u, func() (bridge.Options, error) { return e.options(o) })
	if err != nil {
		return costAnswer{}, errors.Join(err, e.shut())
	}
	e.cpu = cpuSeconds()
	return costAnswer{Listen: u.at(e.r.listener.Addr()).String()}, nil
}

// stop ends what listen began.
func (e *costEnd) stop() (a costAnswer, err error) {
	if e.r == nil {
		return a, nil
	}
	a.CPU = cpuSeconds() - e.cpu
	err = errors.Join(e.r.stop(), e.shut())
	e.r, a.Busy, a.Spent = nil, busy(e.rec, receiverRows()), spent(e.rec, receiverRows())
	return a, err
}

func (e *costEnd) shut() error {
	err := e.keys.Close()
	e.keys = linkkeys.Choice{}
	return err
}

// send sends a prompt's blocks. Over mem:// the receiver is here too.
func (e *costEnd) send(ctx context.Context, o costOrder) (a costAnswer, err error) {
	j, err := o.job()
	if err != nil {
		return a, err
	}
	defer j.release()
	link, u, err := e.open(ctx, o, false)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, e.shut()) }()
	source, made, err := e.pieces(ctx, o, j)
	if err != nil {
		return a, err
	}
	addr, here := u.addr, u.scheme == schemeMem
	cpu := cpuSeconds()
	if here {
		r, err := startReceiving(ctx, link, u, func() (bridge.Options, error) { return e.options(o) })
		if err != nil {
			return a, err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		addr = r.listener.Addr()
	}
	v, tail, err := e.carry(ctx, j, source, o.Pace, failover.Route{Name: u.scheme, Link: link, Addr: addr})
	if err != nil {
		return a, dialError(ctx, err)
	}
	a = costAnswer{Seconds: v.Seconds, Tail: tail.Seconds(), CPU: cpuSeconds() - cpu, Made: made, Blocks: v.Blocks, Bytes: v.Bytes}
	a.Busy, a.Spent = busy(e.rec, senderRows()), spent(e.rec, senderRows())
	if here {
		maps.Copy(a.Busy, busy(e.rec, receiverRows()))
		maps.Copy(a.Spent, spent(e.rec, receiverRows()))
	}
	a.Block, a.Layers, a.Model = j.plan.Spec.BlockTokens, j.plan.Spec.Layers, j.plan.Spec.Model
	a.Tokens, a.PerToken = v.Blocks*a.Block, float64(j.shape.BlockBytes)/float64(a.Block)
	if v.State != bridge.Complete || v.Present > 0 || len(v.Links) != 1 {
		return a, fmt.Errorf("the transfer ended %s, with %d blocks that were there before, over %d links", v, v.Present, len(v.Links))
	}
	a.Link, a.Sealed = v.Links[0].Link, v.Links[0].Sealed
	return a, nil
}

// carry sends a job over one route and returns the receiver's verdict, and how long after
// the source's last piece it came.
func (e *costEnd) carry(ctx context.Context, j *job, source bridge.Source, pace float64, way failover.Route) (v bridge.Verdict, tail time.Duration, err error) {
	d, err := failover.New(failover.Options{Routes: []failover.Route{way}, Window: -1})
	if err != nil {
		return v, 0, err
	}
	req := transport.Request{ID: j.id, Kind: omlx.Kind, Parts: 1, Replayable: true, Meta: j.meta}
	c, err := bridge.OpenCourier(ctx, e.rec.Dialer(d), req, j.shape)
	if err != nil {
		return v, 0, err
	}
	defer c.Close()
	src := &pacedSource{Source: source, blocks: int64(j.shape.Blocks)}
	if pace > 0 {
		src.rate = float64(int64(j.shape.Blocks)*j.shape.BlockBytes) / pace
	}
	v, err = c.Run(ctx, e.rec.Source(src))
	return v, time.Duration(time.Now().UnixNano() - src.ended.Load()), err
}

// job is what the order sends.
func (o costOrder) job() (*job, error) {
	f := &replayFlags{synthetic: o.Model, tokens: o.Tokens, seed: o.Seed, chunk: o.Chunk, senders: 1, link: cmp.Or(o.Link, "mem://"), discard: true}
	var args []string
	if o.Case != "" {
		f.synthetic, f.tokens, args = "", 0, []string{o.Case}
	}
	if err := f.settle(); err != nil {
		return nil, err
	}
	j, err := f.job(args, nil)
	if err == nil && j.shape.Blocks == 0 {
		j.release()
		err = errors.New("the prompt has no whole block: nothing would be sent")
	}
	return j, err
}

// senderRows are a sender's phases: where several go on at once, the moment is the first's.
// Work comes before waiting.
func senderRows() []trace.Row {
	return []trace.Row{trace.Project, trace.Send, trace.Lease, trace.Grant}
}

// receiverRows are the same of a receiver, to which reading the wire is mostly waiting.
func receiverRows() []trace.Row {
	return []trace.Row{trace.Write, trace.Sync, trace.Verify, trace.Adopt, trace.Receive}
}

// busy is for how long each of some phases was going on, in seconds.
func busy(rec *trace.Recorder, rows []trace.Row) map[string]float64 {
	m := make(map[string]float64, len(rows))
	for _, r := range rows {
		m[r.String()] = rec.Busy(r).Seconds()
	}
	return m
}

// spent shares the time in which anything was going on out among the phases: their sum is
// that time.
func spent(rec *trace.Recorder, rows []trace.Row) map[string]float64 {
	m, before := make(map[string]float64, len(rows)), 0.0
	for i, r := range rows {
		all := rec.Busy(rows[:i+1]...).Seconds()
		m[r.String()] = all - before
		before = all
	}
	return m
}
