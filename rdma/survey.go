package rdma

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"pdlink/rdma/internal/verbs"
)

// Survey is what a host has for RDMA, for people who look for what is missing.
type Survey struct {
	Library error    // why verbs cannot be had at all, transport.ErrUnavailable; nil: they can
	Listing error    // why devices cannot be listed; nil: they can
	Names   []string // of all devices that the library lists
	Devices []Device // those of them that were looked at, usable or not
}

// Device is an RDMA device.
type Device struct {
	Name     string
	Class    string // "mlx5", "rxe", "mcdma", "melondma", "apple", "other"
	Firmware string
	Err      error // why it cannot be opened or asked, or is not used again; nil: it can
	Memory   error // why memory of the size that was tried cannot be registered; nil: it can
	Regions  int   // in how many regions it was registered
	Ports    []Port
}

// Port is a port of a device.
type Port struct {
	Number    int
	Err       error // why it cannot be asked; nil: it can
	Active    bool
	State     string // "active", "down"
	Ethernet  bool   // RoCE; else InfiniBand or Thunderbolt
	Rate      uint64 // bits a second, as the device says; 0: it does not say
	MTU       int    // of a packet's payload, active
	MaxMTU    int
	Addresses []Address
}

// Address is an entry of a port's table of GIDs.
type Address struct {
	IP        netip.Addr
	Index     int
	Kind      string // "RoCE v2"
	Usable    bool   // connections may choose it
	Interface string // of the network; "": the device does not say
}

// Best is the usable address of a port that peers would be given: what is routed most
// surely, the first of several alike. ok is false where there is none.
func (p Port) Best() (best Address, ok bool) {
	most := 0
	for _, a := range p.Addresses {
		if r := addressRank(a.IP); a.Usable && r > most {
			best, most = a, r
		}
	}
	return best, most > 0
}

// NeighbourEntry is where a neighbour on a network is.
type NeighbourEntry struct {
	MAC   string
	Fixed bool // it was entered by somebody; else learned, and forgotten again
}

// Survey looks at what the host has: at all devices, or at the one that Options.Device
// names. It opens each of these, and no other, and registers so many bytes of memory for a
// moment. It changes nothing.
func (l *Link) Survey(bytes int) Survey {
	p, err := l.load()
	if err != nil {
		return Survey{Library: unavailable(err)}
	}
	list, err := p.Devices()
	if err != nil {
		return Survey{Listing: unavailable(err)}
	}
	name, _, err := ParseDevice(l.o.Device)
	if err != nil {
		return Survey{Listing: err}
	}
	var s Survey
	for _, info := range list {
		s.Names = append(s.Names, info.Name)
		if name != "" && info.Name != name {
			continue
		}
		if err := l.isBad(info.Name); err != nil { // it is not touched again
			s.Devices = append(s.Devices, Device{Name: info.Name, Class: string(info.Class), Err: err})
			continue
		}
		s.Devices = append(s.Devices, surveyDevice(p, info, bytes))
	}
	if len(s.Devices) == 0 && len(list) > 0 {
		s.Listing = unavailable(fmt.Errorf("no device %q, there are %s", name, deviceNames(list)))
	}
	return s
}

// ChoiceFor is what a connection would use whose control socket has that address of
// this host; the zero value stands for one that no device has. Errors:
// transport.ErrUnavailable.
func (l *Link) ChoiceFor(local netip.Addr) (Choice, error) {
	d, s, err := l.choose(&net.TCPAddr{IP: local.AsSlice(), Zone: local.Zone()})
	if err != nil {
		return Choice{}, err
	}
	return s.choice(), d.Close()
}

func surveyDevice(p verbs.Provider, info verbs.DeviceInfo, bytes int) Device {
	v := Device{Name: info.Name, Class: string(info.Class)}
	d, err := p.Open(info.Name)
	if err != nil {
		v.Err = err
		return v
	}
	defer d.Close() //nolint:errcheck // it was looked at
	attr, err := d.Attr()
	if err != nil {
		v.Err = err
		return v
	}
	v.Firmware = attr.Firmware
	v.Regions, v.Memory = tryMemory(d, attr, bytes)
	for n := 1; n <= attr.Ports; n++ {
		v.Ports = append(v.Ports, surveyPort(d, n))
	}
	return v
}

func surveyPort(d verbs.Device, number int) Port {
	v := Port{Number: number}
	a, err := d.Port(number)
	if err != nil {
		v.Err = err
		return v
	}
	v.Active, v.State = a.State == verbs.PortActive, a.State.String()
	v.Ethernet = a.LinkLayer == verbs.LinkEthernet || a.LinkLayer == verbs.LinkUnspecified
	v.Rate, v.MTU, v.MaxMTU = a.Rate(), a.ActiveMTU.Bytes(), a.MaxMTU.Bytes()
	list, err := d.GIDs(number)
	if err != nil {
		v.Err = err
		return v
	}
	for _, e := range list {
		if e.GID.Addr().IsUnspecified() {
			continue
		}
		w := Address{IP: e.GID.Addr(), Index: e.Index, Kind: e.Kind.String(), Usable: e.Kind != verbs.GIDRoCEv1 && e.Index <= maxIndex}
		if i, err := net.InterfaceByIndex(e.IfIndex); err == nil {
			w.Interface = i.Name
		}
		v.Addresses = append(v.Addresses, w)
	}
	return v
}

// tryMemory registers memory as a receiver does, and gives it back.
func tryMemory(d verbs.Device, attr verbs.DeviceAttr, bytes int) (regions int, err error) {
	pd, err := d.NewPD()
	if err != nil {
		return 0, err
	}
	defer pd.Close() //nolint:errcheck // nothing is in it
	limit := 0
	if attr.MaxMRSize < 1<<31 {
		limit = int(attr.MaxMRSize)
	}
	a, err := newArena(pd, max(1, bytes/surveyUnit), surveyUnit, limit, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return 0, errors.Join(err, a.close())
	}
	return len(a.parts), a.close()
}
