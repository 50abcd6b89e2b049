package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
)

// group refuses arguments of a command that only holds others.
func group(c *cobra.Command, args []string) error { return cmdline.Group(c, args) }

// wants checks a command's arguments: names say what each is, the first least of them
// must be there.
func wants(least int, names ...string) cobra.PositionalArgs { return cmdline.Wants(least, names...) }

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
		return errors.New(strings.Join(there, " and ") + " exclude each other: " + want)
	}
	return missingError(want)
}

// missingError is the error of a flag that must be there and is nowhere; it says which.
type missingError string

// Error implements error.
func (e missingError) Error() string { return string(e) }

// Is implements errors.Is: it is errMissing.
func (missingError) Is(target error) bool { return target == errMissing }

// errMissing is every missingError.
var errMissing = errors.New("a flag is missing")

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
