package front

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// in is what a member of group "g" says of itself.
func in(name string, member, members int, leads bool, models ...string) calls.Host {
	return calls.Host{Name: name, Models: models, Group: &calls.Group{Name: "g", Member: member, Members: members, Leads: leads}}
}

// engine is the only engine that the front has, once there is one.
func (n *inn) engine() Engine {
	n.t.Helper()
	var e Engine
	waitFor(n.t, func() bool {
		n.front.front.engines.mu.Lock()
		defer n.front.front.engines.mu.Unlock()
		if len(n.front.front.engines.all) == 1 {
			e = n.front.front.engines.all[0].Engine
		}
		return e != nil
	})
	return e
}

// waitEvents waits until so many events were told, and returns the last.
func (n *inn) waitEvents(count int) HostEvent {
	n.t.Helper()
	waitFor(n.t, func() bool { return len(n.told()) >= count })
	return n.told()[count-1]
}

// TestGroupComesAndGoes: there is one engine while all members are here.
func TestGroupComesAndGoes(t *testing.T) {
	n := newInn(t)
	a, b := n.guest(nil), n.guest(nil)
	first := must(a.announce(must(in("a", 0, 2, true, "m", "only a").Encode())))
	if e := n.waitEvents(1); !e.Here || !slices.Equal(e.Lacks, []int{1}) || e.Group.Member != 0 || e.Hosts != nil {
		t.Errorf("told %+v", e)
	}
	if n.front.front.engines.absent() == "" {
		t.Error("half a group is an engine")
	}
	second := must(b.announce(must(in("b", 1, 2, false).Encode())))
	if e := n.waitEvents(2); len(e.Lacks) != 0 || !slices.Equal(e.Hosts, []string{"a", "b"}) || !slices.Equal(e.Models, []string{"m", "only a"}) {
		t.Errorf("told %+v", e)
	}
	if e := n.engine(); e.Name() != "g" || !e.Serves("m") || e.Serves("x") {
		t.Errorf("engine %q", e.Name())
	}
	first.Cancel("engine gone")
	if e := n.waitEvents(3); e.Here || e.Name != "a" || e.Hosts != nil {
		t.Errorf("told %+v", e)
	}
	if n.front.front.engines.absent() == "" {
		t.Error("a group without its engine's host is an engine")
	}
	// The models of the one that comes again are others.
	must(a.announce(must(in("a", 0, 2, true, "n").Encode())))
	n.waitEvents(4)
	if e := n.engine(); !e.Serves("n") || e.Serves("m") {
		t.Error("the group has the models of before")
	}
	second.Cancel("worker gone")
	n.waitEvents(5)
	a.close()
	n.waitEvents(6)
	waitFor(t, func() bool {
		n.hosts.groups.mu.Lock()
		defer n.hosts.groups.mu.Unlock()
		return len(n.hosts.groups.byName) == 0
	})
	// Nothing is left of the group: its name may be another's.
	must(b.announce(must(in("b", 2, 3, true).Encode())))
	if e := n.waitEvents(7); !slices.Equal(e.Lacks, []int{0, 1}) {
		t.Errorf("told %+v", e)
	}
}

// TestGroupsThatAreRefused: with words, for as long as somebody else is there.
func TestGroupsThatAreRefused(t *testing.T) {
	n := newInn(t)
	n.hosts.groups.patience = 20 * time.Millisecond
	a, b := n.guest(nil), n.guest(nil)
	first := must(a.announce(must(in("a", 0, 2, true, "m").Encode())))
	n.waitEvents(1)
	for words, h := range map[string]calls.Host{
		"group g has 2 hosts, as a says, and 3, as b says": in("b", 1, 3, false),
		"part 1 of 2 of group g is a already":              in("b", 0, 2, false),
		"both a and b have an engine to ask":               in("b", 1, 2, true),
		"have no model in common":                          in("b", 1, 2, false, "x"),
	} {
		before := len(n.told())
		if _, err := b.announce(must(h.Encode())); !errors.Is(err, transport.ErrRefused) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", words, err)
		}
		if e := n.waitEvents(before + 1); !e.Refused || e.Here || !strings.Contains(e.Err.Error(), words) {
			t.Errorf("%s: told %+v", words, e)
		}
	}
	first.Cancel("gone")
	n.waitEvents(6)
	must(a.announce(must(in("a", 0, 2, false, "m").Encode())))
	if _, err := b.announce(must(in("b", 1, 2, false).Encode())); !errors.Is(err, transport.ErrRefused) || !strings.Contains(err.Error(), "no host has an engine") {
		t.Errorf("nobody leads: %v", err)
	}
	if n.front.front.engines.absent() == "" {
		t.Error("one of them is an engine")
	}
}

// TestSeatIsWaitedFor: the process that had it is about to be missed.
func TestSeatIsWaitedFor(t *testing.T) {
	n := newInn(t)
	a, b := n.guest(nil), n.guest(nil)
	must(a.announce(must(in("a", 1, 2, false).Encode())))
	n.waitEvents(1)
	done := make(chan error, 1)
	go func() {
		_, err := b.announce(must(in("a", 1, 2, false).Encode()))
		done <- err
	}()
	waitFor(t, func() bool { // it waits
		n.hosts.mu.Lock()
		defer n.hosts.mu.Unlock()
		return len(n.hosts.byKey) == 2
	})
	a.close()
	if err := <-done; err != nil {
		t.Errorf("%v", err)
	}
}

// member is a guest in a group and what it was asked.
type member struct {
	*guest
	mu    sync.Mutex
	calls []calls.Call
	do    func(c calls.Call, in transport.Incoming)
}

// band is a group of two whose members do what the test says.
func band(t *testing.T, n *inn) (lead, other *member) {
	t.Helper()
	list := []*member{{}, {}}
	for i, m := range list {
		m.guest = n.guest(func(c calls.Call, in transport.Incoming) {
			m.mu.Lock()
			m.calls = append(m.calls, c)
			do := m.do
			m.mu.Unlock()
			do(c, in)
		})
		must(m.announce(must(in([]string{"a", "b"}[i], i, 2, i == 0, []string{"m"}[i:]...).Encode())))
	}
	n.engine()
	return list[0], list[1]
}

func (m *member) does(do func(c calls.Call, in transport.Incoming)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.do = do
}

// asked is what it was asked last.
func (m *member) asked() (last calls.Call, count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.calls); n > 0 {
		return m.calls[n-1], n
	}
	return calls.Call{}, 0
}

// reads answers the first flush of the one that leads, as if the engine had read.
func reads(t *testing.T, in transport.Incoming) {
	if d, err := in.Recv(context.Background()); err != nil || !d.Mark() {
		t.Errorf("no flush: %v", err)
	} else if err := d.Flushed(nil); err != nil {
		t.Errorf("flushed: %v", err)
	}
}

// toldOfIt waits for the frame that says that the engine has read.
func toldOfIt(in transport.Incoming) error {
	for {
		d, err := in.Recv(context.Background())
		switch {
		case err != nil:
			return err
		case !d.Mark():
			d.Release()
			return nil
		}
	}
}

// TestGroupIsCalled: the members that follow first, without ids, and they hear when the
// engine has read.
func TestGroupIsCalled(t *testing.T) {
	n := newInn(t)
	a, b := band(t, n)
	told := make(chan struct{})
	a.does(func(_ calls.Call, in transport.Incoming) {
		if b.taken.Load() != 1 {
			t.Error("the engine is asked before its other host is")
		}
		reads(t, in)
		<-told
		in.Finish(calls.Result{State: calls.Complete, Blocks: 9, Total: 9, Bytes: 100}.Encode())
	})
	b.does(func(_ calls.Call, in transport.Incoming) {
		if err := toldOfIt(in); err != nil {
			t.Errorf("the other host heard %v", err)
		}
		close(told)
		in.Finish(calls.Result{State: calls.Complete, Blocks: 9, Total: 9, Bytes: 100}.Encode())
	})
	r, _ := n.front.post(t, chat(false))
	if v := r.Header.Get(headerVerdict); !strings.HasPrefix(v, "complete 90/100") || !strings.Contains(v, "; hosts=a:0,b:0;") {
		t.Errorf("verdict %q", v)
	}
	if rec := n.front.last(t); rec.Engine != "g" || rec.Bytes != 100 || !rec.Sealed || len(rec.Hosts) != 2 {
		t.Errorf("record %+v", rec)
	}
	ca, _ := a.asked()
	cb, _ := b.asked()
	if ca.Part != 0 || ca.Parts != 2 || ca.Follows || len(ca.IDs) != 90 {
		t.Errorf("a was asked for %+v", ca)
	}
	if cb.Part != 1 || cb.Parts != 2 || !cb.Follows || cb.IDs != nil || cb.Transfer != ca.Transfer || cb.Tokens != 90 || cb.Model != "m" {
		t.Errorf("b was asked for %+v", cb)
	}
}

// TestGroupFails: whoever does, the other one hears of it, and the verdict names who it
// was and keeps what had come.
func TestGroupFails(t *testing.T) {
	n := newInn(t)
	a, b := band(t, n)
	host := n.engine()
	heard := make(chan error, 2)
	waits := func(_ calls.Call, in transport.Incoming) {
		for {
			if _, err := in.Recv(context.Background()); err != nil {
				heard <- err
				return
			}
		}
	}
	id := transport.NewID()
	for name, x := range map[string]struct {
		a, b  func(calls.Call, transport.Incoming)
		err   error
		state string
		words string
	}{
		"the one that leads declines": {says(calls.Result{State: calls.Declined, Reason: "too long"}), waits, nil, calls.Declined, "a (part 1 of 2 of group g): too long"},
		"the one that leads fails":    {says(calls.Result{State: calls.Failed, Reason: "down"}), waits, ErrHost, calls.Failed, "a (part 1 of 2 of group g): "},
		"the other one fails later": {waits, func(_ calls.Call, in transport.Incoming) {
			waitFor(t, func() bool { _, count := a.asked(); return count > 0 })
			n.hosts.Block(id, 2, 9)
			in.Finish(calls.Result{State: calls.Failed, Reason: "sealed"}.Encode())
		}, ErrHost, calls.Failed, "b (part 2 of 2 of group g): "},
		"the other one goes": {waits, func(_ calls.Call, in transport.Incoming) {
			waitFor(t, func() bool { _, count := a.asked(); return count > 0 })
			in.Cancel("stopping")
		}, ErrHost, "", "b (part 2 of 2 of group g): "},
	} {
		for _, m := range []*member{a, b} {
			m.mu.Lock()
			m.calls = nil
			m.mu.Unlock()
		}
		a.does(x.a)
		b.does(x.b)
		r, err := host.Prefill(t.Context(), Job{Transfer: id, Plan: coldPlan()})
		text := r.Reason
		if err != nil {
			text += err.Error()
		}
		if !errors.Is(err, x.err) || r.State != x.state || !strings.Contains(text, x.words) || len(r.Hosts) != 2 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if want := map[bool]int{true: 2}[name == "the other one fails later"]; r.Blocks != want {
			t.Errorf("%s: %d blocks, want %d", name, r.Blocks, want)
		}
		if err := <-heard; !errors.Is(err, transport.ErrCancelled) || errors.Is(err, io.EOF) {
			t.Errorf("%s: the other one heard %v", name, err)
		}
	}
	// One that cannot open its part: the engine is not asked.
	a.mu.Lock()
	a.calls = nil
	a.mu.Unlock()
	p := coldPlan()
	p.Model = "refused"
	if r, err := host.Prefill(t.Context(), Job{Transfer: id, Plan: p}); !errors.Is(err, ErrHost) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, count := a.asked(); count != 0 {
		t.Error("the engine was asked")
	}
	if len(n.hosts.watched) != 0 {
		t.Errorf("%d transfers are remembered", len(n.hosts.watched))
	}
}

// TestGroupHearsACancel: all members do.
func TestGroupHearsACancel(t *testing.T) {
	n := newInn(t)
	a, b := band(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan error, 2)
	waits := func(_ calls.Call, in transport.Incoming) {
		_, ca := a.asked()
		_, cb := b.asked()
		if ca+cb == 2 {
			cancel()
		}
		for {
			if _, err := in.Recv(context.Background()); err != nil {
				heard <- err
				return
			}
		}
	}
	a.does(waits)
	b.does(waits)
	if r, err := n.engine().Prefill(ctx, Job{Transfer: transport.NewID(), Plan: coldPlan()}); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", r, err)
	}
	for range 2 {
		if err := <-heard; !errors.Is(err, transport.ErrCancelled) {
			t.Errorf("a host heard %v", err)
		}
	}
}
