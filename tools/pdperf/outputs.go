package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
)

// outputs are the forms in which results are printed: a table for people, unless another
// one is asked for.
type outputs struct {
	asJSON, asCSV, asBench bool
	save                   string

	file *os.File // of save
	csv  *csv.Writer
}

func (o *outputs) register(c *cobra.Command) {
	fl := c.Flags()
	fl.BoolVar(&o.asJSON, "json", false, "print each result as one line of JSON; see pdperf schema")
	fl.BoolVar(&o.asCSV, "csv", false, "print results as CSV, with the fields of --json as columns")
	fl.BoolVar(&o.asBench, "benchstat", false, "print results as those of Go benchmarks, for benchstat")
	fl.StringVar(&o.save, "save", "", "write the results to `FILE` too, as --json prints them; for pdperf compare")
	must(c.MarkFlagFilename("save"))
}

func (o *outputs) check() error {
	n := 0
	for _, asked := range []bool{o.asJSON, o.asCSV, o.asBench} {
		if asked {
			n++
		}
	}
	if n > 1 {
		return errors.New("--json, --csv and --benchstat exclude each other; --save FILE writes JSON beside them")
	}
	return nil
}

// open opens the file that results go to, before anything is measured.
func (o *outputs) open() error {
	if o.save == "" {
		return nil
	}
	f, err := os.Create(o.save)
	if err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	o.file = f
	return nil
}

// begin writes what comes before results.
func (o *outputs) begin(io streams) {
	switch {
	case o.asCSV:
		o.csv = csv.NewWriter(io.out)
		o.csv.Write(csvHeader()) //nolint:errcheck // Flush's error is looked at
		o.csv.Flush()
	case o.asBench:
		io.printf("goos: %s\ngoarch: %s\npkg: pdlink/tools/pdperf\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, hostOfThis().CPU)
	}
}

// add gives a result out, as far as it does not wait for the others.
func (o *outputs) add(io streams, r *result) error {
	if o.file != nil {
		if err := json.NewEncoder(o.file).Encode(r); err != nil {
			return failed(fmt.Errorf("--save: %w", err))
		}
	}
	switch {
	case o.asJSON:
		return io.json(r)
	case o.asCSV:
		o.csv.Write(csvRow(r)) //nolint:errcheck // Flush's error is looked at
		o.csv.Flush()
		return o.csv.Error()
	case o.asBench && r.OK:
		io.printf("%s\n", benchLine(r))
	}
	return nil
}

// end gives out what waited for all results, of several measurements.
func (o *outputs) end(io streams, all []*result) {
	if !o.asJSON && !o.asCSV && !o.asBench {
		printTable(io, all)
	}
}

// one gives out the only result of a run.
func (o *outputs) one(io streams, r *result) error {
	o.begin(io)
	if err := o.add(io, r); err != nil {
		return err
	}
	if !o.asJSON && !o.asCSV && !o.asBench {
		printResult(io, r)
	}
	return r.err()
}

// close closes the file.
func (o *outputs) close() error {
	if o.file == nil {
		return nil
	}
	if err := o.file.Close(); err != nil {
		return failed(fmt.Errorf("--save: %w", err))
	}
	return nil
}

// benchLine is a result as a line of a Go benchmark: a block is an operation.
func benchLine(r *result) string {
	of := sizeText(r.BlockBytes)
	if r.Model != "" {
		of = r.Model
	}
	name := fmt.Sprintf("BenchmarkLink/link=%s/block=%s/lanes=%d/inflight=%d/direction=%s-%d", r.linkName(), of, r.Lanes, r.InFlight, r.Direction, r.Sender.Cores)
	cells := []string{
		name, fmt.Sprint(r.Blocks),
		fmt.Sprintf("%.0f ns/op", r.Seconds*1e9/float64(max(1, r.Blocks))), fmt.Sprintf("%.2f MB/s", r.Goodput*1e3),
		fmt.Sprintf("%.3f p50-ms", r.BlockMs.P50),
	}
	if p99 := r.blockMs(99); !math.IsNaN(p99) {
		cells = append(cells, fmt.Sprintf("%.3f p99-ms", p99))
	}
	for _, c := range []struct {
		end string
		cpu *cpuUse
	}{{"sender", r.Sender.CPU}, {"receiver", r.Receiver.CPU}, {"both", r.Both}} {
		if c.cpu != nil {
			cells = append(cells, fmt.Sprintf("%.4f %s-s/GB", c.cpu.PerGB, c.end))
		}
	}
	if c := r.Receiver.CPU; c != nil && c.Reads > 0 {
		cells = append(cells, fmt.Sprintf("%.1f reads/GB", c.ReadsPerGB))
	}
	return strings.Join(cells, "\t")
}
