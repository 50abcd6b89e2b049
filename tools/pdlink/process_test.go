package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/tools/linkkeys"
)

// mainEnv, set to 1, makes the test binary be pdlink: its arguments are a
// command line. So a test can kill a real process, and the code in it is what
// was compiled for the test, race detector included. Other values are what mainOf
// knows.
const mainEnv = "PDLINK_TEST_MAIN"

// processLimit ends a process that hangs. Every command of these tests is done
// within a second or two, on a busy machine within ten.
const processLimit = time.Minute

func TestMain(m *testing.M) {
	switch mode := os.Getenv(mainEnv); mode {
	case "":
		os.Setenv(linkkeys.Env, "testdata/none") // what whoever runs the tests has does not count
		os.Setenv(configEnv, os.DevNull)
	case "1":
		main()
	default:
		mainOf(mode)
	}
	os.Exit(m.Run())
}

// process is a pdlink command line that runs as a process of its own. It ends
// with the test at the latest.
type process struct {
	args     []string
	cmd      *exec.Cmd
	out, err output
	done     chan struct{} // closed when it has ended and its output is complete
}

// start runs a command line. An argument list that starts with a program's
// path runs that program instead, with pdlink's own path where "{}" stands.
func start(tb testing.TB, args ...string) *process {
	tb.Helper()
	return startAs(tb, "1", nil, args...)
}

// startAs is start for a value of mainEnv, with something to read.
func startAs(tb testing.TB, mode string, stdin *os.File, args ...string) *process {
	tb.Helper()
	p := startLong(tb, mode, stdin, args...)
	limit := time.AfterFunc(processLimit, func() { p.cmd.Process.Kill() }) // wait reports it as a kill
	go func() {
		<-p.done
		limit.Stop()
	}()
	return p
}

// startLong is startAs for a process that may take its time.
func startLong(tb testing.TB, mode string, stdin *os.File, args ...string) *process {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatalf("find the test binary: %v", err)
	}
	p := &process{args: args, done: make(chan struct{})}
	if strings.HasPrefix(args[0], "/") {
		p.cmd = exec.Command(args[0], args[1:]...)
		for i, a := range p.cmd.Args {
			if a == "{}" {
				p.cmd.Args[i] = self
			}
		}
	} else {
		p.cmd = exec.Command(self, args...)
	}
	// The race detector would sleep for a second at the end of each process.
	p.cmd.Env = append(os.Environ(), mainEnv+"="+mode, "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if stdin != nil {
		p.cmd.Stdin = stdin
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatalf("start pdlink %v: %v", args, err)
	}
	go func() {
		p.cmd.Wait() // the state says how it went
		close(p.done)
	}()
	tb.Cleanup(p.kill)
	return p
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *process) kill() {
	p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// signal asks the process to end.
func (p *process) signal() { p.cmd.Process.Signal(syscall.SIGTERM) }

// wait returns the exit status, -1 if a signal ended the process.
func (p *process) wait() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// crashed says how a process ended that should not have ended that way: by the
// Go runtime. Empty if it did not.
func (p *process) crashed() string {
	text := p.err.String()
	for _, sign := range []string{"panic:", "fatal error:", "goroutine 1 [", "DATA RACE", "SIG"} {
		if strings.Contains(text, sign) {
			return fmt.Sprintf("pdlink %v crashed: %s", p.args, text)
		}
	}
	return ""
}

// String shows a process in a failure message.
func (p *process) String() string {
	return fmt.Sprintf("pdlink %s\n  stdout: %s\n  stderr: %s", strings.Join(p.args, " "),
		strings.TrimSpace(p.out.String()), strings.TrimSpace(p.err.String()))
}

// output gathers what a process writes. It may be used concurrently.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// reset forgets what was written.
func (o *output) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Reset()
}

// events returns the complete lines whose event is name, as JSON.
func (o *output) events(name string) [][]byte {
	var found [][]byte
	for line := range strings.Lines(o.String()) {
		var e struct{ Event string }
		if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &e) == nil && e.Event == name {
			found = append(found, []byte(line))
		}
	}
	return found
}

// receiver is a `pdlink decode` that listens.
type receiver struct {
	*process
	addr string // host:port
}

// startReceiver starts one on a free port and waits until it listens.
func startReceiver(tb testing.TB, store string, flags ...string) *receiver {
	tb.Helper()
	args := []string{"decode", "--json", "--listen", "tcp://127.0.0.1:0", "--store", store}
	r := &receiver{process: start(tb, append(args, flags...)...)}
	if !eventually(processLimit, func() bool { return len(r.out.events("listening")) > 0 || r.ended() }) || r.ended() {
		tb.Fatalf("receiver does not listen: %v", r)
	}
	var e listening
	if err := json.Unmarshal(r.out.events("listening")[0], &e); err != nil {
		tb.Fatalf("receiver's first line: %v", err)
	}
	r.addr = strings.TrimPrefix(e.Listen, "tcp://")
	return r
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// await waits until a process has said something.
func (p *process) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !eventually(processLimit, func() bool { return ok() || p.ended() }) || !ok() {
		t.Fatalf("never: %s: %v", what, p)
	}
}

// verdicts are the transfers that the receiver has reported.
func (r *receiver) verdicts(tb testing.TB) []transferEvent {
	tb.Helper()
	lines := r.out.events("transfer")
	all := make([]transferEvent, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal(line, &all[i]); err != nil {
			tb.Fatalf("receiver's verdict %s: %v", line, err)
		}
	}
	return all
}

// stop ends the receiver in order and checks that it leaves nothing behind.
func (r *receiver) stop(tb testing.TB, want *expectation, store string) {
	tb.Helper()
	r.signal()
	if status := r.wait(); status != exitOK || len(r.out.events("ended")) != 1 {
		tb.Errorf("receiver ended with status %d, want 0 and an event: %v", status, r)
	}
	if c := want.check(tb, store); c.parts > 0 {
		tb.Errorf("%d temporary files left after an orderly end", c.parts)
	}
}

// eventually polls until ok or the time is over.
func eventually(limit time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// expectation is what a store may hold: the blocks of one case in one format.
type expectation struct {
	name, format string
	hashes       []omlx.Hash
	index        map[string]int // file name to block
	store        string         // complete, made without faults
	bytes        []int64        // size of each block's file
}

// expect makes the reference for a case in a format. Where the decoder's own
// blocks are recorded, it is compared with them on the way.
func expect(tb testing.TB, name, format string) *expectation {
	tb.Helper()
	return expectOf(tb, filepath.Join(casesDir, name), format)
}

// expectOf is expect for a case's directory.
func expectOf(tb testing.TB, dir, format string) *expectation {
	tb.Helper()
	name := filepath.Base(dir)
	c, err := replay.Load(dir)
	if err != nil {
		tb.Fatal(err)
	}
	spec, err := c.Spec(replay.Overrides{Format: format})
	if err != nil {
		tb.Fatal(err)
	}
	x := &expectation{name: name, format: format, hashes: c.Plan(spec).Hashes, index: map[string]int{}, store: tb.TempDir()}
	p := start(tb, "replay", dir, "--store", x.store, "--format", format, "--json", "--no-sync")
	if status := p.wait(); status != exitOK {
		tb.Fatalf("reference: status %d: %v", status, p)
	}
	for k, h := range x.hashes {
		x.index[h.String()+".safetensors"] = k
		info, err := os.Stat(x.path(x.store, k))
		if err != nil {
			tb.Fatalf("reference: %v", err)
		}
		x.bytes = append(x.bytes, info.Size())
	}
	return x
}

// path is where block k lies in a store.
func (x *expectation) path(store string, k int) string {
	name := x.hashes[k].String()
	return filepath.Join(store, name[:1], name+".safetensors")
}

// contents is what lies in a store.
type contents struct {
	visible int // blocks, a contiguous prefix of the chain
	parts   int // temporary files of pdlink
}

// check looks at a store as a decoder's scan does, hidden names and odd folders
// included, and demands that everything a decoder could take for a block is one
// of the expected blocks, identical to it, and that they are a contiguous
// prefix. A receiver may be at work meanwhile.
func (x *expectation) check(tb testing.TB, store string) (c contents) {
	tb.Helper()
	seen := make([]bool, len(x.hashes))
	err := filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, ".part"):
			return nil // it was removed meanwhile
		case err != nil:
			return err
		case d.IsDir():
			return nil
		}
		switch k, known := x.index[d.Name()]; {
		case known && path == x.path(store, k):
			seen[k] = true
			x.identical(tb, store, k)
		case strings.HasPrefix(d.Name(), ".") && strings.HasSuffix(d.Name(), ".part"):
			c.parts++
		default:
			tb.Errorf("%s does not belong into the store", path)
		}
		return nil
	})
	if err != nil {
		tb.Errorf("scan store: %v", err)
	}
	for k, ok := range seen {
		if ok && k > c.visible { // seen after an earlier folder was read: it may be there by now
			for ; c.visible < k; c.visible++ {
				if _, err := os.Lstat(x.path(store, c.visible)); err != nil {
					tb.Errorf("block %d is visible and block %d is not: %v", k, c.visible, err)
					break
				}
				x.identical(tb, store, c.visible)
			}
		}
		if ok {
			c.visible = max(c.visible, k+1)
		}
	}
	return c
}

// identical compares a visible block with the reference.
func (x *expectation) identical(tb testing.TB, store string, k int) {
	tb.Helper()
	d, err := omlx.Compare(x.path(x.store, k), x.path(store, k))
	if err != nil {
		tb.Errorf("block %d is visible and cannot be read: %v", k, err)
	} else if !d.Equal() {
		tb.Errorf("block %d is visible and wrong: %s", k, d)
	}
}

// TestKeepersEndWithALostSender has a sender that must keep its bytes until
// their blocks are durable, and another one, without which they never will be,
// stay away. The ring of the first fills; it must not wait for ever, however
// often it asks meanwhile what became of its frames.
func TestKeepersEndWithALostSender(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	store := t.TempDir()
	r := startReceiver(t, store, "--part-wait", "1200ms")
	p := start(t, "replay", filepath.Join(casesDir, want.name), "--to", "tcp://"+r.addr, "--format", want.format, "--keep",
		"--chunk", strconv.Itoa(smallestKept), "--part", "1/2", "--timeout", patience.String())
	if status := p.wait(); status != exitFailed || !strings.Contains(p.out.String(), "partial 0/5: of 2 parts these did not finish") {
		t.Errorf("status %d: %v", status, p)
	}
	r.stop(t, want, store)
}

// TestFinishedSenderMayComeAgain kills a sender that has sent all of its part
// and waits for the others. A new one does not know that nothing is missing.
func TestFinishedSenderMayComeAgain(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	store := t.TempDir()
	r := startReceiver(t, store, "--part-wait", patience.String())
	part := func(i string) *process {
		return start(t, "replay", filepath.Join(casesDir, want.name), "--to", "tcp://"+r.addr, "--format", want.format,
			"--part", i+"/2", "--timeout", patience.String())
	}
	first := part("1")
	// It has sent its part when the receiver has as much on the disk.
	if !eventually(processLimit, func() bool { return want.check(t, store).parts == len(want.hashes) || first.ended() }) || first.ended() {
		t.Fatalf("nothing arrives: %v", first)
	}
	first.kill()
	again, second := part("1"), part("2")
	for _, p := range []*process{again, second} {
		if status := p.wait(); status != exitOK {
			t.Errorf("status %d: %v", status, p)
		}
	}
	if c := want.check(t, store); c.visible != len(want.hashes) {
		t.Errorf("%d of %d blocks", c.visible, len(want.hashes))
	}
	r.stop(t, want, store)
}

// TestKeepingTinyChunksIsRefused: a frame for each chunk, and a block with more
// chunks than the ring has slots, would wait for ever.
func TestKeepingTinyChunksIsRefused(t *testing.T) {
	p := start(t, "replay", filepath.Join(casesDir, "dsv4-a"), "--store", t.TempDir(), "--keep",
		"--chunk", strconv.Itoa(smallestKept-1), "--timeout", patience.String())
	if status := p.wait(); status != exitUsage || !strings.Contains(p.err.String(), "at least 9 tokens") {
		t.Errorf("status %d: %v", status, p)
	}
}
