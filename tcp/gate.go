package tcp

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// errCrowded ends a peer that had to make room for a newer one.
var errCrowded = errors.New("tcp: dropped for a newer connection: too many unfinished handshakes")

// stage is how far a stranger has come. A later one is a better peer.
type stage uint8

const (
	silent stage = iota // it has sent nothing
	spoke               // what it began with was read
	proven              // its key is pinned
)

// guest is a socket inside a gate.
type guest struct {
	conn net.Conn
	from netip.Prefix // the network that it comes from
	at   stage
}

// gate bounds how many sockets wait for their first message. When it is full one
// has to go; see worst. It may be used concurrently.
type gate struct {
	limit  int
	mu     sync.Mutex // guards the rest
	inside []guest    // oldest first
	closed bool
}

// enter admits c and reports false when the gate is closed.
func (g *gate) enter(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	n := guest{conn: c, from: networkOf(c)}
	if len(g.inside) == g.limit {
		i := g.worst(n.from)
		closeSocket(g.inside[i].conn) //nolint:errcheck // its own goroutine reports
		g.inside = slices.Delete(g.inside, i, i+1)
	}
	g.inside = append(g.inside, n)
	return true
}

// worst is the guest that has to go for one more from a network: not a peer whose
// key is pinned while there are others; of the network that has the most inside,
// since an honest host has one or two for a round trip; one that has said nothing,
// which an honest peer does not keep up; and the oldest.
func (g *gate) worst(from netip.Prefix) (worst int) {
	many := map[netip.Prefix]int{from: 1}
	for _, v := range g.inside {
		many[v.from]++
	}
	rank := func(v guest) [3]int {
		if v.at == proven {
			return [3]int{0, many[v.from], 0}
		}
		return [3]int{1, many[v.from], int(spoke - v.at)}
	}
	for i := range g.inside {
		a, b := rank(g.inside[i]), rank(g.inside[worst])
		if slices.Compare(a[:], b[:]) > 0 {
			worst = i
		}
	}
	return worst
}

// reached says that a guest has come further.
func (g *gate) reached(c net.Conn, at stage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.find(c); i >= 0 {
		g.inside[i].at = at
	}
}

// leave takes c out and reports false when it was thrown out before.
func (g *gate) leave(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.find(c)
	if i < 0 {
		return false
	}
	g.inside = slices.Delete(g.inside, i, i+1)
	return true
}

func (g *gate) find(c net.Conn) int {
	return slices.IndexFunc(g.inside, func(v guest) bool { return v.conn == c })
}

// close throws everybody out and admits nobody from then on.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, v := range g.inside {
		closeSocket(v.conn) //nolint:errcheck // its own goroutine reports
	}
	g.inside = nil
}

// networkOf is what one owner of addresses has: an IPv4 address, an IPv6 network
// of 64 bits. Unix sockets have one for all.
func networkOf(c net.Conn) netip.Prefix {
	t, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // bits fit the address
	return p
}
