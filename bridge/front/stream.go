package front

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// maxErrorBody bounds an error of the decoder that goes out as a frame.
const maxErrorBody = 64 << 10

// alive keeps a streaming client's connection from idling while its prompt is
// read: it begins the answer, and says so in comments, which every reader of SSE
// ignores. It replaces the response writer; one goroutine uses it.
type alive struct {
	w     http.ResponseWriter
	path  string
	begun bool

	header http.Header // the decoder's, once begun: only its type is looked at
	failed bool        // the decoder's answer is no stream: it goes out as an error frame
	told   bool        // WriteHeader was called
	body   []byte      // of that answer
}

// comment sends one, after the status where it is the first thing sent.
func (a *alive) comment(text string) {
	if !a.begun {
		a.begun, a.header = true, make(http.Header)
		h := a.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		a.w.WriteHeader(http.StatusOK)
	}
	fmt.Fprintf(a.w, ": %s\n\n", text)
	http.NewResponseController(a.w).Flush() //nolint:errcheck // as above
}

// Header implements http.ResponseWriter.
func (a *alive) Header() http.Header {
	if !a.begun {
		return a.w.Header()
	}
	return a.header
}

// WriteHeader implements http.ResponseWriter.
func (a *alive) WriteHeader(status int) {
	if !a.begun {
		a.w.WriteHeader(status)
		return
	}
	if status < http.StatusOK || a.told {
		return // informational
	}
	a.told = true
	a.failed = status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream")
}

// Write implements http.ResponseWriter.
func (a *alive) Write(p []byte) (int, error) {
	if !a.begun {
		return a.w.Write(p)
	}
	if !a.told {
		a.WriteHeader(http.StatusOK)
	}
	if !a.failed {
		return a.w.Write(p)
	}
	a.body = append(a.body, p[:min(len(p), maxErrorBody-len(a.body))]...)
	return len(p), nil
}

// FlushError lets tokens go out as they come.
func (a *alive) FlushError() error {
	if a.failed {
		return nil
	}
	return http.NewResponseController(a.w).Flush()
}

// end sends the error frame where the answer was none that can be streamed.
func (a *alive) end() {
	if !a.failed {
		return
	}
	event := ""
	if strings.HasSuffix(a.path, "/messages") || strings.HasSuffix(a.path, "/responses") {
		event = "event: error\n"
	}
	fmt.Fprintf(a.w, "%sdata: %s\n\n", event, oneLine(a.body))
}

// wait returns when the flight has ended or the client is gone, which it reports
// as false. A client that streams is kept alive meanwhile.
func (f *Front) wait(a *alive, r *http.Request, fl *flight, p Plan, streams bool) bool {
	var tick <-chan time.Time
	if streams && f.o.KeepAlive > 0 {
		t := time.NewTicker(f.o.KeepAlive)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-fl.done:
			return true
		case <-r.Context().Done():
			return false
		case <-tick:
			a.comment(fmt.Sprintf("pdlink: reading %d tokens", p.Tokens))
		}
	}
}
