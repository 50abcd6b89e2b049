package main

import (
	"fmt"
	"strings"
	"testing"

	"pdlink/rdma"
)

// TestPortsOfAPeer: what it says of its ports is bounded and fit to print.
func TestPortsOfAPeer(t *testing.T) {
	var list []portFacts
	for i := range 20 {
		p := portFacts{Port: "\x1b[2J" + strings.Repeat("x", 1000)}
		for j := range 300 {
			p.Counts = append(p.Counts, portCount{fmt.Sprintf("%d\n%d", i, j), 1})
		}
		list = append(list, p)
	}
	got := cleanPorts(list)
	text := portsText(got)
	if len(got) != maxPorts || len(got[0].Counts) != maxCounts || strings.ContainsAny(text, "\x1b\n") || len(got[0].Port) > 64 {
		t.Errorf("%d ports, %d counts: %.100q", len(got), len(got[0].Counts), text)
	}
	if got := cleanPorts(nil); got != nil {
		t.Errorf("%v of nothing", got)
	}
}

func TestPortsText(t *testing.T) {
	list := []portFacts{{"a:1", []portCount{{"out_of_sequence", 3}, {"sent", 7}}}, {"b:2", []portCount{{"sent", 1}}}}
	if got := portsText(list); got != "a:1: 3 out_of_sequence, 7 sent; b:2: 1 sent" {
		t.Errorf("%q", got)
	}
}

// TestChosen: a choice is told of and followed, each where somebody asked for it.
func TestChosen(t *testing.T) {
	c := rdma.Choice{Device: "no_such_device", Port: 1}
	new(linkOptions).chosen(c)
	said := ""
	o := linkOptions{ports: new(rdma.Ports), note: func(format string, args ...any) { said += fmt.Sprintf(format, args...) }}
	o.chosen(c)
	if !strings.HasPrefix(said, "rdma: no_such_device port 1") {
		t.Errorf("said %q", said)
	}
	for _, p := range []*rdma.Ports{nil, o.ports} {
		if got := beginPorts(p)(); got != nil {
			t.Errorf("%v of a port that is not there", got)
		}
	}
}

// TestResultShowsPorts: one line for each end that counted something.
func TestResultShowsPorts(t *testing.T) {
	var out output
	r := result{Sender: endResult{Ports: []portFacts{{"a:1", []portCount{{"sent", 7}}}}}}
	printResult(streams{out: &out}, &r)
	if text := out.String(); !strings.Contains(text, "sender's ports") || !strings.Contains(text, "a:1: 7 sent") || strings.Contains(text, "receiver's ") {
		t.Errorf("%s", text)
	}
}
