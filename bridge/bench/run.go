package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"time"
)

// run is a benchmark that goes on. One goroutine uses it.
type run struct {
	o                     Options
	report                *Report
	front, native, engine *target // nil: not given

	noPlans bool    // the decoder has no plug-in
	counts  bool    // the engine tokenizes
	perWord float64 // tokens of a word
	frame   int     // tokens of a prompt of no words

	done, total int // requests
}

// Run measures. What can be said before is an error that Is ErrOptions or ErrTarget, and
// no report. Later a request that fails is a row that says so, and the measuring goes on. The end of the
// context ends the work: the report has what was measured until then, with the context's
// error. Runs at the same time disturb each other.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	b := &run{o: o}
	r := &Report{
		Schema: SchemaVersion, Version: o.Version, Time: time.Now(), Seed: o.Seed, API: o.API, Answer: o.Answer, Runs: o.Runs,
		Front: shown(o.Front), Native: shown(o.Native), Engine: shown(o.Engine), Host: thisHost(),
		Lengths: []Length{}, Checks: []Check{}, Rows: []Row{},
	}
	b.report = r
	if err := b.meet(ctx); err != nil {
		return nil, err
	}
	err = b.all(ctx)
	r.Seconds = time.Since(r.Time).Seconds()
	r.Whole = err == nil
	b.silent()
	r.judge()
	r.Lengths = append(r.Lengths, lengths(r.Rows)...)
	r.Checks = append(r.Checks, r.checks()...)
	r.OK = r.Whole && !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Level == LevelFail })
	return r, err
}

// silent notes that a front answered and sent no verdict at all.
func (b *run) silent() {
	answered := func(x Row) bool { return x.Arm == Bridged && x.Error == "" }
	if slices.ContainsFunc(b.report.Rows, answered) && !b.report.tells() {
		b.missing("verdicts: %s sends none (X-PDLink), so whether prompts were bridged is known from cached tokens at most, and no overhead is computed", b.front.name)
	}
}

// shown is a URL for people, "" for none.
func shown(u *url.URL) string {
	if u == nil {
		return ""
	}
	return u.Redacted()
}

// missing notes what is not measured.
func (b *run) missing(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(b.report.Lacks, text) {
		b.report.Lacks = append(b.report.Lacks, text)
	}
}

// meet looks whether endpoints answer, and what their models are called.
func (b *run) meet(ctx context.Context) error {
	for _, x := range []struct {
		t     **target
		name  string
		url   *url.URL
		key   string
		model string
	}{
		{&b.front, "the front", b.o.Front, b.o.DecoderKey, b.o.Model},
		{&b.native, "the decoder", b.o.Native, b.o.DecoderKey, b.o.Model},
		{&b.engine, "the engine", b.o.Engine, b.o.EngineKey, b.o.EngineModel},
	} {
		if x.url == nil {
			continue
		}
		t := newTarget(x.name, x.url, x.key, &b.o)
		*x.t = t
		wish := x.model
		if t == b.engine {
			wish = or(wish, b.o.Model)
		}
		if err := t.choose(ctx, wish, t == b.engine && x.model == ""); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %s at %s: %w", ErrTarget, x.name, shown(x.url), err)
		}
		if t == b.engine {
			b.report.Reads = t.model
		} else {
			b.report.Model = t.model
			b.o.Model = t.model // the other one has the same
		}
	}
	for _, a := range Arms() {
		if why := b.o.cannot(a); why != "" {
			b.missing("%s: %s", a, why)
		} else if !b.o.wants(a) {
			b.missing("%s: it was not asked for", a)
		}
	}
	if b.o.wants(Bridged) && !b.o.wants(Engine) {
		b.missing("overhead: it needs the engine alone on the same ids")
	}
	return nil
}

// choose finds the id of a model. loose takes the only one there is where the wish is not listed.
func (t *target) choose(ctx context.Context, wish string, loose bool) error {
	served, err := t.models(ctx)
	var status *StatusError
	switch {
	case err != nil && wish != "" && errors.As(err, &status) && status.Status == 404: // it has no list
		t.model = wish
		return nil
	case err != nil:
		return fmt.Errorf("ask for its models: %w", err)
	case slices.Contains(served, wish):
		t.model = wish
	case len(served) == 1 && (wish == "" || loose):
		t.model = served[0]
	case wish == "":
		return fmt.Errorf("it serves %d models, so one must be named: %s", len(served), short(fmt.Sprint(served)))
	default:
		return fmt.Errorf("it does not serve %q, but %s", wish, short(fmt.Sprint(served)))
	}
	return nil
}

// all warms up and measures.
func (b *run) all(ctx context.Context) error {
	if err := b.calibrate(ctx); err != nil {
		return err
	}
	if err := b.able(ctx); err != nil {
		return err
	}
	per := 0
	for _, a := range Arms() {
		if b.o.wants(a) {
			per++
		}
	}
	b.total = per * (b.o.WarmUp + b.o.Runs*len(b.o.Tokens))
	words := make([]int, len(b.o.Tokens))
	for i, want := range b.o.Tokens {
		var err error
		if words[i], err = b.wordsFor(ctx, want); err != nil && ctx.Err() == nil {
			b.missing("exact lengths: %s", short(err.Error()))
		}
	}
	for i := range b.o.WarmUp {
		if err := b.round(ctx, b.o.Tokens[0], words[0], i+1, false); err != nil {
			return err
		}
	}
	for i, want := range b.o.Tokens {
		for n := range b.o.Runs {
			if err := b.round(ctx, want, words[i], n+1, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// able finds out whether the model names the marker of a short prompt.
func (b *run) able(ctx context.Context) error {
	t := b.native
	if t == nil {
		t = b.front
	}
	if t == nil {
		return nil
	}
	p := b.prompt(seedOf(b.o.Seed, "able", 0, 0), 40)
	path, fields := p.fields(b.o.API, b.o.Answer)
	a, err := t.ask(ctx, path, fields)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		b.missing("markers: a short prompt was not answered: %s", short(err.Error()))
		return nil
	}
	b.report.Finds = p.found(a.text.String())
	if !a.streamed {
		b.missing("time to the first token and decode rate: %s does not stream", t.name)
	}
	if a.usage.cached == nil {
		b.missing("cached tokens of short prompts: %s does not tell them", t.name)
	}
	return nil
}

// prompt makes a prompt for the API that is asked.
func (b *run) prompt(seed uint64, words int) prompt {
	return newPrompt(seed, words, b.o.API == Completions)
}

// seedOf is a seed of its own for each prompt. Below 2^53, JSON readers keep all its digits.
func seedOf(seed uint64, what string, want, run int) uint64 {
	h := fnv.New64a()
	buf := binary.LittleEndian.AppendUint64(nil, seed)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(want))
	buf = binary.LittleEndian.AppendUint64(buf, uint64(run))
	h.Write(buf)
	h.Write([]byte(what))
	x := h.Sum64()
	// FNV hardly spreads its last byte into the upper bits: this is the finalizer of splitmix64.
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return (x ^ x>>31) >> 11
}
