package cmdline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	// typoDistance is how many letters may be wrong in a name that is still
	// recognized: "relpay" has two.
	typoDistance = 2

	// quoted is how much of a surplus argument a message repeats, in bytes: it may be
	// a secret that was pasted in the wrong place.
	quoted = 20
)

// Group refuses arguments of a command that only holds others, and names the one that
// was probably meant.
func Group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = typoDistance
	return fmt.Errorf("unknown command %.*q of %s%s%s", quoted, args[0], c.CommandPath(), meant(c.SuggestionsFor(args[0])), seeHelp(c))
}

// Wants checks a command's arguments: names say what each is, the first least of them
// must be there.
func Wants(least int, names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: %s is missing%s", c.CommandPath(), names[len(args)], seeHelp(c))
		case len(args) > len(names) && len(names) == 0:
			return fmt.Errorf("%s takes no arguments, but there is %.*q%s", c.CommandPath(), quoted, args[0], seeHelp(c))
		case len(args) > len(names):
			return fmt.Errorf("%s takes %s, but there is also %.*q%s", c.CommandPath(), strings.Join(names, " "), quoted, args[len(names)], seeHelp(c))
		}
		return nil
	}
}

// flagError says which flag was probably meant.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError // not one that lacks its value
	hint := ""
	if errors.As(err, &unknown) {
		name := unknown.GetSpecifiedShortnames() // "-json" is read as -j -s -o -n
		if name == "" {
			name = unknown.GetSpecifiedName()
		}
		near := nearest(name, flagNames(c))
		for i := range near {
			near[i] = "--" + near[i]
		}
		hint = meant(near)
	}
	return fmt.Errorf("%s: %w%s%s", c.CommandPath(), err, hint, seeHelp(c))
}

// flagNames are the names of the flags of c that its help shows.
func flagNames(c *cobra.Command) (names []string) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// nearest returns those of names that look like name. The rule is that of package
// cobra for commands.
func nearest(name string, names []string) []string {
	if len(name) > maxShown { // no name is so long, and comparing takes memory
		return nil
	}
	probe := &cobra.Command{SuggestionsMinimumDistance: typoDistance}
	for _, n := range names {
		probe.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	return probe.SuggestionsFor(name)
}

// meant is a hint at names that were probably meant, to be put behind a message; ""
// without names.
func meant(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(names, " or ") + "?"
}

// seeHelp names the help of a command.
func seeHelp(c *cobra.Command) string { return " (see " + c.CommandPath() + " --help)" }
