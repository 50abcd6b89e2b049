package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// watch is what a request wants to know of its answer. It travels in the
// request's context.
type watch struct {
	header string  // value of X-PDLink: in the decoder's answer, where ended is set, and in the front's own
	upload *upload // nil: there is none
	body   *held   // what is sent to the decoder, where all of it is in memory; nil: it is not
	again  func()  // it is sent a second time; nil: nobody wants to know
	first  func()  // the first byte of the answer's body came; nil: nobody wants to know
	ended  func(status int, cached *int, cut error)
}

type watchKey struct{}

func withWatch(r *http.Request, w *watch) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), watchKey{}, w))
}

// newProxy forwards to the decoder at up and changes nothing on the way. log hears what it
// cannot tell anybody; nil: the log package's own logger does.
func newProxy(up *url.URL, rt http.RoundTripper, log *log.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     rt,
		FlushInterval: -1, // tokens go out as they come
		BufferPool:    &buffers{},
		ErrorLog:      log,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(up)
			p.Out.Host = p.In.Host
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			// The proxy took these away: whoever stands before it set them.
			for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := p.In.Header[h]; ok {
					p.Out.Header[h] = v
				}
			}
		},
		ModifyResponse: observe,
		ErrorHandler:   unreachable,
	}
}

// observe ends the upload of a request that has its answer, adds the verdict to that and
// watches it, where somebody wants that. An answer whose status is none is refused: it
// cannot be passed on.
func observe(r *http.Response) error {
	if r.StatusCode < http.StatusContinue {
		return fmt.Errorf("%w %03d", errStatus, r.StatusCode)
	}
	w, ok := r.Request.Context().Value(watchKey{}).(*watch)
	if ok && r.StatusCode != http.StatusSwitchingProtocols && w.upload.answered() {
		r.Header.Set("Connection", "close")
	}
	if !ok || w.ended == nil {
		return nil
	}
	say(r.Header, w.header)
	status := r.StatusCode
	r.Body = &watcher{body: r.Body, first: w.first, done: func(cached *int, cut error) { w.ended(status, cached, cut) }}
	return nil
}

// say puts a verdict into an answer's header.
func say(h http.Header, verdict string) {
	h.Set(headerVerdict, verdict)
	h.Set(headerAlias, verdict)
}

// errStatus is for people.
var errStatus = errors.New("its answer has the status")

// unreachable answers in the decoder's place: to a client whose own request broke off
// that it did. To one that is gone it answers nothing, and has the connection closed: one
// that closed its own half only must not take that for an answer.
func unreachable(w http.ResponseWriter, r *http.Request, err error) {
	status, text := http.StatusBadGateway, apiError("api_error", "decoder_unreachable", fmt.Sprintf("pdlink: the decoder cannot be reached: %v", err))
	if errors.Is(err, errStatus) {
		text = apiError("api_error", "decoder_broken", fmt.Sprintf("pdlink: the decoder does not speak HTTP as it should: %v", err))
	}
	if errors.Is(err, errCut) || errors.Is(err, errMoot) {
		text = apiError("api_error", "decoder_gone", fmt.Sprintf("pdlink: the decoder cannot be reached: %v; send the request again", err))
	}
	gone := r.Context().Err() != nil
	x, ok := r.Context().Value(watchKey{}).(*watch)
	if ok {
		if gone {
			x.upload.await()
		}
		if why := x.upload.failed(); why != nil {
			gone = false // at least its other half is there
			status, text = refusal(why)
		}
		if x.upload.lost() {
			gone = false // it was the decoder
		}
		if x.upload.answered() {
			w.Header().Set("Connection", "close")
		}
		var cut error
		if gone {
			status, cut = statusLeft, errLeft
		}
		if x.ended != nil {
			x.ended(status, nil, cut)
		}
		say(w.Header(), x.header)
	}
	if gone {
		panic(http.ErrAbortHandler)
	}
	answerJSON(w, status, text)
}

// statusLeft is in the record of a request whose client left before there was an answer, as
// web servers log it: the decoder has nothing to do with it.
const statusLeft = 499

// apiError is an error as the OpenAI and Anthropic APIs show it.
func apiError(kind, code, message string) map[string]any {
	return map[string]any{"type": "error", "error": map[string]any{
		"message": message, "type": kind, "code": code, "param": nil,
	}}
}

// newTransport is the client side of the proxy: one host, connections kept, no
// encoding of its own.
func newTransport(base *http.Transport) *http.Transport {
	t := base.Clone()
	t.Proxy = nil // the decoder is named, not looked for
	t.DisableCompression = true
	t.MaxIdleConnsPerHost = maxIdle
	t.MaxIdleConns = 0
	t.IdleConnTimeout = maxIdleTime
	t.ForceAttemptHTTP2 = false
	return t
}

// buffers is a pool of what answers are copied with.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, copyBuffer)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[copyBuffer]byte)(p)) }

// oneLine is JSON without line ends, for an SSE frame; what is no JSON becomes a
// string of an error.
func oneLine(b []byte) []byte {
	var v json.RawMessage
	if json.Unmarshal(b, &v) == nil {
		if c, err := json.Marshal(v); err == nil {
			return c
		}
	}
	c, err := json.Marshal(apiError("api_error", "decoder_unreachable", string(b)))
	if err != nil {
		return []byte(`{"error":{"message":"the decoder's answer cannot be shown"}}`)
	}
	return c
}
