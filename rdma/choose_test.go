package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// shelf is a provider of devices that can be looked at and nothing else.
type shelf map[string]*card

func (s shelf) Devices() (list []verbs.DeviceInfo, err error) {
	for _, name := range []string{"mlx5_0", "mlx5_1", "rdma_mcrdma0"} {
		if c := s[name]; c != nil {
			list = append(list, verbs.DeviceInfo{Name: name, Class: c.class})
		}
	}
	return list, nil
}

func (s shelf) Open(name string) (verbs.Device, error) {
	if s[name] == nil || s[name].broken {
		return nil, transport.ErrUnavailable
	}
	s[name].open++
	return s[name], nil
}

// card is one device.
type card struct {
	class  verbs.Class
	ports  [][]verbs.GIDEntry // of each port, from 1; nil: down
	broken bool
	open   int
}

func (c *card) Attr() (verbs.DeviceAttr, error) { return verbs.DeviceAttr{Ports: len(c.ports)}, nil }

func (c *card) Port(port int) (verbs.PortAttr, error) {
	a := verbs.PortAttr{State: verbs.PortActive, ActiveMTU: verbs.MTU4096}
	if c.ports[port-1] == nil {
		a.State = verbs.PortDown
	}
	return a, nil
}

func (c *card) GIDs(port int) ([]verbs.GIDEntry, error) { return c.ports[port-1], nil }
func (c *card) Event(context.Context) (verbs.Event, error) {
	return verbs.Event{}, verbs.ErrUnsupported
}
func (c *card) NewPD() (verbs.PD, error) { return nil, verbs.ErrUnsupported }
func (c *card) Close() error             { c.open--; return nil }
func gid(addr string, index, ifindex int, kind verbs.GIDKind) verbs.GIDEntry {
	return verbs.GIDEntry{GID: verbs.GID(netip.MustParseAddr(addr).As16()), Index: index, IfIndex: ifindex, Kind: kind}
}

// closed says which cards are left open.
func (s shelf) closed(t *testing.T) {
	t.Helper()
	for name, c := range s {
		if c.open != 0 {
			t.Errorf("device %s is left open", name)
		}
	}
}

// spark is as a DGX Spark: the index is another one on each port.
func spark() shelf {
	const v1, v2 = verbs.GIDRoCEv1, verbs.GIDRoCEv2
	return shelf{
		"mlx5_0": {class: verbs.ClassMellanox, ports: port(
			gid("fe80::1", 0, 2, v1), gid("fe80::1", 1, 2, v2), gid("10.0.0.1", 2, 2, v1), gid("10.0.0.1", 3, 2, v2))},
		"mlx5_1": {class: verbs.ClassMellanox, ports: port(
			gid("fe80::2", 0, 3, v1), gid("fe80::2", 1, 3, v2), gid("fd00::2", 4, 3, v1), gid("fd00::2", 5, 3, v2), gid("10.0.1.1", 7, 3, v2))},
	}
}

// TestChoose picks devices and addresses by what they are.
func TestChoose(t *testing.T) {
	const v1, v2 = verbs.GIDRoCEv1, verbs.GIDRoCEv2
	for name, c := range map[string]struct {
		devices shelf
		named   string
		local   string
		want    string // device and GID
		why     string
		fails   string
	}{
		"by address":              {devices: spark(), local: "10.0.1.1", want: "mlx5_1 10.0.1.1 7", why: "address of the control"},
		"the first one's":         {devices: spark(), local: "10.0.0.1", want: "mlx5_0 10.0.0.1 3", why: "address of the control"},
		"IPv6":                    {devices: spark(), local: "fd00::2", want: "mlx5_1 fd00::2 5", why: "address of the control"},
		"ambiguous":               {devices: spark(), local: "192.168.7.7", fails: "on none of the devices mlx5_0, mlx5_1"},
		"named":                   {devices: spark(), named: "mlx5_1", local: "192.168.7.7", want: "mlx5_1 10.0.1.1 7", why: "named"},
		"named, by address":       {devices: spark(), named: "mlx5_1:1", local: "fd00::2", want: "mlx5_1 fd00::2 5", why: "address"},
		"no such device":          {devices: spark(), named: "mlx5_7", fails: `no device "mlx5_7", there are mlx5_0, mlx5_1`},
		"no such port":            {devices: spark(), named: "mlx5_0:3", fails: "no port"},
		"no name":                 {devices: spark(), named: ":1", fails: "want a name"},
		"only one":                {devices: shelf{"rdma_mcrdma0": {class: verbs.ClassMCDMA, ports: port(gid("fe80::9", 0, 0, verbs.GIDUnknown))}}, local: "192.168.7.7", want: "rdma_mcrdma0 fe80::9 0", why: "the only device"},
		"one is down":             {devices: shelf{"mlx5_0": {ports: [][]verbs.GIDEntry{nil}}, "mlx5_1": spark()["mlx5_1"]}, local: "192.168.7.7", want: "mlx5_1 10.0.1.1 7", why: "the only device"},
		"second port":             {devices: shelf{"mlx5_0": {ports: [][]verbs.GIDEntry{nil, {gid("10.0.0.1", 1, 2, v2)}}}}, local: "10.0.0.1", want: "mlx5_0 10.0.0.1 1", why: "address"},
		"all are down":            {devices: shelf{"mlx5_0": {ports: [][]verbs.GIDEntry{nil}}}, fails: "device mlx5_0 port 1: port is down"},
		"no address":              {devices: shelf{"mlx5_0": {ports: port(gid("10.0.0.1", 0, 2, v1))}}, fails: "no address for RoCE v2"},
		"cannot be opened":        {devices: shelf{"mlx5_0": {broken: true}}, fails: "link unavailable"},
		"none":                    {devices: shelf{}, fails: "this host has no RDMA device"},
		"high index":              {devices: shelf{"mlx5_0": {ports: port(gid("10.0.0.1", 256, 2, v2))}}, local: "10.0.0.1", fails: "address 10.0.0.1 has index 256"},
		"only low ones":           {devices: shelf{"mlx5_0": {ports: port(gid("10.0.0.1", 300, 2, v2), gid("fe80::1", 5, 2, v2))}}, local: "10.0.0.1", want: "mlx5_0 fe80::1 5", why: "the only device"},
		"IPv4 before global IPv6": {devices: shelf{"mlx5_0": spark()["mlx5_1"]}, local: "192.168.7.7", want: "mlx5_0 10.0.1.1 7", why: "only"},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewOver(c.devices, Options{Device: c.named})
			var local net.Addr
			if c.local != "" {
				local = &net.TCPAddr{IP: net.ParseIP(c.local), Port: 7}
			}
			d, s, err := l.choose(local)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("error %v, want one that says %q", err, c.fails)
				}
				kind := transport.ErrUnavailable
				if strings.Contains(c.fails, "is down") { // it may come up
					kind = transport.ErrLost
				}
				if !errors.Is(err, kind) && !strings.Contains(c.fails, "want a name") {
					t.Errorf("error %v is not %v", err, kind)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				v := s.choice()
				if got := strings.Join([]string{v.Device, v.GID, string(rune('0' + v.Index))}, " "); got != c.want || !strings.Contains(v.Why, c.why) {
					t.Errorf("chose %v (%s), want %q, %q", got, v, c.want, c.why)
				}
				d.Close()
			}
			c.devices.closed(t)
		})
	}
}

// TestLinkLocal goes back to the link-local address of the same interface for a peer
// that has nothing else.
func TestLinkLocal(t *testing.T) {
	c := &card{ports: [][]verbs.GIDEntry{{
		gid("fe80::1", 0, 2, verbs.GIDRoCEv1), gid("fe80::7", 1, 9, verbs.GIDRoCEv2), gid("fe80::1", 256, 2, verbs.GIDRoCEv2), gid("fe80::1", 2, 2, verbs.GIDRoCEv2),
	}}}
	s := seat{port: 1, entry: gid("10.0.0.1", 3, 2, verbs.GIDRoCEv2), why: "because"}
	if got := s.linkLocal(c); got.entry.Index != 2 || !strings.Contains(got.why, "link-local") {
		t.Errorf("chose %+v", got)
	}
	s.entry.IfIndex = 5
	if got := s.linkLocal(c); got != s {
		t.Errorf("chose %+v where there is none", got)
	}
}

// TestZone keeps interfaces apart that have the same link-local address, as a VLAN has
// its parent's.
func TestZone(t *testing.T) {
	const v2 = verbs.GIDRoCEv2
	s := shelf{"mlx5_0": {ports: port(gid("fe80::1", 1, 70002, v2), gid("fe80::1", 3, 70009, v2))}}
	for zone, index := range map[string]int{"70002": 1, "70009": 3} {
		d, st, err := NewOver(s, Options{}).choose(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if st.entry.Index != index {
			t.Errorf("zone %s: GID %d, want %d", zone, st.entry.Index, index)
		}
	}
}

// TestNoOtherNetwork: what the control connection's own device, or one of several
// ports, would be for is not given to another one in silence.
func TestNoOtherNetwork(t *testing.T) {
	const v2 = verbs.GIDRoCEv2
	dual := shelf{"mlx5_0": {ports: append(port(gid("10.9.0.1", 1, 2, v2)), port(gid("10.8.0.1", 1, 3, v2))...)}}
	away := &net.TCPAddr{IP: net.ParseIP("192.168.7.7")}
	for _, name := range []string{"", "mlx5_0"} {
		if _, _, err := NewOver(dual, Options{Device: name}).choose(away); err == nil || !strings.Contains(err.Error(), "mlx5_0:1, mlx5_0:2") {
			t.Errorf("two ports, device %q: %v", name, err)
		}
	}
	d, _, err := NewOver(dual, Options{Device: "mlx5_0:2"}).choose(away)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	l := NewOver(spark(), Options{})
	l.setBad("mlx5_0", errors.New("it broke"))
	if _, _, err := l.choose(away); !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("one of two devices is bad: %v", err)
	}
	for name, set := range map[string]func(s shelf, q *search){
		"port is down": func(s shelf, _ *search) { s["mlx5_0"].ports[0] = nil },
		"it broke":     func(s shelf, q *search) { delete(s, "mlx5_0"); q.refuse("mlx5_0", errors.New("it broke")) },
	} {
		s, q := spark(), search{ip: ipOf(away), dev: netdev{name: "enp1", index: 70002, rdma: "mlx5_0"}}
		set(s, &q)
		list, _ := s.Devices()
		for _, i := range list {
			q.look(i, s[i.Name])
		}
		if st, err := q.best(); err == nil || !strings.Contains(err.Error(), "interface enp1: ") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, st.choice(), err)
		}
	}
}
