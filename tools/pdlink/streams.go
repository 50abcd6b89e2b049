package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fatih/color"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"pdlink/tools/cmdline"
	"pdlink/transport/wire"
)

// streams is where a command talks to. Results go to out, everything else to
// err. Both may be used concurrently.
type streams struct{ out, err *sink }

func newStreams(out, err io.Writer) streams { return streams{out: &sink{w: out}, err: &sink{w: err}} }

// sink is a writer for several goroutines that remembers its first failure and
// tries nothing more after it.
type sink struct {
	w       io.Writer
	writing sync.Mutex // held while w is written to, which may take for ever

	mu  sync.Mutex // guards err
	err error
}

// Write implements io.Writer. After a failure it fails in the same way.
func (s *sink) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.failure(); err != nil {
		return 0, err
	}
	n, err := s.w.Write(p)
	s.fail(err)
	return n, err
}

// fail notes why something could not be written; nil is no failure.
func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// failure is why something could not be written; nil if everything was.
func (s *sink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// terminal reports whether the sink is a terminal that can do more than print.
func (s *sink) terminal() bool {
	f, ok := s.w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// complain reports the error that ends a command. Its lines stay lines.
func (s streams) complain(err error) {
	for i, line := range strings.Split(cmdline.Plain(err), "\n") {
		if i == 0 {
			line = "pdlink: " + line
		}
		s.notef("%s\n", strings.Replace(line, "\t", "  ", 1))
	}
}

// warnf reports something that does not end it.
func (s streams) warnf(format string, args ...any) { s.notef("pdlink: warning: "+format+"\n", args...) }

// printf writes to out. What cannot be written ends in the exit status. Texts
// among args are made fit for a terminal: they may come from a file or a peer.
func (s streams) printf(format string, args ...any) {
	printTo(s.out, format, args...)
}

// notef writes to err.
func (s streams) notef(format string, args ...any) {
	printTo(s.err, format, args...)
}

// painted is text that is fit for a terminal as it is.
type painted string

// printTo is printf for a writer in front of out, a table for example.
func printTo(w io.Writer, format string, args ...any) {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = wire.Printable(a, len(a))
		case painted:
			args[i] = string(a)
		case error:
			text := cmdline.Plain(a)
			args[i] = wire.Printable(text, len(text))
		case fmt.Stringer:
			args[i] = wire.Printable(a.String(), len(a.String()))
		}
	}
	fmt.Fprintf(w, format, args...)
}

// json writes v as one line.
func (s streams) json(v any) error {
	return json.NewEncoder(s.out).Encode(v)
}

// whenStopped writes text to err when the command is interrupted. The function
// that it returns ends that, and waits for a text that is being written.
func (s streams) whenStopped(ctx context.Context, text string) (release func()) {
	written := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(written)
		s.notef("%s\n", text)
	})
	return func() {
		if !stop() {
			<-written
		}
	}
}

// paint colours text where out is a terminal and colours are not turned off.
func (s streams) paint(text string, attr color.Attribute) painted {
	text = wire.Printable(text, len(text))
	if !s.out.terminal() || os.Getenv("NO_COLOR") != "" {
		return painted(text)
	}
	c := color.New(attr)
	c.EnableColor()
	return painted(c.Sprint(text))
}

// verdict colours a verdict's text.
func (s streams) verdict(text string, good bool) painted {
	text = cmdline.PlainText(text)
	if good {
		return s.paint(text, color.FgGreen)
	}
	return s.paint(text, color.FgRed)
}

// progress returns a function that shows how far a long job is, on a terminal,
// and one that clears the line and makes it ready for the next job. Elsewhere
// both do nothing. They may be called concurrently.
func (s streams) progress(what string) (step func(done, total int64), end func()) {
	if !s.err.terminal() {
		return func(int64, int64) {}, func() {}
	}
	bar := progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(s.err), progressbar.OptionSetDescription(what),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond))
	step = func(done, total int64) {
		bar.ChangeMax64(total)
		bar.Set64(done) //nolint:errcheck // a bar that cannot be drawn is not worth a word
	}
	return step, func() {
		bar.Clear() //nolint:errcheck // the same
		bar.Reset() // for the next job
	}
}

// bytesText is a byte count for people.
func bytesText(n uint64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n), 0
	for v >= unit && i < 4 {
		v /= unit
		i++
	}
	return fmt.Sprintf("%.1f %cB", v, " kMGT"[i])
}

// count is "1 block", "2 blocks".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// listText is "a, b, c", or "none".
func listText[T any](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, ", ")
}
