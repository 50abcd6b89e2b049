package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Sentinels of a Client's calls, beside those of answers.
var (
	// ErrNone reports a decoder without the plug-in.
	ErrNone = errors.New("the decoder has no plug-in: install pdlink-omlx into its environment and start it again")
	// ErrUnauthorized reports that the decoder does not take the key, or wants one.
	ErrUnauthorized = errors.New("the decoder refuses its API key")
)

// RefusedError is the plug-in's word that it does not do what it was asked.
type RefusedError struct{ Refusal }

// Error implements error: it is the text for people, without the code.
func (e *RefusedError) Error() string { return e.Message }

// Limits of a conversation.
const (
	// maxAnswer bounds an answer, in bytes: the ids of sixteen million tokens as base64
	// are 90 MB, and no answer has more than ids and hashes.
	maxAnswer = 96 << 20
	// usualAnswer is how much of an answer is made room for at once: a plan of 300,000
	// tokens.
	usualAnswer = 2 << 20
)

// Client asks the plug-in in a decoder's process. Each call takes the header of a request
// that it is for, of which the API key is passed on: nil for none. Errors: ErrNone,
// ErrUnauthorized, ErrAnswer, a *RefusedError, the context's, and those of connections.
// It may be used concurrently.
type Client struct {
	base *url.URL
	http *http.Client
}

// NewClient returns a client of the plug-in behind the base URL of a decoder's own API. The
// caller gives idle connections of h back.
func NewClient(decoder *url.URL, h *http.Client) *Client {
	return &Client{decoder.JoinPath("pdlink", "v1"), h}
}

// Status asks how the decoder as a whole is.
func (c *Client) Status(ctx context.Context, h http.Header) (*Status, error) {
	data, err := c.call(ctx, http.MethodGet, "info", nil, h, nil)
	if err != nil {
		return nil, err
	}
	return ParseStatus(data)
}

// Info asks about a loaded model.
func (c *Client) Info(ctx context.Context, h http.Header, model string) (*Info, error) {
	data, err := c.call(ctx, http.MethodGet, "info", url.Values{"model": {model}}, h, nil)
	if err != nil {
		return nil, err
	}
	return ParseInfo(data)
}

// Plan asks what a request would need: its path, and its body, which is not kept. tail has
// the tokens behind the last whole block planned too.
func (c *Client) Plan(ctx context.Context, h http.Header, path string, body []byte, tail bool) (*Plan, error) {
	query := url.Values{"path": {path}}
	if tail {
		query.Set("tail", "1")
	}
	data, err := c.call(ctx, http.MethodPost, "plan", query, h, body)
	if err != nil {
		return nil, err
	}
	return ParsePlan(data)
}

// Load has a model loaded, as a request for it would: it is planned, and nothing is
// generated.
func (c *Client) Load(ctx context.Context, h http.Header, model string) error {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": "hello", "max_tokens": 1})
	if err != nil {
		return err
	}
	_, err = c.call(ctx, http.MethodPost, "plan", url.Values{"path": {"/v1/completions"}}, h, body)
	return err
}

// Adopt tells the decoder of blocks in its store.
func (c *Client) Adopt(ctx context.Context, h http.Header, call AdoptCall) (*Adoption, error) {
	body, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	data, err := c.call(ctx, http.MethodPost, "adopt", nil, h, body)
	if err != nil {
		return nil, err
	}
	return ParseAdoption(data, call)
}

// call makes one call with the key of a request, and returns the body of a success.
func (c *Client) call(ctx context.Context, method, name string, query url.Values, from http.Header, body []byte) ([]byte, error) {
	u := c.base.JoinPath(name)
	u.RawQuery = query.Encode()
	lent := &lent{}
	defer lent.end()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), lent.reader(body))
	if err != nil {
		return nil, err
	}
	if req.ContentLength = int64(len(body)); len(body) == 0 {
		req.Body = http.NoBody
	}
	req.GetBody = func() (io.ReadCloser, error) { return lent.reader(body), nil }
	for _, key := range []string{"Authorization", "X-Api-Key"} {
		for _, v := range from.Values(key) {
			req.Header.Add(key, v)
		}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// All calls may be made twice, so one that crosses with the end of an idle connection, of
	// a decoder that was started again for example, is made again over another. An empty
	// list is not sent: it tells the transport alone.
	req.Header["X-Idempotency-Key"] = []string{}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the plug-in: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // the answer has been read, or its error is returned
	var data bytes.Buffer
	data.Grow(int(min(max(resp.ContentLength, 0), usualAnswer)) + bytes.MinRead)
	_, err = data.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask the plug-in: %w", err)
	case data.Len() > maxAnswer:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrAnswer, maxAnswer)
	case resp.StatusCode == http.StatusOK:
		return data.Bytes(), nil
	}
	return nil, refused(resp.StatusCode, data.Bytes())
}

// refused turns an answer that is no success into an error.
func refused(status int, data []byte) error {
	switch r, ours := ParseRefusal(data); {
	case ours:
		return &RefusedError{r}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ErrUnauthorized
	case status == http.StatusNotFound:
		return ErrNone
	}
	return fmt.Errorf("ask the plug-in: status %d", status)
}
