package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-links", "lo,10g", "-mtu", "1500,9000", "-sizes", "16777216", "-reps", "3", "-time", "2s", "-peers", "pdperf,floor"}, &bytes.Buffer{})
	if err != nil || !slices.Equal(o.links, []string{"lo", "10g"}) || !slices.Equal(o.mtus, []int{1500, 9000}) || o.blocks[0] != 16<<20 || o.reps != 3 || len(o.peers) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{
		{"-links", "5g"}, {"-mtu", "x"}, {"-mtu", "0"}, {"-sizes", "-1"}, {"-sizes", ""}, {"-reps", "0"}, {"-time", "500ms"}, {"-time", "1500ms"},
		{"-confidence", "1"}, {"more"}, {"-nonsense"},
	} {
		if o, err := parse(bad, &bytes.Buffer{}); err == nil {
			t.Errorf("%v: %+v", bad, o)
		}
	}
}

func TestPeersThatAreNotThere(t *testing.T) {
	o := options{dir: t.TempDir(), pdperf: filepath.Join(t.TempDir(), "pdperf")}
	for _, name := range []string{"pdperf", "floor", "ucx", "ucx-tag", "nixl", "mooncake", "pdperf:--lanes=2", "pdperf-sealed"} {
		p, err := peerByName(name, o)
		if err != nil || p.missing == nil || !strings.Contains(p.missing.Error(), "setup.sh") {
			t.Fatalf("%s: %v, %v", name, p.missing, err)
		}
		if r := measure(t.Context(), p, trial{}); r.Peer != name || !strings.Contains(r.Error, "setup.sh") || !strings.Contains(r.line(), "FAILED") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := peerByName("carrier-pigeon", o); err == nil || !strings.Contains(err.Error(), "iperf3") {
		t.Errorf("%v", err)
	}
}

// TestFailuresAreNamed: a peer that could not be measured is an error by its name.
func TestFailuresAreNamed(t *testing.T) {
	if err := failures(sample()); err == nil || !strings.Contains(err.Error(), "iperf3 (1), ucx (1)") {
		t.Errorf("%v", err)
	}
	if err := failures(sample()[:2]); err != nil {
		t.Errorf("%v of what went well", err)
	}
}

func TestSplitFlags(t *testing.T) {
	run, serve := splitFlags([]string{"--lanes=2", "--window=32", "--frame=64KiB", "--hold=8", "--ring=64", "--sum=crc32c", "--in-flight=4", "--encrypt=256"})
	if !slices.Equal(run, []string{"--lanes=2", "--frame=64KiB", "--sum=crc32c", "--in-flight=4", "--encrypt=256"}) {
		t.Errorf("run %v", run)
	}
	if !slices.Equal(serve, []string{"--window=32", "--frame=64KiB", "--hold=8", "--ring=64", "--sum=crc32c", "--encrypt=256"}) {
		t.Errorf("serve %v", serve)
	}
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		link string
		mtu  int
		want float64
	}{{"10g", 1500, 1.19551}, {"10g", 9000, 1.24085}, {"1g", 1500, 0.119551}, {"lo", 0, 0}, {"wire", 1500, 0}} {
		l, err := linkByName(c.link)
		if err != nil {
			t.Fatal(err)
		}
		l.mtu = c.mtu
		if got := l.limit(); math.Abs(got-c.want) > 1e-5 {
			t.Errorf("%s, MTU %d: %v, want %v", c.link, c.mtu, got, c.want)
		}
	}
}

// ended is a process that said something and has ended.
func ended(said string) *process {
	p := &process{cmd: exec.Command("true")}
	p.out.Write([]byte(said))
	return p
}

func TestReadUCX(t *testing.T) {
	f, err := readUCX(ended("+---+\nuseless\n100,14000.0,14010.0,14010.0,1142.0,1142.0,71,71\n90,14000.5,1,2,1100,1144.4,71,71\n"), ended(""), 90, 2, 1<<24)
	if err != nil || f.P50 != 14.0005 || math.Abs(f.Goodput-1144.4*(1<<20)/1e9) > 1e-9 || math.Abs(f.GB-92*float64(1<<24)/1e9) > 1e-9 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, said := range []string{"", "nothing", "100,1,2\n", "100,x,1,2,3,4\n", "100,1,2,3,4,0\n"} {
		if f, err := readUCX(ended(said), ended(""), 1, 1, 1); err == nil {
			t.Errorf("%q: %+v", said, f)
		}
	}
}

func TestReadNIXL(t *testing.T) {
	good := `{"bytes": 2e9, "seconds": 2, "sender_cpu": 1, "receiver_cpu": 0.5, "arrived": true, "block_ms": [3, 1, 2]}`
	f, err := readNIXL(ended("warning\n"+good+"\n"), ended(""))
	if err != nil || f.Goodput != 1 || f.Sender != 0.5 || f.Receiver != 0.25 || f.P50 != 2 || f.P99 != 3 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, said := range []string{"", "{}", strings.Replace(good, "true", "false", 1), strings.Replace(good, "2e9", "0", 1)} {
		if f, err := readNIXL(ended(said), ended("")); err == nil {
			t.Errorf("%q: %+v", said, f)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	p := ended(strings.Repeat("x", maxSaid) + "y")
	for range 5 {
		p.out.Write(make([]byte, 1<<20))
	}
	if n := len(p.out.String()); n > maxSaid+1<<20 {
		t.Errorf("%d bytes", n)
	}
	if len(p.out.tail()) > 500 {
		t.Error("an error would be too long")
	}
}

// sample is what three repetitions of two peers gave; one failed.
func sample() (all []record) {
	for rep, v := range []float64{1.0, 1.2, 1.1} {
		all = append(all,
			record{Peer: "pdperf", Link: "10g", MTU: 1500, Block: 16e6, Rep: rep, Goodput: v, Limit: 1.25, Sender: 0.2, Receiver: 0.3, P50: 14, P99: 20, Verified: true, Sealed: true, Note: "ours"},
			record{Peer: "iperf3", Link: "10g", MTU: 1500, Block: 16e6, Rep: rep, Goodput: v / 2, Limit: 1.25, Sender: 0.4, Receiver: 0.3},
		)
	}
	all[5] = record{Peer: "iperf3", Link: "10g", MTU: 1500, Block: 16e6, Rep: 2, Limit: 1.25, Error: "it\nbroke"}
	return append(all, record{Peer: "ucx", Link: "lo", Block: 16e6, Limit: 0, Error: "never"})
}

func TestTables(t *testing.T) {
	var b bytes.Buffer
	printTables(&b, sample(), options{base: "iperf3", confidence: 0.95})
	out := b.String()
	for _, text := range []string{
		"10g, MTU 1500, blocks of 16.0 MB", "lo, blocks of 16.0 MB", "carries 1.2500 GB/s",
		"1.100 (1.000–1.200)", "0.8800", "2.000 (2.000–2.000)", "0.500 (0.500–0.500)", "| yes      | yes", "| no       | no", "iperf3 FAILED: it broke", "- pdperf: ours",
		"probability of 0.50 only",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if strings.Contains(out, "NaN") || strings.Contains(out, "Inf") || strings.Contains(out, "%!") {
		t.Errorf("\n%s", out)
	}
	// Without the peer to divide by there are no ratios.
	b.Reset()
	printTables(&b, sample()[:1], options{base: "iperf3", confidence: 0.95})
	if strings.Contains(b.String(), "NaN") {
		t.Errorf("\n%s", b.String())
	}
}

func TestRecordsAreReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	var text []byte
	for _, r := range sample() {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	write(t, path, text)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-table", path}, &out, &bytes.Buffer{}); err != nil || !strings.Contains(out.String(), "10g") {
		t.Errorf("%v\n%s", err, out.String())
	}
	write(t, path, append(text, "{\n"...))
	if err := run(t.Context(), []string{"-table", path}, &out, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), ":8:") {
		t.Errorf("%v", err)
	}
}

func TestLine(t *testing.T) {
	for _, r := range sample() {
		if line := r.line(); strings.Contains(line, "\n") || !strings.Contains(line, r.Peer) || (r.Error != "") != strings.Contains(line, "FAILED") {
			t.Errorf("%q", line)
		}
	}
}

func TestProcessesAreWaitedFor(t *testing.T) {
	p := &process{cmd: exec.Command("sleep", "100"), done: make(chan struct{})}
	p.cmd.Args = append(p.cmd.Args, "", "", "sleep")
	close(p.done)
	p.out.Write([]byte("ready on 12"))
	if m, err := p.until(portPattern()); err != nil || m[1] != "12" {
		t.Errorf("%v, %v", m, err)
	}
	if err := p.wait(time.Second); err != nil {
		t.Error(err)
	}
}

func portPattern() *regexp.Regexp { return regexp.MustCompile(`ready on (\d+)`) }

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
