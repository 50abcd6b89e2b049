package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"pdlink/bridge/omlx/plugin"
)

// Times of asking for a front's record of a request, which is there when its answer has
// ended for the front too.
const (
	recordTime  = 2 * time.Second
	recordPause = 20 * time.Millisecond
	maxRecord   = 1 << 20 // bytes
)

// round measures every arm of a length once. Who begins changes with the run; the engine is asked
// after the front, so that a cache of its own can only make it look quicker than it was, and the
// overhead larger.
func (b *run) round(ctx context.Context, want, words, n int, counted bool) error {
	one := &round{run: b, want: want, words: words, n: n, counted: counted, what: "run"}
	if !counted {
		one.what = "warm-up"
	}
	steps := []func(context.Context) error{one.natives, one.bridges}
	if n%2 == 0 {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			one.tell() // what there is of it
			return err
		}
	}
	one.tell()
	return nil
}

// round is one prompt's worth of arms.
type round struct {
	*run
	want, words, n int
	counted        bool
	what           string

	native, bridged, engine *Row // nil: not measured
}

func (d *round) start(arm Arm, seed uint64) Row {
	return Row{Arm: arm, Want: d.want, Run: d.n, Counted: d.counted, Seed: seed}
}

// seed is that of the arm's prompt.
func (d *round) seed(arm Arm) uint64 {
	return seedOf(d.o.Seed, string(arm)+" "+d.what, d.want, d.n)
}

func (d *round) natives(ctx context.Context) error {
	again := d.o.wants(Warm) && d.front == nil
	if !d.o.wants(Native) && !again {
		return nil
	}
	p := d.prompt(d.seed(Native), d.words)
	if d.o.wants(Native) {
		row, err := d.text(ctx, d.run.native, Native, &p, d.seed(Native))
		if err != nil {
			return err
		}
		d.native = d.add(row)
	}
	if !again {
		return nil
	}
	row, err := d.text(ctx, d.run.native, Warm, &p, d.seed(Native))
	if err == nil {
		d.add(row)
	}
	return err
}

func (d *round) bridges(ctx context.Context) error {
	again := d.o.wants(Warm) && d.front != nil
	if !d.o.wants(Bridged) && !d.o.wants(Engine) && !again {
		return nil
	}
	seed := d.seed(Bridged)
	p := d.prompt(seed, d.words)
	var known ids
	var unknown error
	if d.o.wants(Engine) { // before they are present
		if known, unknown = d.idsOf(ctx, &p); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if d.o.wants(Bridged) {
		row, err := d.text(ctx, d.front, Bridged, &p, seed)
		if err != nil {
			return err
		}
		d.bridged = d.add(row)
	}
	if d.o.wants(Engine) {
		if err := d.reads(ctx, known, unknown, seed); err != nil {
			return err
		}
	}
	if !again {
		return nil
	}
	row, err := d.text(ctx, d.front, Warm, &p, seed)
	if err == nil {
		d.add(row)
	}
	return err
}

// add keeps a row and tells of it; the pointer is to a copy of it.
func (d *round) add(row Row) *Row {
	d.report.Rows = append(d.report.Rows, row)
	d.done++
	if d.o.OnRow != nil {
		d.o.OnRow(row)
	}
	if d.o.OnStep != nil {
		d.o.OnStep(d.done, d.total)
	}
	return &row
}

// text asks a target for an answer to a prompt. The error is the context's.
func (d *round) text(ctx context.Context, t *target, arm Arm, p *prompt, seed uint64) (Row, error) {
	row := d.start(arm, seed)
	before := sample(ctx)
	path, fields := p.fields(d.o.API, d.o.Answer)
	a, err := t.ask(ctx, path, fields)
	if ctx.Err() != nil {
		return row, ctx.Err()
	}
	if err != nil {
		row.Error = short(err.Error())
	}
	row.First, row.Total, row.Verdict = a.first.Seconds(), a.total.Seconds(), a.verdict
	row.Rate, row.Said = a.rate()
	row.Cached = a.usage.cached
	if a.usage.prompt != nil {
		row.Tokens = *a.usage.prompt
	}
	if d.report.Finds && err == nil {
		row.Marker = MarkerMissing
		if p.found(a.text.String()) {
			row.Marker = MarkerFound
		}
	}
	if err == nil && a.usage.generated == nil && a.pieces > 1 { // one that broke off had no time to
		d.missing("tokens of answers: %s does not tell them, so decode rates count pieces of text", t.name)
	}
	row.judged()
	d.record(ctx, t, &row)
	if row.Tokens == 0 {
		row.Tokens = d.want
		if err == nil {
			d.missing("tokens of prompts: %s does not tell them, so the length that was wanted is shown", t.name)
		}
	}
	row.heat(before, sample(ctx))
	return row, ctx.Err()
}

// heat notes what the host said.
func (r *Row) heat(before, after Sample) {
	r.Host = after
	if after.Throttled > before.Throttled {
		r.Throttled = after.Throttled - before.Throttled
	}
}

// judged reads the verdict, as far as it can be read.
func (r *Row) judged() {
	head, rest, _ := strings.Cut(r.Verdict, ";")
	r.Outcome, _, _ = strings.Cut(strings.TrimSpace(head), " ")
	var promised, tokens int
	if n, _ := fmt.Sscanf(strings.TrimSpace(strings.TrimPrefix(head, r.Outcome)), "%d/%d tokens", &promised, &tokens); n == 2 && promised >= 0 && promised <= tokens {
		r.Promised = promised
	}
	if reason, _, _ := strings.Cut(rest, "; id="); !strings.HasPrefix(strings.TrimSpace(reason), "id=") {
		r.Reason = strings.TrimSpace(reason)
	}
}

// record adds what the front keeps of the request. It serves it on its own host only.
func (d *round) record(ctx context.Context, t *target, row *Row) {
	_, id, ok := strings.Cut(row.Verdict, "id=")
	if !ok || t != d.front || strings.ContainsAny(id, "/ ?#%") || id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	var found struct {
		Tokens   int     `json:"tokens"`
		Promised int     `json:"promised"`
		Bytes    uint64  `json:"bytes"`
		Sealed   bool    `json:"sealed"`
		Plan     float64 `json:"plan_seconds"`
		Bridge   float64 `json:"bridge_seconds"`
		Adopt    float64 `json:"adopt_seconds"`
	}
	for {
		err := d.front.look(ctx, id, &found)
		var status *StatusError
		switch {
		case err == nil:
			row.Promised, row.Bytes, row.Sealed = found.Promised, found.Bytes, found.Sealed
			row.Plan, row.Bridge, row.Adopt = found.Plan, found.Bridge, found.Adopt
			if row.Tokens == 0 {
				row.Tokens = found.Tokens
			}
			return
		case errors.As(err, &status) && status.Status == http.StatusNotFound:
		default:
			d.missing("the front's own times: its record cannot be had: %s", short(err.Error()))
			return
		}
		select {
		case <-ctx.Done():
			d.missing("the front's own times: it keeps no record of a request")
			return
		case <-time.After(recordPause):
		}
	}
}

// look reads the record of a request.
func (t *target) look(ctx context.Context, id string, to any) error {
	r, _, done, err := t.send(ctx, http.MethodGet, t.base.JoinPath("pdlink", "transfers", id), nil)
	defer done()
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxRecord))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to)
}

// reads asks the engine alone for the bridged prompt's ids, as pdlink asks it, but for the
// transfer.
func (d *round) reads(ctx context.Context, known ids, unknown error, seed uint64) error {
	row := d.start(Engine, seed)
	if unknown != nil {
		row.Error = "the prompt's ids are not known: " + short(unknown.Error())
		if errors.Is(unknown, plugin.ErrNone) {
			row.Error += " (the engine has no /tokenize either)"
		}
		d.engine = d.add(row)
		return nil
	}
	if n := d.covered(); n > 0 && n <= len(known.tokens) {
		known.tokens = known.tokens[:n]
	}
	row.Tokens, row.IDs = len(known.tokens), known.of
	d.report.IDs = known.of
	before := sample(ctx)
	a, err := d.run.engine.ask(ctx, "completions", map[string]any{
		"prompt": known.tokens, "max_tokens": 1, "temperature": 0,
		// vLLM keeps what it caches of such a request apart: what it read for the bridge does
		// not make this quicker.
		"cache_salt": fmt.Sprintf("bench-%016x", seed),
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		row.Error = short(err.Error())
	}
	row.Total, row.Cached = a.total.Seconds(), a.usage.cached
	_, row.Said = a.rate()
	if err == nil && row.Cached == nil {
		d.missing("whether the engine read its prompts cold: its answers do not say (vLLM's do with --enable-prompt-tokens-details)")
	}
	row.heat(before, sample(ctx))
	d.engine = d.add(row)
	return ctx.Err()
}

// covered is how many of the ids the engine was given when the prompt was bridged; 0: not known.
func (d *round) covered() int {
	if d.bridged == nil || d.bridged.Outcome != outcomeBridged {
		return 0
	}
	return d.bridged.Promised
}

// tell holds the round's rows against each other, and says what it comes to.
func (d *round) tell() {
	if d.bridged != nil {
		r := d.bridged
		if e := d.engine; e != nil && e.flaw(false, false) == "" && r.flaw(false, false) == "" && r.Outcome == outcomeBridged && r.First > 0 {
			over := r.First - e.Total
			r.Reading, r.Overhead = e.Total, &over
		}
		if n := d.native; n != nil && n.Error == "" {
			r.Alone = n.First
			if n.Rate > 0 && n.flaw(false, false) == "" && r.flaw(false, false) == "" {
				r.Pair = r.Rate / n.Rate
			}
		}
		for i := range d.report.Rows {
			x := &d.report.Rows[i]
			if x.Arm == Bridged && x.Want == r.Want && x.Run == r.Run && x.Counted == r.Counted {
				*x = *r
			}
		}
	}
	if line := d.line(); line != "" && d.o.OnLine != nil {
		d.o.OnLine(line)
	}
}
