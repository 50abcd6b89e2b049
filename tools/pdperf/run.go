package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
)

// runFlags are the flags of `pdperf run`.
type runFlags struct {
	sweep   sweep
	to      []string
	floorTo string
	keys    linkkeys.Flags
}

func newRun(io streams) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run --to URL",
		Short: "be the sending end and print what was measured",
		Long: `run sends blocks to a pdperf serve and prints what that cost both ends. Blocks
lie in memory that was filled beforehand and is used in turn, so each is cold;
how many buffers each end really used is counted and printed. The receiver
verifies the checksum of every byte and acknowledges each block when it is
whole; what arrives damaged is sent again.

Goodput is the bytes of acknowledged blocks over the time from the first byte to
the last acknowledgement, after the warm-up. It cannot exceed what the link
carries: where that is known, more is an error. A block's time is from handing its
first byte to the link, where it may wait behind the blocks before it, to its
acknowledgement. CPU is user and system time of the whole process, by getrusage, in
the same window.

Several --to are several links of the same host. --links chooses among them, with
tcp` + sealedLink + ` for what is sealed where the other end serves with --encrypt off: then tcp is
in clear. Several sizes, models, lanes, blocks in flight, directions and repetitions
are measured in turn, interleaved. An interrupt ends it early, with what was measured
so far.

` + statusText,
		Example: `  pdperf run --to tcp://127.0.0.1:7412 --size 20MiB --time 10s
  pdperf run --to tcp://127.0.0.1:7412 --json | jq .goodput_gb_per_s
  pdperf run --to tcp://10.0.0.5:7412 --encrypt off
  pdperf run --to tcp://10.0.0.5:7412,rdma://10.0.0.5:7414 --links tcp,tcp+tls,rdma --floor-to tcp://10.0.0.5:7413 --size 64KiB..64MiB --reps 5`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, io) },
	}
	f.sweep.register(c, "those that --to names, and tcp"+sealedLink+", rdma"+sealedLink)
	c.Flags().StringSliceVar(&f.to, "to", nil, "the receiving end, `URL` (tcp://host:port, rdma://host:port, unix://path), one for each link")
	c.Flags().StringVar(&f.floorTo, "floor-to", "", "measure the bare sender and receiver too: the `URL` of serve's --floor-listen")
	f.keys.Register(c, true)
	return c
}

func (f *runFlags) run(c *cobra.Command, io streams) error {
	if len(f.to) == 0 {
		return errors.New("--to URL is missing: name the address at which `pdperf serve` listens")
	}
	f.sweep.floor = f.floorTo != ""
	f.sweep.multi = f.sweep.several(c) || len(f.to) > 1
	b := &remoteBench{f: f, io: io.warnOnce(), given: c.Flags().Changed, recvFrames: defaultRecvFrames, urls: map[string]string{}}
	if err := b.routes(); err != nil {
		return err
	}
	if f.floorTo != "" {
		if _, err := tcpAddress(f.floorTo); err != nil {
			return fmt.Errorf("--floor-to: %w", err)
		}
		f.sweep.links = append(f.sweep.links, floorLink)
	}
	list, err := f.sweep.points(c, append(b.names(), floorLink))
	if err := errors.Join(err, f.keys.Check()); err != nil {
		return err
	}
	return f.sweep.run(c.Context(), io, b, list)
}

// remoteBench measures against receiving ends elsewhere.
type remoteBench struct {
	f          *runFlags
	io         streams
	given      func(string) bool
	urls       map[string]string // by scheme
	recvFrames int
}

// routes reads --to.
func (b *remoteBench) routes() error {
	var links []string
	for _, url := range b.f.to {
		if schemeOf(url) == "mem" {
			return errors.New("mem:// is a link within one process: use pdperf local --link mem://")
		}
		scheme, _, _, err := splitURL(url)
		if err != nil {
			return err
		}
		if b.urls[scheme] != "" {
			return fmt.Errorf("--to %s: want one URL for each scheme", strings.Join(b.f.to, ","))
		}
		b.urls[scheme] = url
		links = append(links, scheme)
	}
	if len(b.f.sweep.links) == 0 {
		b.f.sweep.links = links
	}
	return b.lacking()
}

// lacking refuses links that no --to leads to.
func (b *remoteBench) lacking() error {
	address := map[string]string{"tcp": "tcp://host:port", rdma.Scheme: rdma.Scheme + "://host:port", "unix": "unix://path"}
	for _, l := range b.f.sweep.links {
		scheme := strings.TrimSuffix(l, sealedLink)
		if want := address[scheme]; want != "" && b.urls[scheme] == "" {
			return fmt.Errorf("--links %s: no --to is of %s: add %s", strings.Join(b.f.sweep.links, ","), scheme, want)
		}
	}
	return nil
}

// names are the links that --links may have.
func (b *remoteBench) names() (list []string) {
	for scheme := range b.urls {
		list = append(list, scheme, scheme+sealedLink)
	}
	slices.Sort(list)
	return list
}

// measure implements measurer.
func (b *remoteBench) measure(ctx context.Context, early <-chan struct{}, p point) (*result, error) {
	if p.link == floorLink {
		addr, err := tcpAddress(b.f.floorTo)
		if err != nil {
			return nil, err
		}
		return floorOf(p, b.recvFrames).measure(ctx, addr, early)
	}
	scheme, sealed := strings.CutSuffix(p.link, sealedLink)
	d := dialler{url: b.urls[scheme], o: p.o, keys: b.f.keys, given: b.given, ebpf: b.f.sweep.ebpf}
	if !b.given("links") {
		return b.note(d.measure(ctx, b.io, early))
	}
	switch {
	case sealed && d.keys.Encrypt == "off":
		return nil, fmt.Errorf("--links %s and --encrypt off contradict each other", p.link)
	case !sealed && !b.given("encrypt"):
		d.keys.Encrypt = "off"
	}
	r, err := d.measure(ctx, b.io, early)
	switch {
	case err != nil:
	case sealed && !r.Sealed:
		err = failed(fmt.Errorf("%s would be in clear: serve it with keys", p.link))
	case !sealed && r.Sealed:
		err = failed(fmt.Errorf("%s would be sealed, which is %s%s: serve it with --encrypt off, or name that link", p.link, p.link, sealedLink))
	}
	return b.note(r, err)
}

// note keeps what the floor has to be like.
func (b *remoteBench) note(r *result, err error) (*result, error) {
	if err != nil {
		return nil, err
	}
	if r.Receiver.Buffers > 0 && r.Direction == push {
		b.recvFrames = r.Receiver.Buffers
	}
	return r, nil
}

// dialler measures against a receiving end at a URL.
type dialler struct {
	url   string
	o     sendOptions
	keys  linkkeys.Flags
	given func(string) bool // whether a flag is on the command line
	ebpf  bool              // have the kernel watch
}

// measure connects, measures and closes the connection.
func (d dialler) measure(ctx context.Context, io streams, early <-chan struct{}) (*result, error) {
	send, recv, err := d.o.rings()
	if err != nil {
		return nil, err
	}
	defer closeRings(send, recv)
	device := newDeviceTime()
	o := linkOptions{session: d.o.session(send, recv), note: io.note, ports: new(rdma.Ports)}
	o.session.Intercept = device.intercept
	if o.keys, err = openKeys(ctx, io, &d.keys, d.url, d.given); err != nil {
		return nil, err
	}
	defer o.keys.Close() //nolint:errcheck // it cannot fail
	io.warn(o.keys.Warnings(false))
	link, addr, err := openLink(d.url, o)
	if err != nil {
		return nil, err
	}
	src := sourceFor(d.o, send)
	w := watch(io, d.ebpf, d.url)
	conn, err := link.Dial(ctx, addr)
	if err != nil {
		w.end()
		return nil, dialError(d.url, o.keys.Explain(err))
	}
	r, err := measureAndClose(ctx, conn, &sendingEnd{
		o: d.o, conn: conn, source: src, processes: 2, ports: o.ports, early: early, device: device, began: w.begin,
	})
	if w := w.end(); err == nil && w != nil {
		r.Watched = w
		r.Limited = r.limit()
	}
	return r, err
}

// dialError is the error of a connection that was not made: an address that
// cannot be used is a matter of the command line.
func dialError(to string, err error) error {
	err = fmt.Errorf("connect to %s: %w", to, err)
	if linkkeys.Misused(err) {
		return err
	}
	hint := ""
	switch {
	case linkkeys.Refused(err):
	case lacksRDMA(to, err):
		hint = rdmaHint
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		hint = "nobody listens there: is `pdperf serve` running?"
	case errors.Is(err, transport.ErrIncompatible):
		hint = "the ends need the same version: compare `pdperf version`"
	case errors.Is(err, context.DeadlineExceeded):
		hint = "no answer in time: is it `pdperf serve` that listens there, and does its host respond?"
	case errors.Is(err, transport.ErrProtocol):
		hint = "something other than `pdperf serve` answered: check the port"
	case errors.Is(err, transport.ErrLost), errors.Is(err, syscall.ECONNRESET):
		hint = "the other end hung up: is it `pdperf serve` that listens there, and does it say why?"
	}
	if hint != "" {
		err = fmt.Errorf("%w: %s", err, hint)
	}
	return failed(err)
}

// measureAndClose measures over conn and closes it.
func measureAndClose(ctx context.Context, conn transport.Conn, e *sendingEnd) (*result, error) {
	r, err := e.ways(ctx)
	if err := errors.Join(err, conn.Close()); err != nil {
		return nil, failed(err)
	}
	return r, nil
}
