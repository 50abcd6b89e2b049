package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/mem"
)

// localFlags are the flags of `pdperf local`.
type localFlags struct {
	sweep   sweep
	recv    receiveOptions
	link    string
	at      string
	keys    bool
	encrypt linkkeys.Flags // --encrypt alone
}

func newLocal(io streams) *cobra.Command {
	var f localFlags
	c := &cobra.Command{
		Use:   "local",
		Short: "measure links with both ends on this host",
		Long: `local starts a receiving end as a process of its own and measures against it,
as serve and run do on two hosts. The in-process link mem:// has both ends in one
process, so the CPU time of the two is one figure.

With --links it compares links: tcp in clear, tcp+tls and rdma+tls with keys at both
ends, which seals the data, mem in one process, and beside them the floor, a bare
sender and receiver of the same blocks. --at names an address of an RDMA port of this
host for rdma; ` + "`pdlink doctor rdma`" + ` lists them. Several sizes, models, lanes, blocks in
flight, directions and repetitions are measured in turn, interleaved. An interrupt
ends it early, with what was measured so far.

With --keys both ends of --link have keys, as on two hosts: made for this run in a
directory that only this user can read, and removed at its end.

` + statusText,
		Example: `  pdperf local
  pdperf local --keys
  pdperf local --links tcp,tcp+tls,mem --size 64KiB..64MiB --time 2s --reps 5
  pdperf local --links tcp,tcp+tls --model deepseek-v4-flash,qwen3-32b
  pdperf local --link mem:// --size 1MiB --time 2s`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, io) },
	}
	f.sweep.register(c, strings.Join(localLinks(), ", "))
	f.recv.register(c, true)
	fl := c.Flags()
	fl.StringVar(&f.link, "link", "tcp://127.0.0.1:0", "the only link to measure: mem://, tcp://127.0.0.1:0, rdma://ADDRESS:0 or unix://path")
	fl.StringVar(&f.at, "at", "127.0.0.1", "address of this host at which the links of --links receive")
	fl.BoolVar(&f.keys, "keys", false, "authenticate both ends of --link and seal the data, with keys made for this run")
	fl.BoolVar(&f.sweep.floor, "floor", false, "measure the bare sender and receiver too (default with --links that have TCP; --floor=false: not)")
	f.encrypt.RegisterEncrypt(c)
	return c
}

func (f *localFlags) run(c *cobra.Command, io streams) error {
	f.sweep.multi = f.sweep.several(c)
	if err := f.check(c.Flags().Changed); err != nil {
		return err
	}
	names := localLinks()
	if !c.Flags().Changed("links") {
		f.sweep.links, names = []string{f.link}, []string{f.link, floorLink}
		if f.sweep.floor && schemeOf(f.link) != "tcp" {
			return fmt.Errorf("--floor is a TCP socket: it has nothing to say of %s", f.link)
		}
	}
	f.sweep.withFloor(c)
	list, err := f.sweep.points(c, append(names, floorLink))
	if err != nil {
		return err
	}
	f.recv.frame, f.recv.sum = f.sweep.each.frame, f.sweep.each.sum
	f.recv.lanes = 1
	if err := f.recv.check(); err != nil {
		return err
	}
	b := &localBench{f: f, io: io.warnOnce(), recvFrames: defaultRecvFrames}
	if err := b.makeKeys(c.Context(), list); err != nil {
		return failed(err)
	}
	defer b.close()
	return f.sweep.run(c.Context(), io, b, list)
}

// check refuses flags that would have no effect.
func (f *localFlags) check(given func(string) bool) error {
	switch {
	case given("links") && given("link"):
		return errors.New("--link and --links exclude each other: --links compares")
	case given("links") && len(f.sweep.links) == 0:
		return errors.New("--links: none is given")
	case f.keys && given("links"):
		return errors.New("--keys is for --link: with --links name tcp" + sealedLink)
	case f.keys && schemeOf(f.link) == "mem":
		return errors.New("--keys is for links between processes, mem:// is within one")
	case given("encrypt") && !f.keys && !slices.ContainsFunc(f.sweep.links, func(l string) bool { return strings.HasSuffix(l, sealedLink) }):
		return errors.New("--encrypt is for --keys: without keys nothing is sealed")
	case given("at") && !given("links"):
		return errors.New("--at is for --links: --link has an address")
	case !hostAddress(f.at):
		return fmt.Errorf("--at %q: want an address of this host, without a scheme and a port", f.at)
	}
	if !given("links") {
		if _, _, err := openLink(f.link, linkOptions{listens: true}); err != nil {
			return err
		}
	}
	return f.encrypt.Check()
}

// localBench measures with both ends on this host.
type localBench struct {
	f            *localFlags
	io           streams
	ours, theirs string // directories of keys
	remove       func()
	exposed      bool // others could reach the links of --links, so they have keys
	recvFrames   int  // different buffers that the last receiver wrote to, for the floor
}

// makeKeys makes keys where a point wants them: what is sealed, and what others could
// reach.
func (b *localBench) makeKeys(ctx context.Context, list []point) (err error) {
	given := slices.ContainsFunc(list, func(p point) bool { return strings.Contains(p.link, "://") })
	b.exposed = !given && errors.Is(linkkeys.Place{Addr: net.JoinHostPort(b.f.at, "0")}.Exposed(ctx), linkkeys.ErrExposed)
	if b.f.keys || b.exposed || slices.ContainsFunc(list, func(p point) bool { return strings.HasSuffix(p.link, sealedLink) }) {
		b.ours, b.theirs, b.remove, err = linkkeys.Temporary()
	}
	return err
}

func (b *localBench) close() {
	if b.remove != nil {
		b.remove()
	}
}

// way is how a point's link is opened: its URL, and whether keys are used and data
// sealed.
func (b *localBench) way(link string) (url string, keys bool, encrypt string) {
	if strings.Contains(link, "://") {
		return link, b.f.keys, b.f.encrypt.Encrypt
	}
	if link == "mem" {
		return "mem://", false, ""
	}
	scheme, sealed := strings.CutSuffix(link, sealedLink)
	url = scheme + "://" + net.JoinHostPort(b.f.at, "0")
	if sealed {
		return url, true, b.f.encrypt.Encrypt
	}
	return url, b.exposed, "off"
}

// measure implements measurer.
func (b *localBench) measure(ctx context.Context, early <-chan struct{}, p point) (*result, error) {
	if p.link == floorLink {
		return b.floor(ctx, early, p)
	}
	url, keys, encrypt := b.way(p.link)
	if schemeOf(url) == "mem" {
		return b.within(ctx, early, p)
	}
	if _, _, err := openLink(url, linkOptions{listens: true}); err != nil {
		return nil, err
	}
	o := &b.f.recv
	back := 0
	if p.o.direction != push {
		back = p.o.slots()
	}
	args := []string{
		"serve", "--listen", url, "--once", "--send-ring", strconv.Itoa(back),
		"--ring", strconv.Itoa(o.slots), "--window", strconv.Itoa(o.window), "--hold", strconv.Itoa(o.hold),
		"--frame", strconv.FormatInt(int64(o.frame), 10), "--lanes", strconv.Itoa(p.o.lanes), "--sum", o.sum,
	}
	d := dialler{url: url, o: p.o, ebpf: b.f.sweep.ebpf, given: func(flag string) bool { return flag == "keys" && keys }}
	if keys {
		d.keys.Dir, d.keys.Encrypt = b.ours, encrypt
		args = append(args, "--keys", b.theirs, "--encrypt", encrypt)
	} else {
		d.keys.Encrypt = b.f.encrypt.Encrypt
	}
	child, err := startChild(ctx, b.io, args...)
	if err != nil {
		return nil, failed(err)
	}
	d.url = dials(url, child.url)
	r, err := d.measure(ctx, b.io, early)
	if childErr := child.end(); err == nil && childErr != nil {
		err = failed(childErr)
	}
	if err == nil && r.Receiver.Buffers > 0 && p.o.direction == push {
		b.recvFrames = r.Receiver.Buffers
	}
	return r, err
}

// floor measures the bare sender and receiver with a point's blocks.
func (b *localBench) floor(ctx context.Context, early <-chan struct{}, p point) (*result, error) {
	f := floorOf(p, b.recvFrames)
	child, err := startChild(ctx, b.io, "floor", "--listen", "tcp://"+net.JoinHostPort(b.f.at, "0"), "--any-address",
		"--recv-frames", strconv.Itoa(f.recvFrames), "--frame", strconv.FormatInt(int64(f.frame), 10))
	if err != nil {
		return nil, failed(err)
	}
	_, addr, _ := strings.Cut(child.url, "://")
	r, err := f.measure(ctx, addr, early)
	if childErr := child.end(); err == nil && childErr != nil {
		err = failed(childErr)
	}
	return r, err
}

// dials is the URL at which this end dials the other one, which printed url: over the
// same device of this host as link says.
func dials(link, url string) string {
	scheme, _, at, err := splitURL(link)
	if err != nil || at.Device == "" {
		return url
	}
	_, addr, _ := strings.Cut(url, "://")
	return scheme + "://" + rdma.Addr{Host: addr, Device: at.Device}.String()
}

// within measures with both ends in this process.
func (b *localBench) within(ctx context.Context, early <-chan struct{}, p point) (*result, error) {
	send, back, err := p.o.rings()
	if err != nil {
		return nil, err
	}
	o := b.f.recv
	o.lanes, o.back = p.o.lanes, 0
	recv, err := o.recvRing()
	if err != nil {
		return nil, err
	}
	recv.Touch()
	if p.o.direction != push {
		o.back = p.o.slots()
	}
	theirs, sender, err := o.sendRing()
	if err != nil {
		return nil, err
	}
	far := mem.New(mem.Options{Session: o.session(recv, theirs)})
	near := far.With(mem.Options{Session: p.o.session(send, back)})
	ln, err := far.Listen(ctx, "")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept(ctx)
		if err != nil {
			return // the sender has the reason
		}
		end := newReceivingEnd(o)
		end.sender = sender
		end.serve(ctx, conn, func(served) {})
		conn.Close() //nolint:errcheck // the sender has what counts
	}()
	conn, err := near.Dial(ctx, ln.Addr())
	if err != nil {
		return nil, failed(err)
	}
	r, err := measureAndClose(ctx, conn, &sendingEnd{o: p.o, conn: conn, source: sourceFor(p.o, send), processes: 1, early: early})
	<-done
	closeRings(send, back, recv, theirs)
	return r, err
}

// sourceFor fills the ring that a point sends from; nil where it does not send.
func sourceFor(o sendOptions, ring *transport.Ring) *source {
	if o.direction == pull {
		return nil
	}
	return newSource(ring)
}

// closeRings gives memory back. A ring that a link still uses goes with the process.
func closeRings(rings ...*transport.Ring) {
	for _, r := range rings {
		r.Close() //nolint:errcheck // see above
	}
}

// floorOf is the floor for a point's blocks.
func floorOf(p point, recvFrames int) *floorFlags {
	return &floorFlags{
		block: size(p.o.shape.blockBytes), frame: p.o.frame, time: p.o.time, warmup: p.o.warmup, inFlight: min(p.o.inFlight*p.o.shape.group, maxInFlight),
		buffers: max(1, min(p.o.buffers*p.o.shape.group, int(maxMemory/p.o.shape.blockBytes))), recvFrames: recvFrames, lowat: floorLowat, anyAddress: true,
		model: p.o.model, blockTokens: p.o.shape.blockTokens,
	}
}

// defaultRecvFrames is what a floor receives into before a transport has told.
const defaultRecvFrames = 16
