package main

import (
	"context"
	"errors"
	"fmt"
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
	sendOptions
	to     string
	asJSON bool
	keys   linkkeys.Flags
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
the last acknowledgement, after the warm-up, so it cannot exceed what the link
carries. A block's time is from handing its first byte to the link, where it may
wait behind the blocks before it, to its acknowledgement. CPU is user and system
time of the whole process, by getrusage, in the same window.

` + statusText,
		Example: `  pdperf run --to tcp://127.0.0.1:7412 --size 20MiB --time 10s
  pdperf run --to tcp://127.0.0.1:7412 --json | jq .goodput_gb_per_s
  pdperf run --to tcp://10.0.0.5:7412 --encrypt off`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.to == "" {
				return errors.New("--to URL is missing: name the address at which `pdperf serve` listens")
			}
			if err := errors.Join(f.check(), f.keys.Check()); err != nil {
				return err
			}
			r, err := f.run(c.Context(), io, c.Flags().Changed)
			if err != nil {
				return err
			}
			return r.print(io, f.asJSON)
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.to, "to", "", "the receiving end, `URL` (tcp://host:port)")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print the result as one line of JSON; see pdperf schema")
	f.keys.Register(c, true)
	return c
}

// run measures against a receiving end elsewhere. given reports whether a flag is
// on the command line.
func (f *runFlags) run(ctx context.Context, io streams, given func(string) bool) (*result, error) {
	if strings.HasPrefix(f.to, "mem://") {
		return nil, errors.New("mem:// is a link within one process: use pdperf local --link mem://")
	}
	ring, err := newRing(f.slots(), f.frame)
	if err != nil {
		return nil, err
	}
	idle, err := idleRing(f.frame)
	if err != nil {
		return nil, err
	}
	o := linkOptions{session: f.session(ring, idle), note: io.notef, ports: new(rdma.Ports)}
	if o.keys, err = openKeys(ctx, io, &f.keys, f.to, given); err != nil {
		return nil, err
	}
	defer o.keys.Close() //nolint:errcheck // it cannot fail
	io.warn(o.keys.Warnings(false))
	link, addr, err := openLink(f.to, o)
	if err != nil {
		return nil, err
	}
	src := newSource(ring)
	conn, err := link.Dial(ctx, addr)
	if err != nil {
		return nil, dialError(f.to, o.keys.Explain(err))
	}
	return measureAndClose(ctx, conn, &sendingEnd{o: f.sendOptions, conn: conn, source: src, processes: 2, ports: o.ports})
}

// dialError is the error of a connection that was not made: an address that
// cannot be used is a matter of the command line.
func dialError(to string, err error) error {
	err = fmt.Errorf("connect to %s: %w", to, err)
	if errors.Is(err, transport.ErrInsecure) && !linkkeys.Refused(err) || errors.Is(err, transport.ErrUnavailable) {
		return err
	}
	hint := ""
	switch {
	case linkkeys.Refused(err):
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
	r, err := e.measure(ctx)
	if err := errors.Join(err, conn.Close()); err != nil {
		return nil, failed(err)
	}
	return r, nil
}
