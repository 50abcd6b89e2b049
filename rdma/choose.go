package rdma

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"pdlink/rdma/internal/verbs"
)

// Choice is the device and address that a connection uses at this end.
type Choice struct {
	Device string
	Port   int
	GID    string // as an IP address
	Index  int    // of the GID, at this moment
	Kind   string // "RoCE v2"
	MTU    int    // active, in bytes of a packet's payload
	Mode   string // how frames move, once that is agreed: "write+send", "write+immediate", "read", "send"
	Why    string // in words
	Copies string // why payloads are copied before they are sent where they need not be; "": they are not
}

// String is the choice as one line for people.
func (c Choice) String() string {
	s := fmt.Sprintf("%s port %d, %s %s (GID %d), MTU %d: %s", c.Device, c.Port, c.Kind, c.GID, c.Index, c.MTU, c.Why)
	if c.Mode != "" {
		s += "; frames by " + c.Mode
	}
	if c.Copies != "" {
		s += "; payloads are copied: " + c.Copies
	}
	return s
}

// netdev is a network interface of this host.
type netdev struct {
	name  string
	index int
	mtu   int
	rdma  string // its RDMA device, where the system knows
	note  string // state and speed, for people
}

// seat is a device with a port and a GID.
type seat struct {
	info  verbs.DeviceInfo
	port  int
	attr  verbs.PortAttr
	entry verbs.GIDEntry
	rank  int
	why   string
}

// ParseDevice takes Options.Device apart, "name" or "name:port"; port 0 means any. Errors:
// it has no name, or a port that is no number from 1 on.
func ParseDevice(s string) (name string, port int, err error) {
	name, text, has := strings.Cut(s, ":")
	if !has {
		return name, 0, nil
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 1 || name == "" {
		return "", 0, fmt.Errorf("rdma: device %q: want a name, or name:port", s)
	}
	return name, port, nil
}

func deviceNames(list []verbs.DeviceInfo) string {
	if len(list) == 0 {
		return "none"
	}
	names := make([]string, len(list))
	for i, d := range list {
		names[i] = d.Name
	}
	return strings.Join(names, ", ")
}

// choose opens the device for a connection whose control socket has the local address
// local: by what addresses ports have, never by an index. The caller closes it.
func (l *Link) choose(local net.Addr) (verbs.Device, seat, error) {
	all, err := l.devices()
	if err != nil {
		return nil, seat{}, err
	}
	_, port, err := ParseDevice(l.o.Device)
	if err != nil {
		return nil, seat{}, err
	}
	s := search{ip: ipOf(local), zone: zoneOf(local), named: l.o.Device != "", port: port, unusable: all.bad}
	s.dev = netdevOf(s.ip, s.zone)
	devices := map[string]verbs.Device{}
	defer func() {
		for _, d := range devices {
			d.Close() //nolint:errcheck // nothing was made of it
		}
	}()
	for _, info := range all.usable {
		d, err := all.Open(info.Name)
		if err != nil {
			s.refuse(info.Name, err)
			continue
		}
		devices[info.Name] = d
		s.look(info, d)
	}
	best, err := s.best()
	switch {
	case err == nil:
	case errors.As(err, &passing{}) && !errors.As(err, &lasting{}):
		return nil, seat{}, lost(err)
	default:
		return nil, seat{}, unavailable(err)
	}
	d := devices[best.info.Name]
	delete(devices, best.info.Name)
	return d, best, nil
}

// ipOf is the IP address of a socket's address; the zero value where it has none.
func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// zoneOf is the index of the interface that a socket's address is of, where it is said
// with it: other interfaces may have the same link-local address, as a VLAN has its
// parent's. 0: it is not.
func zoneOf(a net.Addr) int {
	t, ok := a.(*net.TCPAddr)
	if !ok || t.Zone == "" {
		return 0
	}
	if i, err := net.InterfaceByName(t.Zone); err == nil {
		return i.Index
	}
	index, err := strconv.Atoi(t.Zone)
	if err != nil {
		return 0
	}
	return index
}

// search collects the seats that a connection could have.
type search struct {
	ip       netip.Addr
	zone     int // index of the interface of ip; 0: not said
	dev      netdev
	named    bool // the user named the device
	port     int  // and this port of it; 0: any
	seats    []seat
	refused  []error
	unusable map[string]error // why a device, or a port of it, cannot be used
}

// refuse notes why a device, or a port of it, cannot be used.
func (s *search) refuse(device string, err error) {
	if s.unusable == nil {
		s.unusable = map[string]error{}
	}
	s.refused = append(s.refused, err)
	if was := s.unusable[device]; was != nil {
		err = errors.Join(was, err)
	}
	s.unusable[device] = err
}

// Ranks of a seat. Digits below ten say which kind of address it has.
const (
	rankOther  = 0
	rankDevice = 20 // the system says that the interface is of this device
	rankNetdev = 40 // the GID is of the same interface
	rankAddr   = 60 // the GID is the control connection's own address
)

// maxIndex is the last index of a GID that a queue pair can be told: sgid_index of
// struct ibv_global_route is one byte.
const maxIndex = 255

// look adds the seats of a device.
func (s *search) look(info verbs.DeviceInfo, d verbs.Device) {
	attr, err := d.Attr()
	if err != nil {
		s.refuse(info.Name, fmt.Errorf("device %s: %w", info.Name, err))
		return
	}
	for port := 1; port <= attr.Ports; port++ {
		if s.port != 0 && s.port != port {
			continue
		}
		pa, err := d.Port(port)
		if err == nil && pa.State != verbs.PortActive {
			err = passing{fmt.Errorf("port is %v", pa.State)}
		}
		var gids []verbs.GIDEntry
		if err == nil {
			gids, err = d.GIDs(port)
		}
		if err != nil {
			s.refuse(info.Name, fmt.Errorf("device %s port %d: %w", info.Name, port, err))
			continue
		}
		n := len(s.seats) + len(s.refused)
		for _, e := range gids {
			switch {
			case e.Kind == verbs.GIDRoCEv1 || e.GID.Addr().IsUnspecified():
			case e.Index > maxIndex:
				s.refuse(info.Name, fmt.Errorf("device %s port %d: address %v has index %d of the table, queue pairs take those to %d: remove other addresses of its network interface",
					info.Name, port, e.GID, e.Index, maxIndex))
			default:
				s.add(seat{info: info, port: port, attr: pa, entry: e})
			}
		}
		if n == len(s.seats)+len(s.refused) {
			s.refuse(info.Name, fmt.Errorf("device %s port %d: no address for RoCE v2: give its network interface one", info.Name, port))
		}
	}
}

// add ranks a seat and adds it.
func (s *search) add(c seat) {
	switch addr := c.entry.GID.Addr(); {
	case addr == s.ip && (s.zone == 0 || c.entry.IfIndex == 0 || c.entry.IfIndex == s.zone):
		c.rank, c.why = rankAddr, "the address of the control connection"
	case s.dev.index != 0 && c.entry.IfIndex == s.dev.index:
		c.rank, c.why = rankNetdev, "on the interface of the control connection, "+s.dev.text()
	case s.dev.rdma != "" && c.info.Name == s.dev.rdma:
		c.rank, c.why = rankDevice, "the device of the interface of the control connection, "+s.dev.text()
	case s.named:
		c.rank, c.why = rankOther, "named on the command line"
	default:
		c.rank, c.why = rankOther, "the only device with an active port"
	}
	c.rank += addressRank(c.entry.GID.Addr())
	s.seats = append(s.seats, c)
}

// addressRank prefers what is routed most surely: IPv4, global IPv6, link-local. None is 0.
func addressRank(a netip.Addr) int {
	switch {
	case a.Is4():
		return 3
	case a.IsLinkLocalUnicast():
		return 1
	}
	return 2
}

func (d netdev) text() string {
	if d.note == "" {
		return d.name
	}
	return d.name + " (" + d.note + ")"
}

// best is the seat that counts. Nothing of another network is taken in silence: not
// where the connection's own device cannot be used, nor where several could be meant.
func (s *search) best() (seat, error) {
	if len(s.seats) == 0 {
		if len(s.refused) == 0 {
			s.refused = append(s.refused, errors.New("no port of that number"))
		}
		return seat{}, errors.Join(s.refused...)
	}
	best := slices.MaxFunc(s.seats, func(a, b seat) int { return a.rank - b.rank })
	if best.rank >= rankNetdev {
		return best, nil
	}
	if own := s.unusable[s.dev.rdma]; own != nil && !s.named && best.rank < rankDevice {
		return seat{}, fmt.Errorf("the control connection is on interface %s: %w: name another device to use its network", s.dev.name, own)
	}
	if names := s.alike(best); len(names) > 1 {
		errs := []error{fmt.Errorf("the control connection's address %v is on none of the devices %s: name one, or use an address of its interface",
			s.ip, strings.Join(names, ", "))}
		for _, name := range names {
			if err := s.unusable[name]; errors.As(err, &lasting{}) {
				errs = append(errs, err)
			}
		}
		return seat{}, errors.Join(errs...)
	}
	return best, nil
}

// alike names the devices that are as good as the best one, as options name them: with
// the port where several of one could be meant. One that was used and is not any more
// counts among those of which nothing is known.
func (s *search) alike(best seat) []string {
	ports := map[string][]int{}
	for _, c := range s.seats {
		if c.rank/rankDevice == best.rank/rankDevice && !slices.Contains(ports[c.info.Name], c.port) {
			ports[c.info.Name] = append(ports[c.info.Name], c.port)
		}
	}
	var names []string
	for name, list := range ports {
		if len(list) == 1 {
			names = append(names, name)
			continue
		}
		for _, port := range list {
			names = append(names, fmt.Sprintf("%s:%d", name, port))
		}
	}
	for name, err := range s.unusable {
		if best.rank < rankDevice && !s.named && errors.As(err, &lasting{}) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// linkLocal is the link-local address of the same port and interface, for a peer that
// has nothing else; s itself where there is none.
func (s seat) linkLocal(d verbs.Device) seat {
	gids, err := d.GIDs(s.port)
	if err != nil {
		return s
	}
	for _, e := range gids {
		if e.Kind != verbs.GIDRoCEv1 && e.Index <= maxIndex && e.IfIndex == s.entry.IfIndex && e.GID.Addr().IsLinkLocalUnicast() {
			s.entry, s.why = e, s.why+", link-local as the peer's"
			return s
		}
	}
	return s
}

// choice is the seat for people.
func (s seat) choice() Choice {
	return Choice{
		Device: s.info.Name, Port: s.port, GID: s.entry.GID.String(), Index: s.entry.Index, Kind: s.entry.Kind.String(),
		MTU: s.attr.ActiveMTU.Bytes(), Why: s.why,
	}
}

// findNetdev is the interface that has an address; of that index where it is not 0.
func findNetdev(ip netip.Addr, index int) (netdev, bool) {
	if !ip.IsValid() || ip.IsLoopback() {
		return netdev{}, false
	}
	list, err := net.Interfaces()
	if err != nil {
		return netdev{}, false
	}
	for _, i := range list {
		if index != 0 && i.Index != index {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip {
				return netdev{name: i.Name, index: i.Index, mtu: i.MTU, note: fmt.Sprintf("MTU %d", i.MTU)}, true
			}
		}
	}
	return netdev{}, false
}
