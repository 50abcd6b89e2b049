//go:build page

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// chromiumEnv names the browser; without it the first of browsers that is installed.
const chromiumEnv = "PDLINK_CHROMIUM"

// shotsEnv is a directory where pictures of pages are left, for people.
const shotsEnv = "PDLINK_PAGE_SHOTS"

func browsers() []string { return []string{"chromium", "chromium-browser", "google-chrome"} }

// browser is a headless Chromium that is told what to do over a pipe: no port, and it ends
// with the test. Its methods may be used concurrently.
type browser struct {
	t    *testing.T
	cmd  *exec.Cmd
	to   io.Writer
	said chan struct{} // closed when it says nothing any more

	mu      sync.Mutex // guards the fields below
	next    int
	answers map[int]chan message
	errors  []string // of consoles, and what could not be loaded
}

// message is one of the DevTools protocol, either way.
type message struct {
	ID      int             `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// startBrowser starts Chromium. That none is there fails the test: this file is compiled
// for it.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := os.Getenv(chromiumEnv)
	for _, name := range browsers() {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		t.Fatalf("no Chromium is installed (Debian: apt-get install chromium); $%s may name one", chromiumEnv)
	}
	fromTest, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, toTest, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, to: to, answers: map[int]chan message{}, said: make(chan struct{})}
	dir := t.TempDir()
	b.cmd = exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio", "--window-size=1280,1300",
		"--remote-debugging-pipe", "--user-data-dir="+filepath.Join(dir, "profile"), "about:blank")
	b.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
	b.cmd.ExtraFiles = []*os.File{fromTest, toTest} // 3 and 4
	var stderr output
	b.cmd.Stderr = &stderr
	if err := b.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	fromTest.Close()
	toTest.Close()
	go b.read(from)
	t.Cleanup(func() {
		b.mu.Lock()
		b.next++
		json.NewEncoder(zeroEnded{to}).Encode(message{ID: b.next, Method: "Browser.close"}) // so that it takes its children with it
		b.mu.Unlock()
		limit := time.AfterFunc(10*time.Second, func() { b.cmd.Process.Kill() })
		b.cmd.Wait()
		limit.Stop()
		to.Close()
		<-b.said
		from.Close()
		if t.Failed() {
			t.Logf("Chromium said: %s", tail(stderr.String(), 2000))
		}
	})
	return b
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// zeroEnded ends messages as the pipe has them: with a zero byte for the end of the line.
type zeroEnded struct{ w io.Writer }

func (z zeroEnded) Write(p []byte) (int, error) {
	if _, err := z.w.Write(append(bytes.TrimSuffix(p, []byte("\n")), 0)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// read takes what the browser says.
func (b *browser) read(from io.Reader) {
	defer close(b.said)
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.answers[m.ID]; m.ID != 0 && c != nil {
			delete(b.answers, m.ID)
			c <- m
		}
		if fault := faultOf(m); fault != "" {
			b.errors = append(b.errors, fault)
		}
		b.mu.Unlock()
	}
}

// faultOf is what went wrong on a page, by an event of the browser.
func faultOf(m message) string {
	var p struct {
		Type  string
		Entry struct{ Level, Text, URL string }
	}
	json.Unmarshal(m.Params, &p)
	switch {
	case m.Method == "Runtime.exceptionThrown",
		m.Method == "Runtime.consoleAPICalled" && (p.Type == "error" || p.Type == "warning" || p.Type == "assert"),
		m.Method == "Log.entryAdded" && (p.Entry.Level == "error" || p.Entry.Level == "warning"),
		m.Method == "Page.javascriptDialogOpening":
		return m.Method + " " + string(m.Params)
	}
	return ""
}

// faults are what went wrong on all pages so far.
func (b *browser) faults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.errors...)
}

// ask sends a command and returns its result.
func (b *browser) ask(session, method string, params any) (json.RawMessage, error) {
	text, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.answers[id] = answer
	err = json.NewEncoder(zeroEnded{b.to}).Encode(message{ID: id, Method: method, Session: session, Params: text})
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, m.Error)
		}
		return m.Result, nil
	case <-b.said:
		return nil, errors.New("the browser ended")
	case <-time.After(processLimit):
		return nil, fmt.Errorf("%s: no answer", method)
	}
}

// tab is a page that is open.
type tab struct {
	*browser
	session string
}

// open opens a page.
func (b *browser) open(url string) *tab {
	b.t.Helper()
	var target struct{ TargetID string }
	b.must(&target, "", "Target.createTarget", map[string]any{"url": "about:blank"})
	var attached struct{ SessionID string }
	b.must(&attached, "", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	p := &tab{b, attached.SessionID}
	for _, domain := range []string{"Runtime", "Log", "Page", "Network"} {
		p.must(nil, p.session, domain+".enable", struct{}{})
	}
	p.must(nil, p.session, "Page.navigate", map[string]any{"url": url})
	return p
}

func (b *browser) must(into any, session, method string, params any) {
	b.t.Helper()
	r, err := b.ask(session, method, params)
	if err == nil && into != nil {
		err = json.Unmarshal(r, into)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

// eval is what an expression is on the page, as text.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	var r struct {
		Result struct {
			Value       any
			Description string
		}
		ExceptionDetails json.RawMessage
	}
	p.must(&r, p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true})
	if r.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return fmt.Sprint(r.Result.Value)
}

// text is what a person reads in an element; "" where there is none.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return p.eval(fmt.Sprintf("(document.querySelector(%q) || {textContent: ''}).textContent", selector))
}

// await waits until what is read in an element is as it should be, and returns it.
func (p *tab) await(selector string, ok func(text string) bool) string {
	p.t.Helper()
	text := ""
	if !eventually(processLimit, func() bool {
		if text = p.text(selector); ok(text) {
			return true
		}
		time.Sleep(30 * time.Millisecond) // the browser has work to do
		return false
	}) {
		p.t.Fatalf("never: %s is %q", selector, text)
	}
	return text
}

// shot leaves a picture of the page where shotsEnv says.
func (p *tab) shot(name string) {
	p.t.Helper()
	dir := os.Getenv(shotsEnv)
	if dir == "" {
		return
	}
	var r struct{ Data string }
	p.must(&r, p.session, "Page.captureScreenshot", map[string]any{"format": "png"})
	b, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644)
	}
	if err != nil {
		p.t.Error(err)
	}
}
