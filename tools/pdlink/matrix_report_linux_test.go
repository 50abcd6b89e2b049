//go:build faults

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// matrixTell is how many failures are told of in full.
const matrixTell = 20

// tape is a test whose complaints are kept too.
type tape struct {
	*testing.T
	mu   sync.Mutex
	said strings.Builder
}

func (t *tape) keep(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(&t.said, text)
}

func (t *tape) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.said.String()
}

func (t *tape) Error(args ...any) { t.keep(fmt.Sprint(args...)); t.Fail() }

func (t *tape) Errorf(format string, args ...any) { t.keep(fmt.Sprintf(format, args...)); t.Fail() }

func (t *tape) Fatal(args ...any) { t.keep(fmt.Sprint(args...)); t.FailNow() }

func (t *tape) Fatalf(format string, args ...any) {
	t.keep(fmt.Sprintf(format, args...))
	t.FailNow()
}

// matrixRow is what the runs of a cell, or of several, came to.
type matrixRow struct {
	name                                   string
	runs, complete, partial, missed, rerun int
	again                                  int64
	extra, extraMost, allowed              int64
	seconds                                []float64
	failed                                 int
}

func (m *matrixRow) add(r matrixResult) {
	m.runs++
	switch {
	case r.Failed:
		m.failed++
	case r.Partial:
		m.partial++
	default:
		m.complete++
	}
	if r.Missed {
		m.missed++
	}
	m.rerun += r.Reruns
	m.again += r.Again
	m.extra += r.Extra
	if r.Extra >= m.extraMost {
		m.extraMost, m.allowed = r.Extra, r.Allowed
	}
	m.seconds = append(m.seconds, r.Seconds)
}

func (m *matrixRow) print(w *tabwriter.Writer) {
	slices.Sort(m.seconds)
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t\n", m.name, m.runs, m.complete, m.partial, m.failed,
		m.missed, m.rerun, m.again, m.extra/int64(m.runs), m.extraMost, m.allowed, m.seconds[len(m.seconds)/2], m.seconds[len(m.seconds)-1])
}

// reportMatrix prints the table and the failures.
func reportMatrix(t *testing.T, all []matrixResult, want int, took time.Duration) {
	rows, sum := map[string]*matrixRow{}, &matrixRow{name: "all"}
	for _, r := range all {
		if rows[r.Cell] == nil {
			rows[r.Cell] = &matrixRow{name: r.Cell}
		}
		rows[r.Cell].add(r)
		sum.add(r)
		if r.Failed && sum.failed <= matrixTell {
			t.Errorf("%s failed; again: %s='%s %d' go test -tags faults -count=1 -run '^TestMatrix$' ./tools/pdlink\n%s",
				r.Cell, matrixOnlyEnv, r.Cell, r.Seed, r.Text)
		}
	}
	if sum.failed > matrixTell {
		t.Errorf("%d runs failed, those above among them", sum.failed)
	}
	if len(all) < want {
		t.Errorf("%d of %d runs have a result", len(all), want)
	}
	if len(all) == 0 {
		return
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "cell\truns\tcomplete\tpartial\tfailed\tmissed\treruns\treconnects\tB again\tmost\tallowed\ts\tmost\t")
	for _, f := range matrixFaults() {
		for _, phase := range matrixPhases() {
			for _, sealed := range []bool{false, true} {
				if row := rows[matrixCell{f.name, phase, sealed}.String()]; row != nil {
					row.print(w)
				}
			}
		}
	}
	sum.print(w)
	w.Flush()
	t.Logf("%d runs in %v; complete without another run, partial, over before the fault, senders started again, connections made again, "+
		"bytes that senders sent beside those of a run without fault (mean, most, the most that may be in that run), seconds (median, most)\n%s", len(all), took.Round(time.Second), text.String())
	if sum.runs >= matrixFewToMiss && float64(sum.missed) > matrixMostMiss*float64(sum.runs) {
		t.Errorf("%d of %d transfers were over before their fault: they do not test what they should", sum.missed, sum.runs)
	}
}
