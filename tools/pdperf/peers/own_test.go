package main

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lines are what pdperf prints with --json, cut to what counts here.
const lines = `{"program":"pdperf","ok":true,"link":"tcp","sealed":false,"block_bytes":16777216,"rep":0,"goodput_gb_per_s":1.1,"line_rate_gb_per_s":1.2,"block_ms":{"p50":14,"p99":20},"limited_by":{"cause":"wire"},"sender":{"cpu":{"seconds_per_gb":0.3}},"receiver":{"cpu":{"seconds_per_gb":0.2,"reads_per_gb":2000}}}
{"program":"pdperf","ok":true,"link":"tcp","sealed":true,"block_bytes":16777216,"rep":0,"bytes":1677721600,"goodput_gb_per_s":0.9,"line_rate_gb_per_s":1.2,"block_ms":{"p50":16,"p99":30},"limited_by":{"cause":"sender CPU"},"disturbed":["by others"],"sender":{"cpu":null},"receiver":{"cpu":null}}
{"program":"floor","ok":true,"link":"tcp","block_bytes":16777216,"rep":0,"goodput_gb_per_s":1.0,"line_rate_gb_per_s":1.2,"limited_by":null,"sender":{"cpu":{"seconds_per_gb":0.2}},"receiver":{"cpu":{"seconds_per_gb":0.1,"reads_per_gb":1000}}}
{"program":"pdperf","ok":true,"link":"tcp","sealed":false,"block_bytes":16777216,"rep":1,"goodput_gb_per_s":1.2,"line_rate_gb_per_s":1.2,"block_ms":{"p50":14,"p99":20},"limited_by":{"cause":"receiver CPU"},"sender":{"cpu":{"seconds_per_gb":0.5}},"receiver":{"cpu":{"seconds_per_gb":0.2,"reads_per_gb":2000}}}
{"program":"floor","ok":true,"link":"tcp","block_bytes":16777216,"rep":1,"goodput_gb_per_s":1.0,"line_rate_gb_per_s":0}
{"program":"pdperf","ok":false,"why":"it broke","link":"tcp","sealed":true,"block_bytes":65536,"rep":1}
`

func TestLinksTable(t *testing.T) {
	all, err := readOwn(strings.NewReader(lines), link{name: "10g", mtu: 1500})
	if err != nil || len(all) != 6 {
		t.Fatalf("%d results, %v", len(all), err)
	}
	var out strings.Builder
	printLinks(&out, all, 0.95)
	for _, want := range []string{
		"| 10g | 1500 | 16 MiB | tcp | 2 | 1.150 (1.100–1.200) | 0.958 | 1.15 (1.10–1.20) | 14.0 | – | 0.400 (0.300–0.500) | 0.200 (0.200–0.200) | 2000 | receiver CPU ×1, wire ×1 | 0 of 2 |",
		"| 10g | 1500 | 16 MiB | tcp+tls | 1 | 0.900 | 0.750 | 0.90 | 16.0 | 30.0 | – | – | – | sender CPU | 1 of 1 |",
		"| 10g | 1500 | 16 MiB | floor | 2 | 1.000 (1.000–1.000) | 0.833 | – |",
		"| 10g | 1500 | 64 KiB | tcp+tls | FAILED: it broke |",
		"a probability of 95 % in brackets", "With 1 repetitions it goes from the least to the most and does so with a probability of 0.00 only.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if _, err := readOwn(strings.NewReader("nonsense\n"), link{}); err == nil {
		t.Error("nonsense was read")
	}
}

// TestLinksTableOfNothing: where no measurement came to anything, the table is what there is.
func TestLinksTableOfNothing(t *testing.T) {
	broken := ownRecord{Bed: "10g", MTU: 1500, Link: "tcp", Block: 16 << 20}
	broken.Why = "it broke"
	for name, c := range map[string]struct {
		all  []ownRecord
		want string
	}{
		"nothing measured": {nil, "| cable |"},
		"all failed":       {[]ownRecord{broken, broken}, "| 10g | 1500 | 16 MiB | tcp | FAILED: it broke |"},
	} {
		var out strings.Builder
		printLinks(&out, c.all, 0.95)
		if got := out.String(); !strings.Contains(got, c.want) || strings.Contains(got, "repetitions it goes") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestOwnWithoutProgram: without the program that is measured no bed is made.
func TestOwnWithoutProgram(t *testing.T) {
	var out, errOut strings.Builder
	err := run(t.Context(), []string{"-own", "-pdperf", filepath.Join(t.TempDir(), "none")}, &out, &errOut)
	if !errors.Is(err, fs.ErrNotExist) || out.String() != "" || errOut.String() != "" {
		t.Errorf("%v, said %q and %q", err, out.String(), errOut.String())
	}
}

func TestOwnOptions(t *testing.T) {
	o, err := parse([]string{"-own", "-links", "lo,10g,1g", "-mtu", "1500,9000", "-sizes", "65536", "-reps", "2", "-time", "1s"}, &strings.Builder{})
	if err != nil || !o.own {
		t.Fatalf("%+v, %v", o, err)
	}
	if got := ownTime(o); got != 5*2*3*2*time.Second {
		t.Errorf("%v", got)
	}
	if _, err := parse([]string{"-own", "-table", "x"}, &strings.Builder{}); err == nil {
		t.Error("a table of what pdperf measured was accepted")
	}
}
