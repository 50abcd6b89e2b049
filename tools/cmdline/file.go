package cmdline

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	// maxFile bounds a file of settings, in bytes: a value for every flag of a program,
	// with comments, is a tenth of that.
	maxFile = 256 << 10

	// maxEntries bounds its values and tables, each part of a dotted name as one: what reads
	// it takes a time that grows with their square, 0.4 s for so many.
	maxEntries = 12_000

	// maxFaults is how many of its faults are told of: who has more has the wrong file.
	maxFaults = 20
)

// file is a file of settings that was checked.
type file struct {
	path   string
	text   string
	lines  index
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
	if f.text, err = settingsText(b); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	b = []byte(f.text)
	f.lines = indexOf(f.text)
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
	return f, f.told(f.check(root, nil, f.tables))
}

// told is the error for what is wrong with the file, the first lines of it; nil where
// nothing is.
func (f *file) told(wrong []suspect) error {
	slices.SortStableFunc(wrong, func(a, b suspect) int { return a.line - b.line })
	var errs []error
	for i, w := range wrong {
		if i == maxFaults {
			errs = append(errs, fmt.Errorf("%s: and %d more", f.path, len(wrong)-i))
			break
		}
		errs = append(errs, fault{f.path, w.line, w.why()})
	}
	return errors.Join(errs...)
}

// settingsText is what a file says, without the mark that editors of Windows put in
// front. Errors: it is in another encoding, or has too much in it.
func settingsText(b []byte) (string, error) {
	if bytes.HasPrefix(b, []byte("\xff\xfe")) || bytes.HasPrefix(b, []byte("\xfe\xff")) {
		return "", errors.New("it is in UTF-16: save it as UTF-8")
	}
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	if entries(b) > maxEntries {
		return "", fmt.Errorf("it has more than %d values and tables: that is no file of settings", maxEntries)
	}
	return string(b), nil
}

// entries is how many names of values and tables a file has, of one that cannot be read
// those before its first fault: whoever reads it comes no further either. The time that it
// takes grows with the file's length alone.
func entries(b []byte) (n int) {
	var p unstable.Parser
	for p.Reset(b); p.NextExpression(); {
		n += entriesOf(p.Expression())
	}
	return n
}

// entriesOf is how many of them an expression or a value has. The parser bounds how deep
// they are nested.
func entriesOf(e *unstable.Node) (n int) {
	switch e.Kind {
	case unstable.Table, unstable.ArrayTable, unstable.KeyValue:
		for k := e.Key(); k.Next(); {
			n++
		}
		if e.Kind == unstable.KeyValue {
			n += entriesOf(e.Value())
		}
	case unstable.Array, unstable.InlineTable:
		for c := e.Children(); c.Next(); {
			n += entriesOf(c.Node())
		}
	}
	return n
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

// suspect is something wrong with a line. What to say of it may take long, and is found
// out only where it is said.
type suspect struct {
	line int // 0: not known
	why  func() string
}

// check looks whether there is a flag for everything in the table of a command, and a
// command for every table.
func (f *file) check(c *cobra.Command, at []string, table map[string]any) (wrong []suspect) {
	flags, commands := names(c)
	for key, value := range table {
		bad := func(format string, args ...any) {
			wrong = append(wrong, suspect{f.lineOf(at, key), func() string { return fmt.Sprintf(format, args...) }})
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
			wrong = append(wrong, f.check(c.Commands()[i], append(slices.Clone(at), key), sub)...)
		case isTable:
			bad("unknown table [%s]%s", brief(name), hint{key, commands})
		case isTables(value) && c == c.Root():
			bad("unknown table [[%s]]%s", brief(name), hint{key, commands})
		case slices.Contains(flags, key):
			if below := tablesWith(c, at, key); c.HasSubCommands() {
				bad("%s has no effect in [%s], which is no command: put it into %s", key, name[:len(name)-len(key)-1], strings.Join(below, ", "))
			} else if err := try(c.Flag(key), value); err != nil {
				bad("%v", err)
			}
		case c == c.Root():
			bad("%s stands before the first table: put it into that of its command, %s", brief(key), home{f, c, key})
		default:
			bad("unknown setting %s of [%s]%s", brief(key), strings.Join(at, "."), hint{key, flags})
		}
	}
	return wrong
}

// hint is meant of the names that are nearest to a key, once it is printed.
type hint struct {
	key   string
	names []string
}

// String implements fmt.Stringer.
func (h hint) String() string { return meant(nearest(h.key, h.names)) }

// brief is a name as far as a message repeats it.
func brief(name string) string {
	if n := []rune(name); len(n) > maxShown {
		return string(n[:maxShown]) + "..."
	}
	return name
}

// home names the tables that a setting could be of, once it is printed.
type home struct {
	file *file
	root *cobra.Command
	key  string
}

// String implements fmt.Stringer.
func (h home) String() string {
	tables := tablesWith(h.root, nil, h.key)
	if len(tables) == 0 {
		tables = []string{"[" + h.file.reader + "]"}
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

// index is where the tables and the keys of a file are, the first of each name.
type index struct {
	tables map[string]int    // by name
	keys   map[[2]string]int // by the names of table and key
	read   int               // lines that were looked at, each once
}

// indexOf reads a file once.
func indexOf(text string) index {
	x := index{map[string]int{}, map[[2]string]int{}, 0}
	table := ""
	for line := range strings.Lines(text) {
		x.read++
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			name, _, _ = strings.Cut(name, "]")
			table = strings.TrimSpace(strings.Trim(name, "["))
			if x.tables[table] == 0 {
				x.tables[table] = x.read
			}
		} else if name, _, ok := strings.Cut(line, "="); ok {
			key := [2]string{table, strings.Trim(strings.TrimSpace(name), `"'`)}
			if x.keys[key] == 0 {
				x.keys[key] = x.read
			}
		}
	}
	return x
}

// lineOf is the line where a table has a key, 0 where it cannot be found: the table may
// be written in another way than usual.
func (f *file) lineOf(at []string, key string) int {
	table := f.lines.tables[strings.Join(append(slices.Clone(at), key), ".")]
	line := f.lines.keys[[2]string{strings.Join(at, "."), key}]
	if table == 0 || line > 0 && line < table {
		return line
	}
	return table
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
		if with(name) && originOf(c.Flags().Lookup(name)) != FromFile {
			return "not with --" + name
		}
	}
	if others := f.Annotations[withNote]; len(others) > 0 && !slices.ContainsFunc(others, with) {
		return "only with --" + strings.Join(others, " or --")
	}
	return ""
}
