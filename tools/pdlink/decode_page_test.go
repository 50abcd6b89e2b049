//go:build page

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// halfway reports that some of a transfer's blocks are visible, and not all.
func halfway(t *testing.T, url string) bool {
	t.Helper()
	s := stateAt(t, url)
	return len(s.Transfers) == 1 && s.Transfers[0].Visible > 0 && s.Transfers[0].Visible < s.Transfers[0].Total
}

// record has the page note every text that some elements have had.
const record = `window.seen = {};
for (const id of ["links", "transfers", "done"]) {
  window.seen[id] = [];
  new MutationObserver(() => window.seen[id].push(document.getElementById(id).textContent)).observe(document.getElementById(id), {childList: true, subtree: true});
}
"recording"`

// TestPageFollowsTransfers: a real transfer in two parts, the second of which comes when
// the page has shown the first, and one of some hundred megabytes.
func TestPageFollowsTransfers(t *testing.T) {
	store := t.TempDir()
	r := startReceiver(t, store, "--metrics", "0", "--part-wait", "1m", "--no-sync")
	b := startBrowser(t)
	url := watchedAt(t, r.process, "listening")
	p := b.open(url)
	is := func(want string) func(string) bool { return func(s string) bool { return s == want } }
	has := func(want ...string) func(string) bool {
		return func(s string) bool {
			for _, w := range want {
				if !strings.Contains(s, w) {
					return false
				}
			}
			return true
		}
	}
	p.await("#status", is("ready"))
	p.await("#transfers", is("none"))
	p.await("#done", is("none yet"))
	p.await("#store", has(store, " free of "))
	p.eval(record)

	part := func(i string) *process {
		return start(t, "replay", filepath.Join(casesDir, "kv-qwen3"), "--to", "tcp://"+r.addr, "--format", "5", "--part", i+"/2")
	}
	first := part("1")
	p.await("#transfers", has("tcp (in clear)", " MB")) // half of it is there, and stays until the other half comes
	p.await("#links th", is("tcp (in clear)"))
	p.await("#peers", has("its own word", "127.0.0.1:"))
	half := p.await("#links td:nth-of-type(4)", func(s string) bool { return s != "0 B" && s != "" })
	p.shot("half")
	second := part("2")
	for _, x := range []*process{first, second} {
		if status := x.wait(); status != exitOK {
			t.Errorf("status %d: %v", status, x)
		}
	}
	p.await("#transfers", is("none"))
	p.await("#done tr:first-child td:nth-of-type(2)", is("complete"))
	p.await("#done tr:first-child", has("5 of 5", "2.0 MB", "tcp (in clear) 2.0 MB"))
	if whole := p.await("#links td:nth-of-type(4)", has("2.0 MB")); whole == half {
		t.Errorf("received %s after half of it and after all", whole)
	}

	big := start(t, "replay", "--synthetic", "deepseek-v4-flash", "--tokens", "131072", "--to", "tcp://"+r.addr)
	if !eventually(processLimit, func() bool { return halfway(t, url) || big.ended() }) || big.ended() {
		t.Fatalf("it was never on its way: %v", big)
	}
	big.cmd.Process.Signal(syscall.SIGSTOP) // so that there is time to look
	p.await("#transfers", has(" of 63"))
	p.shot("flight")
	big.cmd.Process.Signal(syscall.SIGCONT)
	if status := big.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, big)
	}
	p.await("#transfers", is("none"))
	p.await("#done tr:first-child", has("complete", "63 of 63"))
	p.await("#done tr:nth-child(2)", has("complete", "5 of 5"))
	p.await("#peers", is("none connected"))
	var seen map[string][]string
	if err := json.Unmarshal([]byte(p.eval("JSON.stringify(window.seen)")), &seen); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(seen["links"], " "), "/s") {
		t.Error("no link ever had a rate")
	}
	p.look(t)
	p.shot("end")
	p.must(nil, p.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}})
	if dark := p.eval("getComputedStyle(document.body).backgroundColor"); dark != "rgb(20, 22, 27)" {
		t.Errorf("in the dark the page is %s", dark)
	}
	p.shot("dark")
	p.must(nil, p.session, "Page.navigate", map[string]any{"url": "about:blank"})
	for _, fault := range b.faults() {
		t.Errorf("the page: %s", fault)
	}
	r.signal()
	if status := r.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, r)
	}
}

// look finds what people who do not see the page would miss.
func (p *tab) look(t *testing.T) {
	t.Helper()
	for what, expression := range map[string]string{
		"no language":             `document.documentElement.lang ? "" : "x"`,
		"headers without scope":   `[...document.querySelectorAll("th")].filter((x) => !x.scope).map((x) => x.textContent).join()`,
		"regions without a name":  `[...document.querySelectorAll("section, [role=region]")].filter((x) => !document.getElementById(x.getAttribute("aria-labelledby"))).length || ""`,
		"pictures without a text": `[...document.querySelectorAll("svg, progress")].filter((x) => !x.getAttribute("aria-label")).length || ""`,
		"no status":               `document.querySelector("[role=status]") ? "" : "x"`,
		"several main headings":   `document.querySelectorAll("h1").length === 1 ? "" : "x"`,
		"wider than the window":   `document.documentElement.scrollWidth > window.innerWidth ? "x" : ""`,
	} {
		if found := p.eval(expression); found != "" {
			t.Errorf("%s: %s", what, found)
		}
	}
}

// TestPageShowsHostileNamesAsText: a prefill host calls itself what it likes, and its own
// page says what it waits for.
func TestPageShowsHostileNamesAsText(t *testing.T) {
	const name = `<img src=x onerror="document.title='taken'"><script>document.title='taken'</script>`
	r := startReceiver(t, t.TempDir(), "--metrics", "0")
	host := start(t, "prefill", "--json", "--to", "tcp://"+r.addr, "--engine", "http://127.0.0.1:1", "--name", name,
		"--socket", filepath.Join(t.TempDir(), "e.sock"), "--metrics", "0")
	b := startBrowser(t)
	p := b.open(watchedAt(t, r.process, "listening"))
	p.await("#peers th", func(s string) bool { return s == name })
	if n := p.eval("document.querySelectorAll('img, script:not([src])').length"); n != "0" {
		t.Errorf("%s elements were made of a name", n)
	}
	if title := p.eval("document.title"); !strings.HasPrefix(title, "pdlink decode on ") {
		t.Errorf("title %q", title)
	}
	q := b.open(watchedAt(t, host, "started"))
	q.await("#status", func(s string) bool {
		return strings.HasPrefix(s, "not ready: engine: the engine does not answer at http://127.0.0.1:1")
	})
	q.await("#dials", func(s string) bool { return s == "tcp: 1 connected, 0 failed, 0 lost" })
	q.await("#links th", func(s string) bool { return s == "tcp (in clear)" })
	// What a page may do is bounded by the server too: nothing of elsewhere, no script in the text.
	if said := q.eval(`(() => { const s = document.createElement("script"); s.textContent = "window.taken = 1"; document.body.append(s); return String(window.taken); })()`); said != "undefined" {
		t.Error("a script in the page's text ran")
	}
	for _, x := range []*tab{p, q} {
		x.must(nil, x.session, "Page.navigate", map[string]any{"url": "about:blank"})
	}
	for _, fault := range b.faults() {
		if !strings.Contains(fault, "Content Security Policy") { // the script above
			t.Errorf("the page: %s", fault)
		}
	}
}
