package main

import (
	"strings"
	"sync"

	"pdlink/bridge"
	"pdlink/rdma"
)

// follow has p follow the ports that an rdma link takes.
func (o *linkOptions) follow(p *rdma.Ports) {
	told := o.choice
	o.choice = func(c rdma.Choice) {
		p.Use(c)
		if told != nil {
			told(c)
		}
	}
}

// counting has the verdict on what was opened say what the ports of p counted from now
// on.
func counting(p *rdma.Ports, o bridge.Opened) bridge.Opened {
	since := p.Begin()
	o.Ports = func() []bridge.PortUse { return portUses(since()) }
	return o
}

// portUses are counters as a verdict has them.
func portUses(list []rdma.PortCounters) []bridge.PortUse {
	uses := make([]bridge.PortUse, 0, len(list))
	for _, p := range list {
		uses = append(uses, bridge.PortUse{Port: p.Port, Counts: p.Counters})
	}
	return uses
}

// portLog tells what ports count from one call to the next. It may be used concurrently:
// what is counted while two calls overlap goes to the one that ends first.
type portLog struct {
	ports rdma.Ports

	mu    sync.Mutex                 // guards since
	since func() []rdma.PortCounters // the last call; nil: there was none
}

// next is what ports counted since it was called before, or since they were first used.
func (p *portLog) next() []bridge.PortUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.since
	if since == nil {
		since = p.ports.BeginAtUse()
	}
	uses := portUses(since())
	p.since = p.ports.Begin()
	return uses
}

// printPorts writes what ports counted, in one line; none where they counted nothing.
func printPorts(std streams, whose string, list []bridge.PortUse) {
	if len(list) == 0 {
		return
	}
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = p.String()
	}
	std.printf("  %s counted %s\n", whose, strings.Join(words, "; "))
}
