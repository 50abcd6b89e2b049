package front

import (
	"bytes"
	"io"
	"strconv"
	"sync"
)

// watcher passes an answer's body on and keeps its beginning and its end, where
// the decoder says how many tokens it found in its cache.
type watcher struct {
	body  io.ReadCloser
	head  []byte // the first bytes, up to tailKept
	tail  []byte // the last bytes, up to 2*tailKept
	first func() // is told of the first byte, once; nil: nobody is
	done  func(cached *int)
	once  sync.Once
}

func (w *watcher) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if n > 0 && w.first != nil {
		w.first()
		w.first = nil
	}
	w.keep(p[:n])
	if err != nil {
		w.finish()
	}
	return n, err
}

// Close ends the answer, whole or not.
func (w *watcher) Close() error {
	w.finish()
	return w.body.Close()
}

func (w *watcher) finish() { w.once.Do(func() { w.done(w.cached()) }) }

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
