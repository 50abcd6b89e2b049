//go:build page

package main

import (
	"strings"
	"testing"
)

// TestPageShowsRequests: those of the front door, and the call at the prefill host.
func TestPageShowsRequests(t *testing.T) {
	at := bridgeOf(t)
	b := startBrowser(t)
	p, q := b.open(at.decode), b.open(at.prefill)
	p.await("#requests tr:nth-child(2)", func(s string) bool { return strings.Contains(s, "bypass: no prefill host ") })
	p.await("#requests tr:first-child", func(s string) bool {
		return strings.Contains(s, "/v1/completions") && strings.Contains(s, "declined: engine: prefill: engine refuses the prompt")
	})
	p.await("#running", func(s string) bool { return s == "(0 running)" })
	p.await("#peers th", func(s string) bool { return s == "spark" })
	q.await("#done tr:first-child", func(s string) bool { return strings.Contains(s, "declined: ") })
	q.await("#status", func(s string) bool { return s == "ready" })
	if hidden := q.eval("document.getElementById('front').hidden"); hidden != "true" {
		t.Error("a prefill host has no front door")
	}
	p.look(t)
	q.look(t)
	p.shot("front")
	for _, x := range []*tab{p, q} {
		x.must(nil, x.session, "Page.navigate", map[string]any{"url": "about:blank"})
	}
	for _, fault := range b.faults() {
		t.Errorf("the page: %s", fault)
	}
}
