package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
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
}

func newDecode(std streams) *cobra.Command {
	var f decodeFlags
	c := &cobra.Command{
		Use:   "decode --store DIR",
		Short: "receive blocks into a decoder's store",
		Long: `decode listens for senders and puts the blocks of their transfers into a store.
A block appears under its name only when it is whole, checked and durable, and
only after the block before it. It runs until it is interrupted; what is visible
then stays, temporary files are removed.

One line is printed for each transfer: its verdict. "complete" says that every
block is visible, "partial B/T" that the first B of T are.`,
		Example: `  pdlink decode --listen tcp://127.0.0.1:7411 --store ~/.omlx/cache
  pdlink replay CASE --to tcp://127.0.0.1:7411`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), std) },
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "tcp://127.0.0.1:7411", "link and address to listen on; port 0 picks one")
	fl.StringVar(&f.store, "store", "", "root of the decoder's block store")
	fl.BoolVar(&f.discard, "discard", false, "keep nothing: for measuring a link")
	fl.BoolVar(&f.noSync, "no-sync", false, "do not wait for the disk: a power cut may then leave wrong blocks")
	fl.DurationVar(&f.partWait, "part-wait", bridge.DefaultPartWait, "how long an incomplete transfer waits for senders that are missing")
	fl.IntVar(&f.ringMiB, "ring", 64, "MiB of memory for frames that arrive")
	fl.BoolVar(&f.once, "once", false, "end after the first transfer, with status 0 if it was complete")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON, one a line")
	c.MarkFlagsMutuallyExclusive("store", "discard")
	c.MarkFlagsOneRequired("store", "discard")
	must(c.MarkFlagDirname("store"))
	return c
}

// listening is the event that decode prints first.
type listening struct {
	Event  string `json:"event"`
	Listen string `json:"listen"`
}

// ended is the event that decode prints last.
type ended struct {
	Event   string `json:"event"`
	PeakRSS uint64 `json:"peak_rss_bytes"`
	Ring    uint64 `json:"ring_bytes"`
}

// verdictEvent is the event of a transfer.
type verdictEvent struct {
	Event string `json:"event"`
	bridge.Verdict
}

func (f *decodeFlags) run(ctx context.Context, std streams) error {
	open, err := f.opener()
	if err != nil {
		return err
	}
	ring, err := newRing(f.ringMiB)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(std.err, nil))
	o := linkOptions{reject: func(remote string, err error) { log.Warn("peer dropped", "remote", remote, "why", err) }}
	o.session.RecvRing = ring
	link, addr, err := openLink(f.listen, o)
	if err != nil {
		return err
	}
	verdicts := make(chan bridge.Verdict, 16)
	r, err := startReceiving(ctx, link, addr, bridge.Options{
		Open: open, PartWait: f.partWait,
		OnVerdict: func(v bridge.Verdict) { verdicts <- v },
	})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", f.listen, err)
	}
	f.say(std, listening{"listening", scheme(f.listen) + "://" + r.listener.Addr()})
	return f.loop(ctx, std, r, verdicts, ring)
}

// loop prints verdicts until the command is to end.
func (f *decodeFlags) loop(ctx context.Context, std streams, r *receiving, verdicts <-chan bridge.Verdict, ring *transport.Ring) error {
	var last bridge.Verdict
	stopped := make(chan error, 1)
	go func() { stopped <- r.wait() }()
	for run := true; run; {
		select {
		case last = <-verdicts:
			f.say(std, verdictEvent{"transfer", last})
			run = !f.once
		case <-ctx.Done():
			run = false
		case err := <-stopped:
			return fmt.Errorf("stopped listening: %w", err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- r.stop() }()
	for {
		select {
		case v := <-verdicts:
			f.say(std, verdictEvent{"transfer", v})
			continue
		case err := <-done:
			if err != nil && !errors.Is(err, transport.ErrClosed) {
				return err
			}
		}
		break
	}
	f.say(std, ended{"ended", peakRSS(), uint64(len(ring.Memory()))})
	if f.once && last.State != bridge.Complete {
		return &statusError{code: exitFailed}
	}
	return nil
}

// opener returns where transfers go.
func (f *decodeFlags) opener() (bridge.Opener, error) {
	if f.discard {
		return openDiscard, nil
	}
	store, err := omlx.Open(f.store, omlx.StoreOptions{NoSync: f.noSync})
	if err != nil {
		return nil, err
	}
	return openStore(store), nil
}

// say prints an event.
func (f *decodeFlags) say(std streams, event any) {
	if f.asJSON {
		std.json(event) //nolint:errcheck // a reader that went away ends the process by SIGPIPE
		return
	}
	switch e := event.(type) {
	case listening:
		std.printf("listening on %s\n", e.Listen)
	case verdictEvent:
		rate := ""
		if e.Seconds > 0 {
			rate = fmt.Sprintf(", %.2f GB/s", float64(e.Bytes)/e.Seconds/1e9)
		}
		std.printf("transfer %s: %s, %d of %d blocks visible (%d before), %s in %.3f s%s, over %s\n",
			e.Transfer, std.verdict(e.String(), e.State == bridge.Complete), e.Blocks, e.Total, e.Present,
			bytesText(e.Bytes), e.Seconds, rate, linkText(e.Links))
	case ended:
		std.printf("ended: peak RSS %s, of which the ring %s\n", bytesText(e.PeakRSS), bytesText(e.Ring))
	}
}

// linkText names the links that carried a transfer.
func linkText(links []bridge.LinkUse) string {
	text := ""
	for _, l := range links {
		if text != "" {
			text += " + "
		}
		text += l.Link
		if !l.Sealed {
			text += " (in clear)"
		}
	}
	return text
}

// newRing makes a ring of about that many MiB.
func newRing(mib int) (*transport.Ring, error) {
	slots := mib << 20 / transport.DefaultSlot
	if slots < 2 {
		return nil, fmt.Errorf("ring of %d MiB: want at least %d", mib, 2*transport.DefaultSlot>>20+1)
	}
	ring, err := transport.NewRing(slots, 0)
	if err == nil {
		ring.Touch()
	}
	return ring, err
}

func scheme(url string) string {
	for i := range url {
		if url[i] == ':' {
			return url[:i]
		}
	}
	return url
}

// must stops a program whose own command tree is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
