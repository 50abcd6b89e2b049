package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commands calls f with every command.
func commands(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		commands(sub, f)
	}
}

// TestHelpSaysTheExitStatus: of every command.
func TestHelpSaysTheExitStatus(t *testing.T) {
	n := 0
	commands(newRoot(newStreams(io.Discard, io.Discard)), func(c *cobra.Command) {
		if n++; !strings.Contains(c.Long, "Exit status: 0 ") {
			t.Errorf("the help of %s does not say what its exit status means", c.CommandPath())
		}
	})
	if n < 15 {
		t.Errorf("%d commands", n)
	}
}

// TestHelpAndCompletionThatDoNotExist are mistakes in a command line, as elsewhere.
func TestHelpAndCompletionThatDoNotExist(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		say    string
	}{
		{[]string{"help"}, exitOK, "pdlink demo"},
		{[]string{"help", "store"}, exitOK, "pdlink store [command]"},
		{[]string{"help", "store", "ls"}, exitOK, "ls lists the block files"},
		{[]string{"help", "nope"}, exitUsage, `unknown command "nope" of pdlink (see pdlink --help)`},
		{[]string{"help", "relpay"}, exitUsage, "did you mean replay?"},
		{[]string{"help", "store", "nope"}, exitUsage, `unknown command "nope" of pdlink store`},
		{[]string{"completion"}, exitOK, "pdlink completion [command]"},
		{[]string{"completion", "tcsh"}, exitUsage, `unknown command "tcsh" of pdlink completion`},
		{[]string{"completion", "zhs"}, exitUsage, "did you mean zsh?"},
		{[]string{"completion", "zsh"}, exitOK, "compdef"},
		{[]string{"__complete", "help", ""}, exitOK, "store\tlook into"},
		{[]string{"__complete", "help", "store", ""}, exitOK, "verify\t"},
	} {
		status, out, errOut := cli(t, c.args...)
		if status != c.status || !strings.Contains(out+errOut, c.say) || (out == "") != (c.status != exitOK) {
			t.Errorf("%q: status %d: %s%s", c.args, status, out, errOut)
		}
	}
}

// TestDoctorHelpIsItsOwn: it has the flags of what it looks at, but for those that only
// mean something where that runs.
func TestDoctorHelpIsItsOwn(t *testing.T) {
	for _, command := range []string{"decode", "prefill"} {
		_, out, _ := cli(t, "doctor", command, "--help")
		if !strings.Contains(out, "help for doctor "+command+"\n") || strings.Contains(out, "--once") || !strings.Contains(out, "--json") {
			t.Errorf("%s", out)
		}
	}
}
