package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
)

// flagsIn are the names of all flags of a command.
func flagsIn(c *cobra.Command) (names []string) {
	c.InheritedFlags() // merges those of its parents into its own
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-[a-zA-Z], )?--([a-z0-9-]+)`).FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
		names = append(names, m[1])
	}
	return names
}

// textsBelow calls f with each text of the programs' sources below a directory of the
// module, without those of tests.
func textsBelow(t *testing.T, dir string, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					f(path, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLibrariesNameNoCommands: who imports them may be another program. What to run is
// said where the commands are.
func TestLibrariesNameNoCommands(t *testing.T) {
	named := regexp.MustCompile("`pdlink [a-z]+")
	for _, dir := range []string{"transport", "tcp", "rdma", "kernels", "bridge"} {
		textsBelow(t, dir, func(path, text string) {
			if m := named.FindString(text); m != "" {
				t.Errorf("%s names %s`", path, m)
			}
		})
	}
}

// leadsNowhere says what of a command line of pdlink does not exist: a command, a flag.
func leadsNowhere(line string) string {
	words := strings.Fields(strings.TrimPrefix(line, "pdlink"))
	if len(words) == 0 {
		return ""
	}
	root := newRoot(newStreams(&output{}, &output{}))
	root.InitDefaultCompletionCmd(words...)
	c, rest := cmdline.Find(root, words)
	if c.HasSubCommands() && len(rest) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(rest[0]) {
		return "the command " + rest[0]
	}
	for _, word := range rest {
		word, _, _ = strings.Cut(word, "=")
		name := strings.TrimPrefix(word, "--")
		if name == word || !regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(name) {
			continue
		}
		c.InitDefaultHelpFlag()
		c.InheritedFlags()
		if c.Flags().Lookup(name) == nil {
			return "the flag " + word + " of " + c.CommandPath()
		}
	}
	return ""
}

// TestCuresNameCommandsThatExist: and flags that these have.
func TestCuresNameCommandsThatExist(t *testing.T) {
	n := 0
	for _, dir := range []string{"tools/pdlink", "tools/linkkeys", "tools/pdperf"} {
		textsBelow(t, dir, func(path, text string) {
			for _, m := range regexp.MustCompile("`(pdlink [a-z][^`]*)`").FindAllStringSubmatch(text, -1) {
				n++
				if strings.Contains(m[1], "%") {
					continue
				}
				if what := leadsNowhere(m[1]); what != "" {
					t.Errorf("%s: `%s`: there is no %s", path, m[1], what)
				}
			}
		})
	}
	if n < 30 {
		t.Errorf("%d commands", n)
	}
}

// readmes are the files for people that name commands of pdlink.
func readmes(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, path := range []string{"README.md", "tools/pdlink/README.md", "bridge/vllm/README.md", "bridge/omlx/plugin/README.md", "rdma/README.md"} {
		b, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(path)))
		if err != nil {
			if path == "README.md" || path == "tools/pdlink/README.md" {
				t.Fatal(err)
			}
			continue
		}
		texts[path] = string(b)
	}
	return texts
}

// TestReadmesNameCommandsThatExist: in examples, and in the text.
func TestReadmesNameCommandsThatExist(t *testing.T) {
	n := 0
	for path, text := range readmes(t) {
		var lines [][]string
		for _, block := range regexp.MustCompile("(?ms)^```sh$(.*?)^```$").FindAllString(text, -1) {
			lines = append(lines, regexp.MustCompile(`(?m)^(?:go run \./tools/|sudo )?(pdlink [a-z].*)$`).FindAllStringSubmatch(block, -1)...)
		}
		lines = append(lines, regexp.MustCompile("`(pdlink [a-z][^`]*)`").FindAllStringSubmatch(text, -1)...)
		for _, m := range lines {
			line, _, _ := strings.Cut(m[1], " #")
			line, _, _ = strings.Cut(line, " | ")
			n++
			if what := leadsNowhere(line); what != "" {
				t.Errorf("%s: %s: there is no %s", path, line, what)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d commands", n)
	}
}

// flagsOfPdperf are the names that its sources give to flags: it is another program.
func flagsOfPdperf(t *testing.T) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "pdperf", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`Var\(&[a-zA-Z.]+, "([a-z0-9-]+)",`).FindAllStringSubmatch(string(b), -1) {
			names = append(names, m[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("pdperf has the flags %q only", names)
	}
	return names
}

// TestReadmesNameFlagsThatExist: each is one of some command here, of pdperf, or of the
// engines and tools that the text is about.
func TestReadmesNameFlagsThatExist(t *testing.T) {
	known := []string{
		"help", "version", // of every command
		// of vLLM
		"dtype", "kv-cache-dtype", "kv-transfer-config", "enforce-eager", "gpu-memory-utilization", "max-num-batched-tokens", "nnodes", "host", "served-model-name", "max-model-len",
		"tensor-parallel-size", "pipeline-parallel-size", "node-rank", "master-addr", "headless",
		"paged-ssd-cache-dir",                              // of oMLX
		"gpus", "network", "ipc", "ulimit", "user", "name", // of docker
		"out", "allow-rounding", // of pdlink-vllm
		"dir", "replace",
	}
	commands(newRoot(newStreams(&output{}, &output{})), func(c *cobra.Command) {
		known = append(known, flagsIn(c)...)
	})
	known = append(known, flagsOfPdperf(t)...)
	for path, text := range readmes(t) {
		for _, m := range regexp.MustCompile("(?:^|[\\s`(\"\\[])--([a-z][a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(known, m[1]) {
				t.Errorf("%s names --%s, which no command has", path, m[1])
			}
		}
	}
}

// TestReadmesNameVariablesThatExist: each is of a flag, or one that the program reads.
func TestReadmesNameVariablesThatExist(t *testing.T) {
	known := []string{configEnv, decoderKeyEnv, "PDLINK_KEYS"}
	s := cmdline.Settings{Prefix: envPrefix}
	commands(newRoot(newStreams(&output{}, &output{})), func(c *cobra.Command) {
		for _, name := range flagsIn(c) {
			known = append(known, s.Variable(c, name))
		}
	})
	for _, path := range []string{"README.md", "tools/pdlink/README.md"} {
		for _, m := range regexp.MustCompile(`PDLINK_[A-Z0-9_]+`).FindAllString(readmes(t)[path], -1) {
			if !slices.Contains(known, strings.TrimSuffix(m, "_")) && m != "PDLINK_" {
				t.Errorf("%s names $%s, which nothing reads", path, m)
			}
		}
	}
}
