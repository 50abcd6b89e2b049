package prefill

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"pdlink/bridge/facts"
)

// Tokenizer is an Engine that says what its tokenizer makes of a text.
type Tokenizer interface {
	// Tokens returns the ids of a text as a prompt, with the engine's id of a
	// model. Errors: the context's; another says that it cannot.
	Tokens(ctx context.Context, model, text string) ([]int32, error)
}

// ProbeText is what an engine's tokenizer makes of facts.ProbeText, of the models that it
// serves (its ids) with the first: all are names of one. Nil where the engine is no
// Tokenizer, serves none or does not say.
func ProbeText(ctx context.Context, e Engine, served []string) *facts.Text {
	t, ok := e.(Tokenizer)
	if !ok || len(served) == 0 {
		return nil
	}
	ids, err := t.Tokens(ctx, served[0], facts.ProbeText())
	if err != nil {
		return nil
	}
	return facts.TextOf(ids)
}

// Tokens implements Tokenizer.
func (v *VLLM) Tokens(ctx context.Context, model, text string) ([]int32, error) {
	d, err := v.describe(ctx, model, text)
	return d.Tokens, err
}

// MaxModelLen is how many tokens a prompt and its answer may have, by the engine's id
// of a model. Errors: those of Tokens.
func (v *VLLM) MaxModelLen(ctx context.Context, model string) (int, error) {
	d, err := v.describe(ctx, model, "a")
	return d.MaxModelLen, err
}

// described is an engine's answer about a text.
type described struct {
	Tokens      []int32 `json:"tokens"`
	MaxModelLen int     `json:"max_model_len"`
}

func (v *VLLM) describe(ctx context.Context, model, text string) (d described, err error) {
	body, err := json.Marshal(map[string]string{"model": model, "prompt": text})
	if err != nil {
		return d, err
	}
	b, err := v.send(ctx, http.MethodPost, v.base.JoinPath("tokenize"), body)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil || len(d.Tokens) == 0 {
		return d, errors.Join(errors.New("its answer has no tokens"), err)
	}
	return d, nil
}
