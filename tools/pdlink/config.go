package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
	"pdlink/transport/keys"
)

const (
	// envPrefix begins the environment variables of flags.
	envPrefix = "PDLINK"

	// configEnv names the config file where --config does not.
	configEnv = envPrefix + "_CONFIG"

	// configName is the file's name in the user's configuration directory.
	configName = "config.toml"
)

const configLong = `config shows what the config file and the environment make of the flags. A flag has
its value from the first of these that has one:

  the command line        pdlink decode --min-tokens 8192
  an environment variable PDLINK_DECODE_MIN_TOKENS=8192
  the config file         min-tokens = 8192 in the table [decode]
  its default

The file is TOML: --config FILE, else $` + configEnv + `, else pdlink/config.toml in the
user's configuration directory (~/.config; on macOS ~/Library/Application Support),
where it need not be. It has a table for each command, [decode] or [keys.init], and in
it the flags by their names, without dashes in front. Texts stand in quotes, times too
("30s"); numbers, true and false do not. A flag that may be repeated has a list, in a
variable one with commas. ~/ at the beginning of a path is this user's home directory. A
name that no flag has is an error. Nobody else may be able to write the file.

What the file says of a flag that has no effect with the rest of a command line, or
that the command line excludes, is passed over; "pdlink config show" marks it.`

// configFlags say where the config file is.
type configFlags struct {
	path   string
	absent string // the usual place of a config file, where a command found none
}

// register adds --config to all commands.
func (f *configFlags) register(root *cobra.Command) {
	root.PersistentFlags().StringVar(&f.path, "config", "", "read settings from `FILE` (default: $"+configEnv+", else pdlink/config.toml in the user's configuration directory)")
	must(root.MarkPersistentFlagFilename("config", "toml"))
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if !cmdline.TakesSettings(c) {
			return nil
		}
		s, err := f.settings(flagsOf(c))
		if err == nil {
			err = s.Apply(c)
		}
		if _, gone := os.Stat(s.Path); !s.Required && errors.Is(gone, fs.ErrNotExist) {
			f.absent = s.Path
		}
		return err
	}
}

// tell has commands whose flags most often come from the config file say where it was
// looked for, when they lack one.
func (f *configFlags) tell(commands ...*cobra.Command) {
	for _, c := range commands {
		run := c.RunE
		c.RunE = func(c *cobra.Command, args []string) error {
			err := run(c, args)
			if f.absent != "" && errors.Is(err, errMissing) {
				err = fmt.Errorf("%w\nthere is no config file at %s", err, f.absent)
			}
			return err
		}
	}
}

// settings are what a command line means.
func (f *configFlags) settings(g given) (cmdline.Settings, error) {
	s := cmdline.Settings{Prefix: envPrefix, Env: os.Environ(), Trust: trusted}
	if err := g.filled(map[string]string{"config": f.path}); err != nil {
		return s, err
	}
	s.Path, s.Required, s.Named = f.path, true, "--config"
	if s.Path == "" {
		s.Path, s.Named = os.Getenv(configEnv), "$"+configEnv
	}
	var err error
	if s.Path, err = cmdline.Home(s.Path); err != nil {
		return s, fmt.Errorf("the config file: %w", err)
	}
	if s.Path == "" {
		dir, err := keys.DefaultDir()
		if err != nil {
			return s, nil //nolint:nilerr // a system without such a place has no file there
		}
		s.Path, s.Required = filepath.Join(dir, configName), false
		s.Named = ""
	}
	return s, nil
}

// trusted refuses a config file that somebody else could have written: it says which
// keys count and what is sealed. What is no file the user has named.
func trusted(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return nil
	}
	if keys.OthersWrite(fi) {
		return fmt.Errorf("others can write %s (mode %04o): run `chmod go-w %s`", f.Name(), fi.Mode().Perm(), keys.ShellPath(f.Name()))
	}
	if owner, foreign := keys.Foreign(fi); foreign {
		return fmt.Errorf("%s belongs to user %d and this process runs as user %d: make it its own, or root's", f.Name(), owner, os.Geteuid())
	}
	return nil
}

// checks look at the values of a command's flags, by its name, as it would.
type checks map[string]func(given) error

// newConfig makes the command. look has the commands whose values can be looked at as a
// whole.
func newConfig(std streams, f *configFlags, look checks) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "show where the values of flags come from",
		Long:  configLong + "\n\n" + statusText,
		Args:  group,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigShow(std, f, look))
	cmdline.WithoutSettings(c)
	return c
}

// settingEvent is one line of `pdlink config show --json`.
type settingEvent struct {
	Event string `json:"event"`
	cmdline.Setting
}

// settingsSummary is its last line.
type settingsSummary struct {
	Event    string `json:"event"`
	File     string `json:"file"`  // empty: the system has no place for one
	Found    bool   `json:"found"` // it is there
	Settings int    `json:"settings"`
}

func newConfigShow(std streams, f *configFlags, look checks) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show [COMMAND]",
		Short: "print the value of each flag and where it comes from",
		Long: `show prints the value that each flag of a command has without a command line, and
where it comes from: a variable, the config file, or the default. What the file says of
a flag that has no effect with the others is marked. Without a command it shows those
that run as services, decode and prefill. A file that does not hold together for one of
these is warned of: for what no command line adds.

` + statusText,
		Example: `  pdlink config show
  pdlink config show replay
  pdlink config show keys init --config ./config.toml`,
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			about, rest := cmdline.Find(c.Root(), args)
			for _, sub := range about.Commands() {
				if len(rest) == 0 && (sub.HasSubCommands() || cmdline.TakesSettings(sub)) {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			s, err := f.settings(flagsOf(c))
			if err != nil {
				return err
			}
			return showConfig(std, c.Root(), s, args, asJSON, look)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one setting a line, and a summary")
	return c
}

func showConfig(std streams, root *cobra.Command, s cmdline.Settings, args []string, asJSON bool, look checks) error {
	about := [][]string{args}
	if len(args) == 0 {
		about = [][]string{{"decode"}, {"prefill"}}
	}
	sum := settingsSummary{Event: "summary", File: s.Path}
	if _, err := os.Stat(s.Path); err == nil {
		sum.Found = true
	}
	var all []cmdline.Setting
	for _, words := range about {
		c, rest := cmdline.Find(root, words)
		switch {
		case len(rest) > 0:
			return group(c, rest)
		case !cmdline.TakesSettings(c):
			return errors.New(c.CommandPath() + " takes no settings: name one of the commands below it, or another one")
		}
		list, err := s.List(c)
		if err != nil {
			return err
		}
		all = append(all, list...)
		if check := look[c.Name()]; check != nil && slices.ContainsFunc(list, func(x cmdline.Setting) bool { return x.Origin != cmdline.FromDefault && x.Idle == "" }) {
			if err := check(flagsOf(c)); err != nil {
				for line := range strings.Lines(cmdline.Plain(err)) {
					std.warnf("%s with these settings alone: %s", c.CommandPath(), strings.TrimSpace(line))
				}
			}
		}
	}
	sum.Settings = len(all)
	if asJSON {
		for _, x := range all {
			if err := std.json(settingEvent{"setting", x}); err != nil {
				return err
			}
		}
		return std.json(sum)
	}
	return sum.print(std, all)
}

// print prints settings for people.
func (sum settingsSummary) print(std streams, all []cmdline.Setting) error {
	switch {
	case sum.File == "":
		std.printf("no config file: this user has no home directory to look in ($HOME); $%s or --config names one\n", configEnv)
	case sum.Found:
		std.printf("config file %s\n", sum.File)
	default:
		std.printf("config file %s, which is not there\n", sum.File)
	}
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	command := ""
	for _, x := range all {
		if x.Command != command {
			command = x.Command
			printTo(tw, "[%s]\n", strings.ReplaceAll(command, " ", "."))
		}
		value, origin := x.Value, string(x.Origin)
		if value == "" {
			value = `""`
		}
		if x.Origin == cmdline.FromEnv {
			origin = "$" + x.Variable
		}
		if x.Idle != "" {
			origin += ", no effect: " + x.Idle
		}
		printTo(tw, "  %s\t%s\t%s\n", x.Flag, value, origin)
	}
	return tw.Flush()
}
