package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"

	"pdlink/bridge/omlx/plugin"
)

// Constants of making a prompt as long as it should be.
const (
	sampleWords = 400  // of the text that is counted first
	guess       = 1.3  // tokens of a word, where nobody counts
	near        = 0.01 // how far from the length that is wanted is near enough
	tries       = 4    // counts for a length at most
)

// ids are the tokens of a prompt, by who knows them.
type ids struct {
	tokens  []int32
	present int // of the prompt's whole blocks, that the decoder held before
	of      string
}

// Sources of ids.
const (
	fromPlugin = "plug-in" // of the decoder: what the engine is given when a prompt is bridged
	fromEngine = "engine"  // what its tokenizer makes of the same request
)

// plan asks the decoder's plug-in for the ids of a request. The last of them may be of what
// lies behind the last whole block.
func (b *run) plan(ctx context.Context, p *prompt) (ids, error) {
	path, fields := p.fields(b.o.API, b.o.Answer)
	fields["model"] = b.native.model
	body, err := json.Marshal(fields)
	if err != nil {
		return ids{}, err
	}
	h := http.Header{}
	if b.native.key != "" {
		h.Set("Authorization", "Bearer "+b.native.key)
	}
	ctx, cancel := context.WithTimeout(ctx, b.o.Timeout)
	defer cancel()
	answer, err := plugin.NewClient(b.native.base, b.native.client).Plan(ctx, h, "/v1/"+path, body, true)
	if err != nil {
		return ids{}, err
	}
	return ids{answer.Signed(), answer.Present, fromPlugin}, nil
}

// tokenize asks the engine for the ids of the same request.
func (b *run) tokenize(ctx context.Context, p *prompt) (ids, error) {
	in := map[string]any{"model": b.engine.model}
	if b.o.API == Completions {
		in["prompt"] = p.text
	} else {
		in["messages"], in["add_generation_prompt"] = p.messages(), true
	}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	if err := b.engine.call(ctx, http.MethodPost, b.engine.base.JoinPath("tokenize"), in, &out); err != nil {
		return ids{}, err
	}
	if len(out.Tokens) == 0 {
		return ids{}, fmt.Errorf("%w: no tokens", ErrAnswer)
	}
	return ids{out.Tokens, 0, fromEngine}, nil
}

// idsOf are the ids of a prompt that the engine is asked with.
func (b *run) idsOf(ctx context.Context, p *prompt) (ids, error) {
	var why []error
	if b.native != nil && !b.noPlans {
		found, err := b.plan(ctx, p)
		if err == nil && len(found.tokens) > 0 {
			return found, nil
		}
		if errors.Is(err, plugin.ErrNone) {
			b.noPlans = true
		}
		why = append(why, err)
	}
	if b.engine != nil {
		found, err := b.tokenize(ctx, p)
		if err == nil {
			return found, nil
		}
		why = append(why, err)
	}
	if ctx.Err() != nil {
		return ids{}, ctx.Err()
	}
	return ids{}, errors.Join(why...)
}

// count is how many tokens a prompt has: what the engine's tokenizer says, else what the
// decoder says of a request for one token.
func (b *run) count(ctx context.Context, p *prompt) (int, error) {
	var why []error
	if b.engine != nil {
		found, err := b.tokenize(ctx, p)
		if err == nil {
			return len(found.tokens), nil
		}
		why = append(why, err)
	}
	for _, t := range []*target{b.native, b.front, b.engine} {
		if t == nil {
			continue
		}
		path, fields := p.fields(b.o.API, 1)
		delete(fields, "stream")
		delete(fields, "stream_options")
		a, err := t.ask(ctx, path, fields)
		if err == nil && a.usage.prompt != nil {
			return *a.usage.prompt, nil
		}
		why = append(why, err)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return 0, errors.Join(append(why, errors.New("nobody says how many tokens a prompt has"))...)
}

// wordsFor is how many words make a prompt of a length. It counts where the engine has a tokenizer, and else goes by a
// sample, since a count would cost the decoder a whole prompt.
func (b *run) wordsFor(ctx context.Context, want int) (int, error) {
	n := max(1, int(math.Round(float64(want-b.frame)/b.perWord)))
	if !b.counts {
		return n, nil
	}
	for range tries {
		p := b.prompt(seedOf(b.o.Seed, "count", want, 0), n)
		got, err := b.tokenize(ctx, &p)
		if err != nil {
			return n, err
		}
		off := want - len(got.tokens)
		if step := int(math.Round(float64(off) / b.perWord)); math.Abs(float64(off)) <= near*float64(want) || step == 0 {
			break
		} else if n+step < 1 {
			return 1, nil
		} else {
			n += step
		}
	}
	return n, nil
}

// calibrate finds how many tokens a word has, and what is around the words.
func (b *run) calibrate(ctx context.Context) error {
	b.perWord, b.frame = guess, 60
	empty, sample := b.prompt(seedOf(b.o.Seed, "frame", 0, 0), 1), b.prompt(seedOf(b.o.Seed, "sample", 0, 0), sampleWords+1)
	few, err := b.count(ctx, &empty)
	if err == nil {
		var many int
		if many, err = b.count(ctx, &sample); err == nil && many > few {
			b.perWord, b.frame = float64(many-few)/sampleWords, few
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		b.missing("exact lengths: %s; %.1f tokens a word are assumed", short(err.Error()), guess)
	}
	if b.engine != nil {
		_, err := b.tokenize(ctx, &empty)
		b.counts = err == nil
	}
	return ctx.Err()
}
