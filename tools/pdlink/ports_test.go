package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pdlink/bridge"
	"pdlink/rdma"
)

// TestPortsAreTold: in one line of text for each end that counted something, and under
// names of their own in JSON.
func TestPortsAreTold(t *testing.T) {
	ports := []bridge.PortUse{{Port: "a:1", Counts: map[string]uint64{"out_of_sequence": 3}}, {Port: "b:1\x1b", Counts: map[string]uint64{"sent": 7}}}
	var out bytes.Buffer
	std := newStreams(&out, &out)
	r := replayResult{Case: "c", Verdict: "complete", verdictFields: verdictFields{State: bridge.Complete, Ports: ports}, SentPorts: ports[:1]}
	printReplay(std, r)
	for _, line := range []string{"\n  the receiver's ports counted a:1: 3 out_of_sequence; b:1?: 7 sent\n", "\n  the sender's ports counted a:1: 3 out_of_sequence\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in %q", line, out.String())
		}
	}
	out.Reset()
	d := &decoding{std: std}
	d.print(transferEvent{verdictFields: verdictFields{State: bridge.Complete, Ports: ports[:1]}})
	if text := out.String(); !strings.HasSuffix(text, "\n  its ports counted a:1: 3 out_of_sequence\n") {
		t.Errorf("%q", text)
	}
	out.Reset()
	d.print(transferEvent{verdictFields: verdictFields{State: bridge.Complete}})
	if text := out.String(); strings.Contains(text, "counted") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
	text, err := json.Marshal(r)
	if err != nil || !bytes.Contains(text, []byte(`"ports":[{"port":"a:1","counts":{"out_of_sequence":3}}`)) || !bytes.Contains(text, []byte(`"sent_ports":[{"port":"a:1"`)) {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := json.Marshal(replayResult{}); err != nil || bytes.Contains(text, []byte("ports")) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestFollow: a choice is followed, and told of as before.
func TestFollow(t *testing.T) {
	said := 0
	o := linkOptions{choice: func(rdma.Choice) { said++ }}
	var p rdma.Ports
	o.follow(&p)
	o.choice(rdma.Choice{Device: "no_such_device", Port: 1})
	opened := counting(&p, bridge.Opened{Blocks: 3})
	if said != 1 || opened.Blocks != 3 || opened.Ports == nil || len(opened.Ports()) != 0 {
		t.Errorf("told %d times, %+v", said, opened)
	}
	o = linkOptions{}
	o.follow(&p)
	o.choice(rdma.Choice{}) // nobody is told
}

// TestPortLog: what no port counts is nothing to tell, call after call.
func TestPortLog(t *testing.T) {
	var p portLog
	for range 3 {
		if got := p.next(); len(got) != 0 {
			t.Errorf("%v", got)
		}
		p.ports.Use(rdma.Choice{Device: "no_such_device", Port: 1})
	}
	var out bytes.Buffer
	sidecarCall{Ports: []bridge.PortUse{{Port: "a:1", Counts: map[string]uint64{"sent": 7}}}}.text(newStreams(&out, &out))
	if text := out.String(); !strings.HasSuffix(text, "\n  its ports counted a:1: 7 sent\n") {
		t.Errorf("%q", text)
	}
}
