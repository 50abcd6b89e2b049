//go:build rdmavm

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The tests with this tag run in the machine itself: that its devices do what other
// people's programs expect of them.

// pair runs a server and its client, as programs of verbs are used, and returns what
// the client said.
func pair(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, _ := pairCost(t, name, args...)
	return out
}

// pairCost is pair, with the processor time of both ends.
func pairCost(t *testing.T, name string, args ...string) (string, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := exec.CommandContext(ctx, name, append(args, "-d", os.Getenv("RDMA_A"))...)
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var out []byte
	var err error
	var client *exec.Cmd
	for range 100 { // until the server listens
		client = exec.CommandContext(ctx, name, append(args, "-d", os.Getenv("RDMA_B"), os.Getenv("RDMA_IP_A"))...)
		if out, err = client.CombinedOutput(); err == nil || !regexp.MustCompile("(?i)couldn't connect|refused").Match(out) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if serr := server.Wait(); err != nil || serr != nil {
		t.Fatalf("%s: client %v\n%s\nserver %v\n%s", name, err, out, serr, log.String())
	}
	cost := time.Duration(0)
	for _, p := range []*os.ProcessState{client.ProcessState, server.ProcessState} {
		cost += p.UserTime() + p.SystemTime()
	}
	return string(out), cost
}

func TestVMPingpong(t *testing.T) {
	out := pair(t, "ibv_rc_pingpong", "-g", "1", "-e", "-n", "200", "-c")
	if !strings.Contains(out, "200 iters") {
		t.Errorf("%s", out)
	}
	t.Log(out)
}

// average is the column of that name in perftest's table, in MB/s.
func average(t *testing.T, out string) float64 {
	t.Helper()
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 5 {
			continue
		}
		if _, err := strconv.Atoi(fields[0]); err != nil {
			continue
		}
		v, err := strconv.ParseFloat(fields[3], 64)
		if err == nil {
			return v
		}
	}
	t.Fatalf("no table in\n%s", out)
	return 0
}

func TestVMPerftest(t *testing.T) {
	for _, name := range []string{"ib_write_bw", "ib_send_bw", "ib_read_bw"} {
		for _, size := range []int{1 << 16, 1 << 20} {
			rate := rated(t, name, "-F", "-x", "1", "-n", "24", "-t", "16", "-Q", "1", "-s", fmt.Sprint(size))
			t.Logf("%s of %d bytes: %.1f MiB/s", name, size, rate)
			if rate < 1 {
				t.Errorf("%s of %d bytes: %.1f MiB/s", name, size, rate)
			}
		}
	}
}

// rated is the rate in MiB/s that a program of perftest comes to. On a busy host it may
// not find out how fast its clock is, and then says 0: it is asked again.
func rated(t *testing.T, name string, args ...string) float64 {
	t.Helper()
	var out string
	for range 8 {
		out = pair(t, name, args...)
		if rate := average(t, out); rate > 0 || !strings.Contains(out, "Correlation coefficient") {
			return rate
		}
	}
	t.Fatalf("its clock cannot be measured: %s", out)
	return 0
}

// shell runs a line of shell.
func shell(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// loaded inserts the modules for shaping, once.
func loaded(t *testing.T) {
	t.Helper()
	shell(t, `while read -r m; do grep -q "^${m%.ko} " /proc/modules || insmod "/modules/$m"; done </modules/tc.list`)
}

// TestVMShaped: a token bucket holds the rate, for RDMA too.
func TestVMShaped(t *testing.T) {
	loaded(t)
	net := os.Getenv("RDMA_NET_B")
	shell(t, "tc qdisc add dev "+net+" root tbf rate 100mbit burst 64kb latency 400ms")
	defer shell(t, "tc qdisc del dev "+net+" root")
	rate := rated(t, "ib_write_bw", "-F", "-x", "1", "-n", "12", "-t", "4", "-Q", "1", "-s", "1048576")
	t.Logf("shaped to 100 Mbit/s: %.1f MiB/s", rate)
	if rate > 12.5 || rate < 2 { // 11.9 MiB/s with headers
		t.Errorf("%.1f MiB/s at 100 Mbit/s", rate)
	}
}

// TestVMLossy: lost packets are sent again. The program talks over TCP at its end, so neither side leaves while the other
// one still waits for an answer that was lost.
func TestVMLossy(t *testing.T) {
	loaded(t)
	net := os.Getenv("RDMA_NET_B")
	shell(t, "tc qdisc add dev "+net+" root netem loss 2% delay 1ms")
	defer shell(t, "tc qdisc del dev "+net+" root")
	rate := rated(t, "ib_write_bw", "-F", "-x", "1", "-n", "40", "-t", "4", "-Q", "1", "-s", "65536")
	dropped := shell(t, "tc -s qdisc show dev "+net)
	m := regexp.MustCompile(`dropped (\d+)`).FindStringSubmatch(dropped)
	if len(m) < 2 || m[1] == "0" {
		t.Errorf("nothing was lost: %s", dropped)
	}
	t.Logf("%v, %.1f MiB/s", m, rate)
}
