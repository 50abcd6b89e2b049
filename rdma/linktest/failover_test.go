package linktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"pdlink/rdma"
	"pdlink/rdma/internal/verbs"
	"pdlink/tcp"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/session"
)

const (
	blocks    = 60
	blockSize = 20_000
)

func block(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, blockSize) }

// receiver admits one transfer after another and keeps what it verified: a transfer
// goes on with what is missing, over whatever link it comes.
type receiver struct {
	had   [blocks]bool
	links []string // of the transfers, in order
	bytes map[string]int
}

// serve receives until all blocks are there or the listener ends.
func (r *receiver) serve(ctx context.Context, ln transport.Listener) error {
	for slices.Contains(r.had[:], false) {
		c, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		err = r.receive(ctx, c)
		if e := c.Close(); err != nil && !errors.Is(err, transport.ErrLost) {
			return errors.Join(err, e)
		}
	}
	return nil
}

func (r *receiver) receive(ctx context.Context, c transport.Conn) error {
	offer, err := c.Accept(ctx)
	if err != nil {
		return err
	}
	answer := make([]byte, blocks)
	for i, had := range r.had {
		if had {
			answer[i] = 1
		}
	}
	in, err := offer.Admit(answer)
	if err != nil {
		return err
	}
	link := c.Facts().Link
	r.links = append(r.links, link)
	for {
		d, err := in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return in.Finish(nil)
		}
		if err != nil {
			return err
		}
		if d.Mark() {
			if err := d.Flushed(nil); err != nil {
				return err
			}
			continue
		}
		for i, p := range d.Pieces() {
			if !bytes.Equal(d.Data(i), block(int(p.Block))) {
				return fmt.Errorf("block %d differs", p.Block)
			}
			r.had[p.Block] = true
			r.bytes[link] += int(p.Length)
		}
		d.Release()
	}
}

// send sends what the receiver lacks over one connection.
func send(ctx context.Context, c transport.Conn, each func(block int)) error {
	out, err := c.Open(ctx, transport.Request{Kind: "test", Replayable: true})
	if err != nil {
		return err
	}
	has := out.Answer()
	for i := range blocks {
		if has[i] == 1 {
			continue
		}
		each(i)
		l, err := out.Lease(ctx)
		if err != nil {
			return err
		}
		l.Append(uint32(i), 0, block(i))
		if err := out.Send(ctx, l); err != nil {
			return err
		}
	}
	_, err = out.Finish(ctx)
	return err
}

// carryOver sends all blocks over a dialler's connections.
func carryOver(ctx context.Context, d *failover.Dialer, each func(block int)) error {
	for {
		c, err := d.Dial(ctx)
		if err != nil {
			return err
		}
		err = send(ctx, c, each)
		c.Close()
		if err == nil {
			d.Done(c)
			return nil
		}
		if !errors.Is(err, transport.ErrLost) {
			return err
		}
		d.Lost(c, err)
	}
}

// bench is a receiver that takes both links at one address, and the routes to it.
func bench(t *testing.T, v *hosts) (*receiver, []failover.Route, chan error) {
	t.Helper()
	p := personalities()[0]
	ln, err := tcp.New(options(session.Options{Window: 4}, v.b, p.o)).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	r := &receiver{bytes: map[string]int{}}
	served := make(chan error, 1)
	go func() { served <- r.serve(t.Context(), ln) }()
	return r, []failover.Route{
		{Name: rdma.Scheme, Link: tcp.New(options(session.Options{}, v.a, p.o)), Addr: ln.Addr()},
		{Name: "tcp", Link: tcp.New(tcp.Options{}), Addr: ln.Addr()},
	}, served
}

func ctxOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestLaneIsReplaced breaks a lane once: the transfer goes on over another one of the
// same link.
func TestLaneIsReplaced(t *testing.T) {
	v := newHosts(personalities()[0])
	r, routes, served := bench(t, v)
	d, err := failover.New(failover.Options{Routes: routes})
	if err != nil {
		t.Fatal(err)
	}
	struck := false
	err = carryOver(ctxOf(t), d, func(i int) {
		if i == blocks/2 && !struck {
			struck = true
			v.a.FailAfter(0, verbs.StatusRetries)
		}
	})
	if err := errors.Join(err, <-served); err != nil {
		t.Fatal(err)
	}
	if want := []string{"rdma", "rdma"}; !slices.Equal(r.links, want) {
		t.Errorf("transfers over %q, want %q", r.links, want)
	}
	v.none(t)
}

// TestOverToTCP breaks every lane: after three failures the same transfer goes on over
// TCP, and the report says why.
func TestOverToTCP(t *testing.T) {
	v := newHosts(personalities()[0])
	r, routes, served := bench(t, v)
	var events []failover.Event
	d, err := failover.New(failover.Options{Routes: routes, OnEvent: func(e failover.Event) { events = append(events, e) }})
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	err = carryOver(ctxOf(t), d, func(int) {
		if sent++; sent%10 == 0 {
			v.a.FailAfter(0, verbs.StatusRetries)
		}
	})
	if err := errors.Join(err, <-served); err != nil {
		t.Fatal(err)
	}
	if n := len(r.links); n != 4 || r.links[n-1] != "tcp" || slices.Contains(r.links[:n-1], "tcp") {
		t.Errorf("transfers over %q, want three over rdma and then tcp", r.links)
	}
	if r.bytes["rdma"] == 0 || r.bytes["tcp"] == 0 || r.bytes["rdma"]+r.bytes["tcp"] < blocks*blockSize {
		t.Errorf("bytes by link: %v", r.bytes)
	}
	rep := d.Report()
	if rep.Routes[0].Losses != 3 || rep.Routes[0].Trips != 1 || rep.Routes[1].Connects != 1 || rep.Routes[0].Reason == "" {
		t.Errorf("report %+v", rep)
	}
	tripped := slices.ContainsFunc(events, func(e failover.Event) bool { return e.Kind == failover.Tripped && e.Route == "rdma" })
	if !tripped {
		t.Errorf("no event says that rdma is given up: %v", events)
	}
	v.none(t)
}

// none is a provider of a host without RDMA.
type none struct{}

func (none) Devices() ([]verbs.DeviceInfo, error) {
	return nil, fmt.Errorf("%w: this host has no verbs", transport.ErrUnavailable)
}

func (none) Open(string) (verbs.Device, error) { return nil, transport.ErrUnavailable }

// TestRequired sends from a host without RDMA: with a second route over that, and not
// at all where RDMA is required.
func TestRequired(t *testing.T) {
	v := newHosts(personalities()[0])
	r, routes, served := bench(t, v)
	routes[0].Link = tcp.New(tcp.Options{Carrier: rdma.NewOver(none{}, rdma.Options{})})
	d, err := failover.New(failover.Options{Routes: routes, Require: rdma.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := carryOver(ctxOf(t), d, func(int) {}); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("required: %v", err)
	}
	if d, err = failover.New(failover.Options{Routes: routes}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(carryOver(ctxOf(t), d, func(int) {}), <-served); err != nil {
		t.Fatal(err)
	}
	if want := []string{"tcp"}; !slices.Equal(r.links, want) {
		t.Errorf("transfers over %q, want %q", r.links, want)
	}
	if rep := d.Report(); rep.Routes[0].Failures != 1 || rep.Routes[0].Reason == "" {
		t.Errorf("report %+v", rep)
	}
}

// TestStrangeEnds dials a listener without RDMA, and one that wants nothing else from
// a link without.
func TestStrangeEnds(t *testing.T) {
	v := newHosts(personalities()[0])
	plain, err := tcp.New(tcp.Options{}).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := tcp.New(options(session.Options{}, v.a, rdma.Options{})).Dial(t.Context(), plain.Addr()); !errors.Is(err, transport.ErrIncompatible) {
		t.Errorf("dial a listener without RDMA: %v", err)
	}
	o := options(session.Options{}, v.b, rdma.Options{})
	o.CarrierOnly = true
	only, err := tcp.New(o).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer only.Close()
	if _, err := tcp.New(tcp.Options{}).Dial(t.Context(), only.Addr()); err == nil {
		t.Error("a listener that wants RDMA only takes a link without")
	}
	v.none(t)
}

// TestModes looks at what the ends agree on, and that frames really move so.
func TestModes(t *testing.T) {
	for _, p := range personalities() {
		t.Run(p.name, func(t *testing.T) {
			v := newHosts(p)
			var chosen []rdma.Choice
			o := p.o
			o.OnChoice = func(c rdma.Choice) { chosen = append(chosen, c) }
			ln, err := tcp.New(options(session.Options{}, v.b, p.o)).Listen(t.Context(), "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			r := &receiver{bytes: map[string]int{}}
			served := make(chan error, 1)
			go func() { served <- r.serve(t.Context(), ln) }()
			c, err := tcp.New(options(session.Options{}, v.a, o)).Dial(t.Context(), ln.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(send(ctxOf(t), c, func(int) {}), <-served); err != nil {
				t.Fatal(err)
			}
			c.Close()
			if len(chosen) != 1 || chosen[0].Mode != p.mode || chosen[0].Device != v.a.Device() || chosen[0].Why == "" {
				t.Errorf("chosen %v, want mode %q", chosen, p.mode)
			}
			moved(t, p, v)
			v.none(t)
		})
	}
}

// moved checks that the frames moved as the mode says.
func moved(t *testing.T, p personality, v *hosts) {
	t.Helper()
	a, b := v.a.Counts(), v.b.Counts()
	got := map[string]bool{
		"write+immediate": a.Immediates >= blocks, "write+send": a.Immediates == 0 && a.Writes >= 2*blocks && a.Sends >= blocks,
		"read": a.Writes == 0 && b.Reads >= 2*blocks && a.Sends >= blocks, "send": a.Writes == 0 && b.Reads == 0 && a.Sends >= blocks,
	}
	if !got[p.mode] {
		t.Errorf("mode %q: sender did %+v, receiver %+v", p.mode, a, b)
	}
}
