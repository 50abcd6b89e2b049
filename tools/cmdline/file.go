package cmdline

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxFile bounds a file of settings, in bytes: a value for every flag of a program, with
// comments, is a tenth of that.
const maxFile = 256 << 10

// file is a file of settings that was checked.
type file struct {
	path   string
	text   string
	tables map[string]any
	reader string // the table of the command that reads it
}

// load reads the file for a command and checks it against all commands. Without a file
// the result is empty.
func (s Settings) load(c *cobra.Command) (*file, error) {
	root := c.Root()
	f := &file{path: s.Path, reader: strings.Join(wordsOf(c), ".")}
	if s.Path == "" {
		return f, nil
	}
	b, err := s.read()
	if errors.Is(err, fs.ErrNotExist) && !s.Required {
		return f, nil
	}
	if err != nil {
		if s.Named != "" {
			err = fmt.Errorf("%s: %w", s.Named, err)
		}
		return nil, fmt.Errorf("settings: %w", err)
	}
	f.text = string(b)
	var bad *toml.DecodeError
	switch err := toml.Unmarshal(b, &f.tables); {
	case errors.As(err, &bad):
		row, _ := bad.Position()
		why := f.broken(root, row)
		if why == "" {
			why = strings.TrimPrefix(bad.Error(), "toml: ")
		}
		return nil, fault{s.Path, row, why}
	case err != nil:
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	if errs := f.check(root, nil, f.tables); len(errs) > 0 {
		slices.SortStableFunc(errs, func(a, b fault) int { return a.line - b.line })
		all := make([]error, len(errs))
		for i, e := range errs {
			all[i] = e
		}
		return nil, errors.Join(all...)
	}
	return f, nil
}

// read returns what is in the file.
func (s Settings) read() ([]byte, error) { return ReadFile(s.Path, maxFile, s.Trust) }

// fault is what is wrong with a line.
type fault struct {
	path string
	line int // 0: not known
	why  string
}

// Error implements error.
func (f fault) Error() string {
	if f.line == 0 {
		return f.path + ": " + f.why
	}
	return fmt.Sprintf("%s, line %d: %s", f.path, f.line, f.why)
}

// check looks whether there is a flag for everything in the table of a command, and a
// command for every table.
func (f *file) check(c *cobra.Command, at []string, table map[string]any) (errs []fault) {
	flags, commands := names(c)
	for key, value := range table {
		bad := func(format string, args ...any) {
			errs = append(errs, fault{f.path, f.lineOf(at, key), fmt.Sprintf(format, args...)})
		}
		sub, isTable := value.(map[string]any)
		name := strings.Join(append(slices.Clone(at), key), ".")
		switch {
		case slices.Contains(commands, key) && isTables(value):
			bad("[[%s]] is a list of tables: want one pair of brackets, [%[1]s]", name)
		case slices.Contains(commands, key) && !isTable:
			bad("%s is a command: want a table, [%s], and below it its flags", key, name)
		case isTable && slices.Contains(commands, key):
			i := slices.IndexFunc(c.Commands(), func(x *cobra.Command) bool { return x.Name() == key })
			errs = append(errs, f.check(c.Commands()[i], append(slices.Clone(at), key), sub)...)
		case isTable:
			bad("unknown table [%s]%s", name, Meant(Nearest(key, commands)))
		case isTables(value) && c == c.Root():
			bad("unknown table [[%s]]%s", name, Meant(Nearest(key, commands)))
		case slices.Contains(flags, key):
			if below := tablesWith(c, at, key); c.HasSubCommands() {
				bad("%s has no effect in [%s], which is no command: put it into %s", key, name[:len(name)-len(key)-1], strings.Join(below, ", "))
			} else if err := try(c.Flag(key), value); err != nil {
				bad("%v", err)
			}
		case c == c.Root():
			bad("%s stands before the first table: put it into that of its command, %s", key, f.home(c, key))
		default:
			bad("unknown setting %s of [%s]%s", key, strings.Join(at, "."), Meant(Nearest(key, flags)))
		}
	}
	return errs
}

// home names the tables that a setting could be of.
func (f *file) home(root *cobra.Command, key string) string {
	tables := tablesWith(root, nil, key)
	if len(tables) == 0 {
		tables = []string{"[" + f.reader + "]"}
	}
	return strings.Join(tables, " or ")
}

// tablesWith are the tables of the commands below c, whose own table is at, that have a
// flag.
func tablesWith(c *cobra.Command, at []string, key string) (tables []string) {
	_, commands := names(c)
	for _, sub := range c.Commands() {
		if !slices.Contains(commands, sub.Name()) {
			continue
		}
		of := append(slices.Clone(at), sub.Name())
		if flags, _ := names(sub); !sub.HasSubCommands() && slices.Contains(flags, key) {
			tables = append(tables, "["+strings.Join(of, ".")+"]")
		}
		tables = append(tables, tablesWith(sub, of, key)...)
	}
	return tables
}

// isTables reports a list of tables, which "[[name]]" makes.
func isTables(value any) bool {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	_, ok = list[0].(map[string]any)
	return ok
}

// names are the flags that c takes settings for, and its subcommands that a table can
// be for.
func names(c *cobra.Command) (flags, commands []string) {
	settable(c, func(f *pflag.Flag) {
		if c != c.Root() {
			flags = append(flags, f.Name)
		}
	})
	for _, sub := range c.Commands() {
		if n := sub.Name(); sub.IsAvailableCommand() && n != "help" && n != "completion" && !borrows(sub) {
			commands = append(commands, n)
		}
	}
	return flags, commands
}

// borrows reports that a command, or all commands below it, have the settings of others.
func borrows(c *cobra.Command) bool {
	if !c.HasSubCommands() {
		return c.Annotations[asNote] != ""
	}
	return !slices.ContainsFunc(c.Commands(), func(sub *cobra.Command) bool { return !borrows(sub) })
}

// lineOf is the line where a table has a key, 0 where it cannot be found: the table may
// be written in another way than usual.
func (f *file) lineOf(at []string, key string) int {
	table, n := "", 0
	want := strings.Join(at, ".")
	for line := range strings.Lines(f.text) {
		n++
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			table = strings.TrimSpace(strings.Trim(strings.SplitN(name, "]", 2)[0], "["))
			if table == strings.Join(append(slices.Clone(at), key), ".") {
				return n
			}
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		if ok && table == want && strings.Trim(strings.TrimSpace(name), `"'`) == key {
			return n
		}
	}
	return 0
}

// apply gives the flags of c the values of the file. Those that count only with others
// come last, when those have theirs.
func (f *file) apply(c *cobra.Command) error {
	table := f.tables
	words := wordsOf(c)
	for _, word := range words {
		table, _ = table[word].(map[string]any) // nil: it has no table
	}
	var errs []error
	for _, later := range []bool{false, true} {
		settable(c, func(flag *pflag.Flag) {
			value, ok := table[flag.Name]
			if !ok || flag.Changed || idle(c, flag) != "" || (len(flag.Annotations[withNote]) > 0) != later {
				return
			}
			values, err := texts(value)
			if err == nil {
				err = assign(c, flag, values, FromFile)
			}
			if err != nil {
				errs = append(errs, fault{f.path, f.lineOf(words, flag.Name), err.Error()})
			}
		})
	}
	return errors.Join(errs...)
}

// idle says why a value of the file has no effect, or contradicts what counts more;
// "": it counts.
func idle(c *cobra.Command, f *pflag.Flag) string {
	with := func(name string) bool {
		other := c.Flags().Lookup(name)
		return other != nil && other.Changed
	}
	for _, name := range f.Annotations[withoutNote] {
		if with(name) && OriginOf(c.Flags().Lookup(name)) != FromFile {
			return "not with --" + name
		}
	}
	if others := f.Annotations[withNote]; len(others) > 0 && !slices.ContainsFunc(others, with) {
		return "only with --" + strings.Join(others, " or --")
	}
	return ""
}
