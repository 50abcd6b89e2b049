package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fatih/color"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// streams is where a command talks to. Results go to out, everything else to
// err.
type streams struct{ out, err io.Writer }

// complain reports the error that ends a command.
func (s streams) complain(err error) {
	fmt.Fprintf(s.err, "pdlink: %v\n", err)
}

// printf writes to out. A reader that went away ends the process by SIGPIPE.
func (s streams) printf(format string, args ...any) {
	fmt.Fprintf(s.out, format, args...)
}

// notef writes to err.
func (s streams) notef(format string, args ...any) {
	fmt.Fprintf(s.err, format, args...)
}

// json writes v as one line.
func (s streams) json(v any) error {
	return json.NewEncoder(s.out).Encode(v)
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// paint colours text where out is a terminal and colours are not turned off.
func (s streams) paint(text string, attr color.Attribute) string {
	if !terminal(s.out) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	c := color.New(attr)
	c.EnableColor()
	return c.Sprint(text)
}

// verdict colours a verdict's text by its first word.
func (s streams) verdict(text string, good bool) string {
	if good {
		return s.paint(text, color.FgGreen)
	}
	return s.paint(text, color.FgRed)
}

// progress returns a function that shows how far a long job is, on a terminal,
// and one that clears the line. Elsewhere both do nothing.
func (s streams) progress(what string) (step func(done, total int64), end func()) {
	if !terminal(s.err) {
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
	return step, func() { bar.Clear() } //nolint:errcheck // the same
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
