package cmdline

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// values are what the flags of the command in these tests have.
type values struct {
	listen, store string
	discard       bool
	wait          time.Duration
	tokens        int
	rate          float64
	models        []string
	ids           []uint
	front         string
}

// program is a tree with a command "serve" and "keys init", whose flags come from s too.
func program(s Settings, v *values) *cobra.Command {
	root := &cobra.Command{Use: "prog", RunE: func(*cobra.Command, []string) error { return nil }}
	root.PersistentFlags().String("config", "", "the file")
	serve := &cobra.Command{Use: "serve", RunE: func(c *cobra.Command, _ []string) error { return s.Apply(c) }}
	fl := serve.Flags()
	fl.StringVar(&v.listen, "listen", "default", "")
	fl.StringVar(&v.store, "store", "", "")
	fl.BoolVar(&v.discard, "discard", false, "")
	fl.DurationVar(&v.wait, "part-wait", time.Second, "")
	fl.IntVar(&v.tokens, "tokens", 1, "")
	fl.Float64Var(&v.rate, "rate", 0, "")
	fl.StringArrayVar(&v.models, "model", nil, "")
	fl.UintSliceVar(&v.ids, "uid", nil, "")
	fl.StringVar(&v.front, "front", "", "")
	if err := serve.MarkFlagDirname("store"); err != nil {
		panic(err)
	}
	OnlyWith(serve, []string{"front"}, "store")
	OnlyWithout(serve, []string{"store"}, "discard")
	keys := &cobra.Command{Use: "keys"}
	keys.PersistentFlags().String("dir", "", "")
	keys.AddCommand(&cobra.Command{Use: "init", RunE: func(c *cobra.Command, _ []string) error { return s.Apply(c) }})
	look := &cobra.Command{Use: "look"}
	lookServe := &cobra.Command{Use: "serve", RunE: func(c *cobra.Command, _ []string) error { return s.Apply(c) }}
	lookServe.Flags().StringVar(&v.listen, "listen", "default", "")
	lookServe.Flags().StringVar(&v.store, "more", "", "")
	As(lookServe, "serve")
	look.AddCommand(lookServe)
	root.AddCommand(serve, keys, look)
	return root
}

// applied runs a command line with a file and variables.
func applied(t *testing.T, file string, env []string, args ...string) (v values, root *cobra.Command, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	root = program(Settings{Prefix: "PROG", Env: env, Path: path, Required: true}, &v)
	err = Execute(context.Background(), root, args, io.Discard, io.Discard)
	return v, root, err
}

func TestTheFirstOfFourCounts(t *testing.T) {
	const file = "[serve]\nlisten = 'file'\npart-wait = \"5s\"\ntokens = 7\nrate = 1.5\nmodel = ['a=b', 'c=d']\nuid = [7, 8]\n"
	env := []string{"PROG_SERVE_LISTEN=env", "PROG_SERVE_PART_WAIT=6s", "PROG_SERVE_MODEL=e,f", "PROG_SERVE_STORE=", "OTHER=1", "PROG_KEYS_INIT_DIR=x", "PROG=1", "PROG_SERVE"}
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file bool
		env  []string
		args []string
		want values
		from map[string]Origin
	}{
		{false, nil, nil, values{listen: "default", wait: time.Second, tokens: 1}, map[string]Origin{"listen": FromDefault, "model": FromDefault}},
		{true, nil, nil, values{listen: "file", wait: 5 * time.Second, tokens: 7, rate: 1.5, models: []string{"a=b", "c=d"}, ids: []uint{7, 8}},
			map[string]Origin{"listen": FromFile, "uid": FromFile, "store": FromDefault}},
		{true, env, nil, values{listen: "env", wait: 6 * time.Second, tokens: 7, rate: 1.5, models: []string{"e", "f"}, ids: []uint{7, 8}},
			map[string]Origin{"listen": FromEnv, "model": FromEnv, "tokens": FromFile, "store": FromDefault}},
		{true, env, []string{"--listen", "line", "--model", "x", "--tokens", "1"},
			values{listen: "line", wait: 6 * time.Second, tokens: 1, rate: 1.5, models: []string{"x"}, ids: []uint{7, 8}},
			map[string]Origin{"listen": FromLine, "model": FromLine, "tokens": FromLine, "part-wait": FromEnv}},
	} {
		var v values
		s := Settings{Prefix: "PROG", Env: c.env}
		if c.file {
			s.Path = path
		}
		root := program(s, &v)
		if err := Execute(t.Context(), root, append([]string{"serve"}, c.args...), io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		w := c.want
		if v.listen != w.listen || v.wait != w.wait || v.tokens != w.tokens || v.rate != w.rate || !slices.Equal(v.models, w.models) || !slices.Equal(v.ids, w.ids) {
			t.Errorf("%v: %+v, want %+v", c.args, v, w)
		}
		serve, _ := Find(root, []string{"serve"})
		for name, want := range c.from {
			if got := originOf(serve.Flags().Lookup(name)); got != want {
				t.Errorf("%v: --%s is from %s, want %s", c.args, name, got, want)
			}
		}
	}
}

// TestWhatHasNoEffectIsPassedOver: of the file, which is for more than one command line;
// not of variables.
func TestWhatHasNoEffectIsPassedOver(t *testing.T) {
	const file = "[serve]\nfront = 'f'\nstore = 's'\n"
	for _, c := range []struct {
		env          []string
		args         []string
		store, front string
	}{
		{nil, nil, "s", "f"},
		{nil, []string{"--discard"}, "", ""},
		{[]string{"PROG_SERVE_DISCARD=true"}, nil, "", ""},
		{nil, []string{"--discard", "--store", "x"}, "x", "f"}, // the command's own check says what is wrong
		{[]string{"PROG_SERVE_FRONT=g"}, []string{"--discard"}, "", "g"},
	} {
		path := filepath.Join(t.TempDir(), "c")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		var v values
		root := program(Settings{Prefix: "PROG", Env: c.env, Path: path}, &v)
		if err := Execute(t.Context(), root, append([]string{"serve"}, c.args...), io.Discard, io.Discard); err != nil || v.store != c.store || v.front != c.front {
			t.Errorf("%v %v: %+v, %v", c.env, c.args, v, err)
		}
	}
	if v, _, err := applied(t, "[serve]\nfront = 'f'\n", nil, "serve"); err != nil || v.front != "" {
		t.Errorf("alone: %+v, %v", v, err)
	}
}

func TestMistakesAreToldWithTheirPlace(t *testing.T) {
	for _, c := range []struct {
		what string
		file string
		env  []string
		args []string
		say  string
	}{
		{"a mistyped flag", "[serve]\n\nlistne = 'x'\n", nil, []string{"serve"}, "line 3: unknown setting listne of [serve]: did you mean listen?"},
		{"whichever command runs", "[serve]\nlistne = 'x'\n", nil, []string{"keys", "init"}, "line 2: unknown setting listne"},
		{"a mistyped table", "\n[srve]\n", nil, []string{"serve"}, "line 2: unknown table [srve]: did you mean serve?"},
		{"a mistyped table below one", "[keys]\n[keys.inti]\ndir = 'x'\n", nil, []string{"serve"}, "line 2: unknown table [keys.inti]: did you mean init?"},
		{"no table", "listen = 'x'\n", nil, []string{"serve"}, "line 1: listen stands before the first table"},
		{"a flag that is about the file", "[serve]\nconfig = 'x'\n", nil, []string{"serve"}, "unknown setting config"},
		{"help is no setting", "[serve]\nhelp = true\n", nil, []string{"serve"}, "unknown setting help"},
		{"no TOML", "[serve]\nlisten = \n", nil, []string{"serve"}, "line 2: "},
		{"twice", "[serve]\nlisten = 'a'\nlisten = 'b'\n", nil, []string{"serve"}, "line"},
		{"a wrong value", "[serve]\ntokens = 'many'\n", nil, []string{"serve"}, `line 2: tokens = "many": want a whole number without a unit, for example tokens = 1`},
		{"a time without a unit", "[serve]\npart-wait = 5\n", nil, []string{"serve"}, `line 2: part-wait = 5: want a time with its unit, in quotes, for example part-wait = "1s"`},
		{"a number with a unit", "[serve]\ntokens = '4k'\n", nil, []string{"serve"}, `line 2: tokens = "4k": want a whole number without a unit`},
		{"a number with a point", "[serve]\ntokens = 1.5\n", nil, []string{"serve"}, "line 2: tokens = 1.5: want a whole number"},
		{"a word for true", "[serve]\ndiscard = 'yes'\n", nil, []string{"serve"}, `line 2: discard = "yes": want true or false, for example discard = true`},
		{"of another command", "[serve]\ntokens = 'x'\n", nil, []string{"keys", "init"}, `line 2: tokens = "x"`},
		{"what has no effect here", "[serve]\n\nfront = ['a', 'b']\n", nil, []string{"serve"}, `line 3: front = ["a", "b"]: want a text in quotes`},
		{"no quotes", "[keys.init]\n[serve]\nlisten = tcp://a:1 # here\n", nil, []string{"serve"}, `line 3: listen = tcp://a:1: want a text in quotes: listen = "tcp://a:1"`},
		{"other quotes", "[serve]\nlisten = “tcp://a:1”\n", nil, []string{"serve"}, `want a text in quotes: listen = "tcp://a:1"`},
		{"a time without quotes", "[serve]\npart-wait = 5s\n", nil, []string{"serve"}, `line 2: part-wait = 5s: want a time with its unit, in quotes: part-wait = "5s"`},
		{"a number with a unit and no quotes", "[serve]\ntokens = 4k\n", nil, []string{"serve"}, `line 2: tokens = 4k: want a whole number without a unit: tokens = 1`},
		{"True", "[serve]\ndiscard = True\n", nil, []string{"serve"}, "line 2: discard = True: want true or false: discard = true"},
		{"off", "[serve]\ndiscard = off\n", nil, []string{"serve"}, "want true or false: discard = false"},
		{"no value", "[serve]\nlisten = # none\n", nil, []string{"serve"}, "line 2: listen has no value: want a text in quotes"},
		{"a list without quotes", "[serve]\nmodel = a=b\n", nil, []string{"serve"}, `line 2: model = a=b: want a list of texts in quotes: model = ["a=b"]`},
		{"a list of tables", "[[serve]]\nlisten = 'x'\n", nil, []string{"serve"}, "line 1: [[serve]] is a list of tables: want one pair of brackets, [serve]"},
		{"one of another name", "[[srve]]\nlisten = 'x'\n", nil, []string{"serve"}, "line 1: unknown table [[srve]]: did you mean serve?"},
		{"one below a table", "[[keys.init]]\ndir = 'x'\n", nil, []string{"serve"}, "line 1: [[keys.init]] is a list of tables"},
		{"a command with a value", "serve = 'x'\n", nil, []string{"serve"}, "line 1: serve is a command: want a table, [serve], and below it its flags"},
		{"somebody else's home", "[serve]\nstore = '~ada/x'\n", nil, []string{"serve"}, `line 2: store: "~ada/x": only ~/ stands for a home directory`},
		{"a time without a unit in a variable", "", []string{"PROG_SERVE_PART_WAIT=5"}, []string{"serve"}, "want a time with its unit"},
		{"a list for one", "[serve]\nlisten = ['a', 'b']\n", nil, []string{"serve"}, `line 2: listen = ["a", "b"]: want a text in quotes`},
		{"an empty list", "[serve]\nmodel = []\n", nil, []string{"serve"}, "line 2: the list for model is empty"},
		{"a list of lists", "[serve]\nmodel = [['a']]\n", nil, []string{"serve"}, `line 2: model = [["a"]]: want a list of texts in quotes, for example model = ["a", "b"]`},
		{"a date", "[serve]\nlisten = 2026-01-01\n", nil, []string{"serve"}, "line 2: listen = 2026-01-01: want a text in quotes"},
		{"a table for a flag", "[serve.listen]\nx = 1\n", nil, []string{"serve"}, "unknown table [serve.listen]"},
		{"a mistyped variable", "", []string{"PROG_SERVE_LISTNE=x"}, []string{"serve"}, "$PROG_SERVE_LISTNE: prog serve has no such flag: did you mean $PROG_SERVE_LISTEN?"},
		{"a wrong value of a variable", "", []string{"PROG_SERVE_TOKENS=x"}, []string{"serve"}, "$PROG_SERVE_TOKENS: invalid argument"},
		{"all at once", "[serve]\na = 1\nb = 2\n", nil, []string{"serve"}, "line 2: unknown setting a of [serve]\n"},
		{"large", strings.Repeat("#", maxFile+1), nil, []string{"serve"}, "has more than"},
	} {
		v, _, err := applied(t, c.file, c.env, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q", c.what, err, c.say)
		}
		if v.listen != "" && v.listen != "default" {
			t.Errorf("%s: %+v", c.what, v)
		}
	}
	if _, _, err := applied(t, "[keys.init]\ndir = 'x'\n[serve]\n", nil, "serve"); err != nil {
		t.Error(err)
	}
}

func TestTheFileItself(t *testing.T) {
	var v values
	missing := filepath.Join(t.TempDir(), "none.toml")
	if err := Execute(t.Context(), program(Settings{Path: missing}, &v), []string{"serve"}, io.Discard, io.Discard); err != nil {
		t.Errorf("a file that need not be there: %v", err)
	}
	s := Settings{Path: missing, Required: true}
	if err := Execute(t.Context(), program(s, &v), []string{"serve"}, io.Discard, io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that was named: %v", err)
	}
	s = Settings{Path: os.DevNull, Required: true}
	if err := Execute(t.Context(), program(s, &v), []string{"serve"}, io.Discard, io.Discard); err != nil {
		t.Errorf("none: %v", err)
	}
	s.Trust = func(*os.File) error { return fs.ErrPermission }
	if err := Execute(t.Context(), program(s, &v), []string{"serve"}, io.Discard, io.Discard); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("not to be trusted: %v", err)
	}
}

func TestList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("[serve]\nmodel = ['a', 'b']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var v values
	s := Settings{Prefix: "PROG", Env: []string{"PROG_SERVE_PART_WAIT=90s"}, Path: path}
	root := program(s, &v)
	serve, rest := Find(root, []string{"serve"})
	all, err := s.List(serve)
	if err != nil || len(rest) != 0 || len(all) != 9 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, want := range []Setting{
		{"serve", "listen", "default", FromDefault, "PROG_SERVE_LISTEN", ""},
		{"serve", "model", "a,b", FromFile, "PROG_SERVE_MODEL", ""},
		{"serve", "part-wait", "1m30s", FromEnv, "PROG_SERVE_PART_WAIT", ""},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("no %+v in %+v", want, all)
		}
	}
	if err := os.WriteFile(path, []byte("[serve]\nfront = 'f'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for with, idle := range map[string]string{"": "only with --store", "s": ""} {
		s.Env = []string{"PROG_SERVE_STORE=" + with}
		again, _ := Find(program(s, &v), []string{"serve"})
		if all, err := s.List(again); err != nil || !slices.Contains(all, Setting{"serve", "front", "f", FromFile, "PROG_SERVE_FRONT", idle}) {
			t.Errorf("with %q: %+v, %v", with, all, err)
		}
	}
	keysInit, _ := Find(root, []string{"keys", "init"})
	if all, err := s.List(keysInit); err != nil || len(all) != 1 || all[0].Command != "keys init" || all[0].Variable != "PROG_KEYS_INIT_DIR" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestSettingsOfAnotherCommand: a variable or a line of it that this one has no flag for
// is not its mistake, and it has none of its own.
func TestSettingsOfAnotherCommand(t *testing.T) {
	const file = "[serve]\nlisten = 'file'\ntokens = 7\n"
	if v, _, err := applied(t, file, []string{"PROG_SERVE_RATE=2", "PROG_SERVE_MORE=m"}, "look", "serve"); err != nil || v.listen != "file" || v.store != "m" {
		t.Errorf("%+v, %v", v, err)
	}
	if v, _, err := applied(t, file, []string{"PROG_SERVE_LISTEN=env"}, "look", "serve"); err != nil || v.listen != "env" {
		t.Errorf("%+v, %v", v, err)
	}
	for say, c := range map[string][2]string{
		"unknown table [look]":            {"[look.serve]\nlisten = 'x'\n", ""},
		"did you mean $PROG_SERVE_LISTEN": {"", "PROG_SERVE_LISTNE=x"},
	} {
		if _, _, err := applied(t, c[0], []string{c[1]}, "look", "serve"); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%v, want %q", err, say)
		}
	}
}

// TestHomes: of paths, wherever they come from.
func TestHomes(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	for _, c := range []struct {
		file string
		env  []string
		args []string
	}{
		{"[serve]\nstore = '~/a/b'\n", nil, nil},
		{"", []string{"PROG_SERVE_STORE=~/a/b"}, nil},
		{"", nil, []string{"--store=~/a/b"}},
	} {
		if v, _, err := applied(t, c.file, c.env, append([]string{"serve"}, c.args...)...); err != nil || v.store != filepath.Join(home, "a", "b") {
			t.Errorf("%+v: %q, %v", c, v.store, err)
		}
	}
	if v, _, err := applied(t, "[serve]\nlisten = '~/a'\nstore = './~'\n", nil, "serve"); err != nil || v.listen != "~/a" || v.store != "./~" {
		t.Errorf("no path, and no home: %+v, %v", v, err)
	}
	for path, want := range map[string]string{"~": home, "": "", "a/~": "a/~", "/x": "/x"} {
		if got, err := Home(path); err != nil || got != want {
			t.Errorf("%q: %q, %v", path, got, err)
		}
	}
	for _, args := range [][]string{{"--store=~ada"}, {"--store", "~ada/x"}} {
		if _, _, err := applied(t, "", nil, append([]string{"serve"}, args...)...); err == nil || !strings.Contains(err.Error(), "--store: ") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// FuzzFile: whatever a file says, there is an error or there are values, and the
// message is short.
func FuzzFile(f *testing.F) {
	for _, s := range []string{
		"", "[serve]\nlisten = 'x'\n", "[keys.init]\ndir='x'", "a=1\n[a.b]\n", "[serve]\nmodel = [1, 'a', true, 1.5]\n", "[[serve]]\nx=1\n", "\xff", "[serve\n",
		"serve = {listen = 'x'}", "serve.listen = 'x'", "[serve]\n'li sten' = 1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "c")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var v values
		root := program(Settings{Path: path}, &v)
		if err := Execute(t.Context(), root, []string{"serve"}, io.Discard, io.Discard); err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
