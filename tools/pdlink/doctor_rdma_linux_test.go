package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pdlink/rdma"
	"pdlink/transport"
)

// card is a host's RDMA as a test wants it.
type card struct {
	rdmaDoctor
	t *testing.T
}

// newCard is a DGX Spark in good health: two ports, one with a cable.
func newCard(t *testing.T) *card {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS(filepath.Join("testdata", "rdma-spark"))); err != nil {
		t.Fatal(err)
	}
	c := &card{t: t}
	c.host.root = root
	c.put("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: \t\t NVIDIA GB10\nIRQ:   \t\t 400\n") // no name for a file of a repository
	ip := netip.MustParseAddr
	port := rdma.Port{
		Number: 1, Active: true, State: "active", Ethernet: true, Rate: 200e9, MTU: 4096, MaxMTU: 4096,
		Addresses: []rdma.Address{
			{IP: ip("fe80::1"), Index: 0, Kind: "RoCE v1"}, {IP: ip("fe80::1"), Index: 1, Kind: "RoCE v2", Usable: true, Interface: "lo"},
			{IP: ip("fd00::1"), Index: 5, Kind: "RoCE v2", Usable: true, Interface: "lo"},
			{IP: ip("10.0.0.1"), Index: 3, Kind: "RoCE v2", Usable: true, Interface: "lo"},
		},
	}
	c.survey.Names = []string{"rocep1s0f0", "rocep1s0f1"}
	c.survey.Devices = []rdma.Device{
		{Name: "rocep1s0f0", Class: "mlx5", Firmware: "28.45.4028", Regions: 1, Ports: []rdma.Port{port}},
		{Name: "rocep1s0f1", Class: "mlx5", Regions: 1, Ports: []rdma.Port{{Number: 1, State: "down", Ethernet: true, MaxMTU: 4096}}},
	}
	now := &c.survey
	c.host = rdmaHost{
		root: root,
		choose: func(local netip.Addr) (rdma.Choice, error) {
			if local != ip("10.0.0.1") && local != ip("fe80::1") {
				return rdma.Choice{}, fmt.Errorf("rdma: %w: the address %v is on none of the devices", transport.ErrUnavailable, local)
			}
			for _, a := range now.Devices[0].Ports[0].Addresses {
				if a.Usable && a.IP == local {
					return rdma.Choice{Device: "rocep1s0f0", Port: 1, GID: a.IP.String(), Index: a.Index, Kind: a.Kind, MTU: now.Devices[0].Ports[0].MTU, Why: "its address"}, nil
				}
			}
			return rdma.Choice{}, transport.ErrUnavailable
		},
		neighbour: func(string, netip.Addr) (rdma.NeighbourEntry, bool) { return rdma.NeighbourEntry{}, false },
		counters:  func(string, int) (rdma.Counters, error) { return rdma.Counters{"out_of_sequence": 1, "sent": 7}, nil },
	}
	c.host.survey = func(device string, bytes int) rdma.Survey {
		if bytes != 64<<20 {
			t.Errorf("tries %d bytes of memory", bytes)
		}
		s := *now
		if name, _, _ := strings.Cut(device, ":"); name != "" { // as package rdma does, nothing else is opened
			s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(v rdma.Device) bool { return v.Name != name })
		}
		return s
	}
	return c
}

// put writes a file of the host.
func (c *card) put(path, text string) {
	c.t.Helper()
	path = filepath.Join(c.host.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		c.t.Fatal(err)
	}
}

// drop removes one.
func (c *card) drop(path string) {
	c.t.Helper()
	if err := os.RemoveAll(filepath.Join(c.host.root, path)); err != nil {
		c.t.Fatal(err)
	}
}

// only leaves the port that has a cable its addresses of one kind.
func (c *card) only(keep func(rdma.Address) bool) {
	p := &c.survey.Devices[0].Ports[0]
	var left []rdma.Address
	for _, a := range p.Addresses {
		if keep(a) {
			left = append(left, a)
		}
	}
	p.Addresses = left
}

// found runs the checks and returns what they found.
func (c *card) found() (list []finding, status error) {
	c.t.Helper()
	var out bytes.Buffer
	err := examine(c.t.Context(), newStreams(&out, &out), true, &c.rdmaDoctor, c.checks())
	for line := range strings.Lines(out.String()) {
		var f finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			c.t.Fatalf("%q: %v", line, err)
		}
		if f.Event == "check" {
			if f.Text == "" || (f.Cure == "") != (f.Level == levelOK) {
				c.t.Errorf("not a finding with its cure: %+v", f)
			}
			list = append(list, f)
		}
	}
	return list, err
}

// TestDoctorRDMA: a host in good health, and each ailment with its cure.
func TestDoctorRDMA(t *testing.T) {
	at := func(d *card) { d.iface, d.local = "lo", netip.MustParseAddr("10.0.0.1") }
	linkLocal := func(a rdma.Address) bool { return a.IP.IsLinkLocalUnicast() }
	gone := func(why string) error { return fmt.Errorf("rdma: %w: %s", transport.ErrUnavailable, why) }
	for name, c := range map[string]struct {
		ail   func(d *card)
		check string
		level level
		say   string
	}{
		"well, device":   {nil, "devices", levelOK, "rocep1s0f0: mlx5, firmware 28.45.4028"},
		"well, port":     {nil, "ports", levelOK, "rocep1s0f0:1 is active, 200 Gbit/s"},
		"well, no cable": {nil, "ports", levelWarn, "rocep1s0f1:1 is down plug the cable in"},
		"well, address":  {nil, "address", levelOK, "rocep1s0f0:1: peers reach it at 10.0.0.1 (RoCE v2, GID 3)"},
		"well, files":    {nil, "files", levelOK, "rocep1s0f0: this user may use /dev/infiniband/uverbs0"},
		"well, MTU":      {nil, "mtu", levelOK, "packets of 4096 bytes on lo"},
		"well, slot":     {nil, "pcie", levelOK, "rocep1s0f0: PCIe of 32 GT/s x4, about 126 Gbit/s: as on every DGX Spark"},
		"well, memory":   {nil, "memory", levelOK, "rocep1s0f0: 67.1 MB can be registered"},
		"well, GB10":     {nil, "gpu", levelOK, "NVIDIA GB10 shares its memory with the processor and has neither GPUDirect RDMA nor dma-buf"},
		"well, counters": {nil, "counters", levelOK, "rocep1s0f0:1: 2 counters"},
		"asked, address": {at, "address", levelOK, "a connection from 10.0.0.1 uses rocep1s0f0 port 1, RoCE v2 10.0.0.1 (GID 3)"},
		"asked, iface":   {func(d *card) { d.iface = "lo" }, "address", levelOK, "a connection from 10.0.0.1 uses rocep1s0f0"},
		"no library":     {func(d *card) { d.survey = rdma.Survey{Library: gone("no libibverbs.so.1")} }, "library", levelFail, "no libibverbs.so.1 install rdma-core"},
		"no kernel":      {func(d *card) { d.survey = rdma.Survey{Listing: gone("ENOSYS")} }, "devices", levelFail, "ENOSYS look for a card"},
		"no device":      {func(d *card) { d.survey = rdma.Survey{} }, "devices", levelFail, "this host has no RDMA device look for a card (lspci"},
		"cannot open":    {func(d *card) { d.survey.Devices[0].Err = syscall.EACCES }, "devices", levelFail, "permission denied let this user"},
		"Soft-RoCE":      {func(d *card) { d.survey.Devices[0].Class = "rxe" }, "devices", levelWarn, "slower than TCP use it for tests"},
		"all down":       {func(d *card) { d.survey.Devices[0].Ports[0].Active = false }, "ports", levelFail, "no other port is active plug the cable in"},
		"port broken":    {func(d *card) { d.survey.Devices[0].Ports[0].Err = syscall.EIO }, "ports", levelFail, "rocep1s0f0:1: input/output error"},
		"no RoCE v2":     {func(d *card) { d.only(func(a rdma.Address) bool { return !a.Usable }) }, "ports", levelFail, "has no address for RoCE v2 give its network interface an address (`rdma link` says which it is)"},
		"no GIDs": {func(d *card) {
			d.only(func(rdma.Address) bool { return false })
			d.put("sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0/dev_port", "0\n")
			d.put("sys/class/infiniband/rocep1s0f0/device/net/enp1s0f1np1/dev_port", "1\n")
		}, "ports", levelFail, "has no address for RoCE v2 give its network interface an address (ip address add … dev enp1s0f0np0): RDMA takes over"},
		"no GIDs, Soft-RoCE": {func(d *card) {
			d.only(func(rdma.Address) bool { return false })
			d.put("sys/class/infiniband/rocep1s0f0/parent", "eth0\n")
		}, "ports", levelFail, "(ip address add … dev eth0): RDMA takes over"},
		"no port's iface": {func(d *card) {
			d.iface = "eth7"
			d.put("sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0/dev_port", "0\n")
		}, "address", levelFail, "no port has an address for RoCE v2 on eth7 ask about the interface of an RDMA port, eth7 is none: enp1s0f0np0"},
		"other address":   {func(d *card) { d.iface, d.local = "eth7", netip.MustParseAddr("192.168.7.7") }, "address", levelFail, "192.168.7.7: the address 192.168.7.7 is on none of the devices use an address"},
		"other interface": {func(d *card) { d.iface, d.local = "eth7", netip.MustParseAddr("10.0.0.1") }, "address", levelWarn, "which is on lo while 10.0.0.1 is on eth7 use the address of that interface at both ends: 10.0.0.1"},
		"other interface, named": {func(d *card) {
			d.device, d.iface, d.local = "rocep1s0f0", "eth7", netip.MustParseAddr("10.0.0.1")
		}, "address", levelOK, "a connection from 10.0.0.1 uses rocep1s0f0"},
		"no such iface": {func(d *card) { d.iface = "eth7" }, "address", levelFail, "no port has an address for RoCE v2 on eth7 give it one"},
		"small packets": {func(d *card) { d.survey.Devices[0].Ports[0].MTU = 1024 }, "mtu", levelWarn, "and 4096 are possible set the MTU of both ends"},
		"narrow way": {func(d *card) {
			at(d)
			d.peer, d.way = netip.MustParseAddr("10.0.0.2"), 1500
		}, "mtu", levelFail, "the way to 10.0.0.2 takes 1500 bytes, so larger packets vanish set the MTU"},
		"no node":       {func(d *card) { d.drop("dev/infiniband/uverbs0") }, "files", levelFail, "rocep1s0f0: there is no /dev/infiniband/uverbs0 in a container"},
		"no right":      {func(d *card) { d.drop("dev/infiniband/uverbs0"); d.put("dev/infiniband/uverbs0/x", "") }, "files", levelFail, "this user may not use /dev/infiniband/uverbs0"},
		"no ib_uverbs":  {func(d *card) { d.drop("sys/class/infiniband_verbs") }, "files", levelFail, "nothing to reach it by load ib_uverbs"},
		"locked memory": {func(d *card) { d.survey.Devices[0].Memory = gone("cannot allocate memory") }, "memory", levelFail, "67.1 MB cannot be registered: cannot allocate memory raise the limit of locked memory"},
		"no memory":     {func(d *card) { d.survey.Devices[0].Memory = syscall.EINVAL }, "memory", levelFail, "invalid argument stop other users"},
		"regions":       {func(d *card) { d.survey.Devices[0].Regions = 17 }, "memory", levelOK, "can be registered, in 17 regions"},
		"slow slot":     {func(d *card) { d.put("sys/class/infiniband/rocep1s0f0/device/current_link_speed", "2.5 GT/s PCIe\n") }, "pcie", levelWarn, "and 32 GT/s are possible start the DGX Spark anew"},
		"slow slot, no Spark": {func(d *card) {
			d.drop("proc")
			d.put("sys/class/infiniband/rocep1s0f0/device/current_link_speed", "8.0 GT/s PCIe\n")
		}, "pcie", levelWarn, "and 32 GT/s are possible put the card into a slot"},
		"narrow slot": {func(d *card) { d.drop("proc") }, "pcie", levelWarn, "about 126 Gbit/s, and its port has 200 put the card into a slot with more lanes"},
		"other GPU":   {func(d *card) { d.put("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: \t NVIDIA H200\n") }, "gpu", levelOK, "NVIDIA H200: blocks are sent from host memory"},
		"link-local":  {func(d *card) { d.only(linkLocal) }, "neighbour", levelWarn, "nothing but the link-local address fe80::1: each end needs a fixed neighbour entry of the other one"},
		"neighbour unknown": {func(d *card) {
			d.only(linkLocal)
			d.iface, d.local, d.peer = "lo", netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2%lo")
		}, "neighbour", levelFail, "fe80::2 is not among the neighbours on lo ip neighbour replace fe80::2 lladdr MAC dev lo nud permanent"},
		"neighbour not told": {func(d *card) {
			d.only(linkLocal)
			d.iface, d.local, d.peer, d.host.blind = "lo", netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2%lo"), true
		}, "neighbour", levelWarn, "whether fe80::2 is among the neighbours on lo is not known here: it needs a fixed entry ip neighbour replace fe80::2"},
		"link-local, not told": {func(d *card) { d.only(linkLocal); d.host.blind = true }, "neighbour", levelWarn, "else ip neighbour replace PEER lladdr MAC dev lo"},
		"link-local, peer by another network": {func(d *card) {
			d.only(linkLocal)
			d.iface, d.local, d.peer = "lo", netip.MustParseAddr("fe80::1"), netip.MustParseAddr("192.168.7.5")
		}, "neighbour", levelWarn, "nothing but the link-local address fe80::1: each end needs a fixed neighbour entry of the other one"},
		"neighbour learned": {func(d *card) {
			d.only(linkLocal)
			d.iface, d.local, d.peer = "lo", netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2%lo")
			d.host.neighbour = func(string, netip.Addr) (rdma.NeighbourEntry, bool) { return rdma.NeighbourEntry{MAC: "02::2"}, true }
		}, "neighbour", levelWarn, "at 02::2, which was learned and will be forgotten"},
		"neighbour fixed": {func(d *card) {
			d.only(linkLocal)
			d.iface, d.local, d.peer = "lo", netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2%lo")
			d.host.neighbour = func(string, netip.Addr) (rdma.NeighbourEntry, bool) {
				return rdma.NeighbourEntry{MAC: "02::2", Fixed: true}, true
			}
		}, "neighbour", levelOK, "fe80::2 is a neighbour on lo at 02::2, for good"},
		"no counters": {func(d *card) { d.host.counters = func(string, int) (rdma.Counters, error) { return nil, nil } }, "counters", levelOK, "its driver counts nothing"},
		"counters refused": {func(d *card) {
			d.host.counters = func(string, int) (rdma.Counters, error) { return nil, os.ErrPermission }
		}, "counters", levelWarn, "permission denied let this user read"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCard(t)
			if c.ail != nil {
				c.ail(d)
			}
			found, err := d.found()
			if !has(found, c.check, c.level, c.say) {
				t.Errorf("no %s of %s that says %q in %+v", c.level, c.check, c.say, found)
			}
			fails := false
			for _, f := range found {
				fails = fails || f.Level == levelFail
			}
			if fails != (err != nil) || strings.HasPrefix(name, "well") && fails {
				t.Errorf("status %v of %+v", err, found)
			}
		})
	}
}

// TestDoctorRDMACuresAreOfTheSystem: commands of Linux are in the file of Linux only, and the
// others' has its own for the same.
func TestDoctorRDMACuresAreOfTheSystem(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, name := range []string{"doctor_rdma.go", "doctor_rdma_way.go", "doctor_rdma_device.go", "doctor_rdma_other.go"} {
		for _, command := range []string{"ip address", "ip link", "ip neighbour", "rdma link`", "/sys/class", "systemd", "docker", "modprobe"} {
			if strings.Contains(read(name), command) {
				t.Errorf("%s has %q", name, command)
			}
		}
	}
	for _, command := range []string{"ndp -s", "ifconfig"} {
		if !strings.Contains(read("doctor_rdma_other.go"), command) {
			t.Errorf("a Mac's cures lack %q", command)
		}
	}
}

// TestDoctorRDMAAims: what an argument can be.
func TestDoctorRDMAAims(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	for text, want := range map[string]rdmaDoctor{
		"lo":                              {iface: "lo"},
		"127.0.0.1":                       {iface: "lo", local: lo},
		"127.0.0.1:7411":                  {iface: "lo", local: lo},
		"rdma://127.0.0.1:7411/?device=x": {iface: "lo", local: lo},
		"[::ffff:127.0.0.1]:7411":         {iface: "lo", local: lo},
	} {
		var d rdmaDoctor
		if err := d.aim(t.Context(), text); err != nil || d.iface != want.iface || d.local != want.local || d.peer.IsValid() {
			t.Errorf("%s: %q %v %v, %v", text, d.iface, d.local, d.peer, err)
		}
	}
	var d rdmaDoctor // all of 127/8 is a peer that is reached over loopback
	if err := d.aim(t.Context(), "127.0.0.77"); err != nil || d.peer != netip.MustParseAddr("127.0.0.77") || !d.local.IsLoopback() || d.way == 0 {
		t.Errorf("a peer: %+v, %v", d, err)
	}
	for _, text := range []string{"", "no-such-if0", "300.1.1.1"} {
		if err := new(rdmaDoctor).aim(t.Context(), text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestDoctorRDMACommand: on a host without that device, and with a mistake in the
// command line.
func TestDoctorRDMACommand(t *testing.T) {
	found := doctor(t, exitFailed, "rdma", "--device", "no-such-device")
	if len(found) == 0 || !has(found, "library", levelFail, "rdma-core") && !has(found, "devices", levelFail, "modprobe mlx5_ib") {
		t.Errorf("%+v", found)
	}
	if status, out, errOut := cli(t, "doctor", "rdma", "a", "b"); status != exitUsage || out != "" {
		t.Errorf("two arguments: status %d, %s%s", status, out, errOut)
	}
	if status, out, errOut := cli(t, "doctor", "rdma", "no-such-if0."); status != exitUsage || out != "" || !strings.Contains(errOut, "no network interface of this host and no address") {
		t.Errorf("no such thing: status %d, %s%s", status, out, errOut)
	}
	if i, err := net.InterfaceByName("lo"); err != nil || i.MTU < 4096 {
		t.Fatalf("these tests take loopback for the interface of a card: %+v, %v", i, err)
	}
}

// TestDoctorRDMAOfOneDevice: --device and ?device= leave only that one, and one that is
// not there is refused, with those that are.
func TestDoctorRDMAOfOneDevice(t *testing.T) {
	for _, c := range []struct{ device, aim, want, say string }{
		{"", "rdma://127.0.0.1:7411?device=rocep1s0f1", "rocep1s0f1", ""},
		{"", "127.0.0.1:7411?device=rocep1s0f0:1", "rocep1s0f0", ""},
		{"rocep1s0f0", "", "rocep1s0f0", ""},
		{"rocep1s0f1:1", "rdma://127.0.0.1:7411?device=rocep1s0f1:1", "rocep1s0f1", ""},
		{"rocep1s0f0", "RDMA://127.0.0.1:7411/", "rocep1s0f0", ""},
		{"rocep1s0f0", "rdma://0.0.0.0:7411", "rocep1s0f0", ""},
		{"rocep1s0f0", "[::1]", "rocep1s0f0", ""},
		{"mlx5_0", "", "", "no such device: name one of rocep1s0f0, rocep1s0f1"},
		{"", "rdma://127.0.0.1:7411?device=mlx5_0", "", "no such device: name one of rocep1s0f0, rocep1s0f1"},
		{"rocep1s0f0:2", "", "", "no such port: name one of rocep1s0f0:1"},
		{"rocep1s0f0:0", "", "", "want NAME or NAME:PORT"},
		{":1", "", "", "want NAME or NAME:PORT"},
		{"rocep1s0f0:x", "", "", "want NAME or NAME:PORT"},
		{"rocep1s0f0", "rdma://127.0.0.1:7411?device=rocep1s0f1", "", "name one device"},
		{"", "rdma://127.0.0.1:7411?devise=rocep1s0f1", "", `"devise" is unknown`},
		{"", "tcp://127.0.0.1:7411?device=rocep1s0f1", "", "only rdma:// has parameters"},
		{"", "tcp://127.0.0.1:7411", "", "want an address"},
		{"", "unix:///run/x", "", "want an address"},
		{"", "mem://", "", "want an address"},
		{"", "http://127.0.0.1:7411", "", "link unavailable"},
		{"", "rdma://127.0.0.1:7411?fallback=no", "", "is for the end that listens"},
		{"", "rdma://127.0.0.1:7411/foo", "", "no path"},
		{"", "rdma://me@127.0.0.1:7411", "", "no path, user"},
		{"", "rdma://127.0.0.1", "", "want rdma://host:port"},
		{"", "rdma:127.0.0.1:7411", "", "want rdma://host:port"},
		{"", "127.0.0.1?device=rocep1s0f0", "", "want rdma://host:port"},
		{"", "127.0.0.1/24", "", "no path"},
	} {
		card := newCard(t)
		d := &card.rdmaDoctor
		d.device = c.device
		var err error
		if c.aim != "" {
			err = d.aim(t.Context(), c.aim)
		}
		if err == nil {
			err = d.refuse(t.Context())
		}
		switch {
		case c.say != "":
			if err == nil || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil || len(d.survey.Devices) != 1 || d.survey.Devices[0].Name != c.want || len(d.survey.Devices[0].Ports) != 1:
			t.Errorf("%+v: %v, %+v", c, err, d.survey.Devices)
		}
	}
	one := newCard(t)
	one.device = "rocep1s0f1"
	one.drop("dev/infiniband/uverbs0") // of the other one, which is not opened
	if found, err := one.found(); err == nil || has(found, "files", levelFail, "") || !has(found, "files", levelOK, "rocep1s0f1") || !has(found, "ports", levelFail, "rocep1s0f1:1 is down") || has(found, "ports", levelFail, "no other port") {
		t.Errorf("%v, %+v", err, found)
	}
	none := newCard(t)
	none.device, none.host.survey = "mlx5_0", func(string, int) rdma.Survey { return rdma.Survey{Library: transport.ErrUnavailable} }
	if err := none.refuse(t.Context()); err != nil {
		t.Errorf("no library, which a check tells: %v", err)
	}
}
