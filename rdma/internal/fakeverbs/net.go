package fakeverbs

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// Net is a network of hosts. It may be used concurrently; its fields are set before
// the first host is made.
type Net struct {
	// Seed decides every random choice.
	Seed uint64

	// Latency is the longest time that a work request takes, drawn for each. 0: none.
	Latency time.Duration

	// Watch, where it is set, is shown the bytes of every message and WRITE, with the
	// network's lock held. It may keep nothing of them.
	Watch func(b []byte)

	// Odds are the chances that something goes wrong, for each work request.
	Odds Odds

	mu    sync.Mutex // guards all state of the network and its devices
	hosts []*Host
	pairs map[uint32]*pair // by number, over all hosts
	last  uint32           // number drawn last
}

// Odds are chances from 0 to 1.
type Odds struct {
	Fail float64 // a send request fails
	Drop float64 // a message of an unreliable connection is lost
	Slow float64 // a completion is held back for ten times the latency
	RNR  float64 // the receiver looks as if it had no receive, for a moment
}

// Host is one host of a network, with one device of one port. It implements
// verbs.Provider.
type Host struct {
	net  *Net
	name string
	p    Personality
	gid  verbs.GIDEntry

	// Guarded by net.mu.
	down     bool // the port
	dead     bool // the host does not answer
	locked   int64
	limit    int64 // of locked memory; 0: none
	refusals int   // Close and Deregister that are still to be refused
	fail     verbs.Status
	failIn   int // work requests until one ends with fail; 0: none
	opens    []*device
	counts   Counts
	keys     uint32 // drawn so far
}

// Counts is what a host has: objects that exist, and what was moved.
type Counts struct {
	Devices, PDs, MRs, CQs, Channels, Pairs int

	Writes, Sends, Reads, Immediates int // work requests that were executed
}

// Host adds a host whose port has the address addr, for the interface of that index
// where it is not 0.
func (n *Net) Host(name string, p Personality, addr netip.Addr, ifindex int) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &Host{net: n, name: name, p: p}
	h.gid = verbs.GIDEntry{GID: verbs.GID(addr.As16()), Index: p.GIDs, Kind: verbs.GIDRoCEv2, IfIndex: ifindex}
	n.hosts = append(n.hosts, h)
	if n.pairs == nil {
		n.pairs = map[uint32]*pair{}
	}
	return h
}

// Counts is what the host has now.
func (h *Host) Counts() Counts {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	return h.counts
}

// Remote lists the regions of the host that peers may use now.
func (h *Host) Remote() (list []verbs.MRInfo) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for _, d := range h.opens {
		for _, r := range d.mrs {
			if r.info.Remote != 0 {
				list = append(list, r.info)
			}
		}
	}
	return list
}

// LimitMemory makes Register fail above so many bytes in all, as a limit of locked
// memory does. 0: no limit.
func (h *Host) LimitMemory(bytes int64) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.limit = bytes
}

// Refuse makes the next n attempts to destroy a queue pair or to deregister memory
// fail with ErrBusy.
func (h *Host) Refuse(n int) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.refusals = n
}

// FailAfter makes the send request after n others of the host end with a status.
func (h *Host) FailAfter(n int, s verbs.Status) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.fail, h.failIn = s, n+1
}

// SetPort takes the port down or up.
func (h *Host) SetPort(up bool) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.down == !up {
		return
	}
	h.down = !up
	kind := verbs.EventPortError
	if up {
		kind = verbs.EventPortActive
	}
	for _, d := range h.opens {
		d.tell(verbs.Event{Kind: kind, Port: 1})
	}
}

// Kill makes the host silent for good: what it has stays, and answers nobody.
func (h *Host) Kill() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.dead = true
}

// Break puts every queue pair of the host into the error state, as a fatal event of
// the card does, and says so where the personality has such events.
func (h *Host) Break() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for _, q := range h.net.pairs {
		if q.d.h == h && q.state == verbs.StateRTS {
			q.flush()
			if !h.p.PortEvents {
				q.d.tell(verbs.Event{Kind: verbs.EventQPFatal, QP: q.number})
			}
		}
	}
}

// Devices implements verbs.Provider.
func (h *Host) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: h.Device(), Class: h.p.Class}}, nil
}

// Device is the name of the host's device.
func (h *Host) Device() string { return "fake_" + h.name }

// Open implements verbs.Provider.
func (h *Host) Open(name string) (verbs.Device, error) {
	if name != h.Device() {
		return nil, fmt.Errorf("fakeverbs: %w: no device %q", transport.ErrUnavailable, name)
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	d := &device{h: h, events: make(chan verbs.Event, 64), gone: make(chan struct{})}
	h.opens = append(h.opens, d)
	h.counts.Devices++
	return d, nil
}

// find is the queue pair of a number at a GID; nil where nobody answers. The caller
// holds mu.
func (n *Net) find(gid verbs.GID, number uint32) *pair {
	q := n.pairs[number]
	if q == nil || q.d.h.gid.GID != gid || q.d.h.dead || q.d.h.down {
		return nil
	}
	return q
}

// rng is the source of the random choices of a host's object.
func (n *Net) rng(host string, index int) *rand.Rand {
	f := fnv.New64a()
	fmt.Fprintf(f, "%s/%d", host, index)
	return rand.New(rand.NewPCG(n.Seed, f.Sum64()))
}
