package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/keys"
)

const replayLong = `replay makes the blocks of a case (a recorded prefill) with the same kernels and
layouts as a live prefill, sends them over a link and puts them into a store.

With --store the receiver runs in this process and the blocks are compared with
CASE/expected, where the decoder's own are recorded: header parsed and compared
but for created_at and padding, data byte for byte. With --to the receiver is a
"pdlink decode" elsewhere; several processes with --part 1/N … N/N fill one
transfer together, each with its share of the layers. Every one of them needs the
case. They must run at the same time: decode waits only --part-wait for those
that are missing. Running all of them again sends what is missing then.

A prompt shorter than a block has no blocks: the verdict is "skipped". Tokens
behind the last whole block are left to the decoder. Where the prompt is an exact
multiple of the block and the decoder cannot use a block that leaves it no token
to compute (DeepSeek-V4), the last block is withheld.

CASE is a directory, or "bundled:NAME" for one that is built in. It holds:

  case.json            kind            "kv" (plain keys and values) or "dsv4"
                       model           as the decoder calls it: enters every hash
                       format          block format: "2" to "5"
                       block_size      tokens of a block
                       numerics        the decoder's roundings: mlx-cpu, mlx-metal,
                                       ideal, or exact (kv)
                       tokens          ids of the whole prompt
                       captured_tokens how many of them the capture holds
                                       (default: all)
                       blocks          chain hashes, checked if there
                       layout_options  of a decoder that is a fork
                       kv:   layers, kv_heads, head_dim, dtype
                       dsv4: config (the model's), pool_state_elements (3 or 5)
  capture.safetensors  kv:   layer_{i}.k, layer_{i}.v [tokens, kv_heads, head_dim]
                       dsv4: layer_{i}.x [tokens, hidden], what attention is given
  weights.safetensors  dsv4: the decoder's projection weights
  expected/            the decoder's own blocks, <h0>/<hash>.safetensors (optional)

A connection that is lost is replaced, and only what the receiver lacks is sent:
--retry is how long that is tried without progress. That covers a receiver that is
started again, and a first connection that is cut before it is made. A sender that
is started again asks first, too. Nobody at the address at the beginning, or another
program there, is told of at once.

Several --to are ways to the same receiver, the preferred one first. One that fails
is left for the next, and tried again later; which was taken, and why, is said and
in the result. --require allows those of one scheme only.

--json prints one object in every case, once the command line is understood:
state is complete, partial, skipped, declined, failed or stopped; reason says why.

` + statusText

func newReplay(std streams) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay CASE {--store DIR | --to URL | --discard}",
		Short: "send the blocks of a recorded prefill",
		Long:  replayLong,
		Example: `  pdlink replay bundled:kv-qwen3 --store /tmp/store --link tcp://127.0.0.1:0
  pdlink replay CASE --to tcp://127.0.0.1:7411 --part 1/2
  pdlink replay --synthetic deepseek-v4-flash --tokens 100000 --to tcp://127.0.0.1:7411`,
		Args:              wants(0, "CASE"),
		ValidArgsFunction: completeCase,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(flagsOf(c)); err != nil {
				return err
			}
			return f.run(c.Context(), std, args, flagsOf(c))
		},
	}
	f.register(c)
	return c
}

// The states of a verdict that never came from a receiver.
const (
	stateFailed  bridge.State = "failed"  // something broke before there was a verdict
	stateStopped bridge.State = "stopped" // the command was interrupted
)

// replayResult is what `pdlink replay --json` prints, and `pdlink demo --json`
// for each run.
type replayResult struct {
	Event   string `json:"event,omitempty"` // of the demo
	Case    string `json:"case"`
	Kind    string `json:"kind"`
	Link    string `json:"link"`
	Verdict string `json:"verdict"` // state and reason in one text
	verdictFields
	Peers      []string         `json:"peers,omitempty"`      // with keys: the receiver's name here
	Reconnects int              `json:"reconnects"`           // connections that replaced lost ones
	SentBytes  uint64           `json:"sent_bytes"`           // payload, over all connections of all senders
	Resent     uint64           `json:"resent_bytes"`         // of SentBytes, what had been sent before
	SentLinks  []bridge.LinkUse `json:"sent_links,omitempty"` // SentBytes by link
	SentPorts  []bridge.PortUse `json:"sent_ports,omitempty"` // as ports, of this end
	Routes     []failover.Use   `json:"routes,omitempty"`     // with --to: what became of each, for all senders together
	Tokens     int              `json:"tokens"`               // that the visible blocks cover
	Withheld   int              `json:"withheld"`             // whole blocks that the decoder could not use
	Compared   bool             `json:"compared"`             // the next three count
	Identical  int              `json:"identical"`
	Different  int              `json:"different"`
	Missing    int              `json:"missing"`
	PeakRSS    uint64           `json:"peak_rss_bytes"`
}

// good reports whether everything that was expected is there.
func (r *replayResult) good() bool {
	return (r.State == bridge.Complete || r.State == bridge.Skipped) && r.Different == 0 && r.Missing == 0
}

// run replays, and has --json print one object whatever happens.
func (f *replayFlags) run(ctx context.Context, std streams, args []string, g given) error {
	err := f.replay(ctx, std, args, g)
	if err == nil || quiet(err) || !f.asJSON || answered(err) {
		return err
	}
	v := bridge.Verdict{State: stateFailed, Reason: cmdline.Plain(err)}
	if ctx.Err() != nil {
		v = bridge.Verdict{State: stateStopped, Reason: "interrupted"}
	}
	j := &job{name: "synthetic:" + f.synthetic}
	if len(args) > 0 {
		j.name = args[0]
	}
	res := replayResult{Case: j.name, Link: f.linkOf(j), Verdict: v.String(), verdictFields: verdictFields(v), PeakRSS: peakRSS()}
	return answeredError{errors.Join(err, std.json(res))}
}

// replay does it. An error that an object of --json has told of is answered.
func (f *replayFlags) replay(ctx context.Context, std streams, args []string, g given) (err error) {
	if f.timeline, err = (&watchFlags{trace: f.trace}).recorder("pdlink replay"); err != nil {
		return err
	}
	bounded := ctx
	if f.timeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("not done after %v (--timeout)", f.timeout))
		defer cancel()
	}
	if err := f.openKeys(ctx, std, g); err != nil {
		return err
	}
	defer f.keys.Close() // it cannot fail
	step, hide := std.progress("send")
	f.hide = hide
	j, err := f.job(args, step)
	if err != nil {
		return err
	}
	defer j.release()
	if f.store != "" {
		release := std.whenStopped(ctx, hurry)
		defer release()
	}
	v, err := f.verdict(bounded, std, j)
	hide()
	if misused(err) && (errors.Is(err, keys.ErrExposed) || !errors.Is(err, transport.ErrInsecure)) {
		return err
	}
	if err != nil {
		v, err = f.broken(ctx, bounded, err)
	}
	kept := f.keepTrace(err)
	res, findings, wrong := f.result(j, v)
	for _, why := range findings {
		std.notef("%s\n", why)
	}
	if wrong == nil && v.State == bridge.Partial && f.part != "" {
		std.notef("the parts of a transfer must run at the same time; running all of them again sends what is missing\n")
	}
	if wrong = errors.Join(wrong, kept); f.asJSON {
		wrong = errors.Join(wrong, std.json(res))
	} else if err == nil || v.State == bridge.Declined {
		printReplay(std, res)
		err = nil
	}
	if err = errors.Join(err, wrong); err != nil && f.asJSON {
		return answeredError{failed(err)}
	} else if err != nil || !res.good() {
		return failed(err)
	}
	return nil
}

// keepTrace writes the timeline of a job that ended with err: before its result is said, which
// is the last thing that programs read. One that failed before anything was done leaves an
// earlier file as it is. The error is why it could not be written.
func (f *replayFlags) keepTrace(err error) error {
	if err != nil && !f.timeline.Recorded() {
		return nil
	}
	return f.timeline.WriteFile(f.trace)
}

// openKeys opens the keys of the link, where there is another host.
func (f *replayFlags) openKeys(ctx context.Context, std streams, g given) (err error) {
	if len(f.routes) == 0 {
		return nil
	}
	places := make([]linkkeys.Place, 0, len(f.routes))
	for _, u := range f.routes {
		places = append(places, u.place())
	}
	f.keys, err = f.peers.Choose(ctx, g, func(err error) { std.warnf("peers are not as they should be: %v", err) }, places...)
	if err != nil {
		return keysError(err)
	}
	if f.keys.Store != nil && !f.keys.Dir.Named {
		std.notef("%s\n", f.keys.Text())
	}
	for _, w := range f.keys.Warnings(false) {
		std.warnf("%s", w)
	}
	return nil
}

// verdict is how the job's transfer ends; one without blocks does not begin.
func (f *replayFlags) verdict(ctx context.Context, std streams, j *job) (bridge.Verdict, error) {
	if len(j.plan.Hashes) > 0 {
		return f.transfer(ctx, std, j)
	}
	v := bridge.Verdict{State: bridge.Skipped, Reason: "the prompt has no whole block"}
	if j.withheld > 0 {
		v.Reason = "the prompt's only whole block leaves the decoder no token to compute"
	}
	return v, nil
}

// broken is the verdict on a transfer that ended with err, and what to tell
// people. ctx ends with the command, bounded also after --timeout.
func (f *replayFlags) broken(ctx, bounded context.Context, err error) (bridge.Verdict, error) {
	var refused *transport.RefusedError
	switch {
	case ctx.Err() != nil:
		return bridge.Verdict{State: stateStopped, Reason: "interrupted"}, errStopped
	case errors.As(err, &refused):
		reason := refused.Reason
		if errors.Is(err, transport.ErrBusy) {
			reason = "no room: " + reason
		}
		v := bridge.Verdict{State: bridge.Declined, Reason: reason}
		return v, errors.New(v.String())
	case bounded.Err() != nil:
		err = context.Cause(bounded)
	}
	return bridge.Verdict{State: stateFailed, Reason: cmdline.Plain(err)}, err
}

// result puts together what a transfer came to, and compares its blocks with
// those that the case records. Its error is one of the comparison.
func (f *replayFlags) result(j *job, v bridge.Verdict) (res replayResult, findings []string, err error) {
	v.Transfer, v.Total = j.id.String(), len(j.plan.Hashes)
	res = replayResult{
		Case: j.name, Kind: j.plan.Spec.Kind, Link: f.linkOf(j), Verdict: v.String(), verdictFields: verdictFields(v),
		Reconnects: j.sent.Connects, SentBytes: j.sent.Bytes, Resent: j.sent.Again, SentLinks: j.sent.Links, Routes: j.routes,
		SentPorts: j.ports,
		Peers:     f.names.take(j.id), Tokens: v.Blocks * j.plan.Spec.BlockTokens, Withheld: j.withheld, PeakRSS: peakRSS(),
	}
	arrived := v.State == bridge.Complete || v.State == bridge.Partial || v.State == bridge.Skipped
	if j.compare == nil || f.store == "" || !arrived {
		return res, nil, nil
	}
	cmp, err := j.compare(f.store)
	res.Compared, res.Identical, res.Different, res.Missing = err == nil, cmp.Identical, cmp.Different, cmp.Missing
	return res, cmp.Findings, err
}

// times is "once", "2 times".
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// printLeft says why ways to the receiver were not used, or left for another one.
func printLeft(std streams, routes []failover.Use) {
	for _, u := range routes {
		if len(routes) > 1 && u.Reason != "" && (u.Trips > 0 || u.Connects == 0) {
			std.printf("  not over %s\n", strings.ReplaceAll(cmdline.PlainText(u.Reason), "\n", "; "))
		}
	}
}

func printReplay(std streams, r replayResult) {
	over := r.Link
	if len(r.Links) > 0 {
		over = linkText(r.Links)
	}
	if len(r.Peers) > 0 {
		over += " to " + listText(r.Peers)
	}
	std.printf("%s over %s: %s\n", r.Case, over, std.verdict(r.Verdict, r.good()))
	if r.State == bridge.Declined {
		return
	}
	std.printf("  %d of %d blocks (%d before, %d tokens), %s in %.3f s", r.Blocks, r.Total, r.Present, r.Tokens, bytesText(r.Bytes), r.Seconds)
	if r.Seconds > 0 && r.Tokens > 0 {
		std.printf(", %.3f GB/s, %.4f ms per token", float64(r.Bytes)/r.Seconds/1e9, r.Seconds*1e3/float64(r.Tokens))
	}
	std.printf("\n")
	if r.Reconnects > 0 {
		std.printf("  connected again %s, sent %s, of it %s twice\n", times(r.Reconnects), bytesText(r.SentBytes), bytesText(r.Resent))
	}
	printLeft(std, r.Routes)
	printPorts(std, "the receiver's ports", r.Ports)
	printPorts(std, "the sender's ports", r.SentPorts)
	if r.Withheld > 0 {
		std.printf("  %s withheld: the decoder needs a token to compute\n", count(r.Withheld, "block"))
	}
	if r.Compared {
		std.printf("  against the decoder's own: %d identical, %d different, %d missing\n", r.Identical, r.Different, r.Missing)
	}
}
