package cmdline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxShown is how much of a value a message repeats, in characters.
const maxShown = 60

// wanted says what values a flag takes, and an example of one as it is written behind
// "name = " in a file.
func wanted(f *pflag.Flag) (what, example string) {
	switch f.Value.Type() {
	case "bool":
		return "true or false", "true"
	case "int", "uint64":
		return "a whole number without a unit", numberOf(f, "8")
	case "float64":
		return "a number without a unit", numberOf(f, "1500.0")
	case "duration":
		return "a time with its unit, in quotes", timeOf(f)
	case "uintSlice", "intSlice":
		return "a list of whole numbers", "[1000, 1001]"
	case "stringArray", "stringSlice":
		return "a list of texts in quotes", `["a", "b"]`
	}
	return "a text in quotes", `"text"`
}

// numberOf is the flag's default as an example, unless it is 0.
func numberOf(f *pflag.Flag, other string) string {
	if n, err := strconv.ParseFloat(f.DefValue, 64); err == nil && n > 0 {
		return f.DefValue
	}
	return other
}

// timeOf is the same for a time.
func timeOf(f *pflag.Flag) string {
	if d, err := time.ParseDuration(f.DefValue); err == nil && d > 0 {
		return strconv.Quote(d.String())
	}
	return `"30s"`
}

// mistake says what a value should be, with the value as it was written if that is
// short.
func mistake(f *pflag.Flag, got string) error {
	what, example := wanted(f)
	if n := []rune(got); len(n) > maxShown {
		got = string(n[:maxShown]) + "..."
	}
	return fmt.Errorf("%s = %s: want %s, for example %s = %s", f.Name, got, what, f.Name, example)
}

// quotedValue is a text as a file has it, in the quotes that need no escapes in it.
func quotedValue(s string) string {
	if strings.ContainsAny(s, `"\`) && !strings.Contains(s, "'") {
		return "'" + s + "'"
	}
	return strconv.Quote(s)
}

// shown is a value that was read from a file, as it could have been written there.
func shown(value any) string {
	switch v := value.(type) {
	case string:
		return quotedValue(v)
	case []any:
		words := make([]string, 0, len(v))
		for _, x := range v {
			words = append(words, shown(x))
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	return fmt.Sprint(value)
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

// fits reports whether a value is of the kind that a file has for a flag: numbers and
// truths without quotes, texts and times in them.
func fits(f *pflag.Flag, value any) bool {
	if list, ok := value.([]any); ok {
		return !slices.ContainsFunc(list, func(x any) bool { return !fits(f, x) })
	}
	switch value.(type) {
	case bool:
		return f.Value.Type() == "bool"
	case int64:
		return slices.Contains([]string{"int", "uint64", "float64", "uintSlice", "intSlice"}, f.Value.Type())
	case float64:
		return f.Value.Type() == "float64"
	case string:
		what, _ := wanted(f)
		return strings.Contains(what, "quotes")
	}
	return false
}

// rewritten is a value of another kind as the file should have it, if that is what was
// meant; "": it cannot be.
func rewritten(f *pflag.Flag, values []string) string {
	if len(values) != 1 || f.Value.Type() == "duration" && values[0] != "0" {
		return ""
	}
	switch what, _ := wanted(f); {
	case f.Value.Type() == "duration":
		return `"0s"`
	case strings.HasPrefix(what, "a list of texts"):
		return "[" + quotedValue(values[0]) + "]"
	case strings.Contains(what, "quotes"):
		return quotedValue(values[0])
	}
	return values[0]
}

// try reports what is wrong with a value of the file for a flag, and gives the flag
// nothing: values count only where they have an effect, and are right everywhere.
func try(f *pflag.Flag, value any) error {
	values, err := texts(value)
	if err != nil {
		return mistake(f, shown(value))
	}
	list, many := f.Value.(pflag.SliceValue)
	switch {
	case !many && len(values) != 1:
		return mistake(f, shown(value))
	case many && len(values) == 0:
		return fmt.Errorf("the list for %s is empty: leave it out", f.Name)
	}
	was, changed := f.Value.String(), f.Changed
	if many {
		old := list.GetSlice()
		err = list.Replace(values)
		list.Replace(old) //nolint:errcheck // it was that
	} else {
		err = f.Value.Set(values[0])
		f.Value.Set(was) //nolint:errcheck // it was that
	}
	f.Changed = changed
	if err != nil {
		return mistake(f, shown(value))
	}
	if right := rewritten(f, values); !fits(f, value) && right != "" {
		what, _ := wanted(f)
		return fmt.Errorf("%s = %s: want %s: %s = %s", f.Name, shown(value), what, f.Name, right)
	} else if !fits(f, value) {
		return mistake(f, shown(value))
	}
	_, err = expand(f, values[0])
	return err
}

// isPath reports that the value of a flag is a file or a directory, as completions are
// told: see cobra's MarkFlagFilename and MarkFlagDirname.
func isPath(f *pflag.Flag) bool {
	_, file := f.Annotations[cobra.BashCompFilenameExt]
	_, dir := f.Annotations[cobra.BashCompSubdirsInDir]
	return file || dir
}

// expand is the value of a flag with a home directory in place of ~, where it is a path.
func expand(f *pflag.Flag, value string) (string, error) {
	if !isPath(f) {
		return value, nil
	}
	path, err := Home(value)
	if err != nil {
		return value, fmt.Errorf("%s: %w", f.Name, err)
	}
	return path, nil
}

// Home is a path with this user's home directory in place of "~" at its beginning, as a
// shell's: no shell reads files and variables, nor what is behind "--flag=". Errors: the
// home directory of somebody else, one that is not known.
func Home(path string) (string, error) {
	first, rest, _ := strings.Cut(path, "/")
	switch {
	case !strings.HasPrefix(first, "~"):
		return path, nil
	case first != "~":
		return path, fmt.Errorf("%.*q: only ~/ stands for a home directory, this user's: write the whole path, or ./%s for a file of that name", maxShown, path, brief(path))
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path, fmt.Errorf("%.*q: %w: write the whole path", maxShown, path, err)
	}
	return filepath.Join(home, rest), nil
}

// broken says what is wrong with a line that is no TOML, for what is most often wrong:
// a text without quotes, a time, a truth. "" where it is something else.
func (f *file) broken(root *cobra.Command, row int) string {
	table, line, n := "", "", 0
	header := regexp.MustCompile(`^\[\s*([^\[\]]+?)\s*\]`)
	for l := range strings.Lines(f.text) {
		n++
		if line = strings.TrimSpace(l); n == row {
			break
		}
		if m := header.FindStringSubmatch(line); m != nil {
			table = m[1]
		}
	}
	key, value, ok := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), uncommented(strings.TrimSpace(value))
	c, rest := Find(root, strings.Split(table, "."))
	flag := c.Flag(key)
	if !ok || flag == nil || len(rest) > 0 || n != row {
		return ""
	}
	var parsed map[string]any
	if toml.Unmarshal([]byte("x = "+value), &parsed) == nil && try(flag, parsed["x"]) == nil {
		return "" // the value is right, and something else is wrong: the key is there twice
	}
	what, example := wanted(flag)
	switch low := strings.ToLower(value); {
	case value == "":
		return fmt.Sprintf("%s has no value: want %s, for example %s = %s", key, what, key, example)
	case strings.ContainsAny(value[:1], `"'[{`):
		return ""
	case flag.Value.Type() == "bool":
		example = strconv.FormatBool(slices.Contains([]string{"true", "yes", "on", "1"}, low))
	case flag.Value.Type() == "string" || flag.Value.Type() == "duration":
		example = quotedValue(strings.Trim(value, "“”„‘’\"'"))
	case strings.HasPrefix(what, "a list of texts"):
		example = "[" + quotedValue(strings.Trim(value, "“”„‘’\"'")) + "]"
	}
	if len(value) > maxShown || len(example) > 2*maxShown {
		return fmt.Sprintf("%s: want %s", key, what)
	}
	return fmt.Sprintf("%s = %s: want %s: %s = %s", key, value, what, key, example)
}

// uncommented is a line without the comment behind it.
func uncommented(s string) string {
	s, _, _ = strings.Cut(" "+s, " #")
	return strings.TrimSpace(s)
}
