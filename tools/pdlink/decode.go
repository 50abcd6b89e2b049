package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/bridge/trace"
	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
)

// decodeFlags are the flags of `pdlink decode`.
type decodeFlags struct {
	listen   string
	store    string
	discard  bool
	noSync   bool
	partWait time.Duration
	ringMiB  int
	once     bool
	asJSON   bool
	keys     linkkeys.Flags
	door     doorFlags
	watching watchFlags
	seams    decodeSeams
}

// decodeSeams are where a test takes part in `pdlink decode`. The zero value is
// nothing of it.
type decodeSeams struct {
	ring *transport.Ring                   // that frames arrive in, in the place of --ring's
	wrap func(bridge.Target) bridge.Target // is given each target, and returns what is written to
}

const decodeLong = `decode listens for senders and puts the blocks of their transfers into a store.
A block appears under its name only when it is whole, checked and durable, and
only after the block before it. It runs until it is interrupted; what is visible
then stays, temporary files are removed, and senders get the verdict. A second
interrupt ends it at once: temporary files then stay until the next start.

One line is printed for each transfer: its verdict. "complete" says that every
block is visible, "partial B/T: why" that the first B of T are. "declined: why"
is a transfer that was refused. Nothing waits for whoever reads these lines: some
are kept, and those beyond that are dropped and counted in a line of their own.

--part-wait is how long an incomplete transfer waits for senders that are
missing after the last frame of the others: the parts of a transfer must overlap
in time, or follow each other within it. A negative one does not wait once all
others have finished.

With --decoder a front door opens, at --front: clients talk to it as to the decoder.
It forwards everything unchanged, and has long prompts that the decoder does not
hold read by the prefill hosts that are connected ("pdlink prefill") before that. Every
answer says in the header X-PDLink what became of its request; /pdlink/transfers and
/pdlink/metrics on that port, for who is on this host, say it of the last ones. The
store is then the decoder's own, unless --store names it.

What a prefill host has loaded is compared with the decoder's model: numbers, rotation,
fingerprints of weights. One that differs reads nothing, and it is said why; one that
cannot tell does not either, unless --allow-unknown. Hosts are compared when they come, if
the model is loaded and $` + decoderKeyEnv + ` has the decoder's API key or it needs none,
else with the first request.

With --metrics a live page shows transfers, links and peers, and figures for Prometheus
are at /metrics on that port, with /healthz and /readyz; it is on loopback unless a host
is named. These have names of models, peers and the store: an address that other hosts can
reach needs --metrics-token, a file with what they have to say, or --metrics-open.

An address that other hosts can reach needs keys (see "pdlink keys"): senders
prove who they are, and data is sealed. Keys that are there are used for such an
address without being asked for; on loopback --keys asks for them, and senders
then need them too.

Exit status: 0 it ran and was interrupted, or with --once the transfer is
complete; 1 with --once it is not, or listening or printing failed; 2 the command
line cannot be used, and nothing was done; 130 interrupted before the transfer
that --once waits for.`

// command is the command whose flags these are.
func (f *decodeFlags) command(std streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "decode {--store DIR | --decoder URL}",
		Short: "receive blocks into a decoder's store",
		Long:  decodeLong,
		Example: `  pdlink decode --listen tcp://127.0.0.1:7411 --store ~/.omlx/cache
  pdlink decode --listen tcp://10.0.0.5:7411 --store ~/.omlx/cache --keys ~/keys
  pdlink decode --listen tcp://10.0.0.5:7411 --decoder http://127.0.0.1:8000 --front 127.0.0.1:8012
  pdlink replay CASE --to tcp://127.0.0.1:7411`,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			u, err := f.check(flagsOf(c))
			if err != nil {
				return err
			}
			return f.run(c.Context(), std, u, flagsOf(c))
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "tcp://127.0.0.1:7411", "link and address to listen on, `URL` (tcp://host:port, rdma://host:port, unix://path); port 0 picks one")
	fl.StringVar(&f.store, "store", "", "the decoder's block store, `DIR`")
	fl.BoolVar(&f.discard, "discard", false, "keep nothing: for measuring a link")
	fl.BoolVar(&f.noSync, "no-sync", false, "do not wait for the disk: a power cut may then leave wrong blocks")
	fl.DurationVar(&f.partWait, "part-wait", bridge.DefaultPartWait, "how long an incomplete transfer waits for missing senders; negative: not at all")
	fl.IntVar(&f.ringMiB, "ring", 64, "memory for frames that arrive, in `MiB`")
	fl.BoolVar(&f.once, "once", false, "end after the first transfer, with status 0 if it was complete")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON, one a line")
	must(c.MarkFlagDirname("store"))
	f.keys.Register(c, false)
	f.door.register(c)
	f.watching.register(c)
	cmdline.OnlyWithout(c, []string{"store", "decoder", "no-sync"}, "discard")
	cmdline.OnlyWithout(c, []string{"discard"}, "store", "decoder")
	return c
}

// check looks at the command line and returns where to listen.
func (f *decodeFlags) check(g given) (linkURL, error) {
	places, how := []string{"store", "discard"}, []string{"--store DIR", "--discard", "--decoder URL"}
	if g("decoder") && !g("store") {
		places = []string{"decoder", "discard"}
	}
	u, wrong := parseLink(f.listen)
	if wrong == nil {
		wrong = u.elsewhere("listen")
	}
	if least := (2*transport.DefaultSlot + 1<<20 - 1) >> 20; f.ringMiB < least || f.ringMiB > maxRingMiB {
		wrong = errors.Join(wrong, fmt.Errorf("--ring %d: want %d to %d MiB", f.ringMiB, least, maxRingMiB))
	}
	empty := g.filled(map[string]string{"listen": f.listen})
	if empty != nil {
		wrong = empty
	}
	err := errors.Join(
		g.oneOf(places, how),
		f.door.check(g),
		f.watching.check(g),
		wrong,
		f.collide(u),
		g.filled(map[string]string{"store": f.store, "keys": f.keys.Dir}),
		f.keys.Check())
	if err == nil && f.discard {
		err = g.unused("is for a store, with --discard there is none", "no-sync")
	}
	return u, err
}

// collide refuses two flags that name one address to listen at: the second one would find
// it in use, by this program.
func (f *decodeFlags) collide(u linkURL) error {
	type place struct{ flag, addr string }
	var all []place
	if u.scheme == schemeTCP || u.scheme == schemeRDMA { // the port is the same
		all = append(all, place{"--listen " + f.listen, u.addr})
	}
	if f.door.url != nil {
		all = append(all, place{"--front " + f.door.addr, f.door.addr})
	}
	if at := f.watching.at; at != nil && at.Network == "tcp" {
		all = append(all, place{"--metrics " + f.watching.metrics, at.Text})
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if sameAddress(a.addr, b.addr) {
				return fmt.Errorf("%s and %s are one address: give one of them another port", a.flag, b.flag)
			}
		}
	}
	return nil
}

// sameAddress reports that two of host:port cannot both be listened at. What names mean is
// not looked up.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" || portA == "" {
		return false
	}
	x, y := numeric(hostA), numeric(hostB)
	if !x.IsValid() || !y.IsValid() {
		return strings.EqualFold(hostA, hostB)
	}
	return x == y || x.IsUnspecified() && x.Is4() == y.Is4() || y.IsUnspecified() && x.Is4() == y.Is4()
}

// maxRingMiB bounds --ring, which is allocated at once: 200 Gbit/s at 10 ms have
// 250 MB on their way.
const maxRingMiB = 4 << 10

// hurry is what is said at the first interrupt.
const hurry = "pdlink: stopping; once more leaves temporary files, which the next start removes"

func (f *decodeFlags) run(ctx context.Context, std streams, u linkURL, g given) (err error) {
	// A reader of the events that goes away must not end the receiver.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	ring := f.seams.ring
	if ring == nil {
		if ring, err = newRing(f.ringMiB); err != nil {
			return failed(fmt.Errorf("--ring %d: %w", f.ringMiB, err))
		}
	}
	j := newJournal(std)
	defer j.close()
	var o linkOptions
	o.reject = j.rejects(&o.keys)
	o.tellChoice(j.say)
	o.session.RecvRing = ring
	o.keys, err = f.keys.Choose(ctx, g, func(err error) { j.warn("peers are not as they should be", err) }, u.place())
	if err != nil {
		return keysError(err)
	}
	defer o.keys.Close() //nolint:errcheck // it cannot fail
	d := &decoding{decodeFlags: f, std: std, journal: j, events: make(chan any, 16)}
	o.peers = &d.peers
	o.follow(&d.ports)
	step, hide := std.progress("receive")
	d.hide, d.printer = hide, newPrinter(d.say, step)
	defer d.printer.close() //nolint:errcheck // the loop asks
	if d.timeline, err = f.watching.recorder("pdlink decode"); err != nil {
		return err
	}
	o.session.Intercept = d.timeline.Intercept(nil)
	defer func() { err = d.watching.keep(d.timeline, errors.Join(err, d.shut())) }()
	link, err := d.through(ctx, u.open(o), ring)
	if err != nil {
		return err
	}
	r, err := startReceiving(ctx, link, u, func() (bridge.Options, error) { return d.open(std) })
	if err != nil {
		return listenError("listen", u.addr, err)
	}
	for _, w := range append(o.keys.Warnings(true), d.front.warnings()...) {
		std.warnf("%s", w)
	}
	d.start.Event, d.start.Listen = "listening", u.at(r.listener.Addr()).String()
	d.start.Keys, d.start.Encrypt = o.keys.Dir.Path, o.keys.Encrypt
	d.start.Watch = d.watched.url()
	d.tell(d.start)
	d.accepting.Store(true)
	d.watched.serve(d.checks())
	return d.loop(ctx, r, uint64(len(ring.Memory())))
}

// through is a link as who watches and the front door, where there are any, let its
// connections through. They are open then, until shut.
func (d *decoding) through(ctx context.Context, link transport.Link, ring *transport.Ring) (_ transport.Link, err error) {
	if err := d.watch(ctx); err != nil {
		return nil, err
	}
	d.watched.ring("receive", ring)
	link = d.watched.link(link)
	if d.door.url == nil {
		return link, nil
	}
	if d.front, err = d.door.open(ctx, d.std, d.journal, d.noSync, d.answered); err != nil {
		return nil, err
	}
	d.opened.Store(d.front)
	return d.front.link(link), nil
}

// shut closes what through opened. It is idempotent.
func (d *decoding) shut() (err error) {
	if d.front != nil {
		err = d.front.close()
	}
	return errors.Join(err, d.watched.close())
}

// decoding is a `pdlink decode` that runs.
type decoding struct {
	*decodeFlags
	std       streams
	journal   *journal
	events    chan any // of the receiver: transferEvent, declinedEvent
	printer   *printer // of events, once the loop has seen them
	start     listening
	front     *door           // nil: there is none
	opened    doorOf          // the same, for other goroutines
	watched   *watched        // nil: nobody wants to see
	timeline  *trace.Recorder // nil: nobody wants it
	accepting atomic.Bool     // transfers are taken
	live      atomic.Int64    // transfers that are open
	room      roomFor         // of the store
	peers     peerNames
	ports     rdma.Ports // that rdma links take
	hide      func()
	lost      bool // somebody was told that output is lost; of the printer
}

// open opens where transfers go and returns the receiver's options.
func (d *decoding) open(std streams) (bridge.Options, error) {
	o := bridge.Options{
		Open: openDiscard, PartWait: d.partWait,
		OnVerdict: func(v bridge.Verdict) {
			e := d.transferEventOf(v)
			d.watched.transfer(e)
			d.events <- e
		},
		OnDecline: func(r transport.Request, reason string) {
			if !internal(r.Kind) { // a prefill host was told that there is no front door
				e := declinedEventOf(r.ID, reason)
				d.watched.declined(e)
				d.events <- e
			}
		},
		OnBlock: func(id transport.ID, visible, total int) {
			d.printer.advance(visible, total)
			d.watched.block(id, visible, total)
		},
	}
	if d.front != nil {
		d.start.Front = d.front.listener.Addr().String()
		o.Open = d.front.opener
		o.OnBlock = func(id transport.ID, visible, total int) {
			d.printer.advance(visible, total)
			d.watched.block(id, visible, total)
			d.front.hosts.Block(id, visible, total)
			d.front.front.Block(id, visible, total)
		}
	}
	if d.store != "" {
		was, store, err := place{d.store, true}.open(std, d.noSync)
		if err != nil {
			return o, err
		}
		o.Open, d.start.Store, d.start.New, d.start.Blocks = openStore(store), was.path, was.created, was.blocks
	}
	open := d.timeline.Opener(o.Open)
	o.OnBlock = d.timeline.OnBlock(o.OnBlock)
	o.Open = func(kind string, meta []byte) (bridge.Opened, error) {
		opened, err := open(kind, meta)
		if err == nil {
			d.live.Add(1)
			opened.Target = taking{opened.Target, &d.room, opened.BlockBytes}
			if d.seams.wrap != nil {
				opened.Target = d.seams.wrap(opened.Target)
			}
			opened.Target = counted{d.watched.target(opened.Target), &d.live}
			opened = counting(&d.ports, opened)
		}
		return opened, err
	}
	return o, nil
}

// counted is a target that is counted until it closes.
type counted struct {
	bridge.Target
	live *atomic.Int64
}

// Close implements bridge.Target.
func (c counted) Close() error {
	c.live.Add(-1)
	return c.Target.Close()
}

// tell has an event printed, which nobody waits for.
func (d *decoding) tell(event any) {
	if !d.printer.say(event) {
		d.journal.say("pdlink: warning: events are lost, since nobody reads them; receiving goes on\n")
	}
}

// loop has events printed until the command is to end.
func (d *decoding) loop(ctx context.Context, r *receiving, ring uint64) error {
	var last bridge.State
	stopped := make(chan error, 1)
	go func() { stopped <- r.wait() }()
	var why error
	for run := true; run; {
		select {
		case e := <-d.events:
			d.tell(e)
			last, run = d.after(e)
		case <-ctx.Done():
			d.journal.add(entry{write: func() { d.hide(); d.std.notef("%s\n", hurry) }})
			run = false
		case err := <-stopped:
			why, run = fmt.Errorf("stopped listening: %w", err), false
		}
	}
	d.accepting.Store(false)
	done := make(chan error, 1)
	go func() {
		if d.front != nil {
			d.front.close() //nolint:errcheck // it is idempotent, and the command's end says it
		}
		done <- r.stop()
	}()
	for run := true; run; {
		select {
		case e := <-d.events:
			d.tell(e)
		case err := <-done:
			if !errors.Is(err, transport.ErrClosed) {
				why = errors.Join(why, err)
			}
			run = false
		}
	}
	for len(d.events) > 0 {
		d.tell(<-d.events)
	}
	d.tell(ended{"ended", peakRSS(), ring})
	if err := d.printer.close(); err != nil {
		d.std.out.fail(err)
	}
	switch {
	case why != nil:
		return failed(why)
	case d.once && last != bridge.Complete:
		return failed(nil)
	}
	return nil
}

// after returns the state of a transfer that ended, and whether to go on. A
// refused offer does not end --once while the transfer itself runs.
func (d *decoding) after(event any) (last bridge.State, run bool) {
	switch e := event.(type) {
	case transferEvent:
		return e.State, !d.once
	case declinedEvent:
		return bridge.Declined, !d.once || d.live.Load() > 0
	}
	return "", true
}

// newRing makes a ring of about that many MiB.
func newRing(mib int) (*transport.Ring, error) {
	ring, err := transport.NewRing(mib<<20/transport.DefaultSlot, 0)
	if err == nil {
		ring.Touch()
	}
	return ring, err
}
