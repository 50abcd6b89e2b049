package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport/mem"
)

// localFlags are the flags of `pdperf local`.
type localFlags struct {
	send runFlags
	recv receiveOptions
	link string
	keys bool
}

func newLocal(io streams) *cobra.Command {
	var f localFlags
	c := &cobra.Command{
		Use:   "local",
		Short: "measure a link with both ends on this host",
		Long: `local starts a receiving end as a process of its own and measures against it,
as serve and run do on two hosts. The in-process link mem:// has both ends in one
process, so the CPU time of the two is one figure.

With --keys both ends have keys, as on two hosts: made for this run in a directory
that only this user can read, and removed at its end.

` + statusText,
		Example: `  pdperf local
  pdperf local --keys
  pdperf local --link mem:// --size 1MiB --time 2s`,
		Args: cmdline.Wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			f.recv.frame, f.recv.lanes, f.recv.sum = f.send.frame, f.send.lanes, f.send.sum
			if err := errors.Join(f.send.check(), f.recv.check(), f.checkKeys(c.Flags().Changed)); err != nil {
				return err
			}
			r, err := f.measure(c.Context(), io)
			if err != nil {
				return err
			}
			return r.print(io, f.send.asJSON)
		},
	}
	f.send.register(c)
	f.recv.register(c, true)
	c.Flags().StringVar(&f.link, "link", "tcp://127.0.0.1:0", "link to measure: mem://, tcp://127.0.0.1:0 or unix://path")
	c.Flags().BoolVar(&f.keys, "keys", false, "authenticate both ends and seal the data, with keys made for this run")
	f.send.keys.RegisterEncrypt(c)
	c.Flags().BoolVar(&f.send.asJSON, "json", false, "print the result as one line of JSON; see pdperf schema")
	return c
}

func (f *localFlags) measure(ctx context.Context, io streams) (*result, error) {
	if strings.HasPrefix(f.link, "mem://") {
		return f.within(ctx)
	}
	if _, _, err := openLink(f.link, linkOptions{listens: true}); err != nil {
		return nil, err
	}
	o := &f.recv
	args := []string{
		"serve", "--listen", f.link, "--once",
		"--ring", strconv.Itoa(o.slots), "--window", strconv.Itoa(o.window), "--hold", strconv.Itoa(o.hold),
		"--frame", strconv.FormatInt(int64(o.frame), 10), "--lanes", strconv.Itoa(o.lanes), "--sum", o.sum,
	}
	if f.keys {
		ours, theirs, remove, err := linkkeys.Temporary()
		if err != nil {
			return nil, failed(err)
		}
		defer remove()
		f.send.keys.Dir = ours
		args = append(args, "--keys", theirs, "--encrypt", f.send.keys.Encrypt)
	}
	child, err := startChild(ctx, io, args...)
	if err != nil {
		return nil, failed(err)
	}
	f.send.to = f.dials(child.url)
	r, err := f.send.run(ctx, io, func(flag string) bool { return flag == "keys" && f.keys })
	if childErr := child.end(); err == nil && childErr != nil {
		err = failed(childErr)
	}
	return r, err
}

// dials is the URL at which this end dials the other one, which printed url: over the
// same device of this host.
func (f *localFlags) dials(url string) string {
	scheme, _, at, err := splitURL(f.link)
	if err != nil || at.Device == "" {
		return url
	}
	_, addr, _ := strings.Cut(url, "://")
	return scheme + "://" + rdma.Addr{Host: addr, Device: at.Device}.String()
}

// checkKeys refuses flags that would have no effect.
func (f *localFlags) checkKeys(given func(string) bool) error {
	switch {
	case f.keys && strings.HasPrefix(f.link, "mem://"):
		return errors.New("--keys is for links between processes, mem:// is within one")
	case given("encrypt") && !f.keys:
		return errors.New("--encrypt is for --keys: without keys nothing is sealed")
	}
	return f.send.keys.Check()
}

// within measures with both ends in this process.
func (f *localFlags) within(ctx context.Context) (*result, error) {
	send, err := newRing(f.send.slots(), f.send.frame)
	if err != nil {
		return nil, err
	}
	recv, err := f.recv.recvRing()
	if err != nil {
		return nil, err
	}
	recv.Touch()
	idle, err := idleRing(f.send.frame)
	if err != nil {
		return nil, err
	}
	far := mem.New(mem.Options{Session: f.recv.session(recv, idle)})
	near := far.With(mem.Options{Session: f.send.session(send, idle)})
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
		newReceivingEnd(f.recv).serve(ctx, conn, func(served) {})
		conn.Close() //nolint:errcheck // the sender has what counts
	}()
	conn, err := near.Dial(ctx, ln.Addr())
	if err != nil {
		return nil, failed(err)
	}
	r, err := measureAndClose(ctx, conn, &sendingEnd{o: f.send.sendOptions, conn: conn, source: newSource(send), processes: 1})
	<-done
	return r, err
}
