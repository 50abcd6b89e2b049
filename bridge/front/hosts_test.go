package front

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
	"pdlink/transport/mem"
)

// inn is a decode host that hosts connect to over memory, with a front.
type inn struct {
	t      *testing.T
	link   *mem.Link
	front  *house
	hosts  *Hosts
	mu     sync.Mutex
	events []HostEvent
	rest   []string // kinds that were not the hosts'
}

func newInn(t *testing.T) *inn {
	t.Helper()
	n := &inn{t: t, link: mem.New(mem.Options{})}
	n.front = build(t, answering(90), Options{Planner: always(coldPlan())})
	n.hosts = must(NewHosts(HostsOptions{Add: n.front.front.Add, Rejoin: 200 * time.Millisecond, OnHost: func(e HostEvent) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, e)
	}}))
	ctx, cancel := context.WithCancel(context.Background())
	l := must(n.link.Listen(ctx, "inn"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				seen := n.hosts.Attend(c)
				for {
					o, err := seen.Accept(ctx)
					if err != nil {
						return
					}
					n.mu.Lock()
					n.rest = append(n.rest, o.Request().Kind)
					n.mu.Unlock()
					o.Refuse(transport.RefuseOther, "no")
				}
			})
		}
	})
	t.Cleanup(func() {
		if err := n.hosts.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		l.Close()
		wg.Wait()
	})
	return n
}

// told is the events so far.
func (n *inn) told() []HostEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]HostEvent(nil), n.events...)
}

// guest is a prefill host of the tests: what it does with calls is a function.
type guest struct {
	t    *testing.T
	conn transport.Conn
	wg   sync.WaitGroup

	taken atomic.Int32 // calls that were admitted
}

func (n *inn) guest(do func(c calls.Call, in transport.Incoming)) *guest {
	n.t.Helper()
	g := &guest{t: n.t, conn: must(n.link.With(mem.Options{}).Dial(n.t.Context(), "inn"))}
	g.wg.Go(func() {
		for {
			o, err := g.conn.Accept(context.Background())
			if err != nil {
				return
			}
			c, err := calls.ParseCall(o.Request().Meta)
			if err != nil || o.Request().Kind != calls.KindCall {
				o.Refuse(transport.RefuseOther, "no call")
				continue
			}
			if c.Model == "refused" {
				o.Refuse(transport.RefuseBusy, "full")
				continue
			}
			g.taken.Add(1)
			in, err := o.Admit(nil)
			if err != nil {
				continue
			}
			g.wg.Go(func() { do(c, in) })
		}
	})
	n.t.Cleanup(g.close)
	return g
}

func (g *guest) close() {
	g.conn.Close()
	g.wg.Wait()
}

// announce says what the guest is.
func (g *guest) announce(meta []byte) (transport.Outgoing, error) {
	return g.conn.Open(g.t.Context(), transport.Request{Kind: calls.KindHost, Replayable: true, Meta: meta})
}

// says ends a call with a result.
func says(r calls.Result) func(calls.Call, transport.Incoming) {
	return func(_ calls.Call, in transport.Incoming) { in.Finish(r.Encode()) }
}

// TestHostsComeAndGo: a request is bridged while a host is there, and told why not
// before and after.
func TestHostsComeAndGo(t *testing.T) {
	n := newInn(t)
	verdict := func() string {
		r, _ := n.front.post(t, chat(false))
		return r.Header.Get(headerVerdict)
	}
	if v := verdict(); !strings.HasPrefix(v, "bypass; no prefill host") {
		t.Errorf("before: %q", v)
	}
	g := n.guest(says(calls.Result{State: calls.Complete, Blocks: 9, Total: 9, Bytes: 100}))
	out := must(g.announce(must(calls.Host{Name: "spark", Models: []string{"m"}}.Encode())))
	waitFor(t, func() bool { return len(n.told()) == 1 })
	if e := n.told()[0]; !e.Here || e.Name != "spark" || len(e.Models) != 1 {
		t.Errorf("told %+v", e)
	}
	if v := verdict(); !strings.HasPrefix(v, "complete 90/100") {
		t.Errorf("with a host: %q", v)
	}
	waitFor(t, func() bool { return n.front.last(t).Outcome == Bridged })
	if r := n.front.last(t); r.Engine != "spark" || !r.Sealed || r.Bytes != 100 || len(r.Hosts) != 1 || r.Hosts[0] != (Sent{"spark", 100}) {
		t.Errorf("record %+v", r)
	}
	out.Cancel("engine gone")
	waitFor(t, func() bool { return len(n.told()) == 2 })
	if v := verdict(); !strings.HasPrefix(v, "bypass; no prefill host") {
		t.Errorf("after: %q", v)
	}
	// One of another model is no help.
	must(g.announce(must(calls.Host{Models: []string{"other"}}.Encode())))
	waitFor(t, func() bool { return len(n.told()) == 3 })
	if v := verdict(); !strings.HasPrefix(v, "declined; front: no prefill engine") {
		t.Errorf("another model: %q", v)
	}
}

// TestAnnouncementsThatAreRefused, and what is none and passes.
func TestAnnouncementsThatAreRefused(t *testing.T) {
	n := newInn(t)
	g := n.guest(nil)
	for _, meta := range []string{"", `{"version":9}`, `{"version":1,"models":[""]}`} {
		if _, err := g.announce([]byte(meta)); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%q: %v", meta, err)
		}
	}
	if e := n.told(); len(e) != 3 || e[1].Err == nil || e[1].Here || !strings.Contains(e[1].Err.Error(), "same version") {
		t.Errorf("told %+v", e)
	}
	for _, kind := range []string{"omlx", calls.KindCall} {
		if _, err := g.conn.Open(t.Context(), transport.Request{Kind: kind}); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.rest) != 2 {
		t.Errorf("%q came through", n.rest)
	}
}

// TestHostAnswers: what each answer of a host means.
func TestHostAnswers(t *testing.T) {
	var mu sync.Mutex
	var do func(c calls.Call, in transport.Incoming)
	n := newInn(t)
	g := n.guest(func(c calls.Call, in transport.Incoming) {
		mu.Lock()
		f := do
		mu.Unlock()
		f(c, in)
	})
	id := transport.NewID()
	must(g.announce(must(calls.Host{Name: "h", Models: []string{"m"}}.Encode())))
	waitFor(t, func() bool { return n.front.front.engines.absent() == "" })
	n.front.front.engines.mu.Lock()
	host := n.front.front.engines.all[0].Engine
	n.front.front.engines.mu.Unlock()
	for name, c := range map[string]struct {
		do     func(c calls.Call, in transport.Incoming)
		model  string
		err    error
		state  string
		blocks int
	}{
		"partial":  {says(calls.Result{State: calls.Partial, Blocks: 3, Total: 9, Reason: "memory"}), "m", nil, calls.Partial, 3},
		"declined": {says(calls.Result{State: calls.Declined, Reason: "no such model"}), "m", nil, calls.Declined, 0},
		"failed": {func(_ calls.Call, in transport.Incoming) {
			n.hosts.Block(id, 2, 9)
			n.hosts.Block(transport.NewID(), 7, 9) // somebody else's
			in.Finish(calls.Result{State: calls.Failed, Reason: "down"}.Encode())
		}, "m", ErrHost, calls.Failed, 2},
		"no result": {func(_ calls.Call, in transport.Incoming) { in.Finish([]byte("x")) }, "m", ErrHost, "", 0},
		"cancelled": {func(_ calls.Call, in transport.Incoming) { in.Cancel("stopping") }, "m", ErrHost, "", 0},
		"refused":   {nil, "refused", ErrHost, "", 0},
	} {
		mu.Lock()
		do = c.do
		mu.Unlock()
		p := coldPlan()
		p.Model = c.model
		r, err := host.Prefill(t.Context(), Job{Transfer: id, Plan: p})
		if !errors.Is(err, c.err) || r.State != c.state || r.Blocks != c.blocks {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if len(n.hosts.watched) != 0 {
		t.Errorf("%d transfers are remembered", len(n.hosts.watched))
	}
	// What cannot travel is declined, whoever asks.
	p := coldPlan()
	p.IDs = nil
	if r, err := host.Prefill(t.Context(), Job{Transfer: id, Plan: p}); err != nil || r.State != calls.Declined {
		t.Errorf("no ids: %+v, %v", r, err)
	}
	// The host hangs up in the middle and does not come again.
	mu.Lock()
	do = func(calls.Call, transport.Incoming) { go g.conn.Close() }
	mu.Unlock()
	began := time.Now()
	if _, err := host.Prefill(t.Context(), Job{Transfer: id, Plan: coldPlan()}); !errors.Is(err, ErrHost) || time.Since(began) > time.Minute {
		t.Errorf("hung up: %v after %v", err, time.Since(began))
	}
	waitFor(t, func() bool { n.hosts.mu.Lock(); defer n.hosts.mu.Unlock(); return len(n.hosts.byKey) == 0 })
}

// TestHostHearsACancel: it ends the call at the host while its flush is open.
func TestHostHearsACancel(t *testing.T) {
	n := newInn(t)
	heard := make(chan error, 1)
	began := make(chan struct{})
	g := n.guest(func(_ calls.Call, in transport.Incoming) {
		close(began)
		for {
			if _, err := in.Recv(context.Background()); err != nil {
				heard <- err
				return
			}
		}
	})
	must(g.announce(must(calls.Host{Name: "h", Models: []string{"m"}}.Encode())))
	waitFor(t, func() bool { return n.front.front.engines.absent() == "" })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	n.front.front.engines.mu.Lock()
	host := n.front.front.engines.all[0].Engine
	n.front.front.engines.mu.Unlock()
	if _, err := host.Prefill(ctx, Job{Transfer: transport.NewID(), Plan: coldPlan()}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := <-heard; !errors.Is(err, transport.ErrCancelled) || errors.Is(err, io.EOF) {
		t.Errorf("the host heard %v", err)
	}
}

// TestEnginesAreLeftOut: those who wait hear of the last one that goes.
func TestEnginesAreLeftOut(t *testing.T) {
	e := newEngines(nil, 1)
	if _, _, err := e.take(t.Context(), "m", nil); !errors.Is(err, ErrNoEngine) {
		t.Errorf("none: %v", err)
	}
	first := quick("a")
	first.only = "m"
	remove := e.add(first)
	a, _, err := e.take(t.Context(), "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.take(t.Context(), "other", nil); !errors.Is(err, ErrNoEngine) {
		t.Errorf("another model: %v", err)
	}
	waiter := make(chan error, 1)
	wait := func() {
		go func() {
			_, _, err := e.take(t.Context(), "m", nil)
			waiter <- err
		}()
		waitFor(t, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.waiting) == 1 })
	}
	wait()
	removeSecond := e.add(quick("b"))
	if err := <-waiter; err != nil {
		t.Errorf("a second one came: %v", err)
	}
	wait()
	remove()
	remove()
	removeSecond()
	if err := <-waiter; !errors.Is(err, ErrNoEngine) {
		t.Errorf("all went: %v", err)
	}
	e.give(a, 10, time.Second, nil) // its work ends later
	if e.absent() == "" {
		t.Error("an engine came back")
	}
}

// TestHostsThatWait: who is connected and takes no calls yet is named, with what it waits
// for, until it takes them or is gone, and a probe of the same name is told.
func TestHostsThatWait(t *testing.T) {
	n := newInn(t)
	n.hosts.o.Waits = n.front.front.Waits // before anybody connects
	g := n.guest(says(calls.Result{State: calls.Complete, Blocks: 9, Total: 9}))
	verdict := func() string {
		r, _ := n.front.post(t, chat(false))
		return r.Header.Get(headerVerdict)
	}
	opinion := func(name string) calls.Opinion {
		t.Helper()
		out := must(g.conn.Open(t.Context(), transport.Request{Kind: calls.KindProbe, Replayable: true, Meta: must(calls.Host{Name: name}.Encode())}))
		defer out.Cancel("that is all")
		return must(calls.ParseOpinion(out.Answer()))
	}
	wait := func(h calls.Host) (transport.Outgoing, error) {
		return g.conn.Open(t.Context(), transport.Request{Kind: calls.KindWait, Replayable: true, Meta: must(h.Encode())})
	}
	if _, err := wait(calls.Host{Name: "spark"}); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("one that does not say why: %v", err)
	}
	out := must(wait(calls.Host{Name: "spark", Waits: "no worker\nis there"}))
	waitFor(t, func() bool { return len(n.told()) == 2 })
	if e := n.told()[1]; e.Name != "spark" || e.Waits != "no worker?is there" || e.Here || e.Refused {
		t.Errorf("told %+v", e)
	}
	if v := verdict(); !strings.HasPrefix(v, "bypass; no prefill host takes prompts: spark is connected and waits: no worker?is there; ") {
		t.Errorf("while it waits: %q", v)
	}
	if o := opinion("spark"); o.Takes || o.Waits != "no worker?is there" {
		t.Errorf("%+v", o)
	}
	if o := opinion("luna"); o.Takes || o.Waits != "" {
		t.Errorf("of another name: %+v", o)
	}
	must(g.announce(must(calls.Host{Name: "spark", Models: []string{"m"}}.Encode()))) // before the other's end is noticed
	waitFor(t, func() bool { return len(n.told()) == 3 })
	if o := opinion("spark"); !o.Takes || o.Waits != "" {
		t.Errorf("it takes calls: %+v", o)
	}
	out.Cancel("it is not so any more")
	must(wait(calls.Host{Name: "luna", Waits: "its engine"}))
	waitFor(t, func() bool { return len(n.told()) == 4 })
	p := coldPlan()
	p.Model = "other"
	if err := n.front.front.engines.lacking(p.Model); !strings.Contains(err.Error(), "luna is connected and waits: its engine") {
		t.Errorf("of another model: %v", err)
	}
	g.close()
	gone := func() (list []HostEvent) {
		for _, e := range n.told() {
			if e.Gone {
				list = append(list, e)
			}
		}
		return list
	}
	waitFor(t, func() bool { return len(gone()) == 1 })
	if e := gone()[0]; e.Name != "luna" || e.Err == nil {
		t.Errorf("told %+v", e)
	}
	// The end of spark's announcement is another goroutine's.
	waitFor(t, func() bool { return n.front.front.engines.absent() == "no prefill host is connected" })
	if v := verdict(); !strings.HasPrefix(v, "bypass; no prefill host is connected") {
		t.Errorf("after: %q", v)
	}
}
