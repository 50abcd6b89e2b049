package main

import (
	"math"
	"net/netip"
	"runtime"
	"sync"

	"pdlink/rdma"
	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/host"
)

// reading is what this process, its sockets and its host had used when a measured window
// began.
type reading struct {
	local, remote string
	sockets       []socketFacts
	ports         func() []portFacts // what they counted since
	load          host.Load
	backlog       func() flow.Backlog // stops to sample; nil: nobody does
	cpu           *cpuUse
}

// beginReading notes it. What costs most comes first, so that it is in no figure. receives
// says that this end receives: then its sockets are looked at now and then, until end or
// stop.
func beginReading(local, remote string, ports *rdma.Ports, receives bool) reading {
	r := reading{local: local, remote: remote, sockets: readSockets(local, remote), ports: beginPorts(ports), load: host.ReadLoad()}
	if from, to, ok := endpoints(local, remote); ok && receives {
		r.backlog = sync.OnceValue(flow.Sample(sampleEvery, func(l, r netip.AddrPort) bool { return sameConn(l, r, from, to) }).Stop)
	}
	r.cpu = readCPU()
	return r
}

// stop ends what was begun, for a window that came to nothing. It is idempotent.
func (r reading) stop() {
	if r.backlog != nil {
		r.backlog()
	}
}

// end is what was used since; the CPU time is that until spent was read.
func (r reading) end(spent *cpuUse, bytes uint64) endResult {
	load := host.ReadLoad().Since(r.load)
	sockets := socketsSince(readSockets(r.local, r.remote), r.sockets)
	var waited *backlogFacts
	if r.backlog != nil {
		if b := r.backlog(); b.Samples > 0 {
			waited = &backlogFacts{b.Samples, b.Waiting}
		}
	}
	return endResult{
		Platform: platform(), Cores: runtime.NumCPU(), CPU: spent.since(r.cpu, bytes), Sockets: sockets, Ports: r.ports(),
		Host: hostOfThis(), Load: loadOf(load), NIC: nicOf(host.PortOf(r.local)), Backlog: waited,
	}
}

// hostFacts are host.Facts in a result.
type hostFacts struct {
	Kernel  string  `json:"kernel"`
	CPU     string  `json:"cpu_model"`
	Memory  uint64  `json:"memory_bytes"`
	Virtual bool    `json:"virtual"`
	Load    float64 `json:"load_average"`
	Boot    string  `json:"boot"`
	Go      string  `json:"go"`
}

func hostOfThis() hostFacts {
	f := host.Read()
	return hostFacts{f.Kernel, f.CPU, f.Memory, f.Virtual, math.Round(f.Load*100) / 100, f.Boot, runtime.Version()}
}

// loadFacts are what all programs of a host did in the window, host.Load in a result.
type loadFacts struct {
	Work    float64 `json:"work_core_seconds"`
	Softirq float64 `json:"softirq_core_seconds"`
	Steal   float64 `json:"steal_core_seconds"`
	Stalled float64 `json:"stalled_seconds"`
}

func loadOf(l host.Load) *loadFacts {
	if !l.Known {
		return nil
	}
	return &loadFacts{micro(l.Work), micro(l.Softirq), micro(l.Steal), micro(l.Stalled)}
}

// backlogFacts are how often bytes waited for a receiver that read them, flow.Backlog in a
// result.
type backlogFacts struct {
	Samples int `json:"samples"`
	Waiting int `json:"waiting"`
}

// nicFacts are of the interface that an end's address belongs to, host.Port in a result.
type nicFacts struct {
	Name     string   `json:"name"`
	Driver   string   `json:"driver"`
	MTU      int      `json:"mtu"`
	Mbit     int      `json:"mbit_per_s"`
	Shaped   uint64   `json:"shaped_bytes_per_s"`
	Burst    uint64   `json:"burst_bytes"`
	Offloads []string `json:"offloads"`
}

func nicOf(p host.Port) *nicFacts {
	if p.Name == "" {
		return nil
	}
	return &nicFacts{p.Name, p.Driver, p.MTU, p.Mbit, p.Shaped, p.Burst, p.Offloads}
}

func (n *nicFacts) port() host.Port {
	if n == nil {
		return host.Port{}
	}
	return host.Port{Name: n.Name, Driver: n.Driver, MTU: n.MTU, Mbit: n.Mbit, Shaped: n.Shaped, Burst: n.Burst, Offloads: n.Offloads}
}

// micro cuts digits that mean nothing.
func micro(v float64) float64 { return math.Round(v*1e6) / 1e6 }

// readySeconds is how long threads of this process were fit to run and had no core; 0
// where the system does not tell.
func readySeconds() float64 {
	c, err := flow.ReadCPU()
	if err != nil {
		return 0
	}
	return c.Ready.Seconds()
}
