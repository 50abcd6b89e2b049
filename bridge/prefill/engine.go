package prefill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// Engine reads prompts. It may be used concurrently.
type Engine interface {
	// Models returns the ids of the models that it serves. Errors: the context's;
	// ErrUnauthorized; another says that it cannot be reached.
	Models(ctx context.Context) ([]string, error)

	// Prefill has a prompt read and returns when it was. The end of the context
	// ends the work. Errors: ErrEngine, ErrPrompt; the context's.
	Prefill(ctx context.Context, p Prompt) error
}

// Prompt is what an engine is to read.
type Prompt struct {
	Model    string // the engine's id
	IDs      []int32
	Transfer transport.ID // that its workers name
}

// VLLM is a vLLM server with the connector of bridge/vllm. It may be used
// concurrently.
type VLLM struct {
	base   *url.URL
	key    string
	client *http.Client
}

// NewVLLM returns the server at a base URL, "http://127.0.0.1:8000" for example.
// key is its API key, "" for none.
func NewVLLM(base *url.URL, key string) *VLLM {
	return &VLLM{base: base, key: key, client: &http.Client{Transport: &http.Transport{DisableCompression: true, IdleConnTimeout: engineIdle}}}
}

// Close gives idle connections back. It is idempotent.
func (v *VLLM) Close() error {
	v.client.CloseIdleConnections()
	return nil
}

// Models implements Engine.
func (v *VLLM) Models(ctx context.Context) ([]string, error) {
	b, err := v.do(ctx, http.MethodGet, "models", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("list of models: %w", err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids, nil
}

// Prefill implements Engine.
func (v *VLLM) Prefill(ctx context.Context, p Prompt) error {
	body, err := completion(p)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEngine, err)
	}
	b, err := v.do(ctx, http.MethodPost, "completions", body)
	if err != nil {
		var status statusError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &status) && status.refuses():
			return fmt.Errorf("%w: %w", ErrPrompt, err)
		}
		return fmt.Errorf("%w: %w", ErrEngine, err)
	}
	var answer struct {
		Params struct {
			Ours *struct {
				Declined string `json:"declined"`
			} `json:"pdlink"`
		} `json:"kv_transfer_params"`
	}
	switch err := json.Unmarshal(b, &answer); {
	case err != nil:
		return fmt.Errorf("%w: its answer: %w", ErrEngine, err)
	case answer.Params.Ours == nil:
		return fmt.Errorf("%w: its answer has no word of the connector: start vLLM with --kv-transfer-config, as the README of pdlink-vllm says", ErrEngine)
	case answer.Params.Ours.Declined != "":
		return fmt.Errorf("%w: the connector declined: %s", ErrEngine, said([]byte(answer.Params.Ours.Declined)))
	}
	return nil
}

// completion is a request of one token for the ids: nothing in it is a client's.
func completion(p Prompt) ([]byte, error) {
	model, err := json.Marshal(p.Model)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	sum.Write(calls.AppendIDs(make([]byte, 0, 4*len(p.IDs)), p.IDs))
	b := make([]byte, 0, 7*len(p.IDs)+len(model)+300)
	b = append(append(b, `{"model":`...), model...)
	b = append(b, `,"prompt":[`...)
	for i, id := range p.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	b = append(b, `],"max_tokens":1,"temperature":0,"stream":false,"kv_transfer_params":{"pdlink":{"transfer":"`...)
	b = hex.AppendEncode(b, p.Transfer[:])
	b = append(b, `","ids_sha256":"`...)
	b = hex.AppendEncode(b, sum.Sum(nil))
	return append(b, `"}}}`...), nil
}

// do makes one call and returns the body of a success.
func (v *VLLM) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	return v.send(ctx, method, v.base.JoinPath("v1", path), body)
}

// send makes a call of a URL and returns the body of a success.
func (v *VLLM) send(ctx context.Context, method string, u *url.URL, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if v.key != "" {
		r.Header.Set("Authorization", "Bearer "+v.key)
	}
	resp, err := v.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read, or its error is returned
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the engine's answer: %w", err)
	case resp.StatusCode != http.StatusOK:
		return nil, statusError{resp.StatusCode, said(b)}
	case len(b) > maxAnswer:
		return nil, fmt.Errorf("the engine's answer has more than %d bytes", maxAnswer)
	}
	return b, nil
}

// statusError is an answer that is no success.
type statusError struct {
	status int
	text   string
}

// Error implements error.
func (e statusError) Error() string {
	return fmt.Sprintf("the engine answers %d: %s", e.status, e.text)
}

// Is implements the interface of errors.Is.
func (e statusError) Is(target error) bool {
	return target == ErrUnauthorized && e.status == http.StatusUnauthorized
}

// refuses reports whether the request was wrong, not the engine or its key.
func (e statusError) refuses() bool {
	switch e.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// said is an engine's text as one short line.
func said(b []byte) string {
	return string(bytes.ToValidUTF8(bytes.Join(bytes.Fields(b[:min(len(b), maxSaid)]), []byte(" ")), []byte("?")))
}
