package main

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"pdlink/bridge"
	"pdlink/bridge/front"
	"pdlink/bridge/prefill/calls"
)

// reference is what a person reads of the command, from the root of the repository.
const reference = "tools/pdlink/README.md"

// TestFieldsHaveOneNameAndAreDocumented: what programs read.
func TestFieldsHaveOneNameAndAreDocumented(t *testing.T) {
	_, table, _ := strings.Cut(readmes(t)[reference], "## Output for programs")
	table, _, _ = strings.Cut(table, "\n## ")
	fields := map[string]map[string]bool{}
	for _, v := range []any{
		replayResult{}, transferEvent{}, listening{}, declinedEvent{}, ended{}, demoSummary{}, entryJSON{}, listSummary{}, findingJSON{},
		verifySummary{}, diffJSON{}, diffSummary{}, blockJSON{}, layerJSON{}, tensorJSON{}, buildFacts{}, bridge.LinkUse{}, bridge.PortUse{},
		ownKey{}, pairing{}, peerJSON{}, keysSummary{}, revocation{}, lostEvent{}, requestEvent{}, front.Sent{}, finding{}, doctorSummary{},
		sidecarStarted{}, sidecarReady{}, sidecarLink{}, sidecarCall{}, calls.Worker{}, sidecarEnded{}, settingEvent{}, settingsSummary{},
		verifyCheck{}, verifyClass{}, verifyCaseSummary{},
	} {
		typ := reflect.TypeOf(v)
		fields[typ.Name()] = map[string]bool{}
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				continue // the embedded struct itself
			}
			fields[typ.Name()][name] = true
			if !strings.Contains(table, "`"+name+"`") {
				t.Errorf("%s of %s is not in %s", name, typ.Name(), reference)
			}
		}
	}
	for name := range fields["transferEvent"] {
		if !fields["replayResult"][name] {
			t.Errorf("decode's transfer event has %s, replay's result has not", name)
		}
	}
}

// anchorsIn are the headings of a text as links name them.
func anchorsIn(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchors[strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return anchors
}

// TestReadmesLeadSomewhere: their links.
func TestReadmesLeadSomewhere(t *testing.T) {
	root, n := filepath.Join("..", ".."), 0
	for from, text := range readmes(t) {
		for _, m := range regexp.MustCompile(`\]\(([^):]+)\)`).FindAllStringSubmatch(text, -1) {
			n++
			to, anchor, _ := strings.Cut(m[1], "#")
			target := text
			if to != "" {
				file := filepath.Join(root, filepath.FromSlash(path.Join(path.Dir(from), to)))
				info, err := os.Stat(file)
				if err != nil {
					t.Errorf("%s: %v", from, err)
					continue
				}
				if b, err := os.ReadFile(file); err == nil && !info.IsDir() {
					target = string(b)
				}
			}
			if anchor != "" && !anchorsIn(target)[anchor] {
				t.Errorf("%s: %s has no heading %s", from, to, anchor)
			}
		}
	}
	if n < 50 {
		t.Errorf("%d links", n)
	}
}

// TestReadmeIsShort: a person reads it in five minutes.
func TestReadmeIsShort(t *testing.T) {
	text := readmes(t)["README.md"]
	if n := strings.Count(text, "\n"); n > 250 {
		t.Errorf("%d lines", n)
	}
	at := -1
	for _, part := range []string{"**What it is:**", "**What it is not:**", "\n## Quick start", "\n### Two hosts, for real", "\n## Package map", "\n## Tests", "\n## Hack on it"} {
		next := strings.Index(text, part)
		if next <= at {
			t.Errorf("%q is missing, or not in its place", part)
		}
		at = next
	}
}

// settingsTable is the table of settings: by a setting's name the commands that have it
// and its default; "" where the table names none.
func settingsTable(t *testing.T) map[string][2]string {
	t.Helper()
	_, table, _ := strings.Cut(readmes(t)[reference], "| setting | of | default |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string][2]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		cells = cells[1:]
		names, values := strings.Split(cells[0], ", "), strings.Split(cells[2], ", ")
		for i, name := range names {
			value := ""
			if len(values) == len(names) {
				value = values[i]
			} else if len(values) == 1 {
				value = values[0]
			}
			rows[strings.Trim(name, "`")] = [2]string{cells[1], value}
		}
	}
	return rows
}

// TestReferenceHasEverySetting: of the two commands that run as services, with its
// default, and no other.
func TestReferenceHasEverySetting(t *testing.T) {
	t.Setenv(configEnv, os.DevNull)
	rows := settingsTable(t)
	seen := map[string]bool{}
	for _, command := range []string{"decode", "prefill"} {
		_, out, _ := cli(t, "config", "show", command, "--json")
		for line := range strings.Lines(out) {
			var e settingEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Event != "setting" {
				continue
			}
			row, ok := rows[e.Flag]
			seen[e.Flag] = true
			if !ok || row[0] != "both" && !strings.Contains(row[0], command) && e.Flag != "once" && e.Flag != "json" {
				t.Errorf("%s of %s is not in the table of %s: %q", e.Flag, command, reference, row)
			}
			said := strings.Trim(strings.SplitN(row[1], ":", 2)[0], "`")
			if strings.HasPrefix(row[1], "`tcp:") || strings.HasPrefix(row[1], "`http:") || strings.HasPrefix(row[1], "`127.") {
				said = strings.Trim(row[1], "`")
			}
			value := e.Value
			switch {
			case e.Flag == "name" || e.Flag == "keys" || e.Flag == "peer": // the table says how it is found
				continue
			case value == "" || value == "false":
				value = ""
				if said == "none" || said == "no" || said == "the decoder's own" {
					said = ""
				}
			}
			if said != value {
				t.Errorf("the default of %s of %s is %q, %s says %q", e.Flag, command, e.Value, reference, row[1])
			}
		}
	}
	for name := range rows {
		if !seen[name] {
			t.Errorf("the table of %s has %s, which no command has", reference, name)
		}
	}
}

// TestReadmesPairUnderNamesThatWereGiven: the lines that are pasted are those that the
// program prints.
func TestReadmesPairUnderNamesThatWereGiven(t *testing.T) {
	for _, path := range []string{"README.md", reference} {
		text, n := readmes(t)[path], 0
		for _, m := range regexp.MustCompile(`(?m)^pdlink keys pair (\w+) pdlink1…`).FindAllStringSubmatchIndex(text, -1) {
			n++
			if name := text[m[2]:m[3]]; !strings.Contains(text[:m[0]], "--name "+name) {
				t.Errorf("%s pairs with %s, and no --name before it makes that the name", path, name)
			}
		}
		if n < 2 {
			t.Errorf("%s: %d lines", path, n)
		}
	}
	dir, other := t.TempDir(), t.TempDir()
	var own ownKey
	decoded(t, &own, "keys", "init", "--name", "mac", "--dir", dir)
	var r pairing
	decoded(t, &r, "keys", "pair", own.Name, own.Key, "--name", "spark", "--dir", other)
	if own.Name != "mac" || !strings.HasPrefix(own.Command, "pdlink keys pair mac pdlink1") || !strings.HasPrefix(r.Back.Command, "pdlink keys pair spark pdlink1") {
		t.Errorf("%+v %+v", own, r)
	}
}
