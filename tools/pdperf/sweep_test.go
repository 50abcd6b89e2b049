package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pdlink/bridge/replay"
)

// results reads lines of JSON, each of which has to follow the schema.
func results(t *testing.T, text string) (all []result) {
	t.Helper()
	for line := range strings.Lines(text) {
		all = append(all, parsed(t, line))
	}
	return all
}

// TestSweep measures several links, sizes and repetitions: what each is, in which order,
// and in which forms it is given out.
func TestSweep(t *testing.T) {
	save := filepath.Join(t.TempDir(), "results.json")
	status, out, errOut := cli(t, "local", "--links", "tcp,tcp+tls,mem", "--size", "64KiB..128KiB", "--frame", "64KiB", "--time", "40ms", "--warmup", "10ms",
		"--reps", "2", "--json", "--save", save)
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	all := results(t, out)
	var order []string
	for _, r := range all {
		sound(t, r)
		order = append(order, r.linkName()+" "+sizeText(r.BlockBytes))
		if (r.linkName() == "tcp+tls") != r.Sealed || (r.linkName() == "mem") != (r.Processes == 1) {
			t.Errorf("%+v", r)
		}
		if (r.Limited == nil) != (r.linkName() == "mem") {
			t.Errorf("%s: limited by %+v", r.linkName(), r.Limited)
		}
	}
	want := []string{
		"tcp 64KiB", "tcp+tls 64KiB", "mem 64KiB", "floor 64KiB", "tcp 128KiB", "tcp+tls 128KiB", "mem 128KiB", "floor 128KiB",
	}
	again := slices.Clone(want)
	slices.Reverse(again)
	if !slices.Equal(order, append(want, again...)) || all[7].Rep != 0 || all[8].Rep != 1 {
		t.Errorf("measured %q", order)
	}
	if n := strings.Count(errOut, "GB/s"); n != 16 || !strings.Contains(errOut, "[16/16] tcp 64KiB, 3 in flight, push #2: ") {
		t.Errorf("%d lines of progress:\n%s", n, errOut)
	}
	if saved, err := os.ReadFile(save); err != nil || string(saved) != out {
		t.Errorf("saved %v:\n%s", err, saved)
	}
}

func TestSweepTable(t *testing.T) {
	status, out, errOut := cli(t, "local", "--links", "tcp,tcp+tls", "--size", "64KiB", "--frame", "64KiB", "--time", "40ms", "--warmup", "0", "--lanes", "1,2", "--in-flight", "1,3")
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	for _, want := range []string{
		`(?m)^link +block +lanes +in flight +way +GB/s`, `(?m)^tcp +64KiB +1 +1 +push +\d`, `(?m)^tcp\+tls +64KiB +2 +3 +push +\d`, `(?m)^floor +64KiB +1 +3 +push +\d`,
		`(?m)^1 repetition, interleaved`, `(?m)^Limited by, tcp 64KiB, push: `, `(?m)^granted, floor: .*MSS \d+, send buffer .* MTU \d+`, `(?m)^host: .* cores of `,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if n := strings.Count(out, "\nfloor "); n != 2 || strings.Contains(out, "NaN") || strings.Contains(out, "%!") {
		t.Errorf("%d floors:\n%s", n, out)
	}
}

// TestDirections: the other end sends, and both at the same time.
func TestDirections(t *testing.T) {
	for _, link := range []string{"tcp", "tcp+tls", "mem"} {
		status, out, errOut := cli(t, "local", "--links", link, "--floor=false", "--size", "520kB", "--frame", "64KiB", "--time", "100ms", "--warmup", "20ms",
			"--direction", "push,pull,both", "--json")
		if status != exitOK {
			t.Fatalf("%s: status %d: %s%s", link, status, out, errOut)
		}
		all := results(t, out)
		for i, r := range all {
			sound(t, r)
			if want := []string{push, pull, both}[i]; r.Direction != want || (r.Push > 0) != (want != pull) || (r.Pull > 0) != (want != push) || r.Verified != r.Bytes || r.linkName() != link {
				t.Errorf("%s %s: %+v", link, want, r)
			}
		}
		if a, b := all[0], all[1]; link != "mem" && (a.Local == b.Local || a.Sender.CPU == nil || b.Sender.CPU == nil) {
			t.Errorf("pull is from %s to %s, push from %s to %s", b.Local, b.Remote, a.Local, a.Remote)
		}
	}
}

// TestServePulled: on two hosts; and an end that does not send says so.
func TestServePulled(t *testing.T) {
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--send-ring", "64")
	for _, way := range []string{pull, both} {
		r := measured(t, quick("run", "--to", s.url, "--direction", way)...)
		if sound(t, r); r.Direction != way || r.Pull <= 0 {
			t.Errorf("%+v", r)
		}
	}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"--in-flight", "9"}, "start it with --send-ring 152"},
		{[]string{"--frame", "128KiB"}, "takes frames of up to 64KiB"},
	} {
		status, out, errOut := cli(t, quick("run", append(c.args, "--to", s.url, "--direction", "pull")...)...)
		if c.args[0] == "--frame" && strings.Contains(errOut, "sends frames of up to 64KiB") {
			continue
		}
		if status != exitFailed || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d, want %q: %s%s", c.args, status, c.say, out, errOut)
		}
	}
	s.stop()
	none := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--send-ring", "0")
	for _, way := range []string{pull, both} {
		if status, _, errOut := cli(t, quick("run", "--to", none.url, "--direction", way)...); status != exitFailed || !strings.Contains(errOut, "start it with --send-ring") {
			t.Errorf("%s: status %d: %s", way, status, errOut)
		}
	}
}

// TestServeManyLinks: one receiving end with keys, in clear and sealed, with a floor.
func TestServeManyLinks(t *testing.T) {
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0,unix://"+filepath.Join(t.TempDir(), "s"), "--frame", "64KiB", "--floor-listen", "127.0.0.1:0")
	s.until(`"floor"`)
	var urls []string
	for _, e := range s.events() {
		urls = append(urls, e["listen"].(string))
	}
	if len(urls) != 3 {
		t.Fatalf("listens at %q", urls)
	}
	status, out, errOut := cli(t, quick("run", "--to", urls[0]+","+urls[1], "--floor-to", urls[2], "--json")...)
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	var links []string
	for _, r := range results(t, out) {
		sound(t, r)
		links = append(links, r.linkName())
	}
	if want := []string{"tcp", "unix", "floor"}; !slices.Equal(links, want) {
		t.Errorf("links %q, want %q", links, want)
	}
	// Without keys there is nothing that is sealed.
	status, out, errOut = cli(t, quick("run", "--to", urls[0], "--links", "tcp,tcp+tls")...)
	if status != exitFailed || !strings.Contains(out, "serve it with keys") || !strings.Contains(out, "\ntcp  ") || !strings.Contains(errOut, "1 of 2 measurements failed") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	if status := s.stop(); status != exitOK {
		t.Errorf("serve: status %d: %s", status, s.err.String())
	}
}

// TestModels: blocks and pieces of real models, whole and without overlap.
func TestModels(t *testing.T) {
	for _, model := range replay.SyntheticModels() {
		s, err := modelShape(model, defaultFrame)
		if err != nil {
			t.Fatal(err)
		}
		seen := make([]uint64, s.group)
		next := map[uint32]uint64{}
		for _, f := range s.frames {
			n := 0
			for _, p := range f {
				n += p.n
				seen[p.block] += uint64(p.n)
				if p.offset < next[p.block] {
					t.Fatalf("%s: block %d goes back to %d", model, p.block, p.offset)
				}
				next[p.block] = p.offset + uint64(p.n)
			}
			if n < 1 || n > defaultFrame {
				t.Fatalf("%s: a frame of %d bytes", model, n)
			}
		}
		for b, n := range seen {
			if n != s.blockBytes {
				t.Errorf("%s: block %d has %d bytes of %d", model, b, n, s.blockBytes)
			}
		}
		if s.bytes() > chunkBytes || s.blockTokens < 1 || s.group < 2 {
			t.Errorf("%s: %d blocks of %d tokens, %d bytes", model, s.group, s.blockTokens, s.bytes())
		}
	}
	r := measured(t, "local", "--link", "mem://", "--model", "deepseek-v4-flash", "--in-flight", "1", "--time", "30ms", "--warmup", "0")
	sound(t, r)
	if r.Model != "deepseek-v4-flash" || r.BlockTokens != 2048 || r.PerToken <= 0 || r.BlockBytes != 20156416 || r.InFlight != 4 {
		t.Errorf("%+v", r)
	}
}

// TestShapes: every byte of a block once, in frames that fit.
func TestShapes(t *testing.T) {
	for _, c := range [][2]int64{{8, 4096}, {4096, 4096}, {4104, 4096}, {520_000, 65536}, {1 << 20, 1 << 20}} {
		s := plainShape(c[0], c[1])
		at := uint64(0)
		for _, f := range s.frames {
			if len(f) != 1 || f[0].offset != at || f[0].n < 1 || int64(f[0].n) > c[1] {
				t.Fatalf("%v: %+v at %d", c, f, at)
			}
			at += uint64(f[0].n)
		}
		if at != uint64(c[0]) || s.bytes() != at {
			t.Errorf("%v: %d bytes", c, at)
		}
	}
	var s shape
	s.group = 3
	s.layer(100, 1000, 4096) // three pieces in one frame
	s.layer(1100, 3000, 4096)
	s.layer(4100, 10000, 4096)
	var sizes []int
	for _, f := range s.frames {
		n := 0
		for _, p := range f {
			n += p.n
		}
		sizes = append(sizes, n)
	}
	if want := []int{3000, 3000, 3000, 3000}; !slices.Equal(sizes[:4], want) {
		t.Errorf("frames of %v", sizes)
	}
}

func TestCSV(t *testing.T) {
	status, out, errOut := cli(t, "local", "--links", "tcp,mem", "--size", "64KiB", "--frame", "64KiB", "--time", "30ms", "--warmup", "0", "--csv")
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll() // of equal length, or it is an error
	if err != nil || len(rows) != 4 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	column := func(name string) int {
		i := slices.Index(rows[0], name)
		if i < 0 {
			t.Fatalf("no column %s in %q", name, rows[0])
		}
		return i
	}
	for _, name := range []string{
		"schema", "goodput_gb_per_s", "block_ms.p99_9", "sender.cpu.seconds_per_gb", "receiver.sockets.congestion_control", "sender.interface.offloads",
		"both_cpu.reads_per_gb", "limited_by.cause", "sender.sockets.tcp_info.retransmits", "disturbed",
	} {
		column(name)
	}
	if tcp, mem := rows[1], rows[2]; tcp[column("link")] != "tcp" || tcp[column("sender.interface.mtu")] == "" || tcp[column("both_cpu.user_seconds")] != "" ||
		mem[column("link")] != "mem" || mem[column("sender.sockets.local")] != "" || mem[column("both_cpu.user_seconds")] == "" {
		t.Errorf("%q\n%q", tcp, mem)
	}
	seen := map[string]bool{}
	for _, name := range rows[0] {
		if seen[name] || name == "" {
			t.Errorf("column %q twice", name)
		}
		seen[name] = true
	}
}

func TestBenchstat(t *testing.T) {
	status, out, errOut := cli(t, "local", "--links", "tcp,mem", "--size", "64KiB", "--frame", "64KiB", "--time", "30ms", "--warmup", "0", "--reps", "2", "--benchstat")
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	// The format of golang.org/design/14313-benchmark-format.
	line := regexp.MustCompile(`^Benchmark\S+-\d+\t\d+(\t[0-9.]+ \S+)+$`)
	n := 0
	for l := range strings.Lines(out) {
		if l = strings.TrimSuffix(l, "\n"); strings.HasPrefix(l, "Benchmark") {
			if n++; !line.MatchString(l) || !strings.Contains(l, " ns/op") || !strings.Contains(l, " MB/s") {
				t.Errorf("%q", l)
			}
		}
	}
	if n != 6 || !strings.HasPrefix(out, "goos: ") || !strings.Contains(out, "BenchmarkLink/link=tcp/block=64KiB/lanes=1/inflight=3/direction=push-") {
		t.Errorf("%d lines:\n%s", n, out)
	}
}

// TestInterrupt: what was measured is printed, and what was under way as far as it came.
func TestInterrupt(t *testing.T) {
	b := startText(t, "local", "--links", "tcp,mem", "--size", "64KiB", "--frame", "64KiB", "--time", "100ms", "--warmup", "0", "--reps", "1000")
	for end := time.Now().Add(testPatience); !strings.Contains(b.err.String(), "[2/3000]"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(b.err.String())
		}
	}
	if status := b.stop(); status != exitStopped {
		t.Errorf("status %d", status)
	}
	if out := b.out.String(); !strings.Contains(out, "\ntcp ") || !strings.Contains(out, "\nmem ") || !strings.Contains(b.err.String(), "of 3000 measurements are above") {
		t.Errorf("%s%s", out, b.err.String())
	}
	one := startText(t, "local", "--link", "mem://", "--size", "64KiB", "--frame", "64KiB", "--time", "1h", "--warmup", "0", "--json")
	time.Sleep(50 * time.Millisecond) // whatever it is at: the next lines hold
	if status := one.stop(); status != exitStopped {
		t.Errorf("status %d: %s", status, one.err.String())
	}
	if out := one.out.String(); out != "" {
		var r result
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.OK && (!r.Interrupted || r.Seconds > 60) {
			t.Errorf("%v: %+v", err, r)
		}
	}
}

func TestSweepUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"--links", "carrier-pigeon"}, "want each of"},
		{[]string{"--links", "tcp,tcp"}, "once at most"},
		{[]string{"--links", ""}, "none is given"},
		{[]string{"--links", "tcp", "--link", "mem://"}, "exclude each other"},
		{[]string{"--links", "tcp", "--keys"}, "tcp+tls"},
		{[]string{"--links", "tcp", "--at", "tcp://h"}, "--at"},
		{[]string{"--at", "127.0.0.1"}, "--at is for --links"},
		{[]string{"--link", "mem://", "--floor"}, "--floor is a TCP socket"},
		{[]string{"--json", "--csv"}, "exclude each other"},
		{[]string{"--size", "64KiB..8"}, "smaller size first"},
		{[]string{"--size", "0..8"}, "above 0"},
		{[]string{"--size", "8.."}, "size"},
		{[]string{"--size", "8,"}, "size"},
		{[]string{"--model", "gpt-2"}, "want one of deepseek-v4-flash, qwen3-32b"},
		{[]string{"--model", "qwen3-32b", "--in-flight", "64"}, "--buffers"},
		{[]string{"--model", ""}, "none is given"},
		{[]string{"--direction", ""}, "none is given"},
		{[]string{"--lanes", ""}, "no whole number"},
		{[]string{"--lanes", "-1"}, "--lanes"},
		{[]string{"--lanes", "many"}, "--lanes"},
		{[]string{"--in-flight", "1,0"}, "no whole number"},
		{[]string{"--direction", "up"}, "want push, pull or both"},
		{[]string{"--reps", "0"}, "--reps"},
		{[]string{"--reps", "-5"}, "--reps"},
		{[]string{"--size", "8..16MiB", "--lanes", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "--in-flight", "1,2,3,4,5,6,7,8,9,10", "--direction", "push,pull"}, "combinations"},
		{[]string{"--save", "/none/file"}, "no such file"},
		{[]string{"--encrypt", "256", "--links", "tcp"}, "--encrypt is for --keys"},
	} {
		status, out, errOut := cli(t, append([]string{"local"}, c.args...)...)
		if status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d, want %d and %q\n%s%s", c.args, status, exitUsage, c.say, out, errOut)
		}
	}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"run", "--to", "tcp://127.0.0.1:1,tcp://127.0.0.1:2"}, "one URL for each scheme"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--links", "rdma+tls"}, "no --to is of rdma: add rdma://host:port"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--floor-to", "rdma://x:1"}, "--floor-to"},
		{[]string{"serve", "--once", "--floor-listen", "127.0.0.1:0"}, "--once"},
		{[]string{"serve", "--send-ring", "-1"}, "--send-ring"},
		{[]string{"serve", "--listen", ""}, "no address"},
	} {
		if status, out, errOut := cli(t, c.args...); status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d, want %q\n%s%s", c.args, status, c.say, out, errOut)
		}
	}
}

// TestFailedRows: a link that is not there does not take the others' figures away.
func TestFailedRows(t *testing.T) {
	status, out, errOut := cli(t, "local", "--links", "rdma,mem", "--at", "127.0.0.1", "--size", "64KiB", "--frame", "64KiB", "--time", "30ms", "--warmup", "0")
	if status == exitOK { // this host has RDMA on its loopback
		return
	}
	if strings.Contains(errOut, "\npdperf: listen") || strings.Count(errOut, "\n") != 3 { // two of progress, one of the end
		t.Errorf("said\n%s", errOut)
	}
	if status != exitFailed || !regexp.MustCompile(`(?m)^mem +64KiB +1 +3 +push +\d`).MatchString(out) || !regexp.MustCompile(`(?m)^FAILED: rdma 64KiB, push, repetition 1: .*link unavailable: `).MatchString(out) ||
		!strings.Contains(errOut, "1 of 2 measurements failed") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
}
