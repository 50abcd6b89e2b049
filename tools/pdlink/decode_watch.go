package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/bridge/front"
	"pdlink/bridge/omlx"
	"pdlink/bridge/trace"
	"pdlink/bridge/watch"
	"pdlink/bridge/watch/metrics"
	"pdlink/bridge/watch/pages"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
)

// The values of --log.
const (
	logNone = ""
	logText = "text"
	logJSON = "json"
)

// watchFlags are the flags of decode and prefill by which they are watched.
type watchFlags struct {
	metrics, token, log, trace string
	everybody                  bool

	at *pages.Addr // what check made of metrics; nil: there is no server
}

// register adds the flags to a command.
func (f *watchFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.metrics, "metrics", "", "serve a live page, figures for Prometheus at /metrics, /healthz and /readyz at `ADDR`: a port (on loopback), host:port or unix://path; default: nowhere")
	f.registerToken(c)
	fl.StringVar(&f.log, "log", logNone, "one line for each transfer and request on standard error, `FORMAT`: text or json; default: none")
	fl.StringVar(&f.trace, "trace", "", "at the end, write a timeline of what was done to `FILE`, for ui.perfetto.dev; default: none")
	must(c.MarkFlagFilename("trace", "json"))
	must(c.RegisterFlagCompletionFunc("log", cobra.FixedCompletions([]string{logText, logJSON}, cobra.ShellCompDirectiveNoFileComp)))
}

// check looks at the flags.
func (f *watchFlags) check(g given) error {
	empty := g.filled(map[string]string{"metrics": f.metrics, tokenFlag: f.token, "log": f.log, "trace": f.trace})
	var bad []error
	if f.metrics != "" {
		a, err := pages.ParseAddr(f.metrics)
		if err != nil {
			bad = append(bad, fmt.Errorf("--metrics %w", err))
		}
		f.at = &a
	}
	bad = append(bad, f.checkToken(g))
	if f.log != logNone && f.log != logText && f.log != logJSON {
		bad = append(bad, fmt.Errorf("--log %s: want %s or %s", f.log, logText, logJSON))
	}
	return errors.Join(append(bad, empty)...)
}

// recorder records the timeline of a process from now on; nil without --trace. That the
// file cannot be written is found now, not at the end.
func (f *watchFlags) recorder(process string) (*trace.Recorder, error) {
	if f.trace == "" {
		return nil, nil
	}
	if err := trace.Check(f.trace); err != nil {
		return nil, unusable(fmt.Errorf("--trace: %w", err))
	}
	return trace.New(trace.Options{Process: process}), nil
}

// keep writes the timeline of a command that ended with err, and returns both errors. One
// that failed before it did anything leaves an earlier file as it is.
func (f *watchFlags) keep(rec *trace.Recorder, err error) error {
	if err != nil && !rec.Recorded() {
		return err
	}
	if lost := rec.WriteFile(f.trace); lost != nil {
		return errors.Join(err, failed(fmt.Errorf("--trace: %w", lost))) // the job itself was done
	}
	return err
}

// watched is what a command that is watched has. A nil one is not, and its methods do
// nothing.
type watched struct {
	*watch.Watch
	metrics  *metrics.Metrics
	token    string        // of the pages; "": there is none
	listener net.Listener  // nil: there is no server
	pages    *pages.Server // the same, and before serve
}

// open begins to watch, and listens, but serves nothing yet. The options need what is
// this program's only.
func (f *watchFlags) open(ctx context.Context, j *journal, o watch.Options) (*watched, error) {
	if f.at == nil && f.log == logNone {
		return nil, nil
	}
	o.Host, o.Version, o.Ignore, o.Tokens = linkkeys.HostName(), thisBuild().Version, internal, tokensOf
	w := &watched{}
	if f.at != nil {
		var err error
		if w.token, err = f.readToken(); err != nil {
			return nil, err
		}
		if w.listener, err = f.at.Listen(ctx); err != nil {
			return nil, failed(listenError("metrics", f.at.Text, fmt.Errorf("--metrics %s: %w", f.metrics, err)))
		}
		if err := f.reach(w.listener, j); err != nil {
			return nil, errors.Join(err, w.listener.Close())
		}
		w.metrics = metrics.New(o.Version)
		o.Sink = w.metrics
	}
	switch f.log {
	case logText:
		o.Log = slog.New(slog.NewTextHandler(journalWriter{j}, nil))
	case logJSON:
		o.Log = slog.New(slog.NewJSONHandler(journalWriter{j}, nil))
	}
	w.Watch = watch.New(o)
	return w, nil
}

// serve begins to serve the pages. checks decide whether the program is ready.
func (w *watched) serve(checks []pages.Check) {
	if w == nil || w.listener == nil {
		return
	}
	w.pages = pages.New(pages.Options{Watch: w.Watch, Metrics: w.metrics.Handler(), Checks: checks, Token: w.token})
	w.metrics.Observe(w.Watch, w.pages.Ready)
	w.pages.Serve(w.listener)
}

// url is where the page is; "" where there is none.
func (w *watched) url() string {
	if w == nil || w.listener == nil {
		return ""
	}
	return pages.URL(w.listener)
}

// close ends the pages. It is idempotent.
func (w *watched) close() error {
	switch {
	case w == nil || w.listener == nil:
		return nil
	case w.pages == nil:
		return w.listener.Close()
	}
	return w.pages.Close()
}

// link has the connections of a link be seen.
func (w *watched) link(l transport.Link) transport.Link {
	if w == nil {
		return l
	}
	return w.Link(l)
}

// target has the phases of a target be seen.
func (w *watched) target(t bridge.Target) bridge.Target {
	if w == nil {
		return t
	}
	return w.Target(t)
}

// ring has the use of a ring be seen.
func (w *watched) ring(name string, r *transport.Ring) {
	if w != nil {
		w.Ring(name, r)
	}
}

// block tells of a block that became visible.
func (w *watched) block(id transport.ID, visible, total int) {
	if w != nil {
		w.Block(id, visible, total)
	}
}

// transfer tells of a transfer that ended here.
func (w *watched) transfer(e transferEvent) {
	if w == nil {
		return
	}
	t := watch.Transfer{
		Transfer: e.Transfer, State: string(e.State), Reason: e.Reason, Blocks: e.Blocks, Total: e.Total, Present: e.Present,
		Bytes: e.Bytes, Bad: e.Bad, Seconds: e.Seconds, Peers: e.Peers, Links: []watch.LinkBytes{},
	}
	for _, l := range e.Links {
		t.Links = append(t.Links, watch.LinkBytes{Link: l.Link, Sealed: l.Sealed, Bytes: l.Bytes, Saved: l.Saved, Codec: l.Codec})
	}
	w.Ended(t)
}

// declined tells of an offer that was refused. A transfer of its id may go on.
func (w *watched) declined(e declinedEvent) {
	if w != nil {
		w.Refused(watch.Transfer{Transfer: e.Transfer, State: string(e.State), Reason: e.Reason})
	}
}

// request tells of a request to the front door.
func (w *watched) request(r front.Record) {
	if w == nil {
		return
	}
	w.Answered(watch.Request{
		ID: r.ID, Path: r.Path, Model: r.Model, Outcome: string(r.Outcome), Reason: r.Reason, Tokens: r.Tokens, Promised: r.Promised,
		Cached: r.Cached, Less: r.Check == front.CheckLess, Client: r.Client, Status: r.Status,
		Plan: r.PlanSeconds, Bridge: r.BridgeSeconds, Adopt: r.AdoptSeconds, First: r.FirstSeconds, Seconds: r.Seconds,
	})
}

// tokensOf is how many tokens a block of a transfer has.
func tokensOf(kind string, meta []byte) int {
	var plan omlx.Plan
	if kind != omlx.Kind || plan.UnmarshalBinary(meta) != nil {
		return 0
	}
	return plan.Spec.BlockTokens
}

// journalWriter is where log lines go: nobody waits for whoever reads them.
type journalWriter struct{ j *journal }

// Write implements io.Writer. The line is fit for a terminal: slog quotes what is not.
func (w journalWriter) Write(p []byte) (int, error) {
	w.j.say("%s", painted(p))
	return len(p), nil
}

// watch begins to watch a `pdlink decode`.
func (d *decoding) watch(ctx context.Context) (err error) {
	o := watch.Options{Program: "decode", Store: d.lookStore}
	if d.door.url != nil {
		o.Running = func() int {
			if door := d.opened.Load(); door != nil {
				return door.front.Running()
			}
			return 0
		}
	}
	d.watched, err = d.watching.open(ctx, d.journal, o)
	return err
}

// storeDir is where blocks go; "" with --discard, or before the decoder said so.
func (d *decoding) storeDir() string {
	if door := d.opened.Load(); d.store == "" && door != nil {
		return door.plugin.Store()
	}
	return d.start.Store // fixed before anybody can look
}

// lookStore looks at the store for who wants to see it.
func (d *decoding) lookStore() *watch.Store {
	dir := d.storeDir()
	if dir == "" {
		return nil
	}
	s := &watch.Store{Dir: dir}
	var ok bool
	if s.Free, s.Size, ok = freeSpace(dir); !ok {
		s.Error = "its free space cannot be told"
	}
	return s
}

// checks are what has to be so for transfers to be taken.
func (d *decoding) checks() []pages.Check {
	list := []pages.Check{{Name: "listener", Probe: func(context.Context) error {
		if !d.accepting.Load() {
			return errors.New("it does not accept connections any more")
		}
		return nil
	}}}
	if !d.discard {
		list = append(list, pages.Check{Name: "store", Probe: func(context.Context) error {
			if dir := d.storeDir(); dir != "" {
				return d.room.look(dir)
			}
			return nil // the decoder says where it is with the first request
		}})
	}
	if d.front != nil {
		list = append(list, pages.Check{Name: "decoder", Probe: d.front.plugin.Probe})
	}
	return list
}

// doorOf is a door that is there as soon as it is open.
type doorOf = atomic.Pointer[door]

// answered tells what became of a request to the front door. It does not wait.
func (d *decoding) answered(r front.Record) {
	d.watched.request(r)
	d.request(r)
}
