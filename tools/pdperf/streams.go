package main

import (
	"encoding/json"
	"fmt"
	"io"

	"pdlink/tools/cmdline"
	"pdlink/transport/wire"
)

// streams is where a command talks to. Results go to out, everything else to
// err.
type streams struct {
	in       io.Reader
	out, err io.Writer

	warned map[string]bool // what was said; nil: it may be said again
}

// complain reports the error that ends a command.
func (s streams) complain(err error) {
	fmt.Fprintf(s.err, "pdperf: %s\n", cmdline.Plain(err))
}

// printf writes to out. A reader that went away ends the process by SIGPIPE.
func (s streams) printf(format string, args ...any) {
	fmt.Fprintf(s.out, format, args...)
}

// notef writes to err.
func (s streams) notef(format string, args ...any) {
	fmt.Fprintf(s.err, format, args...)
}

// warn reports what does not end the command.
func (s streams) warn(list []string) {
	for _, text := range list {
		if s.warned[text] {
			continue
		}
		if s.warned != nil {
			s.warned[text] = true
		}
		s.notef("pdperf: warning: %s\n", text)
	}
}

// note reports what is of use to know, in a line that may be the same as an earlier one.
func (s streams) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if s.warned[text] {
		return
	}
	if s.warned != nil {
		s.warned[text] = true
	}
	s.notef("%s", text)
}

// warnOnce makes warn and note say the same only once, for commands that open links again and
// again, from one goroutine.
func (s streams) warnOnce() streams {
	s.warned = map[string]bool{}
	return s
}

// json writes v as one line.
func (s streams) json(v any) error {
	return json.NewEncoder(s.out).Encode(v)
}

// printable makes what a peer said fit for a terminal.
func printable(s string) string { return wire.Printable(s, 256) }
