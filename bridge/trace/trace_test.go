package trace_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/bridge"
	"pdlink/bridge/trace"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	blocks    = 4
	blockSize = 1 << 20
	chunk     = 64 << 10
)

// store keeps blocks in memory.
type store struct{ data [blocks][blockSize]byte }

func (s *store) Write(block int, off int64, p []byte) error {
	copy(s.data[block][off:], p)
	return nil
}
func (*store) Sync(int) error               { return nil }
func (*store) Seal(int) error               { return nil }
func (*store) Publish(int) error            { return nil }
func (*store) Settle(_, n int) (int, error) { return n, nil }
func (*store) Close() error                 { return nil }
func (s *store) open() (bridge.Opened, error) {
	return bridge.Opened{Target: s, Blocks: blocks, BlockBytes: blockSize}, nil
}
func content(block int) []byte { return bytes.Repeat([]byte{byte(block + 1)}, blockSize) }
func (s *store) holds(t *testing.T, block int) {
	t.Helper()
	if !bytes.Equal(s.data[block][:], content(block)) {
		t.Errorf("block %d has other bytes", block)
	}
}

// maker makes the blocks in chunks; pause is what each takes.
type maker struct{ pause time.Duration }

func (m maker) Run(ctx context.Context, to bridge.Sink) error {
	for b := range blocks {
		data := content(b)
		for at := 0; at < blockSize; at += chunk {
			time.Sleep(m.pause)
			if err := to.Put(ctx, b, int64(at), data[at:at+chunk]); err != nil {
				return err
			}
		}
	}
	return to.Push(ctx)
}

// once dials a connection, and records what it is told about which.
type once struct {
	link  *mem.Link
	made  transport.Conn
	ended []transport.Conn
}

func (o *once) Dial(ctx context.Context) (c transport.Conn, err error) {
	o.made, err = o.link.Dial(ctx, "decoder")
	return o.made, err
}
func (*once) Wait(_ context.Context, cause error) error { return cause }
func (o *once) Lost(c transport.Conn, _ error)          { o.ended = append(o.ended, c) }
func (o *once) Done(c transport.Conn)                   { o.ended = append(o.ended, c) }
func (*once) Progress()                                 {}

// transfer moves the blocks over a link of this process with a recorder, which may
// be nil, between all parts.
func transfer(t *testing.T, rec *trace.Recorder, m maker) {
	t.Helper()
	s := new(store)
	visible := 0
	receiver := bridge.NewReceiver(bridge.Options{
		PartWait: -1,
		Open:     rec.Opener(func(string, []byte) (bridge.Opened, error) { return s.open() }),
		OnBlock:  rec.OnBlock(func(_ transport.ID, n, _ int) { visible = n }),
	})
	link := mem.New(mem.Options{Session: session.Options{Intercept: rec.Intercept(nil)}})
	ctx, cancel := context.WithCancel(t.Context())
	l, err := link.Listen(ctx, "decoder")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if c, err := l.Accept(ctx); err == nil {
			receiver.Serve(ctx, c)
			c.Close()
		}
	})
	d := &once{link: link}
	c, err := bridge.OpenCourier(ctx, rec.Dialer(d), transport.Request{Kind: "test", Parts: 1, Replayable: true}, bridge.Shape{Blocks: blocks, BlockBytes: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Run(ctx, rec.Source(m))
	if err != nil || v.State != bridge.Complete {
		t.Errorf("%v, %v", v, err)
	}
	l.Close()
	receiver.Close()
	cancel()
	wg.Wait()
	if visible != blocks {
		t.Errorf("%d blocks were told of as visible", visible)
	}
	if len(d.ended) != 1 || d.ended[0] != d.made {
		t.Errorf("the dialler made one connection and was told of the end of %d others", len(d.ended))
	}
	for b := range blocks {
		s.holds(t, b)
	}
}

// event is what a viewer reads of an event.
type event struct {
	Name string  `json:"name"`
	Cat  string  `json:"cat"`
	Ph   string  `json:"ph"`
	TS   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	Pid  int     `json:"pid"`
	Tid  int     `json:"tid"`
	Args struct {
		Name  string `json:"name"`
		Block *int   `json:"block"`
		Bytes int64  `json:"bytes"`
	} `json:"args"`
}

func read(t *testing.T, rec *trace.Recorder) (events []event, dropped int) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace.json")
	if err := rec.WriteFile(name); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []event           `json:"traceEvents"`
		OtherData   map[string]string `json:"otherData"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatalf("%v in %.200s", err, text)
	}
	dropped, err = strconv.Atoi(file.OtherData["dropped"])
	if err != nil {
		t.Fatal(err)
	}
	return file.TraceEvents, dropped
}

// TestTimeline holds the timeline of a real transfer against what was moved.
func TestTimeline(t *testing.T) {
	rec := trace.New(trace.Options{Process: "both ends"})
	before := time.Now()
	transfer(t, rec, maker{pause: 300 * time.Microsecond})
	after := time.Now()
	events, dropped := read(t, rec)
	if dropped != 0 {
		t.Errorf("%d spans dropped", dropped)
	}
	sum, count, rows := map[string]int64{}, map[string]int{}, map[int]string{}
	var spans []event
	for _, e := range events {
		switch {
		case e.Ph == "M" && e.Name == "thread_name":
			rows[e.Tid] = e.Args.Name
		case e.Ph == "X":
			spans = append(spans, e)
			sum[e.Name+"/"+e.Cat] += e.Args.Bytes
			count[e.Name+"/"+e.Cat]++
			if e.TS < float64(before.UnixMicro()) || e.TS+e.Dur > float64(after.UnixMicro()+1) || e.Dur < 0 {
				t.Errorf("%+v is not between %d and %d", e, before.UnixMicro(), after.UnixMicro())
			}
			if rows[e.Tid] != e.Cat {
				t.Errorf("%+v is in row %q", e, rows[e.Tid])
			}
		}
	}
	for _, key := range []string{"project/project", "grant/grant", "frame/wire out", "frame/wire in", "frame/verify", "write/write"} {
		if sum[key] != blocks*blockSize {
			t.Errorf("%s has %d bytes, %d were moved", key, sum[key], blocks*blockSize)
		}
	}
	for key, want := range map[string]int{"seal/fsync": blocks, "publish/adopt": blocks, "visible/adopt": blocks, "open/await": 1} {
		if count[key] != want {
			t.Errorf("%d times %s, want %d", count[key], key, want)
		}
	}
	if count["project/project"] < blocks || count["slot/lease"] == 0 || count["settle/fsync"] == 0 || count["finish/await"] == 0 {
		t.Errorf("spans: %v", count)
	}
	slices.SortFunc(spans, func(a, b event) int { return cmp.Or(cmp.Compare(a.Tid, b.Tid), cmp.Compare(a.TS, b.TS)) })
	for i, e := range spans[1:] {
		if last := spans[i]; last.Tid == e.Tid && last.TS+last.Dur > e.TS+0.5 { // a float64 has a quarter of a microsecond here
			t.Errorf("%+v overlaps %+v in one line", e, last)
		}
	}
}

// TestOff says that a recorder that is off is not there: parts are what they were,
// and spans cost no memory.
func TestOff(t *testing.T) {
	var rec *trace.Recorder
	transfer(t, rec, maker{})
	d, m := &once{}, &maker{}
	if rec.Dialer(d) != bridge.Dialer(d) || rec.Source(m) != bridge.Source(m) {
		t.Error("it stands between parts")
	}
	if rec.Intercept(nil) != nil || rec.OnBlock(nil) != nil || rec.Opener(nil) != nil {
		t.Error("it makes something of nothing")
	}
	if n := testing.AllocsPerRun(100, func() { rec.Begin(trace.Write, "write").End(1, 2) }); n != 0 {
		t.Errorf("%g allocations a span", n)
	}
	var out bytes.Buffer
	if err := rec.Write(&out); err != nil || out.Len() != 0 {
		t.Errorf("wrote %q, %v", out.String(), err)
	}
	name := filepath.Join(t.TempDir(), "none")
	if err := rec.WriteFile(name); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it made a file: %v", err)
	}
}

// TestBound says that a recorder that is full counts what it does not keep, and that
// spans that overlap never share a line, however many there are, in any row.
func TestBound(t *testing.T) {
	rec := trace.New(trace.Options{Max: 400})
	for _, row := range []trace.Row{trace.Sync, trace.Send} {
		open := make([]trace.Span, 150)
		for i := range open {
			open[i] = rec.Begin(row, row.String())
		}
		for i, s := range open {
			s.End(i, 0)
		}
	}
	for range 120 { // one after the other, in the first line
		rec.Begin(trace.Sync, "later").End(trace.NoBlock, 0)
	}
	events, dropped := read(t, rec)
	var spans []event
	lines, rows := map[string]map[int]bool{}, map[int]string{}
	for _, e := range events {
		switch {
		case e.Ph == "M" && e.Name == "thread_name":
			rows[e.Tid] = e.Args.Name
		case e.Ph == "X":
			spans = append(spans, e)
			if lines[e.Cat] == nil {
				lines[e.Cat] = map[int]bool{}
			}
			lines[e.Cat][e.Tid] = true
			if rows[e.Tid] != e.Cat {
				t.Errorf("%+v is in row %q", e, rows[e.Tid])
			}
		}
	}
	if len(spans) != 400 || dropped != 20 {
		t.Errorf("%d spans and %d dropped", len(spans), dropped)
	}
	for _, row := range []trace.Row{trace.Sync, trace.Send} {
		if n := len(lines[row.String()]); n != 150 {
			t.Errorf("150 spans of %v that overlap have %d lines", row, n)
		}
	}
	slices.SortFunc(spans, func(a, b event) int { return cmp.Or(cmp.Compare(a.Tid, b.Tid), cmp.Compare(a.TS, b.TS)) })
	for i, e := range spans[1:] {
		if last := spans[i]; last.Tid == e.Tid && last.TS+last.Dur > e.TS+0.5 { // a float64 has a quarter of a microsecond here
			t.Errorf("%+v overlaps %+v in one line", e, last)
		}
	}
}

// TestFileIsWholeOrUntouched: an earlier trace stays until a new one is whole, a link
// goes on leading to its file, and nothing else is left beside it.
func TestFileIsWholeOrUntouched(t *testing.T) {
	dir := t.TempDir()
	name, link, to := filepath.Join(dir, "trace.json"), filepath.Join(dir, "link.json"), filepath.Join(dir, "to.json")
	if err := os.Symlink(to, link); err != nil {
		t.Fatal(err)
	}
	holds := func(want ...string) {
		t.Helper()
		var is []string
		list, err := os.ReadDir(dir)
		for _, e := range list {
			is = append(is, e.Name())
		}
		if err != nil || !slices.Equal(is, want) {
			t.Errorf("%v: %q, want %q", err, is, want)
		}
	}
	if err := trace.Check(name); err != nil {
		t.Error(err)
	}
	holds("link.json")
	for _, f := range []string{name, to} {
		if err := os.WriteFile(f, []byte("earlier"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{name, link} {
		if err := trace.Check(f); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(f); err != nil || string(b) != "earlier" {
			t.Errorf("after a look: %q %v", b, err)
		}
	}
	holds("link.json", "to.json", "trace.json")
	rec := trace.New(trace.Options{})
	if rec.Recorded() || (*trace.Recorder)(nil).Recorded() {
		t.Error("nothing was recorded")
	}
	rec.Begin(trace.Write, "write").End(0, 1)
	if !rec.Recorded() {
		t.Error("something was recorded")
	}
	for _, f := range []string{name, link} {
		if err := rec.WriteFile(f); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(f); err != nil || !json.Valid(b) {
			t.Errorf("%q %v", b, err)
		}
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%v %v", info, err)
		}
	}
	if at, err := os.Readlink(link); err != nil || at != to {
		t.Errorf("the link: %q %v", at, err)
	}
	holds("link.json", "to.json", "trace.json")
	if err := rec.WriteFile(os.DevNull); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("a device was replaced: %v %v", info, err)
	}
	for _, f := range []string{"", dir, filepath.Join(dir, "no", "such")} {
		err := trace.Check(f)
		if err == nil || rec.WriteFile(f) == nil || f != "" && !strings.HasPrefix(err.Error(), "open "+f+": ") {
			t.Errorf("%q can be written: %v", f, err)
		}
	}
	holds("link.json", "to.json", "trace.json")
}

// TestWriteFails says that a disk that is full is told of.
func TestWriteFails(t *testing.T) {
	rec := trace.New(trace.Options{})
	for range 1000 {
		rec.Begin(trace.Write, "write").End(0, 1)
	}
	if err := rec.Write(limited{}); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	if err := rec.WriteFile(filepath.Join(t.TempDir(), "no", "such", "dir")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

type limited struct{}

func (limited) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func BenchmarkSpan(b *testing.B) {
	for _, c := range []struct {
		name string
		rec  *trace.Recorder
	}{{"off", nil}, {"on", trace.New(trace.Options{Max: 1 << 10})}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				c.rec.Begin(trace.Write, "write").End(1, 2)
			}
		})
	}
}

func ExampleRow() {
	fmt.Println(trace.Project, trace.Send, trace.Receive)
	// Output: project wire out wire in
}

// TestBusy counts time in which several spans go on once.
func TestBusy(t *testing.T) {
	rec := trace.New(trace.Options{})
	begin := time.Now()
	a, b, other := rec.Begin(trace.Write, "a"), rec.Begin(trace.Sync, "b"), rec.Begin(trace.Project, "c")
	time.Sleep(2 * time.Millisecond)
	a.End(0, 0)
	b.End(0, 0)
	took := time.Since(begin)
	time.Sleep(2 * time.Millisecond)
	other.End(0, 0)
	if d := rec.Busy(trace.Write, trace.Sync); d < 2*time.Millisecond || d > took {
		t.Errorf("%v of %v", d, took)
	}
	if d := rec.Busy(trace.Lease); d != 0 {
		t.Errorf("%v of nothing", d)
	}
	if d := (*trace.Recorder)(nil).Busy(trace.Write); d != 0 {
		t.Errorf("%v of none", d)
	}
}
