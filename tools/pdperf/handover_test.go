//go:build !windows

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakePdlink is a program that behaves as pdlink does for handover: how, a word in the
// environment, says what goes wrong. What it was asked is in the file log beside it.
const fakePdlink = `#!/bin/sh
echo "$*" >>"$(dirname "$0")/log"
link=mem
case "$*" in *tcp://*) link=tcp ;; *rdma://*) link=rdma ;; esac
case $1 in
decode)
	[ "$HOW" != deaf ] || { echo "pdlink: no such address" >&2; exit 2; }
	[ "$HOW" != mute ] || { echo "nonsense"; exit 0; }
	trap 'exit 0' TERM
	echo "{\"event\":\"listening\",\"listen\":\"$link://127.0.0.1:7\"}"
	while :; do sleep 0.05; done ;;
replay)
	state=complete present=0 over=$link same=5
	case $HOW in
	partial) [ $link = mem ] || state=partial ;;
	full) [ $link = mem ] || present=2 ;;
	fallback) [ $link != rdma ] || over=tcp ;;
	foreign) same=4 ;;
	broken) [ $link = mem ] || { echo "pdlink: the line broke" >&2; exit 1; } ;;
	esac
	echo "{\"state\":\"$state\",\"verdict\":\"$state\",\"tokens\":1000,\"blocks\":5,\"total\":5,\"present\":$present,\"bytes\":123456,"
	echo "\"seconds\":0.5,\"compared\":true,\"identical\":$same,\"links\":[{\"link\":\"$over\",\"sealed\":true}]}" ;;
store) [ "$HOW" != other ] || { echo "block 3 differs"; exit 1; } ;;
esac
`

func fake(t *testing.T, how string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "pdlink")
	if err := os.WriteFile(program, []byte(fakePdlink), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOW", how)
	return program
}

// TestHandover runs a pdlink over each link, and compares what it left.
func TestHandover(t *testing.T) {
	program := fake(t, "well")
	status, out, errOut := cli(t, "handover", "CASE", "--pdlink", program, "--runs", "2", "--json")
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	var links []string
	for line := range strings.Lines(out) {
		var r handed
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		links = append(links, r.Link)
		if r.Event != "handover" || r.Case != "CASE" || !r.Identical || r.Why != "" || r.Tokens != 1000 || r.Blocks != 5 || r.Bytes != 123456 ||
			r.Runs != 2 || r.Seconds != 0.5 || r.Least != 0.5 || r.Most != 0.5 || r.PerToken != 0.5 || r.Over == nil || *r.Over != 0 || !r.Sealed {
			t.Errorf("%+v", r)
		}
	}
	if got := strings.Join(links, ","); got != "mem,tcp,rdma" {
		t.Errorf("links %s", got)
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(program), "log"))
	if err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]int{
		"replay --json --store ": 2, "replay --json --to tcp://127.0.0.1:7 --require tcp": 2, "replay --json --to rdma://127.0.0.1:7 --require rdma": 2, " CASE\n": 6,
		"decode --json --listen tcp://127.0.0.1:0 --store ": 2, "decode --json --listen rdma://127.0.0.1:0?fallback=no": 2, "store diff ": 5,
	} {
		if got := strings.Count(string(b), what); got != n {
			t.Errorf("%q %d times, want %d in\n%s", what, got, n, b)
		}
	}
	if status, _, errOut := cli(t, "handover", "synthetic:m:7", "--pdlink", program, "--runs", "1", "--links", "mem"); status != exitOK {
		t.Errorf("made up: status %d, %s", status, errOut)
	}
	if b, err := os.ReadFile(filepath.Join(filepath.Dir(program), "log")); err != nil || !strings.Contains(string(b), " --synthetic m --tokens 7\n") {
		t.Errorf("made up: %v in\n%s", err, b)
	}
	// What the others are compared with is measured first.
	status, out, _ = cli(t, "handover", "CASE", "--pdlink", program, "--runs", "1", "--links", "tcp,mem")
	if want := "CASE  tcp, sealed  1000    5       0.123  0.5000 (0.5000 to 0.5000)  0.5000    +0.0000"; status != exitOK || !strings.Contains(out, want) || strings.Count(out, "\n") != 3 {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// TestHandoverFails: one that did not work, or left something else, is no figure.
func TestHandoverFails(t *testing.T) {
	for how, c := range map[string]struct {
		say string
		bad int // of mem, tcp and rdma
	}{
		"deaf": {"does not listen: exit status 2: pdlink: no such address", 2}, "mute": {"does not listen", 2}, "partial": {"it ended partial", 2},
		"full": {"2 blocks were there before", 2}, "fallback": {"it did not go over rdma alone", 1}, "broken": {"pdlink: the line broke", 2},
		"other": {"not those of mem: exit status 1: block 3 differs", 2}, "foreign": {"4 of 5 blocks are the decoder's own", 1},
	} {
		t.Run(how, func(t *testing.T) {
			status, out, errOut := cli(t, "handover", "CASE", "--pdlink", fake(t, how), "--runs", "1")
			if n := strings.Count(out, "FAILED"); status != exitFailed || !strings.Contains(out+errOut, c.say) || n != c.bad {
				t.Errorf("status %d, %d failed:\n%s%s", status, n, out, errOut)
			}
		})
	}
}

func TestHandoverUsage(t *testing.T) {
	for _, c := range [][]string{
		nil, {"CASE", "--links", "mem,mem"}, {"CASE", "--links", "carrier-pigeon"}, {"CASE", "--links", ""}, {"CASE", "--runs", "0"}, {"CASE", "--at", ""},
		{"CASE", "--at", "tcp://h"}, {"CASE", "--at", "h:1"}, {"CASE", "--at", "[::1]"}, {"CASE", "--at", "a b"}, {"CASE", "--at", "h?device=x"}, {"--", "--help"}, {""}, {"CASE", "--encrypt", "perhaps"},
	} {
		if status, out, errOut := cli(t, append([]string{"handover"}, c...)...); status != exitUsage || out != "" || errOut == "" {
			t.Errorf("%q: status %d, %s%s", c, status, out, errOut)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if status, _, errOut := cli(t, "handover", "CASE"); status != exitUsage || !strings.Contains(errOut, "name it with --pdlink") {
		t.Errorf("no pdlink: status %d, %s", status, errOut)
	}
	if status, out, errOut := cli(t, "handover", "CASE", "--pdlink", "/none/pdlink"); status != exitFailed || !strings.Contains(out+errOut, "no such file") {
		t.Errorf("none there: status %d, %s", status, errOut)
	}
}

// TestHandoverKeepsWhatItHas: a case that fails later takes nothing away.
func TestHandoverKeepsWhatItHas(t *testing.T) {
	program := fake(t, "well")
	script, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	odd := strings.Replace(string(script), "link=mem\n", "link=mem\ncase \"$*\" in *ODD*) HOW=foreign ;; esac\n", 1)
	if err := os.WriteFile(program, []byte(odd), 0o755); err != nil {
		t.Fatal(err)
	}
	status, out, errOut := cli(t, "handover", "CASE", "ODD", "LAST", "--pdlink", program, "--runs", "1", "--links", "tcp")
	for _, want := range []string{"CASE  tcp, sealed", "ODD   mem", "FAILED: 4 of 5 blocks", "LAST  tcp, sealed"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if status != exitFailed || !strings.Contains(errOut, "1 of 3 could not be handed over") {
		t.Errorf("status %d: %s", status, errOut)
	}
}
