package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fixed is a result whose figures are given.
func fixed(goodput float64) *result {
	return &result{
		Schema: schemaName, Program: "pdperf", OK: true, Blocks: 1000, Link: "tcp", Direction: push, Processes: 2, BlockBytes: 16 << 20, Lanes: 1, InFlight: 3, Seconds: 10,
		Goodput: goodput, Push: goodput, BlockMs: blockTimes{P50: 10, P99: 20}, Sender: endResult{CPU: &cpuUse{PerGB: 0.3}}, Receiver: endResult{CPU: &cpuUse{PerGB: 0.2}},
	}
}

// fileOf writes results with these goodputs.
func fileOf(t *testing.T, change func(*result), rates ...float64) string {
	t.Helper()
	var text output
	for i, v := range rates {
		r := fixed(v)
		r.Rep = i
		if change != nil {
			change(r)
		}
		if err := (streams{out: &text}).json(r); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCompare(t *testing.T) {
	base := []float64{1.00, 1.01, 1.02, 1.03, 1.04}
	scaled := func(by float64) (v []float64) {
		for _, x := range base {
			v = append(v, x*by)
		}
		return v
	}
	a := fileOf(t, nil, base...)
	sealed := func(r *result) { r.Sealed = true }
	for _, c := range []struct {
		name    string
		b       string
		flags   []string
		status  int
		verdict string // of goodput
		say     string
	}{
		{"the same", fileOf(t, nil, base...), []string{"--fail-if-slower", "5%"}, exitOK, "~", ""},
		{"faster", fileOf(t, nil, scaled(1.2)...), []string{"--fail-if-slower", "5%"}, exitOK, "better", ""},
		{"slower", fileOf(t, nil, scaled(0.8)...), []string{"--fail-if-slower", "5%"}, exitFailed, "worse", "slower by 20.0 %"},
		{"slower, not asked", fileOf(t, nil, scaled(0.8)...), nil, exitOK, "worse", ""},
		{"a little slower", fileOf(t, nil, scaled(0.95)...), []string{"--fail-if-slower", "10%"}, exitOK, "worse", ""},
		{"too few", fileOf(t, nil, 0.8, 0.8), []string{"--fail-if-slower", "5%"}, exitFailed, "undecided", "5 and 2 repetitions do not tell"},
		{"too few for 99.9", fileOf(t, nil, base...), []string{"--confidence", "0.999"}, exitOK, "undecided", ""},
		{"slower and disturbed", fileOf(t, func(r *result) { r.Disturbed = []string{"others"} }, scaled(0.8)...), []string{"--fail-if-slower", "5%"}, exitFailed, "worse",
			"5 of the 10 repetitions were disturbed"},
		{"another setting", fileOf(t, func(r *result) { r.FrameBytes = 64 << 10 }, base...), []string{"--fail-if-slower", "5%"}, exitFailed, "~",
			"push: A and B are not the same measurement: frames: 0 and 64KiB"},
		{"another setting, not asked", fileOf(t, func(r *result) { r.Sum = "none" }, base...), nil, exitOK, "~", ""},
		{"another link", fileOf(t, sealed, base...), []string{"--fail-if-slower", "5%"}, exitUsage, "", "nothing in common"},
		{"failed", fileOf(t, func(r *result) { r.OK = false }, base...), nil, exitUsage, "", "nothing in common"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, out, errOut := cli(t, append([]string{"compare", a, c.b}, c.flags...)...)
			row := ""
			for line := range strings.Lines(out) {
				if strings.Contains(line, "goodput GB/s") {
					row = strings.TrimSpace(line)
				}
			}
			if status != c.status || !strings.HasSuffix(row, c.verdict) || c.verdict != "" && row == "" || !strings.Contains(errOut, c.say) {
				t.Errorf("status %d, %q:\n%s%s", status, row, out, errOut)
			}
			if strings.Contains(out, "NaN") || strings.Contains(out, "%!") {
				t.Error(out)
			}
		})
	}
	status, out, _ := cli(t, "compare", a, fileOf(t, nil, scaled(0.5)...), "--json")
	if status != exitOK || !strings.Contains(out, `"figure":"goodput GB/s","a":1.02,"b":0.51`) || !strings.Contains(out, `"verdict":"worse"`) || strings.Count(out, "\n") != 5 {
		t.Errorf("status %d: %s", status, out)
	}
	status, out, _ = cli(t, "compare", a, fileOf(t, func(r *result) { r.Sum, r.Disturbed = "xxh3", []string{"others"} }, base...))
	for _, want := range []string{
		"DISTURBED: tcp 16MiB, 3 in flight, 1 lanes, push: 0 of 5 repetitions of A and 5 of 5 of B\n", "SETTINGS DIFFER: tcp 16MiB, 3 in flight, 1 lanes, push: checksum:  and xxh3\n",
	} {
		if status != exitOK || strings.Count(out, want) != 1 {
			t.Errorf("status %d, no %q once in\n%s", status, want, out)
		}
	}
	both := filepath.Join(t.TempDir(), "both.json")
	x, _ := os.ReadFile(a)
	y, _ := os.ReadFile(fileOf(t, sealed, base...))
	if err := os.WriteFile(both, append(x, y...), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errOut := cli(t, "compare", both, a, "--fail-if-slower", "5%"); status != exitFailed || !strings.Contains(errOut, "tcp+tls 16MiB, 3 in flight, 1 lanes, push: it is missing or failed") {
		t.Errorf("missing: status %d: %s", status, errOut)
	}
}

func TestCompareUsage(t *testing.T) {
	good := fileOf(t, nil, 1)
	text := func(s string) string {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{nil, "A.json"},
		{[]string{good}, "B.json"},
		{[]string{good, "/none"}, "no such file"},
		{[]string{good, text("")}, "no results"},
		{[]string{good, text("\n{")}, ":2: "},
		{[]string{good, text("{}")}, "no result of pdperf"},
		{[]string{good, text(strings.Repeat("x", maxLine*17))}, "too long"},
		{[]string{good, good, "--confidence", "1"}, "--confidence"},
		{[]string{good, good, "--confidence", "NaN"}, "--confidence"},
		{[]string{good, good, "--fail-if-slower", "5"}, "--fail-if-slower"},
		{[]string{good, good, "--fail-if-slower", "x%"}, "--fail-if-slower"},
		{[]string{good, good, "--fail-if-slower", "100%"}, "--fail-if-slower"},
	} {
		if status, out, errOut := cli(t, append([]string{"compare"}, c.args...)...); status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d, want %q\n%s%s", c.args, status, c.say, out, errOut)
		}
	}
}

// TestLineRate: more than the link carries is no result.
func TestLineRate(t *testing.T) {
	nic := func(mbit int, shaped uint64, mtu int) *nicFacts {
		return &nicFacts{Name: "e0", MTU: mtu, Mbit: mbit, Shaped: shaped}
	}
	for _, c := range []struct {
		name             string
		link, local, way string
		from, to         *nicFacts
		rate             float64 // GB/s
		got              float64
		ok               bool
	}{
		{"10GbE", "tcp", "10.0.0.1:1", push, nic(10000, 0, 1500), nic(10000, 0, 1500), 1.1769, 1.17, true},
		{"too much", "tcp", "10.0.0.1:1", push, nic(10000, 0, 1500), nic(10000, 0, 1500), 1.1769, 1.2, false},
		{"slow receiver", "tcp", "10.0.0.1:1", push, nic(10000, 0, 1500), nic(1000, 0, 1500), 0.11769, 0.13, false},
		{"bucket at the sender", "tcp", "10.0.0.1:1", push, nic(0, 125e6, 1500), nil, 0.11955, 0.13, false},
		{"bucket at the receiver lets in what it likes", "tcp", "10.0.0.1:1", push, nil, nic(0, 125e6, 1500), 0, 9, true},
		{"and not what comes back", "tcp", "10.0.0.1:1", both, nil, nic(0, 125e6, 1500), 0.11955, 0.13, false},
		{"IPv6", "tcp", "[fd00::1]:1", push, nic(10000, 0, 1500), nil, 1.1606, 1.17, true},
		{"RDMA", "rdma", "10.0.0.1:1", push, nic(100000, 0, 1500), nil, 12.5, 12.4, true},
		{"RDMA too much", "rdma", "10.0.0.1:1", push, nic(100000, 0, 1500), nil, 12.5, 12.8, false},
		{"loopback", "tcp", "127.0.0.1:1", push, nic(0, 0, 65536), nil, 0, 99, true},
		{"no socket", "mem", "pdperf", push, nic(10000, 0, 1500), nil, 0, 99, true},
	} {
		r := fixed(c.got)
		r.Link, r.Local, r.Direction, r.Sender.NIC, r.Receiver.NIC = c.link, c.local, c.way, c.from, c.to
		r.Blocks, r.Bytes = 1, 1
		r.conclude()
		if d := r.Line - c.rate; d < -1e-4 || d > 1e-4 || r.OK != c.ok || c.ok != (r.Why == "") || (r.LineOf == "") != (c.rate == 0) {
			t.Errorf("%s: line %v of %q, ok %v, %q", c.name, r.Line, r.LineOf, r.OK, r.Why)
		}
	}
}

// TestDisturbed: what else ran is told, and what ran for the run itself is not.
func TestDisturbed(t *testing.T) {
	end := func(boot string, own, work, steal, ready float64) endResult {
		return endResult{Cores: 2, Host: hostFacts{Boot: boot}, CPU: &cpuUse{User: own, Ready: ready}, Load: &loadFacts{Work: work, Steal: steal}}
	}
	for _, c := range []struct {
		name             string
		sender, receiver endResult
		seconds          float64
		want             []string
	}{
		{"quiet", end("a", 5, 6, 0, 0.1), end("b", 4, 4.5, 0, 0.1), 10, nil},
		{"one host", end("a", 5, 10, 0, 0), end("a", 4, 10, 0, 0), 10, nil},
		{"busy host", end("a", 5, 15, 0, 0), end("a", 4, 15, 0, 0), 10, []string{"other programs kept 0.60 of the 2 cores of this host busy"}},
		{"busy receiver", end("a", 5, 5, 0, 0), end("b", 4, 9, 0, 0), 10, []string{"kept 0.50 of the 2 cores of receiver's host busy"}},
		{"stolen", end("a", 5, 5, 1, 0), end("b", 4, 4, 0, 0), 10, []string{"took 5 % of the cores of sender's host away"}},
		{"itself", end("a", 5, 5, 0, 3), end("b", 4, 4, 0, 0), 10, []string{"the sender's own threads waited for a core, 3.00 s of 10.00 s"}},
		{"too short to tell", end("a", 5, 50, 5, 5), end("b", 4, 40, 5, 5), 0.4, nil},
	} {
		r := result{Seconds: c.seconds, Sender: c.sender, Receiver: c.receiver}
		got := r.disturbances()
		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			ok = ok && strings.Contains(got[i], c.want[i])
		}
		if !ok {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	r := result{Seconds: 10} // nothing is known
	if got := r.disturbances(); got != nil {
		t.Errorf("%q of nothing", got)
	}
}

// TestMerge: what both directions have in common, and what is of each.
func TestMerge(t *testing.T) {
	a, b := fixed(1), fixed(0.5)
	a.Blocks, a.Bytes, b.Blocks, b.Bytes, b.Seconds = 10, 10e9, 5, 5e9, 12
	a.BlockMs, b.BlockMs = blockTimes{1, 2, 3, 4, 5}, blockTimes{5, 1, 4, 2, 6}
	b.Sender.Platform = "there"
	r := merge(a, b)
	if r.Direction != both || r.Push != 1 || r.Pull != 0.5 || r.Bytes != 15e9 || r.Seconds != 12 || r.Goodput != 1.25 ||
		r.BlockMs != (blockTimes{5, 2, 4, 4, 6}) || r.Receiver.Platform != "there" || !r.OK || r.Fewer != 5 {
		t.Errorf("%+v", r)
	}
	b.Why = "it broke"
	if r := merge(a, b); r.OK || r.Why != "it broke" {
		t.Errorf("%+v", r)
	}
}

// FuzzPulled: what the other end says it measured is fit to print, or an error.
func FuzzPulled(f *testing.F) {
	f.Add([]byte(`{"ok":true,"seconds":1,"blocks":1,"bytes":8,"sender":{"platform":"\u001b[31m"}}`))
	f.Add([]byte(`{"seconds":-1}`))
	f.Add([]byte(`{"disturbed":["\u001b"],"limited_by":{"cause":"\u001b"},"why":"\n"}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := readPulled(text)
		if err != nil {
			return
		}
		var out output
		printResult(streams{out: &out}, r)
		if strings.ContainsRune(out.String(), 0x1b) {
			t.Fatalf("%q", out.String())
		}
		benchLine(r)
		if len(csvRow(r)) != len(csvHeader()) {
			t.Fatal(fmt.Sprint(csvRow(r)))
		}
	})
}
