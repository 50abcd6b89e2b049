package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"

	"pdlink/bridge/omlx/plugin"
)

// maxDoctorAnswer bounds what is read of an answer: a canary's header has 65 KB.
const maxDoctorAnswer = 4 << 20

// fetch makes one call, with a bearer key where there is one.
func fetch(ctx context.Context, method, u, key string, body []byte) (status int, data []byte, h http.Header, err error) {
	r, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read, or its error is returned
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxDoctorAnswer))
	return resp.StatusCode, data, resp.Header, err
}

// decoderClient asks a decoder and its plug-in.
type decoderClient struct {
	base *url.URL
	key  string
}

func newDecoderClient(base *url.URL) *decoderClient {
	return &decoderClient{base, os.Getenv(decoderKeyEnv)}
}

func (c *decoderClient) url(path ...string) string { return c.base.JoinPath(path...).String() }

// close exists for the symmetry of owners: connections are not kept.
func (c *decoderClient) close() {}

// models asks for the list of models, whose contents do not matter.
func (c *decoderClient) models(ctx context.Context) (status int, err error) {
	status, _, _, err = fetch(ctx, http.MethodGet, c.url("v1", "models"), c.key, nil)
	return status, err
}

// decoderInfo is the plug-in's answer to an info call.
type decoderInfo struct {
	API     int               `json:"api"`
	Plugin  string            `json:"plugin"`
	Decoder map[string]string `json:"decoder"`
	Plans   map[string]string `json:"plans"`
	Models  []struct {
		ID     string `json:"id"`
		Loaded bool   `json:"loaded"`
	} `json:"models"`
	Model *modelInfo `json:"model"`
}

// modelInfo is the part of one model.
type modelInfo struct {
	plugin.ModelInfo
	BlockTokens int    `json:"block_tokens"`
	BlockBytes  int64  `json:"block_bytes"`
	Format      string `json:"format"`
	Store       struct {
		Path  string `json:"path"`
		UID   int    `json:"uid"`
		GID   int    `json:"gid"`
		Limit *int64 `json:"limit"`
	} `json:"store"`
}

// refusal is an answer of the plug-in that says why not.
type refusal struct{ plugin.Refusal }

// Error implements error.
func (r refusal) Error() string { return r.Message }

// info asks the plug-in; model is "" for none.
func (c *decoderClient) info(ctx context.Context, model string) (*decoderInfo, error) {
	u := c.base.JoinPath("pdlink", "v1", "info")
	if model != "" {
		u.RawQuery = url.Values{"model": {model}}.Encode()
	}
	status, data, _, err := fetch(ctx, http.MethodGet, u.String(), c.key, nil)
	if err != nil {
		return nil, err
	}
	if err := told(status, data); err != nil {
		return nil, err
	}
	var i decoderInfo
	if err := json.Unmarshal(data, &i); err != nil {
		return nil, fmt.Errorf("the plug-in's answer: %w", err)
	}
	switch {
	case i.API != plugin.APIVersion:
		return nil, fmt.Errorf("the plug-in speaks version %d, this program %d: install both of one release", i.API, plugin.APIVersion)
	case model != "" && i.Model == nil:
		return nil, errors.New("the plug-in's answer does not describe the model")
	}
	return &i, nil
}

// told is the error of an answer that is none.
func told(status int, data []byte) error {
	switch r, ours := plugin.ParseRefusal(data); {
	case status == http.StatusOK:
		return nil
	case ours:
		return refusal{r}
	case status == http.StatusNotFound:
		return errors.New("the decoder has no plug-in")
	}
	return fmt.Errorf("the plug-in answers %d", status)
}

// load has a model loaded, as a request for it would: it is planned, and nothing is
// generated.
func (c *decoderClient) load(ctx context.Context, model string) error {
	u := c.base.JoinPath("pdlink", "v1", "plan")
	u.RawQuery = url.Values{"path": {"/v1/completions"}}.Encode()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": "hello", "max_tokens": 1})
	if err != nil {
		return err
	}
	status, data, _, err := fetch(ctx, http.MethodPost, u.String(), c.key, body)
	if err != nil {
		return err
	}
	return told(status, data)
}

// cureOf is what to do about a refusal of the plug-in.
func cureOf(err error) string {
	var r refusal
	if !errors.As(err, &r) {
		return "see the decoder's log"
	}
	i := slices.IndexFunc(cures(), func(c [2]string) bool { return c[0] == r.Code })
	if i < 0 {
		return "see the decoder's log"
	}
	return cures()[i][1]
}

// cures are by the codes of the plug-in's API.
func cures() [][2]string {
	return [][2]string{
		{"unsupported", "run the decoder in a way that blocks can be brought to: with --paged-ssd-cache-dir, not in memory only, no quantised cache"},
		{"moved", "update pdlink-omlx: this decoder is newer than what it knows"},
		{"canary", "see the decoder's log; it is tried again after a minute"},
		{"conflict", "give this user the right to change the decoder's store"},
		{"space", "raise the decoder's ssd_cache_max_size, or free the disk"},
		{"budget", "raise PDLINK_OMLX_DAILY_BYTES, or wait for midnight UTC"},
		{"bad-request", "name a model of the decoder's list"},
		{"decoder", "see the decoder's log"},
	}
}
