package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pdlink/rdma"
	"pdlink/transport/wire"
)

// portFacts is what a network port that an RDMA connection uses counted in the measured
// window: what is not zero, by name.
type portFacts struct {
	Port   string      `json:"port"`
	Counts []portCount `json:"counts"`
}

// portCount is how far one of its driver's counters went on.
type portCount struct {
	Name string `json:"name"`
	By   uint64 `json:"by"`
}

// chosen tells which device an rdma link took, and has its port followed.
func (o *linkOptions) chosen(c rdma.Choice) {
	if o.ports != nil {
		o.ports.Use(c)
	}
	if o.note != nil {
		o.note("%s: %s\n", rdma.Scheme, c.String())
	}
}

// beginPorts notes what ports have counted; since tells how far they went on. Without
// ports it tells nothing.
func beginPorts(p *rdma.Ports) (since func() []portFacts) {
	if p == nil {
		return func() []portFacts { return nil }
	}
	counted := p.Begin()
	return func() []portFacts {
		all := counted()
		if len(all) == 0 {
			return nil
		}
		list := make([]portFacts, 0, len(all))
		for _, c := range all {
			f := portFacts{Port: c.Port}
			for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
				f.Counts = append(f.Counts, portCount{name, c.Counters[name]})
			}
			list = append(list, f)
		}
		return list
	}
}

// Limits of what a peer may say about its ports.
const (
	maxPorts  = 16
	maxCounts = 256
)

// cleanPorts makes what a peer says about its ports fit to print.
func cleanPorts(list []portFacts) []portFacts {
	list = list[:min(len(list), maxPorts)]
	for i, p := range list {
		p.Port, p.Counts = wire.Printable(p.Port, 64), p.Counts[:min(len(p.Counts), maxCounts)]
		for j, c := range p.Counts {
			p.Counts[j].Name = wire.Printable(c.Name, 64)
		}
		list[i] = p
	}
	return list
}

// portsText is what ports counted, in one line.
func portsText(list []portFacts) string {
	words := make([]string, 0, len(list))
	for _, p := range list {
		counts := make([]string, 0, len(p.Counts))
		for _, c := range p.Counts {
			counts = append(counts, fmt.Sprintf("%d %s", c.By, c.Name))
		}
		words = append(words, p.Port+": "+strings.Join(counts, ", "))
	}
	return strings.Join(words, "; ")
}
