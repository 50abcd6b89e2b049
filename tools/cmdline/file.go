package cmdline

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
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
}

// load reads the file and checks it against the commands of root. Without a file the
// result is empty.
func (s Settings) load(root *cobra.Command) (*file, error) {
	f := &file{path: s.Path}
	if s.Path == "" {
		return f, nil
	}
	b, err := s.read()
	if errors.Is(err, fs.ErrNotExist) && !s.Required {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	f.text = string(b)
	var bad *toml.DecodeError
	switch err := toml.Unmarshal(b, &f.tables); {
	case errors.As(err, &bad):
		row, _ := bad.Position()
		return nil, fmt.Errorf("%s, line %d: %s", s.Path, row, strings.TrimPrefix(bad.Error(), "toml: "))
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

// ReadFile returns what is in a file that a user named, no larger than most bytes. Only
// regular files will do, and the null device, which is an empty one: opening a pipe waits
// for its other end, for ever. trust, if not nil, judges the open file before it is read.
func ReadFile(path string, most int64, trust func(*os.File) error) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && path != os.DevNull {
		return nil, fmt.Errorf("%s is no regular file: name a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if trust != nil {
		if err := trust(f); err != nil {
			return nil, err
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

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
		switch {
		case isTable && slices.Contains(commands, key):
			i := slices.IndexFunc(c.Commands(), func(x *cobra.Command) bool { return x.Name() == key })
			errs = append(errs, f.check(c.Commands()[i], append(slices.Clone(at), key), sub)...)
		case isTable:
			bad("unknown table [%s]%s", strings.Join(append(slices.Clone(at), key), "."), Meant(Nearest(key, commands)))
		case slices.Contains(flags, key):
			if _, err := texts(value); err != nil {
				bad("%s: %v", key, err)
			}
		case c == c.Root():
			bad("%s stands before the first table: put it into that of its command, [%s] for example", key, strings.Join(commands[:min(1, len(commands))], ""))
		default:
			bad("unknown setting %s of [%s]%s", key, strings.Join(at, "."), Meant(Nearest(key, flags)))
		}
	}
	return errs
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
			if !ok || flag.Changed || idle(c, flag) || (len(flag.Annotations[withNote]) > 0) != later {
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

// idle reports that a value of the file would have no effect, or contradict what counts
// more.
func idle(c *cobra.Command, f *pflag.Flag) bool {
	without := func(name string) bool {
		other := c.Flags().Lookup(name)
		return other != nil && other.Changed && OriginOf(other) != FromFile
	}
	with := func(name string) bool {
		other := c.Flags().Lookup(name)
		return other != nil && other.Changed
	}
	return slices.ContainsFunc(f.Annotations[withoutNote], without) ||
		len(f.Annotations[withNote]) > 0 && !slices.ContainsFunc(f.Annotations[withNote], with)
}

// texts are the values that a line has, as on a command line.
func texts(value any) ([]string, error) {
	switch v := value.(type) {
	case []any:
		list := make([]string, 0, len(v))
		for _, x := range v {
			if _, nested := x.([]any); nested {
				return nil, errors.New("want a list of values, not of lists")
			}
			one, err := texts(x)
			if err != nil {
				return nil, err
			}
			list = append(list, one...)
		}
		return list, nil
	case string:
		return []string{v}, nil
	case bool:
		return []string{strconv.FormatBool(v)}, nil
	case int64:
		return []string{strconv.FormatInt(v, 10)}, nil
	case float64:
		return []string{strconv.FormatFloat(v, 'g', -1, 64)}, nil
	}
	return nil, errors.New("want a text in quotes, a number, true, false, or a list of these")
}
