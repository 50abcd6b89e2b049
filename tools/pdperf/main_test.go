package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/tools/linkkeys"
)

// asProgram in the environment makes the test binary be pdperf.
const asProgram = "PDPERF_TEST_IS_PDPERF"

// TestMain makes the test binary be pdperf where local and floor start it as
// their other end: nothing else has that flag.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--end-with-stdin") || os.Getenv(asProgram) != "" {
		main()
	}
	os.Setenv(linkkeys.Env, "testdata/none") // the keys of whoever runs the tests do not count
	goleak.VerifyTestMain(m)
}

// testPatience bounds what has to happen, on a busy machine under the race detector.
const testPatience = 30 * time.Second

// cli runs one command line in this process.
func cli(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	var o, e output
	status = run(ctx, args, streams{in: strings.NewReader(""), out: &o, err: &e})
	return status, o.String(), e.String()
}

// output is a buffer that may be read while it is written to.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// background is a command that runs until stop.
type background struct {
	t      *testing.T
	out    output
	err    output
	cancel context.CancelFunc
	status chan int
	url    string
}

// startText runs a command in the background, until the test's end at the
// latest.
func startText(t *testing.T, args ...string) *background {
	t.Helper()
	return startRun(t, func(ctx context.Context, io streams) int { return run(ctx, args, io) })
}

// startRun runs what gives a status in the background, until the test's end at the latest.
func startRun(t *testing.T, run func(context.Context, streams) int) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{t: t, cancel: cancel, status: make(chan int, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.status <- run(ctx, streams{in: strings.NewReader(""), out: &b.out, err: &b.err})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return b
}

// start runs a command that listens, with --json, and returns when it does.
func start(t *testing.T, args ...string) *background {
	t.Helper()
	b := startText(t, append(args, "--json")...)
	b.listens()
	return b
}

// listens waits until a command with --json listens, and notes where.
func (b *background) listens() {
	t := b.t
	t.Helper()
	b.until(`"listening"`)
	var l listening
	line, _, _ := strings.Cut(b.out.String(), "\n")
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	b.url = l.Listen
}

// until waits for a text in the output.
func (b *background) until(text string) {
	b.t.Helper()
	for end := time.Now().Add(testPatience); !strings.Contains(b.out.String(), text); time.Sleep(time.Millisecond) {
		select {
		case s := <-b.status:
			b.status <- s
			if strings.Contains(b.out.String(), text) {
				return
			}
			b.t.Fatalf("ended with status %d and without %q: %s%s", s, text, b.out.String(), b.err.String())
		default:
		}
		if time.Now().After(end) {
			b.t.Fatalf("no %q: %s%s", text, b.out.String(), b.err.String())
		}
	}
}

// wait returns the status with which the command ends by itself.
func (b *background) wait() int {
	b.t.Helper()
	select {
	case s := <-b.status:
		return s
	case <-time.After(testPatience):
		b.t.Fatalf("still running: %s%s", b.out.String(), b.err.String())
		return 0
	}
}

// stop interrupts the command and returns its status.
func (b *background) stop() int {
	b.t.Helper()
	b.cancel()
	return b.wait()
}

// events are the output's lines.
func (b *background) events() (all []map[string]any) {
	b.t.Helper()
	for line := range strings.Lines(b.out.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			b.t.Fatalf("%v in %q", err, line)
		}
		all = append(all, m)
	}
	return all
}

// count is how many events are of a kind.
func (b *background) count(kind string) (n int) {
	for _, e := range b.events() {
		if e["event"] == kind {
			n++
		}
	}
	return n
}

// measured runs a command with --json and demands a sound result.
func measured(t *testing.T, args ...string) result {
	t.Helper()
	status, out, errOut := cli(t, append(args, "--json")...)
	if status != exitOK || errOut != "" {
		t.Fatalf("%v: status %d\n%s%s", args, status, out, errOut)
	}
	return parsed(t, out)
}

// parsed reads a result, which has to follow the schema.
func parsed(t *testing.T, out string) result {
	t.Helper()
	if bad := validate(t, []byte(out)); len(bad) > 0 {
		t.Errorf("not by the schema: %v\n%s", bad, out)
	}
	var r result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return r
}
