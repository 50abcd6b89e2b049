package rdma

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Counters are what a port has counted, by the names that its driver gives them:
// packets and octets, and what went wrong (mlx5's out_of_sequence, local_ack_timeout_err,
// rnr_nak_retry_err and so on, Soft-RoCE's duplicate_request). They count everything
// that uses the port.
type Counters map[string]uint64

// ReadCounters reads a port's counters; nil where the system or the driver has none.
// Drivers may answer with values that are some milliseconds old (hw_counters/lifespan).
// Errors: the device or the port is not there.
func ReadCounters(device string, port int) (Counters, error) { return readCounters(device, port) }

// Since is how far each counter went on from before; those that did not, or were set
// back, are left out. Nil: none did.
func (c Counters) Since(before Counters) Counters {
	var d Counters
	for name, v := range c {
		if was, ok := before[name]; ok && v > was {
			if d == nil {
				d = Counters{}
			}
			d[name] = v - was
		}
	}
	return d
}

// String is the counters as one line: "3 out_of_sequence, 120 rcvd_pkts".
func (c Counters) String() string {
	words := make([]string, 0, len(c))
	for _, name := range slices.Sorted(maps.Keys(c)) {
		words = append(words, fmt.Sprintf("%d %s", c[name], name))
	}
	return strings.Join(words, ", ")
}

// PortCounters is how far the counters of one port went on, those that did.
type PortCounters struct {
	Port     string // as Options.Device names it: "mlx5_0:1"
	Counters Counters
}

// Ports follows the ports that connections use, so that what they count can be read
// around a transfer. The zero value follows none. It may be used concurrently.
type Ports struct {
	read func(device string, port int) (Counters, error) // nil: ReadCounters

	mu   sync.Mutex // guards list
	list []followed // in the order in which they were first used
}

// followed is a port, and what it counted when a connection used it first.
type followed struct {
	device string
	port   int
	first  Counters
}

// Use follows the port of a choice; to be called from Options.OnChoice.
func (p *Ports) Use(c Choice) {
	same := func(f followed) bool { return f.device == c.Device && f.port == c.Port }
	if slices.ContainsFunc(p.ports(), same) {
		return
	}
	first := p.now(c.Device, c.Port)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.list, same) { // nobody was quicker
		p.list = append(p.list, followed{c.Device, c.Port, first})
	}
}

// ports is the list as it is now. Entries do not change: nobody waits for the lock while
// a driver is asked.
func (p *Ports) ports() []followed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list[:len(p.list):len(p.list)]
}

// now is what a port has counted; nil where that cannot be told.
func (p *Ports) now(device string, port int) Counters {
	read := p.read
	if read == nil {
		read = ReadCounters
	}
	c, err := read(device, port)
	if err != nil {
		return nil // the port went away: what it counted is not what a transfer ends for
	}
	return c
}

// Begin notes what all ports have counted. since tells how far they went on from then,
// or from their first use where that was later: ports of which nothing is to be told
// are left out. It may be called more than once.
func (p *Ports) Begin() (since func() []PortCounters) {
	ports := p.ports()
	begun := make([]Counters, len(ports))
	for i, f := range ports {
		begun[i] = p.now(f.device, f.port)
	}
	return func() []PortCounters { return p.from(begun) }
}

// BeginAtUse is as Begin, but since tells how far ports went on from their first use.
func (p *Ports) BeginAtUse() (since func() []PortCounters) {
	return func() []PortCounters { return p.from(nil) }
}

// from is how far ports went on from what the first of them had counted, and the others
// from their first use.
func (p *Ports) from(begun []Counters) (list []PortCounters) {
	for i, f := range p.ports() {
		before := f.first
		if i < len(begun) {
			before = begun[i]
		}
		if d := p.now(f.device, f.port).Since(before); d != nil {
			list = append(list, PortCounters{fmt.Sprintf("%s:%d", f.device, f.port), d})
		}
	}
	return list
}
