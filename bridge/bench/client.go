package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxWhole = 64 << 20 // bytes of an answer that is no stream: the ids of four million tokens
	maxSaid  = 4096     // bytes that are read of an answer that is an error
)

// StatusError is an answer that is no success.
type StatusError struct {
	Status int    // of HTTP
	Text   string // what the endpoint said, one short line
}

// Error implements error.
func (e *StatusError) Error() string { return fmt.Sprintf("answers %d: %s", e.Status, e.Text) }

// target is an endpoint. One goroutine uses it.
type target struct {
	name   string // "the decoder", for messages
	base   *url.URL
	key    string
	model  string
	client *http.Client
	limit  time.Duration

	without map[string]bool // fields that it does not take
}

func newTarget(name string, base *url.URL, key string, o *Options) *target {
	from := o.Transport
	if from == nil {
		from = &http.Transport{}
		if d, ok := http.DefaultTransport.(*http.Transport); ok {
			from = d
		}
	}
	t := from.Clone()
	t.Proxy = nil
	t.DisableCompression = true
	// A connection that lies idle for the minutes of another arm may be gone when it is used
	// again, and a request that is sent twice is no measurement.
	t.DisableKeepAlives = true
	client := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &target{name: name, base: base, key: key, client: client, limit: o.Timeout, without: map[string]bool{}}
}

// send makes a call. The time that since counts begins when the connection is ready, so
// that a look-up of a name is in no figure. The caller calls done, whatever happened.
func (t *target) send(ctx context.Context, method string, u *url.URL, body []byte) (r *http.Response, since func() time.Duration, done func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.limit, fmt.Errorf("%s takes longer than %v", t.name, t.limit))
	began := time.Now()
	var ready atomic.Int64 // nanoseconds after began
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { ready.Store(int64(time.Since(began))) }})
	since = func() time.Duration { return time.Since(began) - time.Duration(ready.Load()) }
	req, err := http.NewRequestWithContext(traced, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, since, cancel, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "text/event-stream, application/json")
	if t.key != "" {
		req.Header.Set("Authorization", "Bearer "+t.key)
	}
	r, err = t.client.Do(req)
	if err != nil {
		return nil, since, cancel, t.why(ctx, err)
	}
	done = func() {
		r.Body.Close() //nolint:errcheck // it was read, or its error is returned
		cancel()
	}
	if r.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(r.Body, maxSaid)) // what came of it is told
		return r, since, done, &StatusError{r.StatusCode, errorText(said)}
	}
	return r, since, done, nil
}

// why prefers what ended a context to what that did to a connection.
func (t *target) why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // its URL is known, and may have a password in it
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w before it began", ErrCut)
	}
	return err
}

// call makes a call whose answer is no stream.
func (t *target) call(ctx context.Context, method string, u *url.URL, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	r, _, done, err := t.send(ctx, method, u, body)
	defer done()
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxWhole+1))
	switch {
	case err != nil:
		return t.why(r.Request.Context(), err)
	case len(data) > maxWhole:
		return fmt.Errorf("%w: more than %d bytes", ErrAnswer, maxWhole)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return nil
}

// ask sends a request for text and reads its answer, as a stream where fields say so. Fields that an endpoint
// names in a refusal are left out from then on. The error Is ErrAnswer, ErrCut, As a
// *StatusError, or that of the connection or the context.
func (t *target) ask(ctx context.Context, path string, fields map[string]any) (*answer, error) {
	for {
		a, err := t.askOnce(ctx, path, fields)
		var refused *StatusError
		if !errors.As(err, &refused) || !t.adapt(refused, fields) {
			return a, err
		}
	}
}

// adapt notes a field that is refused and can be done without; false: there is none.
func (t *target) adapt(e *StatusError, fields map[string]any) bool {
	if e.Status != http.StatusBadRequest && e.Status != http.StatusUnprocessableEntity {
		return false
	}
	for _, name := range []string{"stream_options", "cache_salt", "temperature", "max_tokens"} {
		if _, there := fields[name]; there && !t.without[name] && strings.Contains(e.Text, name) {
			t.without[name] = true
			return true
		}
	}
	return false
}

func (t *target) askOnce(ctx context.Context, path string, fields map[string]any) (*answer, error) {
	a := &answer{}
	out := map[string]any{"model": t.model}
	for name, value := range fields {
		switch {
		case !t.without[name]:
			out[name] = value
		case name == "max_tokens": // newer models of OpenAI's own API
			out["max_completion_tokens"] = value
		}
	}
	body, err := json.Marshal(out)
	if err != nil {
		return a, err
	}
	r, since, done, err := t.send(ctx, http.MethodPost, t.base.JoinPath("v1", path), body)
	defer done()
	if r != nil {
		a.verdict = short(r.Header.Get("X-PDLink"))
	}
	if err != nil {
		return a, err
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "text/event-stream" {
		err = a.stream(r.Body, since)
	} else {
		err = a.whole(r.Body, since)
	}
	if err != nil && !errors.Is(err, ErrAnswer) && !errors.Is(err, ErrCut) {
		err = fmt.Errorf("%w: %w", ErrCut, t.why(r.Request.Context(), err))
	}
	return a, err
}

// models lists the ids that the endpoint serves.
func (t *target) models(ctx context.Context) (ids []string, err error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := t.call(ctx, http.MethodGet, t.base.JoinPath("v1", "models"), nil, &list); err != nil {
		return nil, err
	}
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids, nil
}
