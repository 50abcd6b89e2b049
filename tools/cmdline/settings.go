package cmdline

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Origin is where the value of a flag comes from.
type Origin string

// Origins, the one that counts first.
const (
	FromLine    Origin = "flag"        // the command line
	FromEnv     Origin = "environment" // Settings.Env
	FromFile    Origin = "file"        // Settings.Path
	FromDefault Origin = "default"
)

// Annotations of flags.
const (
	originNote  = "cmdline/origin"
	withNote    = "cmdline/with"
	withoutNote = "cmdline/without"
	asNote      = "cmdline/as" // of a command
	noNote      = "cmdline/no" // of a command
)

// Settings are values of flags besides those on the command line: of environment
// variables, then of a file. A flag --min-tokens of the command "pdlink decode" has the
// variable PDLINK_DECODE_MIN_TOKENS, and in the file the line
//
//	min-tokens = 4096
//
// in the table [decode]. The file is TOML; a subcommand's table is [keys.init]. A flag
// that may be repeated takes a list, in a variable one with commas. An empty variable is
// none. The zero value has no settings.
type Settings struct {
	// Prefix begins the names of variables, "PDLINK" for example. Empty: no
	// variable counts.
	Prefix string

	// Env is the environment, as os.Environ gives it.
	Env []string

	// Path is the file; empty: there is none. One that does not exist is an error
	// with Required only.
	Path     string
	Required bool

	// Named is what named the file, "$PDLINK_CONFIG" for example, for messages.
	// Empty: they do not say.
	Named string

	// Trust, when set, looks at the file that was opened and refuses one that
	// somebody else could have written.
	Trust func(*os.File) error
}

// OnlyWith says of flags of a command that they have an effect only with one of others:
// without those a value of the file is passed over, since the file is for more than one
// command line.
func OnlyWith(c *cobra.Command, flags []string, with ...string) { annotate(c, flags, withNote, with) }

// OnlyWithout says of flags that they have an effect only without others: where one of
// those comes from the command line or a variable, a value of the file is passed over.
func OnlyWithout(c *cobra.Command, flags []string, without ...string) {
	annotate(c, flags, withoutNote, without)
}

// As says that the settings of c are those of another command of its program, which has
// the same flags and more: doctor looks at what decode would do. command is its words
// without the program's name.
func As(c *cobra.Command, command string) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[asNote] = command
}

// WithoutSettings says that c, and every command below it, takes no settings: one that
// says what is wrong must work whatever is wrong.
func WithoutSettings(c *cobra.Command) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[noNote] = "settings"
}

// TakesSettings reports that c is a command whose flags settings may be for: one that runs,
// of those that WithoutSettings does not name. The commands that package cobra adds take
// none.
func TakesSettings(c *cobra.Command) bool {
	if c.HasSubCommands() || c.Name() == cobra.ShellCompRequestCmd || c.Name() == cobra.ShellCompNoDescRequestCmd {
		return false
	}
	for ; c != nil; c = c.Parent() {
		if c.Annotations[noNote] != "" {
			return false
		}
	}
	return true
}

// Lend gives c the flags of another command, with their values, but for some by name.
func Lend(c, from *cobra.Command, but ...string) {
	from.Flags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(but, f.Name) {
			c.Flags().AddFlag(f)
		}
	})
}

// wordsOf are the words of the command whose settings c has.
func wordsOf(c *cobra.Command) []string {
	if as := c.Annotations[asNote]; as != "" {
		return strings.Fields(as)
	}
	return strings.Fields(c.CommandPath())[1:]
}

func annotate(c *cobra.Command, flags []string, note string, others []string) {
	for _, name := range flags {
		f := c.Flag(name)
		if f == nil {
			panic("cmdline: " + c.Name() + " has no flag --" + name) // its own command tree is wrong
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[note] = append(f.Annotations[note], others...)
	}
}

// originOf is where the value of a flag comes from, after Apply.
func originOf(f *pflag.Flag) Origin {
	switch note := f.Annotations[originNote]; {
	case len(note) > 0:
		return Origin(note[0])
	case f.Changed:
		return FromLine
	}
	return FromDefault
}

// Variable is the environment variable of a command's flag.
func (s Settings) Variable(c *cobra.Command, flag string) string {
	words := append([]string{s.Prefix}, wordsOf(c)...)
	return strings.ToUpper(strings.ReplaceAll(strings.Join(append(words, flag), "_"), "-", "_"))
}

// Apply gives the flags of c that are not on the command line the values that the
// environment and the file have for them. c's flags have been parsed. The whole file is
// checked, whichever command reads it. Errors are the user's to mend: they name the
// variable, or the file and the line, and for a name that does not exist the nearest
// that does.
func (s Settings) Apply(c *cobra.Command) error {
	_, err := s.apply(c)
	return err
}

// apply is Apply, and returns the file.
func (s Settings) apply(c *cobra.Command) (*file, error) {
	if err := errors.Join(applyLine(c), s.applyEnv(c)); err != nil {
		return nil, err
	}
	file, err := s.load(c)
	if err != nil {
		return nil, err
	}
	return file, file.apply(c)
}

// applyLine puts home directories into what is on the command line.
func applyLine(c *cobra.Command) error {
	var errs []error
	settable(c, func(f *pflag.Flag) {
		if !f.Changed || originOf(f) != FromLine || !isPath(f) {
			return
		}
		path, err := expand(f, f.Value.String())
		if err == nil {
			err = f.Value.Set(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--%w", err))
		}
	})
	return errors.Join(errs...)
}

// settable calls f with each flag of c that settings can be for, by name.
func settable(c *cobra.Command, f func(*pflag.Flag)) {
	c.InheritedFlags() // merges those of its parents into its own
	c.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "help" && c.Root().PersistentFlags().Lookup(flag.Name) != flag {
			f(flag)
		}
	})
}

// applyEnv is Apply for the environment.
func (s Settings) applyEnv(c *cobra.Command) error {
	if s.Prefix == "" {
		return nil
	}
	known := map[string]*pflag.Flag{}
	settable(c, func(f *pflag.Flag) { known[s.Variable(c, f.Name)] = f })
	others := map[string]bool{} // of the command whose settings these are
	if of, rest := Find(c.Root(), wordsOf(c)); len(rest) == 0 && of != c {
		settable(of, func(f *pflag.Flag) { others[s.Variable(c, f.Name)] = true })
	}
	mine := s.Variable(c, "")
	var errs []error
	for _, entry := range slices.Sorted(slices.Values(s.Env)) {
		name, value, _ := strings.Cut(entry, "=")
		f := known[name]
		switch {
		case !strings.HasPrefix(name, mine) || value == "" || f == nil && others[name]:
		case f == nil:
			errs = append(errs, fmt.Errorf("$%s: %s has no such flag%s", name, c.CommandPath(), meant(s.similar(name, known))))
		case !f.Changed:
			values := []string{value}
			if _, list := f.Value.(pflag.SliceValue); list {
				values = strings.Split(value, ",")
			}
			if err := assign(c, f, values, FromEnv); err != nil {
				errs = append(errs, fmt.Errorf("$%s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// similar are the variables whose names look like one that there is not.
func (s Settings) similar(name string, known map[string]*pflag.Flag) []string {
	names := make([]string, 0, len(known))
	for k := range known {
		names = append(names, k)
	}
	slices.Sort(names)
	near := nearest(name, names)
	for i := range near {
		near[i] = "$" + near[i]
	}
	return near
}

// assign gives a flag a value, or several.
func assign(c *cobra.Command, f *pflag.Flag, values []string, from Origin) error {
	list, many := f.Value.(pflag.SliceValue)
	switch {
	case !many && len(values) != 1:
		return fmt.Errorf("want one value for --%s, not a list", f.Name)
	case many && len(values) == 0:
		return fmt.Errorf("the list for --%s is empty: leave it out", f.Name)
	}
	first, err := expand(f, values[0])
	if err != nil {
		return err
	}
	if err := c.Flags().Set(f.Name, first); err != nil {
		if from == FromFile {
			return err // the file was checked
		}
		what, _ := wanted(f)
		return fmt.Errorf("%w: want %s", err, strings.TrimSuffix(what, ", in quotes"))
	}
	if many {
		if err := list.Replace(values); err != nil {
			return fmt.Errorf("--%s: %w", f.Name, err)
		}
	}
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[originNote] = []string{string(from)}
	return nil
}

// Setting is the value that a flag of a command has.
type Setting struct {
	Command  string `json:"command"` // without the program's name
	Flag     string `json:"flag"`
	Value    string `json:"value"`
	Origin   Origin `json:"origin"`
	Variable string `json:"variable"` // that would set it

	// Idle says why a value of the file does not count with the other flags as they
	// are: "only with --decoder". Empty: it counts.
	Idle string `json:"idle,omitempty"`
}

// List returns the values that the flags of c have where none is on the command line.
// A value of the file that has no effect is among them, with the reason. It changes the
// flags of c. Errors are those of Apply.
func (s Settings) List(c *cobra.Command) ([]Setting, error) {
	file, err := s.apply(c)
	if err != nil {
		return nil, err
	}
	table := file.tables
	for _, word := range wordsOf(c) {
		table, _ = table[word].(map[string]any) // nil: it has no table
	}
	var all []Setting
	_, command, _ := strings.Cut(c.CommandPath(), " ")
	settable(c, func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		x := Setting{Command: command, Flag: f.Name, Value: valueText(f), Origin: originOf(f), Variable: s.Variable(c, f.Name)}
		if value, ok := table[f.Name]; ok && !f.Changed {
			if values, err := texts(value); err == nil {
				x.Value, x.Origin, x.Idle = strings.Join(values, ","), FromFile, idle(c, f)
			}
		}
		all = append(all, x)
	})
	return all, nil
}

// valueText is the value of a flag as a file would have it, without quotes.
func valueText(f *pflag.Flag) string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), ",")
	}
	return f.Value.String()
}
