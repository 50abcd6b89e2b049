package watch_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/bridge/watch"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSeenLinkIsALink: a link that is watched at both ends keeps the contract.
func TestSeenLinkIsALink(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{Name: "mem", Links: func(_ testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
		l := mem.New(mem.Options{Session: b})
		return watch.New(watch.Options{}).Link(l.With(mem.Options{Session: a})), watch.New(watch.Options{}).Link(l), ""
	}})
}

// sink notes what it is told.
type sink struct {
	mu        sync.Mutex
	transfers []watch.Transfer
	requests  []watch.Request
	phases    map[string]time.Duration
}

func (s *sink) Transfer(t watch.Transfer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transfers = append(s.transfers, t)
}

func (s *sink) Request(r watch.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
}

func (s *sink) Phase(name string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phases == nil {
		s.phases = map[string]time.Duration{}
	}
	s.phases[name] += took
}

// ends are two connected ends, each with its watch.
type ends struct {
	t            testing.TB
	near, far    *watch.Watch
	sends, takes transport.Conn
}

func connect(t *testing.T, name string, near, far watch.Options) ends {
	t.Helper()
	e := ends{t: t, near: watch.New(near), far: watch.New(far)}
	l := mem.New(mem.Options{})
	ln, err := e.far.Link(l).Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	accepted := make(chan transport.Conn, 1)
	go func() {
		c, err := ln.Accept(context.Background())
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	if e.sends, err = e.near.Link(l.With(mem.Options{Session: session.Options{Name: name}})).Dial(t.Context(), ln.Addr()); err != nil {
		t.Fatal(err)
	}
	e.takes = <-accepted
	t.Cleanup(func() { e.sends.Close(); e.takes.Close() })
	return e
}

// open opens a transfer.
func (e ends) open(r transport.Request) (transport.Outgoing, transport.Incoming) {
	e.t.Helper()
	admitted := make(chan transport.Incoming, 1)
	go func() {
		o, err := e.takes.Accept(context.Background())
		if err != nil {
			e.t.Error(err)
			close(admitted)
			return
		}
		in, err := o.Admit(nil)
		if err != nil {
			e.t.Error(err)
		}
		admitted <- in
	}()
	out, err := e.sends.Open(e.t.Context(), r)
	if err != nil {
		e.t.Fatal(err)
	}
	return out, <-admitted
}

// send sends n bytes and has them taken.
func (e ends) send(out transport.Outgoing, in transport.Incoming, n int) {
	e.t.Helper()
	l, err := out.Lease(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	l.Append(0, 0, make([]byte, n))
	if err := out.Send(e.t.Context(), l); err != nil {
		e.t.Fatal(err)
	}
	d, err := in.Recv(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	d.Release()
}

// TestWhatIsSeen: from the first connection to after the last.
func TestWhatIsSeen(t *testing.T) {
	var told sink
	tokens := func(kind string, meta []byte) int { return len(kind) * len(meta) }
	e := connect(t, "spark \x1b[31m\u202e", watch.Options{}, watch.Options{
		Program: "decode", Sink: &told, Tokens: tokens, Ignore: func(kind string) bool { return kind == "call" },
	})
	id := transport.NewID()
	out, in := e.open(transport.Request{ID: id, Kind: "kv", Meta: []byte("123"), Replayable: true})
	unseen, _ := e.open(transport.Request{ID: transport.NewID(), Kind: "call"})
	e.send(out, in, 1000)
	before := e.far.State()
	if len(before.Transfers) != 1 || before.Open != 1 || before.Transfers[0].Transfer != id.String() || before.Transfers[0].Bytes != 1000 {
		t.Fatalf("%+v", before.Transfers)
	}
	if p := before.Peers; len(p) != 1 || p[0].Proven || p[0].Link != "mem" || strings.ContainsAny(p[0].Name, "\x1b\u202e") || !strings.HasPrefix(p[0].Name, "spark ") {
		t.Errorf("peers %+v", p)
	}
	e.far.Block(id, 1, 4)
	e.send(out, in, 500)
	after := e.far.State()
	after.Time = before.Time.Add(2 * time.Second)
	after.Rates(before)
	if l := after.Transfers[0]; l.Rate != 250 || l.Visible != 1 || l.Total != 4 || !slices.Equal(l.Links, []watch.LinkBytes{{Link: "mem", Bytes: 1500}}) {
		t.Errorf("%+v", l)
	}
	if l := after.Links; len(l) != 1 || l[0].Rate != 250 || l[0].Received != 1500 || l[0].Sent != 0 || l[0].Connections != 1 || l[0].Opened != 1 {
		t.Errorf("%+v", l)
	}
	if l := e.near.State().Links; len(l) != 1 || l[0].Sent != 1500 || l[0].Received != 0 {
		t.Errorf("the sender's: %+v", l)
	}
	unseen.Cancel("enough")
	finished := make(chan error, 1)
	go func() { _, err := out.Finish(t.Context()); finished <- err }()
	for {
		d, err := in.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || !d.Mark() {
			t.Fatal(d, err)
		}
		d.Flushed(nil)
	}
	e.far.Ended(watch.Transfer{Transfer: id.String(), State: "partial", Reason: "the cable\nwas cut", Blocks: 3, Present: 1, Total: 4, Seconds: 1})
	if err := in.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	e.sends.Close()
	e.takes.Close()
	s := e.far.State()
	if len(s.Transfers) != 0 || s.Open != 0 || len(s.Peers) != 0 || s.Links[0].Received != 1500 || s.Links[0].Connections != 0 {
		t.Errorf("at the end: %+v", s)
	}
	if d := s.Done; len(d) != 1 || d[0].Tokens != 2*2*3 || d[0].Verdict() != "partial 3/4: the cable?was cut" || d[0].Ended.IsZero() {
		t.Errorf("%+v", d)
	}
	if len(told.transfers) != 1 || e.near.State().Links[0].Sent != 1500 {
		t.Errorf("%+v, %+v", told.transfers, e.near.State().Links)
	}
	if c := e.far.Tally(); c.Blocks != 2 || c.Ended["partial"] != 1 {
		t.Errorf("%+v", c)
	}
}

// TestLostConnectionKeepsFigures: of transfers that nobody ended.
func TestLostConnectionKeepsFigures(t *testing.T) {
	e := connect(t, "", watch.Options{}, watch.Options{})
	id := transport.NewID()
	out, in := e.open(transport.Request{ID: id, Kind: "kv", Replayable: true})
	e.send(out, in, 700)
	e.sends.Close()
	if _, err := e.takes.Accept(t.Context()); err == nil {
		t.Fatal("an offer of nobody")
	}
	for name, w := range map[string]*watch.Watch{"sender": e.near, "receiver": e.far} {
		s := w.State()
		if len(s.Peers) != 0 || s.Links[0].Sent+s.Links[0].Received != 700 {
			t.Errorf("%s: %+v", name, s)
		}
		// The transfer goes on when its sender comes again, or gets a verdict.
		if len(s.Transfers) != 1 || s.Transfers[0].Bytes != 700 {
			t.Errorf("%s: %+v", name, s.Transfers)
		}
		w.Ended(watch.Transfer{Transfer: id.String(), State: "partial", Bytes: 700})
		if s := w.State(); s.Open != 0 || s.Done[0].Main() != "mem" {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// frames returns a function that sends a frame over a mem link and takes it.
func frames(tb testing.TB, seen bool, size int) func() {
	tb.Helper()
	l := transport.Link(mem.New(mem.Options{}))
	if seen {
		l = watch.New(watch.Options{}).Link(l)
	}
	ln, err := l.Listen(tb.Context(), "")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	conns := make(chan transport.Conn, 1)
	go func() { c, _ := ln.Accept(context.Background()); conns <- c }()
	a, err := l.Dial(tb.Context(), ln.Addr())
	if err != nil {
		tb.Fatal(err)
	}
	e := ends{t: tb, sends: a, takes: <-conns}
	tb.Cleanup(func() { e.sends.Close(); e.takes.Close() })
	out, in := e.open(transport.Request{ID: transport.NewID(), Kind: "kv", Replayable: true})
	payload, ctx := make([]byte, size), tb.Context()
	return func() {
		l, err := out.Lease(ctx)
		if err != nil {
			tb.Fatal(err)
		}
		l.Append(0, 0, payload)
		if err := out.Send(ctx, l); err != nil {
			tb.Fatal(err)
		}
		d, err := in.Recv(ctx)
		if err != nil {
			tb.Fatal(err)
		}
		d.Release()
	}
}

// TestSeeingCostsNoMemory: a frame that is received or sent.
func TestSeeingCostsNoMemory(t *testing.T) {
	plain, seen := testing.AllocsPerRun(2000, frames(t, false, 64)), testing.AllocsPerRun(2000, frames(t, true, 64))
	if seen > plain {
		t.Errorf("%v allocations a frame, without a watch %v", seen, plain)
	}
}

// BenchmarkFrame is what a frame costs in memory, and what seeing it adds: the second less
// the first.
func BenchmarkFrame(b *testing.B) {
	for _, c := range []struct {
		name string
		seen bool
	}{{"plain", false}, {"seen", true}} {
		b.Run(c.name, func(b *testing.B) {
			frame := frames(b, c.seen, 1<<20)
			b.SetBytes(1 << 20)
			for b.Loop() {
				frame()
			}
		})
	}
}
