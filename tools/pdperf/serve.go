package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
)

// serveFlags are the flags of `pdperf serve`.
type serveFlags struct {
	receiveOptions
	listen      []string
	floorListen string
	once        bool
	asJSON      bool
	asChild     bool
	keys        linkkeys.Flags

	turnWait time.Duration // for other runs to end; 0: the package's
}

func newServe(io streams) *cobra.Command { return new(serveFlags).command(io) }

func (f *serveFlags) command(io streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "be the receiving end",
		Long: `serve listens for a sending end, verifies and acknowledges each block that it
sends, throws the bytes away, and tells the sender what that cost here. One run
is measured at a time, a floor too; the next one waits a little, and is refused then.
It goes on until it is interrupted. Several --listen are several
links at the same time, to be compared. With --send-ring it sends too, where the other
end asks for that (--direction pull or both).

--floor-listen serves the bare receiver of floors beside it, with as much memory as
--ring has (64MiB at least). Its bytes are in clear and prove nothing, and nobody shows
it a key: it serves whoever is on this host, always, and whoever comes from an address
that has connected to a link of --listen. That took a key where the link has keys, with
--encrypt off too.

Exit status: 0 it ran and was interrupted, or with --once the run is complete; 1 with
--once it is not, or listening failed; 2 the command line cannot be used.`,
		Example: `  pdperf serve --listen tcp://127.0.0.1:7412
  pdperf run --to tcp://127.0.0.1:7412
  pdperf serve --listen tcp://10.0.0.5:7412,rdma://10.0.0.5:7414 --floor-listen tcp://10.0.0.5:7413`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), io, c.Flags().Changed) },
	}
	f.register(c, false)
	fl := c.Flags()
	fl.StringSliceVar(&f.listen, "listen", []string{defaultURL}, "links and addresses to listen on; port 0 picks one")
	fl.StringVar(&f.floorListen, "floor-listen", "", "serve floors too, at tcp://host:port")
	fl.BoolVar(&f.once, "once", false, "end with the first connection, with status 0 if its runs were complete")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON, one a line")
	f.keys.Register(c, false)
	hideChildFlag(c, &f.asChild)
	return c
}

// hideChildFlag adds the flag that a command of this program starts another one
// with.
func hideChildFlag(c *cobra.Command, asChild *bool) {
	c.Flags().BoolVar(asChild, "end-with-stdin", false, "end when standard input does")
	must(c.Flags().MarkHidden("end-with-stdin"))
}

// withStdin returns a context that ends when in does.
// The signals that end this program are its starter's to act on: a terminal gives them to
// both.
func withStdin(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() { // ends with the process at the latest
		io.Copy(io.Discard, in) //nolint:errcheck // its end is what counts
		cancel()
	}()
	return ctx, cancel
}

// listening is the event that a listener prints first.
type listening struct {
	Event  string `json:"event"`
	Listen string `json:"listen"`
}

// serving is serve's: with keys it has their directory and the value of
// --encrypt.
type serving struct {
	listening
	Keys    string `json:"keys"`
	Encrypt string `json:"encrypt"`
}

func (f *serveFlags) run(ctx context.Context, io streams, given func(string) bool) error {
	if err := errors.Join(f.check(), f.keys.Check()); err != nil {
		return err
	}
	if f.asChild {
		var cancel context.CancelFunc
		ctx, cancel = withStdin(ctx, io.in)
		defer cancel()
	}
	if err := f.checkListen(given); err != nil {
		return err
	}
	ring, err := f.recvRing()
	if err != nil {
		return err
	}
	ring.Touch()
	back, sender, err := f.sendRing()
	if err != nil {
		return err
	}
	end := newReceivingEnd(f.receiveOptions)
	end.sender, end.ports, end.device = sender, new(rdma.Ports), newDeviceTime()
	end.turns.wait = f.turnWait
	h := &station{f: f, io: io, end: end, session: f.session(ring, back), given: given}
	h.session.Intercept = end.device.intercept // one run is measured at a time
	defer h.close()
	for _, url := range f.listen {
		if err := h.listen(ctx, url); err != nil {
			return err
		}
	}
	if err := h.listenFloor(ctx); err != nil {
		return err
	}
	return h.serve(ctx)
}

// checkListen refuses addresses that cannot be used and flags that have no effect.
func (f *serveFlags) checkListen(given func(string) bool) error {
	schemes := map[string]bool{}
	for _, url := range f.listen {
		if schemeOf(url) == "mem" {
			return errors.New("mem:// is a link within one process: use pdperf local --link mem://")
		}
		schemes[schemeOf(url)] = true
	}
	switch {
	case len(f.listen) == 0:
		return errors.New("--listen: no address is given")
	case f.once && (len(f.listen) > 1 || f.floorListen != ""):
		return errors.New("--once is for one --listen: with several there is no first connection to end with")
	case schemes[rdma.Scheme] && !given("send-ring"):
		f.back = 0 // a card would keep all of it in memory, for what is seldom asked for
	}
	return nil
}

// say prints an event.
func (f *serveFlags) say(io streams, event any) {
	if f.asJSON {
		io.json(event) //nolint:errcheck // nobody is left to tell
		return
	}
	switch e := event.(type) {
	case serving:
		with := ""
		if e.Keys != "" {
			with = fmt.Sprintf(", keys of %s, encrypt %s", e.Keys, e.Encrypt)
		}
		io.printf("listening on %s%s\n", e.Listen, with)
	case served:
		from := e.Remote
		if e.Peer != "" {
			from += " (" + e.Peer + ")"
		}
		if !e.OK {
			io.printf("from %s: FAILED: %s\n", from, e.Why)
			return
		}
		io.printf("from %s%s: %d blocks, %.3f GB, %d bad pieces, %s\n", from, sealText(e.Sealed), e.Blocks, float64(e.Bytes)/1e9, e.Bad, cpuText(e.End.CPU))
	}
}

// schemeOf is the part of a URL before "://", in lower case.
func schemeOf(url string) string {
	scheme, _, _ := strings.Cut(url, "://")
	return strings.ToLower(scheme)
}

// must stops a program whose own command tree is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
