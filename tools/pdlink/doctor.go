package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/fatih/color"
	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
)

const doctorLong = `doctor looks for what keeps a host from doing its part, and says what to do about
it. It takes the same flags, variables and config file as the command that it looks
at, and can be run beside that command.

It mends nothing, but it does more than read: it listens for a moment where the command
would, and connects to the other host. decode writes two files into the store and
removes them, and --load has the decoder load a model, which stays loaded. prefill takes
the place at the engine's socket for up to 3 seconds, unless a pdlink prefill has it,
and leaves the empty SOCKET.lock beside it. rdma registers memory for a moment.

  on the decoder's host   pdlink doctor decode --decoder http://127.0.0.1:8000
  on a prefill host       pdlink doctor prefill --to tcp://10.0.0.5:7411
  where rdma:// is used   pdlink doctor rdma 10.0.0.5

One line is printed for each thing that was looked at: "ok", "warn" (it works, and
perhaps not as it should), or "FAIL", with the cure behind it.

Exit status: 0 nothing failed; 1 something did; 2 the command line cannot be used.`

// level is how a finding is to be taken.
type level string

const (
	levelOK   level = "ok"
	levelWarn level = "warn"
	levelFail level = "fail"
)

// finding is one line of doctor.
type finding struct {
	Event string `json:"event"`
	Check string `json:"check"`
	Level level  `json:"level"`
	Text  string `json:"text"`
	Cure  string `json:"cure,omitempty"`
}

// good, doubt and bad make findings of a check.
func good(format string, args ...any) finding {
	return finding{Level: levelOK, Text: fmt.Sprintf(format, args...)}
}

func doubt(text, cure string) finding { return finding{Level: levelWarn, Text: text, Cure: cure} }

func bad(text, cure string) finding { return finding{Level: levelFail, Text: text, Cure: cure} }

// check is one thing that a doctor D looks at. To add one, add it to a command's list.
type check[D any] struct {
	name  string
	limit time.Duration // that it may take; 0 is checkLimit

	// run looks. No findings: there is nothing to look at. It runs after the checks
	// before it, may rely on what they found, and should heed the context. The doctor is a
	// copy that is run's own: its fields may be set, and what they point to is not changed,
	// since a check that is left behind runs beside others.
	run func(d *D, ctx context.Context) []finding
}

// checkLimit is how long a check may take that has no limit of its own.
const checkLimit = 10 * time.Second

// examination prints what checks find, and counts it.
type examination struct {
	std    streams
	asJSON bool
	counts map[level]int
}

// doctorSummary is the last event of doctor.
type doctorSummary struct {
	Event string `json:"event"`
	OK    int    `json:"ok"`
	Warn  int    `json:"warn"`
	Fail  int    `json:"fail"`
}

// examine runs a doctor's checks, each within its limit, and returns failed if one did.
// d has then what those checks learned that came to an end in time, and nothing else
// writes to it.
func examine[D any](ctx context.Context, std streams, asJSON bool, d *D, checks []check[D]) error {
	x := &examination{std, asJSON, make(map[level]int)}
	for _, c := range checks {
		found := within(ctx, d, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, f := range found {
			f.Event, f.Check = "check", c.name
			x.say(f)
		}
	}
	sum := doctorSummary{"summary", x.counts[levelOK], x.counts[levelWarn], x.counts[levelFail]}
	if asJSON {
		if err := std.json(sum); err != nil {
			return err
		}
	} else {
		std.printf("%d ok, %s, %d failed\n", sum.OK, count(sum.Warn, "warning"), sum.Fail)
	}
	if sum.Fail > 0 {
		return failed(nil)
	}
	return nil
}

// within runs one check. One that does not heed its context is left behind: what it
// would have found is not missed, but said to be unknown, and what it still learns stays
// in its copy of d.
func within[D any](ctx context.Context, d *D, c check[D]) []finding {
	limit := c.limit
	if limit == 0 {
		limit = checkLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type result struct {
		found []finding
		after D
	}
	done, own := make(chan result, 1), *d
	go func() {
		found := c.run(&own, ctx)
		done <- result{found, own}
	}()
	grace := time.NewTimer(limit + time.Second)
	defer grace.Stop()
	select {
	case r := <-done:
		*d = r.after
		return r.found
	case <-grace.C:
		return []finding{bad(fmt.Sprintf("not done after %v", limit), "look whether the disk or the network that it waits for answers")}
	}
}

func (x *examination) say(f finding) {
	x.counts[f.Level]++
	if x.asJSON {
		x.std.json(f) //nolint:errcheck // the exit status says that output is lost
		return
	}
	word, paint := "ok  ", color.FgGreen
	switch f.Level {
	case levelWarn:
		word, paint = "warn", color.FgYellow
	case levelFail:
		word, paint = "FAIL", color.FgRed
	}
	cure := ""
	if f.Cure != "" {
		cure = ". Cure: " + f.Cure
	}
	x.std.printf("%s  %-9s  %s%s\n", x.std.paint(word, paint), f.Check, f.Text, cure)
}

// patients are the commands that doctor looks at, with what their flags are for: they
// lend it their flags.
type patients struct {
	config   *configFlags
	decode   *decodeFlags
	decodes  *cobra.Command // whose flags are in decode
	prefill  *prefillFlags
	prefills *cobra.Command // whose flags are in prefill
}

// newDoctor makes the command.
func newDoctor(std streams, p patients) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "say what keeps a host from doing its part, and what to do",
		Long:  doctorLong,
		Args:  group,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	decode, prefill := newDoctorDecode(std, p), newDoctorPrefill(std, p)
	p.config.tell(decode, prefill)
	c.AddCommand(decode, prefill, newDoctorRDMA(std))
	cmdline.WithoutSettings(c) // it asks for them itself, and says what is wrong with them
	return c
}

// borrow gives a command the flags of another one, and returns how their values are
// settled: from that one's variables and its table of the config file.
func borrow(c, from *cobra.Command, config *configFlags) (settle func() error) {
	cmdline.Lend(c, from, "once", "help") // of what runs
	c.Flags().BoolP("help", "h", false, "help for doctor "+c.Name())
	cmdline.As(c, from.Name()) // so no table or variable is of doctor itself
	return func() error {
		s, err := config.settings(flagsOf(c))
		if err == nil {
			err = s.Apply(from)
		}
		if _, gone := os.Stat(s.Path); !s.Required && errors.Is(gone, fs.ErrNotExist) {
			config.absent = s.Path
		}
		return err
	}
}
