package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
)

// serveFlags are the flags of `pdperf serve`.
type serveFlags struct {
	receiveOptions
	listen  string
	once    bool
	asJSON  bool
	asChild bool
	keys    linkkeys.Flags
}

func newServe(io streams) *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "be the receiving end",
		Long: `serve listens for a sending end, verifies and acknowledges each block that it
sends, throws the bytes away, and tells the sender what that cost here. One run
is measured at a time. It goes on until it is interrupted.

Exit status: 0 it ran and was interrupted, or with --once the run is complete; 1 with
--once it is not, or listening failed; 2 the command line cannot be used.`,
		Example: `  pdperf serve --listen tcp://127.0.0.1:7412
  pdperf run --to tcp://127.0.0.1:7412`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), io, c.Flags().Changed) },
	}
	f.register(c, false)
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", defaultURL, "link and address to listen on; port 0 picks one")
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
func withStdin(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
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
	if strings.HasPrefix(f.listen, "mem://") {
		return errors.New("mem:// is a link within one process: use pdperf local --link mem://")
	}
	ring, err := f.recvRing()
	if err != nil {
		return err
	}
	ring.Touch()
	idle, err := idleRing(f.frame)
	if err != nil {
		return err
	}
	o := linkOptions{session: f.session(ring, idle), note: io.notef, listens: true, ports: new(rdma.Ports)}
	o.reject = func(remote string, err error) {
		io.warn([]string{fmt.Sprintf("peer %s dropped: %s", remote, cmdline.Plain(o.keys.Explain(err)))})
	}
	if o.keys, err = openKeys(ctx, io, &f.keys, f.listen, given); err != nil {
		return err
	}
	defer o.keys.Close() //nolint:errcheck // it cannot fail
	link, addr, err := openLink(f.listen, o)
	if err != nil {
		return err
	}
	ln, err := link.Listen(ctx, addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", f.listen, o.keys.Explain(err))
	}
	if !f.asChild { // the other end says it
		io.warn(o.keys.Warnings(true))
	}
	f.say(io, serving{listening{"listening", schemeOf(f.listen) + "://" + ln.Addr()}, o.keys.Dir.Path, o.keys.Encrypt})
	end := newReceivingEnd(f.receiveOptions)
	end.ports = o.ports
	err = f.loop(ctx, io, ln, end)
	return errors.Join(err, ln.Close())
}

// loop serves connections until the command is to end.
func (f *serveFlags) loop(ctx context.Context, io streams, ln transport.Listener, end *receivingEnd) error {
	var mu sync.Mutex // guards bad and the output
	var bad error
	tell := func(s served) {
		mu.Lock()
		defer mu.Unlock()
		f.say(io, s)
		if !s.OK {
			bad = fmt.Errorf("the transfer from %s failed: %s", s.Remote, s.Why)
		}
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		conn, err := ln.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // interrupted, which is how it ends
		case err != nil:
			return failed(fmt.Errorf("accept: %w", err))
		}
		serve := func() {
			end.serve(ctx, conn, tell)
			conn.Close() //nolint:errcheck // its transfers have been told of
		}
		if !f.once {
			conns.Go(serve)
			continue
		}
		serve()
		if bad != nil {
			return failed(bad)
		}
		return nil
	}
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

// schemeOf is the part of a URL before "://".
func schemeOf(url string) string {
	scheme, _, _ := strings.Cut(url, "://")
	return scheme
}

// must stops a program whose own command tree is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
