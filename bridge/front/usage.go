package front

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
)

// Why an answer is not whole, for people.
var (
	errBroken = errors.New("the decoder's answer broke off")
	errLeft   = errors.New("the client went away")
)

// watcher passes an answer's body on and keeps its beginning and its end, where
// the decoder says how many tokens it found in its cache.
type watcher struct {
	body  io.ReadCloser
	head  []byte // the first bytes, up to tailKept
	tail  []byte // the last bytes, up to 2*tailKept
	first func() // is told of the first byte, once; nil: nobody is
	done  func(cached *int, cut error)
	once  sync.Once
}

func (w *watcher) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if n > 0 && w.first != nil {
		w.first()
		w.first = nil
	}
	w.keep(p[:n])
	switch {
	case err == nil:
	case err == io.EOF:
		w.finish(nil)
	case errors.Is(err, context.Canceled): // the request was, whose client is gone
		w.leave()
	default:
		w.finish(errBroken)
	}
	return n, err
}

// Close ends the answer, whole or not: nobody takes the rest.
func (w *watcher) Close() error {
	w.leave()
	return w.body.Close()
}

// leave notes that the client went, unless it had the last event of a stream: many wait
// for nothing behind that.
func (w *watcher) leave() {
	last := bytes.TrimRight(w.tail, space)
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	for _, end := range []string{"data: [DONE]", `"message_stop"`, `"response.completed"`, `"response.incomplete"`, `"response.failed"`} {
		if bytes.Contains(last, []byte(end)) {
			w.finish(nil)
			return
		}
	}
	w.finish(errLeft)
}

// finish tells of the end. cut says why that came too early; nil: it did not.
func (w *watcher) finish(cut error) { w.once.Do(func() { w.done(w.cached(), cut) }) }

func (w *watcher) keep(p []byte) {
	if room := tailKept - len(w.head); room > 0 {
		w.head = append(w.head, p[:min(room, len(p))]...)
	}
	if len(p) > tailKept {
		p = p[len(p)-tailKept:]
	}
	if len(w.tail)+len(p) > 2*tailKept {
		w.tail = append(w.tail[:0], w.tail[len(w.tail)-tailKept:]...)
	}
	w.tail = append(w.tail, p...)
}

// cached is the decoder's number, nil when there is none or it is null. Of several
// the last counts: usage grows during an answer.
func (w *watcher) cached() *int {
	for _, part := range [][]byte{w.tail, w.head} {
		if n := lastCached(part); n != nil {
			return n
		}
	}
	return nil
}

// lastCached is the last number of cached tokens in a part of an answer, wherever an
// API puts it: in usage's prompt_tokens_details (chat, completions) or
// input_tokens_details (responses), or as cache_read_input_tokens (messages). A quote
// inside a text is escaped, so that what a model says cannot look like it.
func lastCached(b []byte) *int {
	const end = `tokens"` // of both names
	for at := bytes.LastIndex(b, []byte(end)); at >= 0; at = bytes.LastIndex(b[:at], []byte(end)) {
		name, ok := bytes.CutSuffix(b[:at], []byte(`"cached_`))
		if !ok {
			name, ok = bytes.CutSuffix(b[:at], []byte(`"cache_read_input_`))
		}
		if !ok || bytes.HasSuffix(name, []byte(`\`)) {
			continue
		}
		value, ok := bytes.CutPrefix(bytes.TrimLeft(b[at+len(end):], space), []byte(":"))
		if !ok {
			continue
		}
		value = bytes.TrimLeft(value, space)
		n := 0
		for n < len(value) && n < maxDigits && '0' <= value[n] && value[n] <= '9' {
			n++
		}
		if found, err := strconv.Atoi(string(value[:n])); err == nil {
			return &found
		}
	}
	return nil
}

const (
	space     = " \t\r\n" // of JSON
	maxDigits = 9         // of a number of tokens
)
