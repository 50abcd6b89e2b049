package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
	"pdlink/tools/pdperf/faultproxy"
)

// faultFlags are the flags of `pdperf fault`.
type faultFlags struct {
	listen, to   string
	cutAfter     size
	cuts         int
	reset        bool
	halfClose    bool
	corruptEvery size
	delay        time.Duration
	rate         size
	seed         uint64
	anyAddress   bool
	asJSON       bool
}

func newFault(io streams) *cobra.Command {
	var f faultFlags
	c := &cobra.Command{
		Use:   "fault --listen A --to B",
		Short: "put faults between two hosts",
		Long: `fault forwards TCP connections and does to their bytes what a bad network does,
below everything that the two ends do against it: both should end with a verdict
that is true, and with no wrong block.

Bytes are counted over both directions and all connections. What happens is
printed as it does. It runs until it is interrupted.

Whoever reaches the proxy reaches what is behind it, so both addresses must be
loopback unless --any-address says otherwise.

Exit status: 0 it ran and was interrupted; 1 it could not go on; 2 the command line
cannot be used, and nothing was done.`,
		Example: `  pdperf fault --listen tcp://127.0.0.1:7420 --to tcp://127.0.0.1:7411 --cut-after 500MB
  pdlink replay CASE --to tcp://127.0.0.1:7420`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), io) },
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "", "where connections come: tcp://host:port; port 0 picks one")
	fl.StringVar(&f.to, "to", "", "where they go: tcp://host:port")
	fl.Var(&f.cutAfter, "cut-after", "end all connections after so many bytes")
	fl.IntVar(&f.cuts, "cuts", 1, "how often to cut; -1 again and again")
	fl.BoolVar(&f.reset, "reset", false, "cut by a reset instead of an orderly end")
	fl.BoolVar(&f.halfClose, "half-close", false, "cut only the direction whose byte it was; the other one goes on")
	fl.Var(&f.corruptEvery, "corrupt-every", "flip a bit in about every so many bytes")
	fl.DurationVar(&f.delay, "delay", 0, "let each byte take so much longer")
	fl.Var(&f.rate, "rate", "limit each direction to so many bytes a second")
	fl.Uint64Var(&f.seed, "seed", 1, "other seeds damage other bytes")
	fl.BoolVar(&f.anyAddress, "any-address", false, "allow addresses that are not loopback")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON, one a line")
	return c
}

// check refuses what makes no sense and returns the two addresses.
func (f *faultFlags) check(ctx context.Context) (listen, to string, err error) {
	if f.listen == "" || f.to == "" {
		return "", "", errors.New("--listen and --to are both needed: where connections come, and where they go")
	}
	if f.delay < 0 || f.delay > maxRun {
		return "", "", fmt.Errorf("--delay %v: want up to %v", f.delay, maxRun)
	}
	if f.halfClose && f.reset {
		return "", "", errors.New("--half-close and --reset are two ways to cut: choose one")
	}
	if f.cutAfter == 0 && (f.halfClose || f.reset || f.cuts != 1) {
		return "", "", errors.New("--half-close, --reset and --cuts say how to cut: --cut-after says when")
	}
	if listen, err = tcpAddress(f.listen); err != nil {
		return "", "", err
	}
	if to, err = tcpAddress(f.to); err != nil {
		return "", "", err
	}
	if !f.anyAddress {
		err = errors.Join(checkLoopback(ctx, listen), checkLoopback(ctx, to))
	}
	return listen, to, err
}

// faultEvent is an event as JSON.
type faultEvent struct {
	Event       string `json:"event"`
	Conn        int    `json:"conn"`
	Remote      string `json:"remote"`
	Offset      int64  `json:"offset"`
	FromDialler bool   `json:"from_dialler"`
	Why         string `json:"why"`
}

// faultTotal is the event that fault prints last.
type faultTotal struct {
	Event       string `json:"event"`
	Conns       int    `json:"connections"`
	Refused     int    `json:"refused"`
	FromDialler int64  `json:"bytes_from_dialler"`
	FromTarget  int64  `json:"bytes_from_target"`
	Cuts        int    `json:"cuts"`
	Corruptions int    `json:"corruptions"`
}

func (f *faultFlags) run(ctx context.Context, io streams) error {
	listen, to, err := f.check(ctx)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return listenError(f.listen, err)
	}
	var mu sync.Mutex // guards the output
	p := faultproxy.New(ln, to, faultproxy.Options{
		Seed: f.seed, CutAfter: int64(f.cutAfter), Cuts: f.cuts, Reset: f.reset, HalfClose: f.halfClose,
		CorruptEvery: int64(f.corruptEvery), Delay: f.delay, Rate: int64(f.rate),
		OnEvent: func(e faultproxy.Event) {
			mu.Lock()
			defer mu.Unlock()
			f.say(io, e)
		},
	})
	first := listening{"listening", "tcp://" + p.Addr().String()}
	if !f.asJSON {
		io.printf("listening on %s\n", first.Listen)
	} else if err := io.json(first); err != nil {
		return errors.Join(err, p.Close())
	}
	stop := context.AfterFunc(ctx, func() { p.Close() }) //nolint:errcheck // closed again below
	defer stop()
	err = p.Serve()
	err = errors.Join(err, p.Close())
	f.total(io, p.Stats())
	if err != nil {
		return failed(err)
	}
	return nil // interrupted, which is how it ends
}

// say prints an event.
func (f *faultFlags) say(io streams, e faultproxy.Event) {
	if f.asJSON {
		j := faultEvent{Event: string(e.Kind), Conn: e.Conn, Remote: e.Remote, Offset: e.Offset, FromDialler: e.FromDialler}
		if e.Err != nil {
			j.Why = e.Err.Error()
		}
		io.json(j) //nolint:errcheck // nobody is left to tell
		return
	}
	way := "to the target"
	if !e.FromDialler {
		way = "from the target"
	}
	switch e.Kind {
	case faultproxy.Cut, faultproxy.HalfCut, faultproxy.Corrupted:
		io.printf("%s at byte %d, connection %d (%s), on its way %s\n", e.Kind, e.Offset, e.Conn, e.Remote, way)
	case faultproxy.Refused:
		io.printf("%s %s: %v\n", e.Kind, e.Remote, e.Err)
	default:
		io.printf("%s connection %d (%s)\n", e.Kind, e.Conn, e.Remote)
	}
}

// total prints what was forwarded in all.
func (f *faultFlags) total(io streams, s faultproxy.Stats) {
	if f.asJSON {
		io.json(faultTotal{"total", s.Conns, s.RefusedConns, s.FromDialler, s.FromTarget, s.Cuts, s.Corruptions}) //nolint:errcheck // nobody is left to tell
		return
	}
	io.printf("forwarded %d connections (%d refused): %d bytes to the target, %d back, %d cuts, %d bits flipped\n",
		s.Conns, s.RefusedConns, s.FromDialler, s.FromTarget, s.Cuts, s.Corruptions)
}
