package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"pdlink/bridge/cost"
)

// costPatience is how long an engine may take for a prompt.
const costPatience = time.Hour

// maxEngineAnswer bounds what an engine answers.
const maxEngineAnswer = 1 << 20

// ask asks both engines how long prompts take that they have never seen.
func (f *costFlags) ask(ctx context.Context, std streams) (k cost.Known, err error) {
	for i, to := range []*cost.Series{&k.Prefill, &k.Native} {
		engine := askedEngine{url: strings.TrimSuffix(f.engines[i], "/"), client: &http.Client{Timeout: costPatience}}
		if u, err := url.Parse(engine.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return k, fmt.Errorf("--engines %q: want http://host:port", f.engines[i])
		}
		if *to, err = engine.series(ctx, std, f.asked); err != nil {
			return k, fmt.Errorf("%s: %w", engine.url, err)
		}
	}
	k.Origins = cost.Origins{Prefill: cost.Here, Native: cost.Here}
	k.Source = "asked from the engines, with prompts of random words, one answer each"
	return k, nil
}

// askedEngine is an OpenAI endpoint.
type askedEngine struct {
	url    string
	client *http.Client
}

// series asks with prompts of about so many tokens. The first answer, of a short one, is
// not counted: engines load and compile then.
func (e askedEngine) series(ctx context.Context, std streams, lengths []int) (s cost.Series, err error) {
	model, err := e.model(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := e.prompt(ctx, model, 64); err != nil {
		return nil, err
	}
	var words []string
	for _, n := range lengths {
		p, err := e.prompt(ctx, model, n)
		if err != nil {
			return nil, err
		}
		std.notef("%s: %s tokens in %s\n", e.url, cost.Number(p.Tokens), cost.Seconds(p.Seconds))
		words = append(words, fmt.Sprintf("%d:%g", p.Tokens, p.Seconds))
	}
	return cost.ParseSeries(strings.Join(words, ","))
}

// model is the first one that the engine has.
func (e askedEngine) model(ctx context.Context) (string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := e.call(ctx, http.MethodGet, "/v1/models", nil, &list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", errors.New("it has no model")
	}
	return list.Data[0].ID, nil
}

// prompt is how long a prompt of about n tokens takes to its first one, which is all that
// is asked for.
func (e askedEngine) prompt(ctx context.Context, model string, n int) (p cost.Point, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": randomWords(n), "max_tokens": 1, "temperature": 0})
	if err != nil {
		return p, err
	}
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	began := time.Now()
	if err := e.call(ctx, http.MethodPost, "/v1/completions", body, &answer); err != nil {
		return p, err
	}
	p = cost.Point{Tokens: answer.Usage.Prompt, Seconds: time.Since(began).Seconds()}
	switch {
	case p.Tokens < 1:
		return p, errors.New("it does not say how many tokens the prompt had (usage.prompt_tokens)")
	case answer.Usage.Details.Cached > p.Tokens/10:
		return p, fmt.Errorf("it had %d of %d tokens of a new prompt in its cache: that is no cold prompt", answer.Usage.Details.Cached, p.Tokens)
	}
	return p, nil
}

// call calls the engine once.
func (e askedEngine) call(ctx context.Context, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // what was read has been read
	b, err := io.ReadAll(io.LimitReader(res.Body, maxEngineAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.200s", path, res.Status, b)
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// randomWords is a prompt of n short words that nobody has seen before.
func randomWords(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	var b strings.Builder
	for range n {
		b.WriteByte(' ')
		b.WriteByte(letters[rand.IntN(len(letters))])
		b.WriteByte(letters[rand.IntN(len(letters))])
	}
	return b.String()
}
