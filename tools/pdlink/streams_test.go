package main

import (
	"bytes"
	"errors"
	"testing"
	"text/tabwriter"

	"github.com/fatih/color"
)

func TestNothingFromOutsideReachesATerminalRaw(t *testing.T) {
	const bad = "a\x1b[2J\x07\nforged: complete\x00\xff\u202e"
	var out, errOut bytes.Buffer
	std := newStreams(&out, &errOut)
	std.printf("%s %v %s %d\n", bad, errors.New(bad), std.paint(bad, color.FgRed), 7)
	std.notef("%s\n", bad)
	std.complain(errors.New(bad))
	tw := tabwriter.NewWriter(std.out, 0, 0, 1, ' ', 0)
	printTo(tw, "%s\t%s\n", bad, bad)
	if err := tw.Flush(); err != nil {
		t.Fatal(err)
	}
	all := append(out.Bytes(), errOut.Bytes()...)
	for _, c := range []string{"\x1b", "\x07", "\x00", "\xff", "\u202e"} {
		if bytes.Contains(all, []byte(c)) {
			t.Errorf("%q was printed", c)
		}
	}
	if got := bytes.Count(all, []byte("\n")); got != 5 {
		t.Errorf("%d lines, want 5: one for each text, and the lines of an error\n%s", got, all)
	}
	if !bytes.Contains(all, []byte("a?[2J? forged: complete")) {
		t.Errorf("what is printable is gone: %s", all)
	}
}
