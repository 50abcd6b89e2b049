package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"

	"pdlink/bridge/omlx/plugin"
)

// maxDoctorAnswer bounds what is read of an answer that is not the plug-in's: a list of
// models, a page of metrics.
const maxDoctorAnswer = 4 << 20

// lonely returns a client that keeps no connections.
func lonely() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// fetch asks for a page, with a bearer key where there is one.
func fetch(ctx context.Context, u, key string) (status int, data []byte, h http.Header, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := lonely().Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close() // it was read, or its error is returned
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxDoctorAnswer))
	return resp.StatusCode, data, resp.Header, err
}

// decoderClient asks a decoder and its plug-in.
type decoderClient struct {
	base   *url.URL
	key    string
	plugin *plugin.Client
}

func newDecoderClient(base *url.URL) *decoderClient {
	return &decoderClient{base, os.Getenv(decoderKeyEnv), plugin.NewClient(base, lonely())}
}

// own is the header of calls to the plug-in.
func (c *decoderClient) own() http.Header {
	if c.key == "" {
		return nil
	}
	return http.Header{"Authorization": {"Bearer " + c.key}}
}

func (c *decoderClient) url(path ...string) string { return c.base.JoinPath(path...).String() }

// models asks for the list of models, whose contents do not matter.
func (c *decoderClient) models(ctx context.Context) (status int, err error) {
	status, _, _, err = fetch(ctx, c.url("v1", "models"), c.key)
	return status, err
}

// cureOf is what to do about a refusal of the plug-in.
func cureOf(err error) string {
	var r *plugin.RefusedError
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
