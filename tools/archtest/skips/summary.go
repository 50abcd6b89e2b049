package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json`); build events carry ImportPath and Output only.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// summary is what a stream of events has said so far. Not safe for concurrent use.
type summary struct {
	out     io.Writer
	allowed map[string]string
	pending map[string]*strings.Builder // output of tests that have not ended, by package and test
	broken  map[string]bool             // packages with a failed test: their own failure is not counted again
	passed  int
	failed  int
	skipped []string
}

// summarize copies a test run's outcome from events to out. It reports whether every test passed and none was skipped that
// allowed, "package.Test" to reason, does not name. The error is one of reading or writing, never of a test. Lines that are
// not events are passed through as they are.
func summarize(events io.Reader, out io.Writer, allowed map[string]string) (bool, error) {
	w := bufio.NewWriter(out)
	s := &summary{out: w, allowed: allowed, pending: map[string]*strings.Builder{}, broken: map[string]bool{}}
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			s.line(line)
			if ferr := w.Flush(); ferr != nil {
				return false, fmt.Errorf("write summary: %w", ferr)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read test events: %w", err)
		}
	}
	good := s.close()
	if err := w.Flush(); err != nil {
		return false, fmt.Errorf("write summary: %w", err)
	}
	return good, nil
}

// line takes one input line; the buffered writer keeps its first error for Flush.
func (s *summary) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		_, _ = s.out.Write(line)
		return
	}
	key := e.Package + "." + e.Test
	switch e.Action {
	case "build-output":
		_, _ = io.WriteString(s.out, e.Output)
	case "output":
		s.output(key, e)
	case "pass":
		if e.Test != "" {
			s.passed++
		}
		delete(s.pending, key)
	case "skip":
		if e.Test != "" && s.allowed[key] == "" {
			s.skipped = append(s.skipped, key)
			s.show(key)
		}
		delete(s.pending, key)
	case "fail":
		s.fail(key, e)
	}
}

// output keeps a test's output until its fate is known and prints a package's own lines at once, without the bare PASS that
// go test leaves out too.
func (s *summary) output(key string, e event) {
	if e.Test == "" {
		if e.Output != "PASS\n" {
			_, _ = io.WriteString(s.out, e.Output)
		}
		return
	}
	b := s.pending[key]
	if b == nil {
		b = new(strings.Builder)
		s.pending[key] = b
	}
	b.WriteString(e.Output)
}

// fail counts a failed test, and a failed package only when none of its tests explains it (a build error, a panic, a
// timeout); then the output of whatever was still running is shown.
func (s *summary) fail(key string, e event) {
	if e.Test != "" {
		s.failed++
		s.broken[e.Package] = true
		s.show(key)
		return
	}
	if s.broken[e.Package] {
		return
	}
	s.failed++
	for open := range s.pending {
		if strings.HasPrefix(open, e.Package+".") {
			s.show(open)
		}
	}
}

// show prints and forgets a test's output.
func (s *summary) show(key string) {
	if b := s.pending[key]; b != nil {
		_, _ = io.WriteString(s.out, b.String())
		delete(s.pending, key)
	}
}

// close prints what stands in the way of success, if anything, and the counts.
func (s *summary) close() bool {
	for _, key := range s.skipped {
		fmt.Fprintf(s.out, "SKIP: %s was skipped and is not on the list of tests that may be\n", key)
	}
	if s.passed+s.failed == 0 {
		fmt.Fprintln(s.out, "no test ran")
		s.failed++
	}
	s.failed += len(s.skipped)
	fmt.Fprintf(s.out, "%d passed, %d failed\n", s.passed, s.failed)
	return s.failed == 0
}
