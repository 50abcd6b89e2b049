package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"pdlink/rdma"
)

// lookAddress says what connections would use: the one that was asked about, or all
// that active ports offer.
func (d *rdmaDoctor) lookAddress(context.Context) (found []finding) {
	if len(d.survey.Devices) == 0 {
		return nil
	}
	if d.aimed() {
		return d.lookAim()
	}
	for _, v := range d.survey.Devices {
		for _, p := range v.Ports {
			if a, ok := p.Best(); ok && p.Active && v.Err == nil {
				d.choose(rdma.Choice{Device: v.Name, Port: p.Number, GID: a.IP.String(), Index: a.Index, Kind: a.Kind, MTU: p.MTU})
				found = append(found, good("%s:%d: peers reach it at %s (%s, GID %d)", v.Name, p.Number, a.IP, a.Kind, a.Index))
			}
		}
	}
	return found
}

// choose notes what a connection would use.
func (d *rdmaDoctor) choose(c rdma.Choice) {
	p := chosenPort{Choice: c}
	for _, v := range d.survey.Devices {
		for _, q := range v.Ports {
			if v.Name == c.Device && q.Number == c.Port {
				p.port = q
			}
		}
	}
	name := ""
	for _, a := range p.port.Addresses {
		if a.Index == c.Index {
			name = a.Interface
		}
	}
	if i, err := net.InterfaceByName(name); err == nil {
		p.iface = *i
	}
	d.chosen = append(d.chosen, p)
}

// lookAim says what a connection would use that has the address that was asked about.
func (d *rdmaDoctor) lookAim() []finding {
	local := d.local
	if !local.IsValid() {
		var cure string
		if local, cure = d.addressOf(d.iface); cure != "" {
			return []finding{bad(fmt.Sprintf("no port has an address for RoCE v2 on %s", d.iface), cure)}
		}
	}
	c, err := d.host.choose(local)
	if err != nil {
		return []finding{bad(fmt.Sprintf("%v: %s", local, reason(err)),
			"use an address of the interface of an RDMA port, or name the device with ?device= in the URL")}
	}
	d.choose(c)
	p := d.chosen[len(d.chosen)-1]
	text := fmt.Sprintf("a connection from %v uses %s", local, c.String())
	if d.device == "" && p.iface.Name != "" && d.iface != "" && p.iface.Name != d.iface { // a device that was named is meant
		return []finding{doubt(fmt.Sprintf("%s, which is on %s while %v is on %s", text, p.iface.Name, local, d.iface),
			fmt.Sprintf("use the address of that interface at both ends: %s here", c.GID))}
	}
	return []finding{good("%s", text)}
}

// addressOf is an address on an interface that a port has too, or how to get one.
func (d *rdmaDoctor) addressOf(iface string) (ip netip.Addr, cure string) {
	var best rdma.Address
	for _, v := range d.survey.Devices {
		for _, p := range v.Ports {
			q := p
			q.Addresses = nil
			for _, a := range p.Addresses {
				if a.Interface == iface {
					q.Addresses = append(q.Addresses, a)
				}
			}
			if best.IP.IsValid() {
				q.Addresses = append(q.Addresses, best)
			}
			if a, ok := q.Best(); ok {
				best = a
			}
		}
	}
	if best.IP.IsValid() {
		return best.IP, ""
	}
	var ports []string
	for _, v := range d.survey.Devices {
		for _, p := range v.Ports {
			ports = append(ports, d.host.netdevs(v, p)...)
		}
	}
	if len(ports) > 0 && !slices.Contains(ports, iface) {
		return ip, fmt.Sprintf("ask about the interface of an RDMA port, %s is none: %s", iface, strings.Join(ports, ", "))
	}
	return ip, fmt.Sprintf("give it one ("+addressCommand+"), or ask about the interface of an RDMA port: "+interfacesHint, iface)
}

// roceHeaders is what a packet has beside its payload at least: IPv4, UDP, the headers of
// InfiniBand for a WRITE, its check sum.
const roceHeaders = 20 + 8 + 12 + 16 + 4

// lookMTU looks whether packets are as large as they can be, and not larger.
func (d *rdmaDoctor) lookMTU(context.Context) (found []finding) {
	for _, c := range d.chosen {
		if c.port.MTU == 0 {
			continue
		}
		text := fmt.Sprintf("%s: packets of %d bytes", c.name(), c.port.MTU)
		if c.iface.Name != "" {
			text += fmt.Sprintf(" on %s, whose MTU is %d", c.iface.Name, c.iface.MTU)
		}
		narrow, where := c.iface.MTU, c.iface.Name
		if d.way > 0 && (narrow == 0 || d.way < narrow) {
			narrow, where = d.way, fmt.Sprintf("the way to %v", d.peer)
		}
		cure := "set the MTU of both ends' interfaces, and of a switch between them, to 9000 (4200 is enough): " + fmt.Sprintf(mtuCommand, cmp.Or(c.iface.Name, "…"))
		switch {
		case narrow > 0 && c.port.MTU > narrow-roceHeaders:
			found = append(found, bad(fmt.Sprintf("%s: %s takes %d bytes, so larger packets vanish", text, where, narrow), cure))
		case c.port.MTU < c.port.MaxMTU && c.port.Ethernet:
			found = append(found, doubt(fmt.Sprintf("%s, and %d are possible", text, c.port.MaxMTU), cure))
		default:
			found = append(found, good("%s", text))
		}
	}
	return found
}

// lookNeighbour looks at connections between link-local addresses, for which nobody
// asks where the peer is.
func (d *rdmaDoctor) lookNeighbour(context.Context) (found []finding) {
	for _, c := range d.chosen {
		ip, err := netip.ParseAddr(c.GID)
		if err != nil || !ip.IsLinkLocalUnicast() || ip.Is4() {
			continue
		}
		iface := c.iface.Name
		if iface == "" {
			iface = d.iface
		}
		if !d.peer.IsValid() || !d.peer.WithZone("").IsLinkLocalUnicast() { // one of another network says nothing of the card's
			found = append(found, doubt(fmt.Sprintf("%s has nothing but the link-local address %v: each end needs a fixed neighbour entry of the other one", c.name(), ip),
				"give the interfaces of both ends an IPv4 address where they can have one; else "+d.entryHint(cmp.Or(iface, "IFACE"))))
			continue
		}
		found = append(found, d.neighbourFinding(iface))
	}
	return found
}

// entryHint is what to do about the entry of a peer that nobody has named.
func (d *rdmaDoctor) entryHint(iface string) string {
	if d.host.blind {
		return neighbourCommand("PEER", iface)
	}
	return "`pdlink doctor rdma PEER%" + iface + "` looks at the entry"
}

func (d *rdmaDoctor) neighbourFinding(iface string) finding {
	peer := d.peer.WithZone("")
	cure := neighbourCommand(peer.String(), iface) + "; and the same at the other end"
	switch n, known := d.host.neighbour(iface, peer); {
	case !known && d.host.blind:
		return doubt(fmt.Sprintf("whether %v is among the neighbours on %s is not known here: it needs a fixed entry", peer, iface), cure)
	case !known:
		return bad(fmt.Sprintf("%v is not among the neighbours on %s", peer, iface), cure)
	case !n.Fixed:
		return doubt(fmt.Sprintf("%v is a neighbour on %s at %s, which was learned and will be forgotten", peer, iface, n.MAC), cure)
	default:
		return good("%v is a neighbour on %s at %s, for good", peer, iface, n.MAC)
	}
}
