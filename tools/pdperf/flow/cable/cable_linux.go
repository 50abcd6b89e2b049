package cable

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cable is two namespaces and what joins them. It may be used concurrently.
type Cable struct {
	ns   [2]*os.File
	drop link.Link // the program that loses packets; nil: none does

	tuns    [2]*os.File // of a cable with a delay
	carries sync.WaitGroup
}

// device is the name of the cable's end in both namespaces.
const device = "cable"

// queue is how long a packet may wait for a cable with a rate: enough for bursts of
// some segments, too little to hide the rate.
const queue = 20 // ms

// New lays a cable. Errors: ErrUnavailable, with what the system refused.
func New(o Options) (c *Cable, err error) {
	c = new(Cable)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w (root is needed): %w", ErrUnavailable, err), c.Close())
			c = nil
		}
	}()
	for e := range c.ns {
		if c.ns[e], err = namespace(); err != nil {
			return c, err
		}
	}
	join := c.join
	if o.Delay > 0 {
		join = c.delay
	}
	if err := join(o); err != nil {
		return c, err
	}
	for _, e := range []End{A, B} {
		if err := c.In(e, func() error { return set(e, o) }); err != nil {
			return c, err
		}
	}
	if o.Loss > 0 {
		err = c.In(B, func() error { return c.lose(o.Loss) })
	}
	return c, err
}

// namespace makes a network namespace that lives as long as the file.
func namespace() (f *os.File, err error) {
	done := make(chan struct{})
	go func() { // its thread ends with it
		defer close(done)
		runtime.LockOSThread()
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		f, err = os.Open("/proc/thread-self/ns/net")
	}()
	<-done
	return f, err
}

// In runs f on a thread of its own at one end: sockets that f makes, and processes
// that it starts, are there. Goroutines that f starts are not.
func (c *Cable) In(e End, f func() error) error {
	done := make(chan error, 1)
	go func() { // its thread ends with it
		runtime.LockOSThread()
		if err := unix.Setns(int(c.ns[e].Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// join makes the pair of devices.
func (c *Cable) join(o Options) error {
	return c.In(A, func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		v := &netlink.Veth{PeerName: device, PeerNamespace: netlink.NsFd(c.ns[B].Fd())}
		v.Name, v.MTU, v.PeerMTU = device, mtu(o), uint32(mtu(o))
		if err := h.LinkAdd(v); err != nil {
			return fmt.Errorf("make a pair of devices: %w", err)
		}
		return nil
	})
}

func mtu(o Options) int {
	if o.MTU > 0 {
		return o.MTU
	}
	return 1500
}

// set makes one end ready. It runs there.
func set(e End, o Options) error {
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	if o.Loss > 0 {
		if err := h.LinkSetGSOMaxSegs(l, 1); err != nil {
			return fmt.Errorf("send single segments: %w", err)
		}
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: e.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := errors.Join(h.AddrAdd(l, addr), h.LinkSetUp(l)); err != nil {
		return err
	}
	if o.Buffer > 0 && e == B {
		text := fmt.Sprintf("%d %d %d", min(4096, o.Buffer), o.Buffer, o.Buffer)
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte(text), 0); err != nil {
			return fmt.Errorf("bound receive buffers: %w", err)
		}
	}
	return shape(h, l, o.Rate)
}

// shape gives a device a rate.
func shape(h *netlink.Handle, l netlink.Link, bits uint64) error {
	if bits == 0 {
		return nil
	}
	bytes := bits / 8
	burst := uint32(max(bytes/1000, 2*64<<10)) // a millisecond, or two bunches of segments
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes, Limit: uint32(bytes*queue/1000) + burst, Buffer: netlink.Xmittime(bytes, burst),
	}
	if err := h.QdiscAdd(q); err != nil {
		return fmt.Errorf("shape to %s bit/s: %w", strconv.FormatUint(bits, 10), err)
	}
	return nil
}

// lose drops a share of the packets that come to this end. It runs there.
func (c *Cable) lose(share float64) error {
	const pass, drop = -1, 2 // TCX_NEXT, TCX_DROP
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "cable_loss", Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(),
			asm.LoadImm(asm.R1, int64(math.Round(share*math.MaxUint32)), asm.DWord),
			asm.JLT.Reg(asm.R0, asm.R1, "drop"),
			asm.Mov.Imm(asm.R0, pass), asm.Return(),
			asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"), asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("lose packets: %w", err)
	}
	defer p.Close()
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	if c.drop, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: p, Attach: ebpf.AttachTCXIngress}); err != nil {
		return fmt.Errorf("lose packets: %w", err)
	}
	return nil
}

// Close takes the cable away; sockets on it lose their peer.
func (c *Cable) Close() error {
	var errs []error
	if c.drop != nil {
		errs = append(errs, c.drop.Close())
	}
	for _, f := range c.tuns {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	c.carries.Wait()
	for _, f := range c.ns {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
