package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// typoDistance is how many letters may be wrong in a name that is still
// recognized: "relpay" has two.
const typoDistance = 2

// group refuses arguments of a command that only holds others.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = typoDistance
	return fmt.Errorf("unknown command %.20q of %s%s%s", args[0], c.CommandPath(), meant(c.SuggestionsFor(args[0])), seeHelp(c))
}

// wants checks a command's arguments: names say what each is, the first least of
// them must be there.
func wants(least int, names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: %s is missing%s", c.CommandPath(), names[len(args)], seeHelp(c))
		case len(args) > len(names) && len(names) == 0:
			return fmt.Errorf("%s takes no arguments, but there is %.20q%s", c.CommandPath(), args[0], seeHelp(c))
		case len(args) > len(names):
			return fmt.Errorf("%s takes %s, but there is also %.20q%s", c.CommandPath(), strings.Join(names, " "), args[len(names)], seeHelp(c))
		}
		return nil
	}
}

// flagError says which flag was probably meant.
func flagError(c *cobra.Command, err error) error {
	var unknown interface {
		error
		GetSpecifiedName() string
		GetSpecifiedShortnames() string
	}
	hint := ""
	if errors.As(err, &unknown) {
		name := unknown.GetSpecifiedShortnames() // "-json" is read as -j -s -o -n
		if name == "" {
			name = unknown.GetSpecifiedName()
		}
		hint = meant(similarFlags(c, name))
	}
	return fmt.Errorf("%s: %w%s%s", c.CommandPath(), err, hint, seeHelp(c))
}

// similarFlags are the flags of c whose names look like name. The rule is that
// of command names.
func similarFlags(c *cobra.Command, name string) []string {
	probe := &cobra.Command{SuggestionsMinimumDistance: typoDistance}
	flags := regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z-]+)`)
	for _, m := range flags.FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
		probe.AddCommand(&cobra.Command{Use: m[1], Run: func(*cobra.Command, []string) {}})
	}
	found := probe.SuggestionsFor(name)
	for i := range found {
		found[i] = "--" + found[i]
	}
	return found
}

// meant is a hint at names that were probably meant.
func meant(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(names, " or ") + "?"
}

// seeHelp names the help of a command.
func seeHelp(c *cobra.Command) string { return " (see " + c.CommandPath() + " --help)" }

// given tells flags that are on the command line from those that are not.
type given func(flag string) bool

// flagsOf returns the flags that a command line of c gave.
func flagsOf(c *cobra.Command) given { return c.Flags().Changed }

// oneOf demands exactly one of some flags. what says how each is written.
func (g given) oneOf(flags, what []string) error {
	var there []string
	for _, name := range flags {
		if g(name) {
			there = append(there, "--"+name)
		}
	}
	if len(there) == 1 {
		return nil
	}
	want := "give one of " + strings.Join(what, ", ")
	if len(there) > 1 {
		want = strings.Join(there, " and ") + " exclude each other: " + want
	}
	return errors.New(want)
}

// filled refuses flags that are there without a value: an unset variable of a
// script, most often.
func (g given) filled(values map[string]string) error {
	for name, value := range values {
		if g(name) && strings.TrimSpace(value) == "" {
			return fmt.Errorf("--%s is empty: give it a value or leave it out", name)
		}
	}
	return nil
}

// unused refuses flags that would have no effect. why completes "--flag …".
func (g given) unused(why string, flags ...string) error {
	for _, name := range flags {
		if g(name) {
			return fmt.Errorf("--%s %s", name, why)
		}
	}
	return nil
}

// must stops a program whose own command tree is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
