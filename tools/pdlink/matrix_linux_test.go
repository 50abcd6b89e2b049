//go:build faults

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The matrix's environment.
const (
	matrixRunsEnv   = "PDLINK_MATRIX_RUNS"   // how many runs; default: one for each fault
	matrixSeedEnv   = "PDLINK_MATRIX_SEED"   // default: a random one, which is printed
	matrixOnlyEnv   = "PDLINK_MATRIX_RUN"    // one run: "CELL SEED", as a failure prints it
	matrixWorkEnv   = "PDLINK_MATRIX_WORKER" // set in the processes that run them
	matrixWidthEnv  = "PDLINK_MATRIX_WIDTH"  // runs at a time
	matrixWidth     = 4                      // most of a run is waiting
	matrixMark      = "matrix result "       // begins a worker's line
	matrixLongFrom  = 100                    // runs from where on the long ones are among them
	matrixMostMiss  = 0.1                    // of the runs may be over before their fault
	matrixFewToMiss = 50                     // runs below which that says nothing
)

// matrixJob is a run to be done.
type matrixJob struct {
	cell matrixCell
	seed uint64
}

func (j matrixJob) String() string { return j.cell.String() + " " + strconv.FormatUint(j.seed, 10) }

// parseMatrixJob reads what String writes.
func parseMatrixJob(text string) (j matrixJob, err error) {
	i := strings.LastIndexByte(text, ' ')
	parts := strings.Split(text[:max(i, 0)], "/")
	if len(parts) != 3 {
		return j, fmt.Errorf("run %q: want FAULT/PHASE/LINK SEED", text)
	}
	j.cell = matrixCell{parts[0], parts[1], parts[2] == "sealed"}
	j.seed, err = strconv.ParseUint(text[i+1:], 10, 64)
	return j, err
}

// matrixJobs are so many runs over all cells: every fault comes up before any comes
// twice.
func matrixJobs(runs int, seed uint64) (jobs []matrixJob) {
	rng := rand.New(rand.NewPCG(seed, 1))
	byFault := map[string][]matrixCell{}
	var names []string
	for _, f := range matrixFaults() {
		if f.long {
			continue
		}
		names = append(names, f.name)
		for _, phase := range matrixPhases() {
			byFault[f.name] = append(byFault[f.name], matrixCell{f.name, phase, false}, matrixCell{f.name, phase, true})
		}
		rng.Shuffle(len(byFault[f.name]), func(i, k int) {
			c := byFault[f.name]
			c[i], c[k] = c[k], c[i]
		})
	}
	for i := range runs {
		cells := byFault[names[i%len(names)]]
		jobs = append(jobs, matrixJob{cells[i/len(names)%len(cells)], seed + uint64(i)})
	}
	if runs >= matrixLongFrom { // first, so that nobody waits for them at the end
		for _, f := range matrixFaults() {
			if f.long {
				jobs = slices.Insert(jobs, 0, matrixJob{matrixCell{f.name, inMiddle, seed%2 == 0}, seed + uint64(runs)})
			}
		}
	}
	return jobs
}

// TestMatrix has faults of every kind strike transfers between real processes at
// every stage, clear and sealed, and prints what came of them.
func TestMatrix(t *testing.T) {
	if os.Getenv(matrixWorkEnv) != "" {
		matrixWorker(t)
		return
	}
	seed := envNumber(t, matrixSeedEnv, rand.Uint64()>>32)
	var jobs []matrixJob
	if text := os.Getenv(matrixOnlyEnv); text != "" {
		j, err := parseMatrixJob(text)
		if err != nil {
			t.Fatalf("%s: %v", matrixOnlyEnv, err)
		}
		jobs = append(jobs, j)
	} else {
		few := len(slices.DeleteFunc(matrixFaults(), func(f matrixFault) bool { return f.long }))
		jobs = matrixJobs(int(envNumber(t, matrixRunsEnv, uint64(few))), seed)
		t.Logf("%s=%d", matrixSeedEnv, seed)
	}
	begin := time.Now()
	width := min(len(jobs), int(envNumber(t, matrixWidthEnv, matrixWidth)))
	queue, results := make(chan matrixJob), make(chan matrixResult, len(jobs))
	var workers sync.WaitGroup
	for range width {
		workers.Go(func() { superviseWorker(t, queue, results) })
	}
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	workers.Wait()
	close(results)
	var all []matrixResult
	for res := range results {
		all = append(all, res)
	}
	reportMatrix(t, all, len(jobs), time.Since(begin))
}

// superviseWorker gives a worker one job after the other.
func superviseWorker(t *testing.T, queue <-chan matrixJob, results chan<- matrixResult) {
	in, out := startWorker(t)
	if in == nil {
		for range queue { // TestMatrix has failed
		}
		return
	}
	defer in.Close()
	for j := range queue {
		fmt.Fprintln(in, j)
		res := matrixResult{Cell: j.cell.String(), Seed: j.seed, Failed: true, Text: "the worker ended"}
		for out.Scan() {
			if text, ok := strings.CutPrefix(out.Text(), matrixMark); ok {
				if err := json.Unmarshal([]byte(text), &res); err != nil {
					res.Text = err.Error()
				}
				break
			}
			res.Text += "\n" + out.Text()
		}
		results <- res
	}
}

// startWorker starts a process that may mount disks.
func startWorker(t *testing.T) (io.WriteCloser, *bufio.Scanner) {
	self, err := os.Executable()
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	attrs := []*syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNS},
		{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		},
	}
	for _, attr := range attrs {
		cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$", "-test.timeout", "0")
		cmd.Env = append(os.Environ(), matrixWorkEnv+"=1")
		cmd.SysProcAttr, cmd.Stderr = attr, os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err = cmp.Or(err1, err2, cmd.Start()); err != nil {
			continue
		}
		t.Cleanup(func() { in.Close(); cmd.Wait() })
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		return in, lines
	}
	t.Errorf("no mount namespace to be had, it takes root or user namespaces: %v", err)
	return nil, nil
}

// matrixWorker does the runs that standard input names.
func matrixWorker(t *testing.T) {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
	dir := t.TempDir()
	if err := mountDisk(dir, 1<<30); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountDisk(dir) })
	t.Setenv("TMPDIR", dir) // stores lie in memory: a kill does not lose what was written
	b := newMatrixBench(t)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		j, err := parseMatrixJob(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		var res matrixResult
		ok := t.Run(strings.ReplaceAll(j.cell.String(), " ", "-"), func(t *testing.T) {
			r := newMatrixRun(&tape{T: t}, b, j.cell, j.seed)
			defer func() { res = r.result; res.Text = r.text() }()
			r.run()
		})
		res.Cell, res.Seed, res.Failed = j.cell.String(), j.seed, !ok
		line, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s%s\n", matrixMark, line)
	}
}
