//go:build page

package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestPageComesAgain: a page that finds enough others open, which a browser takes for the
// end, is there when they are gone.
func TestPageComesAgain(t *testing.T) {
	r := startReceiver(t, t.TempDir(), "--metrics", "0")
	url := watchedAt(t, r.process, "listening")
	var open []io.Closer
	for {
		a, err := http.Get(url + "events")
		if err != nil {
			t.Fatal(err)
		}
		if a.StatusCode == http.StatusServiceUnavailable {
			a.Body.Close()
			break
		}
		t.Cleanup(func() { a.Body.Close() })
		if open = append(open, a.Body); len(open) > 100 {
			t.Fatal("there is no end of pages")
		}
	}
	b := startBrowser(t)
	p := b.open(url)
	p.await("#status", func(s string) bool { return strings.HasPrefix(s, "no connection to pdlink") })
	for _, x := range open {
		x.Close()
	}
	p.await("#status", func(s string) bool { return s == "ready" })
	p.must(nil, p.session, "Page.navigate", map[string]any{"url": "about:blank"})
}
