package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/transport"
)

const doctorRDMALong = `rdma looks at what rdma:// links need on this host: the library of verbs, devices and
the right to open them, ports, addresses, packet sizes, the slot of the card, memory
that may be locked. It registers some memory for a moment and changes nothing.

ADDR is an address of this host or of its peer, alone or as in the URL of an rdma link,
IFACE a network interface of this host: then it says what a connection there would use, and
looks at the way in particular. Without one it looks at all ports. --device, or ?device= of
such a URL, leaves only that device: no other is opened.

` + statusText

func newDoctorRDMA(std streams) *cobra.Command {
	var device string
	var asJSON bool
	c := &cobra.Command{
		Use:   "rdma [ADDR|IFACE]",
		Short: "look at this host's RDMA",
		Long:  doctorRDMALong,
		Example: `  pdlink doctor rdma
  pdlink doctor rdma 10.0.0.5
  pdlink doctor rdma rdma://10.0.0.5:7411?device=mlx5_0:1
  pdlink doctor rdma enp1s0f0np0 --json`,
		Args:              wants(0, "ADDR or IFACE"),
		ValidArgsFunction: completeInterface,
	}
	c.Flags().StringVar(&device, "device", "", "look at the device `NAME` or NAME:PORT only")
	c.Flags().BoolVar(&asJSON, "json", false, "print findings as JSON, one a line")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if err := flagsOf(c).filled(map[string]string{"device": device}); err != nil {
			return err
		}
		d := &rdmaDoctor{device: device}
		if len(args) > 0 {
			if err := d.aim(c.Context(), args[0]); err != nil {
				return err
			}
		}
		d.host = rdmaHost{
			root: "/", survey: func(device string, bytes int) rdma.Survey {
				return rdma.New(rdma.Options{Device: device}).Survey(bytes)
			}, choose: rdma.New(rdma.Options{Device: d.device}).ChoiceFor,
			neighbour: rdma.Neighbour, blind: !tellsNeighbours, counters: rdma.ReadCounters,
		}
		if err := d.refuse(c.Context()); err != nil {
			return err
		}
		return examine(c.Context(), std, asJSON, d, d.checks())
	}
	return c
}

// completeInterface completes the name of a network interface.
func completeInterface(_ *cobra.Command, args []string, typed string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
	list, err := net.Interfaces()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, i := range list {
		if i.Flags&net.FlagLoopback == 0 && strings.HasPrefix(i.Name, typed) {
			found = append(found, i.Name)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// rdmaHost is where rdmaDoctor looks.
type rdmaHost struct {
	root      string                                     // of the system's files: "/"
	survey    func(device string, bytes int) rdma.Survey // "": of all devices
	choose    func(local netip.Addr) (rdma.Choice, error)
	neighbour func(iface string, ip netip.Addr) (n rdma.NeighbourEntry, known bool)
	blind     bool // the system does not tell of neighbours
	counters  func(device string, port int) (rdma.Counters, error)
}

// rdmaDoctor looks at a host's RDMA. Its checks run one after the other.
type rdmaDoctor struct {
	host rdmaHost

	// What was asked about; zero values: all ports.
	iface string     // of this host
	local netip.Addr // on it
	peer  netip.Addr
	way   int // MTU that the kernel knows of the way to peer; 0: it does not

	device string // NAME or NAME:PORT that alone is looked at; "": all

	survey rdma.Survey  // of the device, or of all
	looked bool         // survey was made
	chosen []chosenPort // ports that connections would use
}

// chosenPort is a port with the address that a connection would use.
type chosenPort struct {
	rdma.Choice
	port  rdma.Port
	iface net.Interface // of the address; the zero value where that is not known
}

// name is the port as --device names it.
func (c chosenPort) name() string { return fmt.Sprintf("%s:%d", c.Device, c.Port) }

// trialMemory is what the memory of a link takes at most by itself: the ring of a
// sender, and slots of a receiver.
const trialMemory = transport.DefaultSlots << 20

func (*rdmaDoctor) checks() []check[rdmaDoctor] {
	return []check[rdmaDoctor]{
		{"library", 0, (*rdmaDoctor).lookLibrary},
		{"devices", 0, (*rdmaDoctor).lookDevices},
		{"files", 0, (*rdmaDoctor).lookFiles},
		{"ports", 0, (*rdmaDoctor).lookPorts},
		{"address", 0, (*rdmaDoctor).lookAddress},
		{"mtu", 0, (*rdmaDoctor).lookMTU},
		{"neighbour", 0, (*rdmaDoctor).lookNeighbour},
		{"pcie", 0, (*rdmaDoctor).lookSlot},
		{"memory", 0, (*rdmaDoctor).lookMemory},
		{"gpu", 0, (*rdmaDoctor).lookGPU},
		{"counters", 0, (*rdmaDoctor).lookCounters},
	}
}

// aim finds out what an argument means: an interface, an address of this host, or that
// of a peer. Errors are the user's to mend.
func (d *rdmaDoctor) aim(ctx context.Context, text string) error {
	if i, err := net.InterfaceByName(text); err == nil {
		d.iface = i.Name
		return nil
	}
	host, err := d.hostOf(text)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		list, lerr := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if lerr != nil || len(list) == 0 {
			return fmt.Errorf("%q is no network interface of this host and no address (%w): %s", text, lerr, wantAim)
		}
		ip = list[0]
	}
	ip = ip.Unmap()
	if ip.IsUnspecified() { // all addresses of a listener
		return nil
	}
	if i, ok := interfaceOf(ip.WithZone("")); ok {
		d.iface, d.local = i.Name, ip.WithZone("")
		return nil
	}
	d.peer = ip
	return d.route(ctx)
}

// route finds the address of this host that a connection to the peer has.
func (d *rdmaDoctor) route(ctx context.Context) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", netip.AddrPortFrom(d.peer, 9).String()) // a route, no packet
	if err != nil {
		return failed(fmt.Errorf("there is no way to %v: %w", d.peer, err))
	}
	defer c.Close() // nothing was sent
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return failed(err)
	}
	d.local, d.way = local.Addr().Unmap().WithZone(""), pathMTU(c)
	if i, ok := interfaceOf(d.local); ok {
		d.iface = i.Name
	}
	return nil
}

// aimed reports whether one connection is looked at, not all ports.
func (d *rdmaDoctor) aimed() bool { return d.iface != "" || d.local.IsValid() }

// lookLibrary looks for the library of verbs.
func (d *rdmaDoctor) lookLibrary(context.Context) []finding {
	if !d.looked {
		d.survey, d.looked = d.host.survey(d.device, trialMemory), true
	}
	if err := d.survey.Library; err != nil {
		return []finding{bad(reason(err), libraryCure)}
	}
	return []finding{good("the library of verbs loads")}
}

// reason is an error without the words that every unavailable link has.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), rdma.Scheme+": ")
	return strings.TrimPrefix(text, transport.ErrUnavailable.Error()+": ")
}

// lookDevices looks at what the library lists.
func (d *rdmaDoctor) lookDevices(context.Context) (found []finding) {
	switch s := d.survey; {
	case s.Library != nil:
		return nil
	case s.Listing != nil:
		return []finding{bad(reason(s.Listing), driverCure)}
	case len(s.Devices) == 0:
		return []finding{bad("this host has no RDMA device", driverCure)}
	}
	for _, v := range d.survey.Devices {
		text := fmt.Sprintf("%s: %s", v.Name, v.Class)
		if v.Firmware != "" {
			text += ", firmware " + v.Firmware
		}
		switch {
		case v.Err != nil:
			found = append(found, bad(fmt.Sprintf("%s: %s", v.Name, reason(v.Err)), openCure))
		case v.Class == "rxe":
			found = append(found, doubt(text+": Soft-RoCE, which the kernel emulates: slower than TCP", "use it for tests, and tcp:// for work"))
		default:
			found = append(found, good("%s", text))
		}
	}
	return found
}

// lookPorts looks at the state of ports. A port without a cable is as it should be
// where another one has one.
func (d *rdmaDoctor) lookPorts(context.Context) (found []finding) {
	active := 0
	for _, v := range d.survey.Devices {
		for _, p := range v.Ports {
			if p.Err == nil && p.Active {
				active++
			}
		}
	}
	for _, v := range d.survey.Devices {
		for _, p := range v.Ports {
			found = append(found, d.portFinding(v, p, active > 0))
		}
	}
	return found
}

// cableCure is for ports that are down.
const cableCure = "plug the cable in at both ends, set its network interface up, and look whether the peer's port is up"

func (d *rdmaDoctor) portFinding(v rdma.Device, p rdma.Port, others bool) finding {
	name := fmt.Sprintf("%s:%d", v.Name, p.Number)
	switch {
	case p.Err != nil:
		return bad(fmt.Sprintf("%s: %v", name, p.Err), openCure)
	case !p.Active && others:
		return doubt(fmt.Sprintf("%s is %s", name, p.State), cableCure+"; nothing, if another port is meant")
	case !p.Active && d.device != "": // others were not looked at
		return bad(fmt.Sprintf("%s is %s", name, p.State), cableCure)
	case !p.Active:
		return bad(fmt.Sprintf("%s is %s, and no other port is active", name, p.State), cableCure)
	}
	text := name + " is active"
	if p.Rate > 0 && v.Class != "rxe" { // whose rate is made up
		text += fmt.Sprintf(", %d Gbit/s", p.Rate/1e9)
	}
	if usable(p) == 0 {
		return bad(text+", but has no address for RoCE v2", d.addressCure(v, p))
	}
	return good("%s", text)
}

// addressCure is what to do about a port that has no address that connections may use. Its
// interface is set up, and named, elsewhere.
func (d *rdmaDoctor) addressCure(v rdma.Device, p rdma.Port) string {
	const takes = ": RDMA takes over those of the interface"
	if list := d.host.netdevs(v, p); len(list) > 0 {
		return fmt.Sprintf("give its network interface an address ("+addressCommand+")%s", strings.Join(list, ", or "), takes)
	}
	return "give its network interface an address" + interfaceHint + takes
}

// usable is how many addresses connections may choose from.
func usable(p rdma.Port) (n int) {
	for _, a := range p.Addresses {
		if a.Usable {
			n++
		}
	}
	return n
}

// lookMemory says whether memory could be registered.
func (d *rdmaDoctor) lookMemory(context.Context) (found []finding) {
	size := bytesText(trialMemory)
	for _, v := range d.survey.Devices {
		switch {
		case v.Err != nil:
		case errors.Is(v.Memory, transport.ErrUnavailable):
			found = append(found, bad(fmt.Sprintf("%s: %s cannot be registered: %s", v.Name, size, reason(v.Memory)), memoryCure))
		case v.Memory != nil:
			found = append(found, bad(fmt.Sprintf("%s: %s cannot be registered: %v", v.Name, size, v.Memory), "stop other users of the device, or restart its driver"))
		case v.Regions > 1:
			found = append(found, good("%s: %s can be registered, in %d regions", v.Name, size, v.Regions))
		default:
			found = append(found, good("%s: %s can be registered", v.Name, size))
		}
	}
	return found
}

// lookCounters says whether verdicts can tell what ports count.
func (d *rdmaDoctor) lookCounters(context.Context) (found []finding) {
	for _, c := range d.chosen {
		counts, err := d.host.counters(c.Device, c.Port)
		switch {
		case err != nil:
			found = append(found, doubt(fmt.Sprintf("%s: %v", c.name(), err), countsCure))
		case counts == nil:
			found = append(found, good("%s: its driver counts nothing, so verdicts tell nothing of it", c.name()))
		default:
			found = append(found, good("%s: %s, whose changes verdicts tell", c.name(), count(len(counts), "counter")))
		}
	}
	return found
}
