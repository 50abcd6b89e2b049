// Package host tells what a measurement ran on: the machine, the network interface that
// an address belongs to with what it may carry, and what else the machine did meanwhile.
// What a system does not tell is zero.
package host

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"time"
)

// Facts are of a machine and the system on it.
type Facts struct {
	Kernel  string  // name and release
	CPU     string  // model
	Memory  uint64  // bytes
	Virtual bool    // the processor says that it is one of a virtual machine
	Load    float64 // runnable threads, mean of the last minute
	Boot    string  // differs between machines and between starts of one, and names none
}

// Read returns the facts of this machine.
func Read() Facts {
	f := read()
	if f.Boot != "" {
		sum := sha256.Sum256([]byte("pdperf " + f.Boot))
		f.Boot = hex.EncodeToString(sum[:6])
	}
	if f.Kernel == "" {
		f.Kernel = runtime.GOOS
	}
	f.CPU = strings.Join(strings.Fields(f.CPU), " ")
	return f
}

// Load is what the cores of a machine did so far, in seconds summed over them. Known is
// false where the system does not tell.
type Load struct {
	Known   bool
	At      time.Time
	Work    float64 // in programs and in system calls, interrupts left out
	Softirq float64 // in interrupts and what they left to be done, network above all
	Steal   float64 // wanted to run, and the hypervisor ran others
	Stalled float64 // time, not summed over cores, in which some thread waited for a core
}

// ReadLoad reads it now.
func ReadLoad() Load {
	l := readLoad()
	l.At = time.Now()
	return l
}

// Since is what happened between two readings.
func (l Load) Since(before Load) Load {
	if !l.Known || !before.Known {
		return Load{}
	}
	l.Work -= before.Work
	l.Softirq -= before.Softirq
	l.Steal -= before.Steal
	l.Stalled -= before.Stalled
	return l
}

// Port is the network interface of an address.
type Port struct {
	Name     string
	Driver   string
	MTU      int
	Mbit     int      // what the hardware says that it carries a second; 0 where there is none or it does not say
	Shaped   uint64   // bytes a second that a token bucket lets out; 0: there is none
	Burst    uint64   // bytes that the bucket holds
	Offloads []string // of tso, gso, gro, those that are on
}

// PortOf is the interface that has an address "host:port"; the zero Port where none has.
func PortOf(addr string) Port {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return Port{}
	}
	all, err := net.Interfaces()
	if err != nil {
		return Port{}
	}
	var found Port
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			switch {
			case ok && ip.Unmap() == at.Addr().Unmap().WithZone(""):
				return portOf(i)
			case i.Flags&net.FlagLoopback != 0 && n.Contains(at.Addr().AsSlice()):
				found = portOf(i) // 127.0.0.2 is the loopback's too
			}
		}
	}
	return found
}

func portOf(i net.Interface) Port {
	p := Port{Name: i.Name, MTU: i.MTU}
	readPort(&p)
	return p
}

// Bytes of headers.
const (
	tcpHeaders = 32      // TCP with its timestamps
	ethernet   = 14      // what the system counts of a packet beside its own bytes
	onTheWire  = 14 + 24 // with preamble, check sequence and gap
)

// TCPPayload is how many bytes of payload a second TCP gets over the port at most, and
// what it is computed from: its bucket where it has one, else its hardware. 0 where
// neither is known. v6 is for IPv6, whose headers are larger.
func (p Port) TCPPayload(v6 bool) (bytes float64, of string) {
	ip := 20
	if v6 {
		ip = 40
	}
	payload := float64(p.MTU - ip - tcpHeaders)
	if payload <= 0 {
		return 0, ""
	}
	if p.Mbit > 0 {
		bytes, of = float64(p.Mbit)*1e6/8*payload/float64(p.MTU+onTheWire), "hardware"
	}
	if shaped := float64(p.Shaped) * payload / float64(p.MTU+ethernet); shaped > 0 && (bytes == 0 || shaped < bytes) {
		bytes, of = shaped, "token bucket"
	}
	return bytes, of
}
