//go:build rdmavm

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// roundsEnv is how often each figure is taken.
const roundsEnv = "RDMA_ROUNDS"

// steadyEnv is set where the machine's clock counts instructions: figures repeat then,
// whatever else the host does.
const steadyEnv = "RDMA_STEADY"

// What the link has to reach beside ib_write_bw, as a median of leastRounds or more where
// figures repeat. Of fewer, or elsewhere, only a collapse fails: that is leastAnywhere. A
// figure of one round varies by some percent with what else the host does, whatever the clock
// counts.
const (
	leastRounds   = 5
	leastGoodput  = 0.85 // nothing verified, at the rate of the processors
	leastShaped   = 0.97 // everything verified, at 100 Mbit/s
	mostCPU       = 1.1
	leastAnywhere = 0.2
)

// inFlight is how many blocks are on their way at a time, here and there.
const inFlight = "3"

// measured is what pdperf prints of a run.
type measured struct {
	OK       bool
	Why      string
	Link     string
	Goodput  float64 `json:"goodput_gb_per_s"`
	Verified uint64  `json:"verified_bytes"`
	Bytes    uint64
	Bad      uint64 `json:"bad_pieces"`
	Sender   measuredEnd
	Receiver measuredEnd
}

type measuredEnd struct {
	CPU struct {
		PerGB float64 `json:"seconds_per_gb"`
	}
}

// figure is one measurement: MB/s, and processor seconds for each GB of both ends.
type figure struct{ rate, cpu float64 }

// TestVMGoodput measures blocks beside ib_write_bw of the same size, in turn: as fast
// as the processors are, without verification, which ib_write_bw has none of, and with
// it on a link of 100 Mbit/s.
func TestVMGoodput(t *testing.T) {
	loaded(t)
	a, b := paired(t)
	listen := []string{"serve", "--json", "--listen", "rdma://" + os.Getenv("RDMA_IP_A") + ":0", "--keys", a, "--encrypt", "off"}
	plain, verified := listens(t, pdperf, append(listen, "--sum", "none")...), listens(t, pdperf, listen...)
	for _, size := range []int{1, 4, 16} { // MiB
		t.Run(fmt.Sprintf("%d MiB", size), func(t *testing.T) {
			compare(t, leastGoodput, func() (ours, theirs figure) {
				theirs = perftest(t, size, leastRuns+64/size, true)
				return blocks(t, plain, b, size, "--sum", "none", "--time", "1s"), theirs
			})
		})
		t.Run(fmt.Sprintf("%d MiB at 100 Mbit/s", size), func(t *testing.T) {
			for _, n := range []string{"RDMA_NET_A", "RDMA_NET_B"} {
				shell(t, "tc qdisc add dev $"+n+" root tbf rate 100mbit burst 64kb latency 400ms")
			}
			defer shell(t, "tc qdisc del dev $RDMA_NET_A root; tc qdisc del dev $RDMA_NET_B root")
			compare(t, leastShaped, func() (ours, theirs figure) {
				// It polls all the time, beside which its start is nothing.
				theirs = perftest(t, size, max(leastRuns, 24/size), false)
				return blocks(t, verified, b, size, "--time", "4s"), theirs
			})
		})
	}
}

// compare takes figures in turn and judges the medians of their ratios.
func compare(t *testing.T, least float64, both func() (ours, theirs figure)) {
	t.Helper()
	var rates, costs []float64
	var lines strings.Builder
	for range number(t, roundsEnv, 1) {
		ours, theirs := both()
		rates, costs = append(rates, ours.rate/theirs.rate), append(costs, ours.cpu/theirs.cpu)
		fmt.Fprintf(&lines, "\n%6.2f MB/s and %6.2f (%.3f), %5.2f CPU s/GB and %5.2f (%.2f)",
			ours.rate, theirs.rate, ours.rate/theirs.rate, ours.cpu, theirs.cpu, ours.cpu/theirs.cpu)
	}
	rate, cost := median(rates), median(costs)
	t.Logf("pdperf and ib_write_bw: goodput %.3f of it, CPU %.2f of it%s", rate, cost, lines.String())
	if os.Getenv(steadyEnv) == "" || len(rates) < leastRounds {
		least = leastAnywhere
	} else if cost > mostCPU {
		t.Errorf("the ends take %.2f times the CPU of ib_write_bw, want at most %.2f", cost, mostCPU)
	}
	if rate < least {
		t.Errorf("goodput is %.3f of ib_write_bw's, want %.2f", rate, least)
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// blocks is a run of pdperf.
func blocks(t *testing.T, url, keys string, size int, more ...string) figure {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args := append([]string{"run", "--json", "--to", url, "--keys", keys, "--encrypt", "off", "--size", fmt.Sprint(size) + "MiB",
		"--in-flight", inFlight, "--warmup", "300ms"}, more...)
	cmd := exec.CommandContext(ctx, pdperf, args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	var m measured
	jerr := json.Unmarshal(out, &m)
	checked := m.Verified == m.Bytes
	if slices.Contains(more, "none") {
		checked = m.Verified == 0
	}
	if err != nil || jerr != nil || !m.OK || m.Link != "rdma" || m.Bad != 0 || !checked {
		t.Fatalf("%v, %v\n%s%s", err, jerr, out, log.String())
	}
	return figure{m.Goodput * 1e3, m.Sender.CPU.PerGB + m.Receiver.CPU.PerGB}
}

const mib = 1 << 20

// leastRuns is the fewest messages that perftest sends.
const leastRuns = 5

// perftest is a run of ib_write_bw with n messages of size MiB. With difference it is what
// these take beyond a short run: what a program does to start is no part of it.
func perftest(t *testing.T, size, n int, difference bool) figure {
	t.Helper()
	run := func(n int) (rate, seconds, cpu float64) {
		out, cost := pairCost(t, "ib_write_bw", "-F", "-x", "1", "-t", inFlight, "-Q", "1", "-n", fmt.Sprint(n), "-s", fmt.Sprint(size*mib))
		rate = average(t, out) * mib / 1e6
		return rate, float64(n*size*mib) / 1e6 / rate, cost.Seconds()
	}
	rate, seconds, cpu := run(n)
	if difference && os.Getenv(steadyEnv) != "" { // else it would be of two noises
		_, start, idle := run(leastRuns)
		seconds, cpu, n = seconds-start, cpu-idle, n-leastRuns
		rate = float64(n*size*mib) / 1e6 / seconds
	}
	return figure{rate, cpu / (float64(n*size*mib) / 1e9)}
}
