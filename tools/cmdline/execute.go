package cmdline

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Execute runs a command line of root. Beside what package cobra does, an unknown flag
// is told of with the one that was probably meant, and a help or a completion that
// does not exist is an error. Errors are those of the command and of the command line;
// they are not printed. Root is used once: its commands keep the values of flags.
func Execute(ctx context.Context, root *cobra.Command, args []string, out, err io.Writer) error {
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(err)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelp())
	completeNoFiles(root)
	root.InitDefaultCompletionCmd(args...)
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			WithoutSettings(c)
			c.Args = Group
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root.ExecuteContext(ctx)
}

// completeNoFiles keeps files from being offered as the values of flags that are none: a
// flag that is a path says so, and one with few values completes them.
func completeNoFiles(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, known := c.GetFlagCompletionFunc(f.Name); known || isPath(f) || f.Value.Type() == "bool" {
			return
		}
		if err := c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions); err != nil {
			panic(err) // the flag is there, and has none
		}
	})
	for _, sub := range c.Commands() {
		completeNoFiles(sub)
	}
}

// newHelp is the command that prints the help of another one.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:         "help [COMMAND]",
		Annotations: map[string]string{noNote: "settings"},
		Short:       "print the help of a command",
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if about, rest := Find(c.Root(), args); len(rest) == 0 {
				for _, sub := range about.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			about, rest := Find(c.Root(), args)
			if len(rest) > 0 {
				return Group(about, rest)
			}
			about.InitDefaultHelpFlag() // or the help would not show it
			if err := about.Help(); err != nil {
				return fmt.Errorf("print the help of %s: %w", about.CommandPath(), err)
			}
			return nil
		},
	}
}

// Find returns the command below c that words lead to, and the words that lead nowhere.
func Find(c *cobra.Command, words []string) (*cobra.Command, []string) {
	for len(words) > 0 {
		i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == words[0] })
		if i < 0 {
			break
		}
		c, words = c.Commands()[i], words[1:]
	}
	return c, words
}
