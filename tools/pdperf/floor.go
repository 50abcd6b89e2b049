package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
)

// floorFlags are the flags of `pdperf floor`.
type floorFlags struct {
	block, frame size
	time, warmup time.Duration
	inFlight     int
	buffers      int
	recvFrames   int
	lowat        size
	listen, to   string
	anyAddress   bool
	asJSON       bool
	asChild      bool

	model       string // that the blocks are like, for the result
	blockTokens int
}

func newFloor(io streams) *cobra.Command {
	f := floorFlags{block: defaultBlock, frame: defaultFrame}
	c := &cobra.Command{
		Use:   "floor",
		Short: "a bare sender and receiver over TCP, to compare with",
		Long: `floor moves the same blocks as run, from and to as many distinct buffers, over
one TCP socket with nothing around them: no frames, no checksums, no
credits. One byte comes back for each block. What a transport costs is what it
costs more than this.

Without --listen or --to both ends run here, as two processes. The peers are not
authenticated, so only loopback addresses are served and dialled unless
--any-address says otherwise; nothing but the measurement can be asked for.

` + statusText,
		Example: `  pdperf floor
  pdperf floor --listen tcp://127.0.0.1:7413
  pdperf floor --to tcp://127.0.0.1:7413 --size 20MiB`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), io) },
	}
	fl := c.Flags()
	fl.Var(&f.block, "size", "bytes of a block")
	fl.Var(&f.frame, "frame", "bytes of one write and of one read")
	fl.DurationVar(&f.time, "time", defaultTime, "how long to start new blocks")
	fl.DurationVar(&f.warmup, "warmup", defaultWarmup, "how long to send before measuring, 0 for not at all")
	fl.IntVar(&f.inFlight, "in-flight", defaultInFlight, "blocks on their way at a time")
	fl.IntVar(&f.buffers, "buffers", minBuffers, "blocks' worth of distinct memory to send from, used in turn")
	fl.IntVar(&f.recvFrames, "recv-frames", 16, "frames of distinct memory to receive into, used in turn: what run says that its receiver used; with --listen the most that the other end gets, where that is more than 64MiB")
	fl.Var(&f.lowat, "lowat", "bytes that wake the receiver (SO_RCVLOWAT); 0 leaves the socket as it is. Linux")
	fl.StringVar(&f.listen, "listen", "", "be the receiving end, for one run, at this address")
	fl.StringVar(&f.to, "to", "", "be the sending end, to this address")
	fl.BoolVar(&f.anyAddress, "any-address", false, "allow addresses that are not loopback")
	fl.BoolVar(&f.asJSON, "json", false, "print the result as one line of JSON; see pdperf schema")
	hideChildFlag(c, &f.asChild)
	return c
}

// check refuses what cannot be run.
func (f *floorFlags) check() error {
	switch {
	case f.listen != "" && f.to != "":
		return errors.New("--listen and --to exclude each other: be one end of the two")
	case f.block < 1 || f.block > maxBlock:
		return fmt.Errorf("--size %s: want 1 to %s", sizeText(int64(f.block)), sizeText(maxBlock))
	case f.inFlight < 1 || f.inFlight > maxInFlight:
		return fmt.Errorf("--in-flight %d: want 1 to %d", f.inFlight, maxInFlight)
	case f.time <= 0 || f.time > maxRun || f.warmup < 0 || f.warmup > maxRun:
		return fmt.Errorf("--time %v --warmup %v: want times up to %v", f.time, f.warmup, maxRun)
	case f.buffers < 1 || int64(f.buffers) > maxMemory/int64(f.block):
		return fmt.Errorf("--buffers %d of %s: want 1 to %s", f.buffers, sizeText(int64(f.block)), sizeText(maxMemory))
	}
	w := f.wish()
	return w.check(maxMemory)
}

func (f *floorFlags) wish() floorAsk {
	return floorAsk{
		Version: floorVersion, BlockBytes: int64(f.block), FrameBytes: int64(f.frame), RecvFrames: f.recvFrames, LowWater: int(f.lowat),
	}
}

func (f *floorFlags) run(ctx context.Context, io streams) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.asChild {
		var cancel context.CancelFunc
		ctx, cancel = withStdin(ctx, io.in)
		defer cancel()
	}
	switch {
	case f.listen != "":
		return f.serve(ctx, io)
	case f.to != "":
		return f.send(ctx, io)
	}
	late, _, cancel := graceful(ctx)
	defer cancel()
	child, err := startChild(late, io, "floor", "--listen", "tcp://127.0.0.1:0",
		"--recv-frames", strconv.Itoa(f.recvFrames), "--frame", strconv.FormatInt(int64(f.frame), 10))
	if err != nil {
		return failed(err)
	}
	f.to = child.url
	err = f.send(ctx, io)
	if childErr := child.end(); err == nil && childErr != nil {
		err = failed(childErr)
	}
	return err
}

// address is the host:port of a URL that may be used.
func (f *floorFlags) address(ctx context.Context, url string) (string, error) {
	addr, err := tcpAddress(url)
	if err != nil || f.anyAddress {
		return addr, err
	}
	return addr, checkLoopback(ctx, addr)
}

// serve is the receiving end of one run.
func (f *floorFlags) serve(ctx context.Context, io streams) error {
	addr, err := f.address(ctx, f.listen)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return listenError(f.listen, err)
	}
	defer ln.Close()
	stop := context.AfterFunc(ctx, func() { ln.Close() }) //nolint:errcheck // it interrupts what waits
	defer stop()
	l := listening{"listening", "tcp://" + ln.Addr().String()}
	if !f.asJSON {
		io.printf("listening on %s\n", l.Listen)
	} else if err := io.json(l); err != nil {
		return err
	}
	memory := max(floorMemory, int64(f.recvFrames)*int64(f.frame))
	if err := serveFloor(ctx, ln, floorHost{memory: memory, turns: new(turns)}); err != nil && ctx.Err() == nil {
		return failed(err)
	}
	return nil
}

// send is the sending end: it prints the result.
func (f *floorFlags) send(ctx context.Context, io streams) error {
	addr, err := f.address(ctx, f.to)
	if err != nil {
		return err
	}
	late, early, cancel := graceful(ctx)
	defer cancel()
	r, err := f.measure(late, addr, early)
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := r.print(io, f.asJSON); err != nil {
		return err
	}
	return ctx.Err()
}

// measure is the sending end of one run, to an address.
func (f *floorFlags) measure(ctx context.Context, addr string, early <-chan struct{}) (*result, error) {
	s := newFloorSender(f)
	s.early = early
	r, err := s.measure(ctx, addr)
	if err != nil {
		return nil, failed(errors.Join(err, context.Cause(ctx)))
	}
	return r, nil
}
