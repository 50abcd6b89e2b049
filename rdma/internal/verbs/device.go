//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"pdlink/transport"
)

// provider is a library with what the kernel gives it.
type provider struct{ lib *library }

// list calls visit with each device of the list, which is freed afterwards.
func (p *provider) list(visit func(dev uintptr, name string) error) error {
	mem, unmap, err := Map(pageSize)
	if err != nil {
		return err
	}
	defer unmap() //nolint:errcheck // own memory, mapped above
	count := at[int32](uintptr(Addr(mem)))
	array, err := p.lib.pointer("list devices", p.lib.getDeviceList, addrOf(count))
	switch {
	case errnoIs(err, syscall.ENOSYS):
		return fmt.Errorf("%w: %s: %w", transport.ErrUnavailable, kernelCure, syscall.ENOSYS)
	case err != nil:
		return fmt.Errorf("%w: %w (%s)", transport.ErrUnavailable, err, kernelCure)
	}
	defer purego.SyscallN(p.lib.freeDeviceList, array)
	for _, dev := range unsafe.Slice(at[uintptr](array), *count) {
		name, _, _ := purego.SyscallN(p.lib.getDeviceName, dev)
		if err := visit(dev, text(name)); err != nil {
			return err
		}
	}
	return nil
}

func (p *provider) Devices() ([]DeviceInfo, error) {
	var all []DeviceInfo
	err := p.list(func(dev uintptr, name string) error {
		info := DeviceInfo{Name: name, Class: classOf(name)}
		all = append(all, info)
		return nil
	})
	return all, err
}

func (p *provider) Open(name string) (Device, error) {
	var d *device
	var others []string
	err := p.list(func(dev uintptr, n string) error {
		if n != name || d != nil {
			others = append(others, n)
			return nil
		}
		ctx, err := p.lib.pointer("open device "+name, p.lib.openDevice, dev)
		if err != nil {
			return fmt.Errorf("%w: %w (%s)", transport.ErrUnavailable, err, openCure)
		}
		d, err = newDevice(p.lib, name, ctx)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case d == nil:
		return nil, fmt.Errorf("%w: no RDMA device %q here, of %q", transport.ErrUnavailable, name, others)
	}
	return d, nil
}

// pageSize is enough for every struct of the ABI, and the least that is mapped.
const pageSize = 4 << 10

// device is an opened device: a struct ibv_context.
type device struct {
	lib    *library
	name   string
	ctx    uintptr
	life   life
	events *waiter      // nil where the provider has no events
	event  *cAsyncEvent // for Event alone

	scratchMu sync.Mutex // guards scratch
	scratch   []byte     // for structs that live as long as a call; event lies at its end
	unmap     func() error
}

func newDevice(lib *library, name string, ctx uintptr) (*device, error) {
	mem, unmap, err := Map(pageSize)
	if err != nil {
		return nil, errors.Join(err, lib.code("close device", lib.closeDevice, ctx))
	}
	d := &device{lib: lib, name: name, ctx: ctx, scratch: mem[:pageSize/2], unmap: unmap}
	d.event = at[cAsyncEvent](uintptr(Addr(mem[pageSize/2:])))
	if fd := int(at[cContext](ctx).AsyncFD); fd > 0 && lib.getAsync != 0 && lib.ackAsync != 0 {
		// What cannot be waited for is no reason to do without the device.
		if w, err := newWaiter("events of "+name, fd); err == nil {
			d.events = w
		}
	}
	return d, nil
}

// with calls a function that fills a zeroed struct of type T, or reads it.
func with[T any](d *device, f func(s *T) error) error {
	if err := d.life.use(); err != nil {
		return err
	}
	defer d.life.leave()
	d.scratchMu.Lock()
	defer d.scratchMu.Unlock()
	clear(d.scratch)
	return f(at[T](uintptr(Addr(d.scratch))))
}

func (d *device) Attr() (DeviceAttr, error) {
	var a DeviceAttr
	err := with(d, func(c *cDeviceAttr) error {
		if err := d.lib.code("query device "+d.name, d.lib.queryDevice, d.ctx, addrOf(c)); err != nil {
			return err
		}
		a = DeviceAttr{
			Firmware: text(addrOf(&c.FwVer)), Ports: int(c.PhysPortCnt),
			MaxMRSize: c.MaxMRSize, MaxQPWR: int(c.MaxQPWR),
			MaxRead: int(c.MaxQPRdAtom), MaxReadOut: int(c.MaxQPInitRdAtom),
		}
		return nil
	})
	return a, err
}

func (d *device) Port(port int) (PortAttr, error) {
	var a PortAttr
	if port < 1 || port > 255 {
		return a, fmt.Errorf("%w: port %d of %s", transport.ErrInvalid, port, d.name)
	}
	err := with(d, func(c *cPortAttr) error {
		doing := fmt.Sprintf("query port %d of %s", port, d.name)
		if err := d.lib.code(doing, d.lib.queryPort, d.ctx, uintptr(port), addrOf(c)); err != nil {
			return err
		}
		a = PortAttr{
			State: PortState(c.State), LinkLayer: LinkLayer(c.LinkLayer), MaxMTU: MTU(c.MaxMTU), ActiveMTU: MTU(c.ActiveMTU),
			GIDs: int(c.GIDTblLen), MaxMsg: c.MaxMsgSz, LID: c.LID, Width: c.ActiveWidth, Speed: c.ActiveSpeed,
		}
		return nil
	})
	return a, err
}

func (d *device) GIDs(port int) ([]GIDEntry, error) {
	p, err := d.Port(port)
	if err != nil {
		return nil, err
	}
	if d.lib.queryGIDTable != 0 {
		// One call to the kernel instead of one for each entry, of which Soft-RoCE has a
		// thousand.
		if all, err := d.gidTable(port); err == nil {
			return all, nil
		}
	}
	var all []GIDEntry
	for i := range min(p.GIDs, mostGIDs) {
		var e GIDEntry
		if d.lib.queryGIDEntry != 0 {
			e, err = d.gidEntry(port, i)
		} else {
			e, err = d.gid(port, i)
		}
		if errors.Is(err, ErrClosed) {
			return nil, err
		}
		if err == nil && e.GID != (GID{}) { // empty entries fail or are zero
			all = append(all, e)
		}
	}
	return all, nil
}

// gidTable asks for all entries of all ports that are not empty.
func (d *device) gidTable(port int) ([]GIDEntry, error) {
	var c cGIDEntry
	mem, unmap, err := Map(mostListed * int(unsafe.Sizeof(c)))
	if err != nil {
		return nil, err
	}
	defer unmap() //nolint:errcheck // own memory, mapped above
	if err := d.life.use(); err != nil {
		return nil, err
	}
	defer d.life.leave()
	entries := at[cGIDEntry](uintptr(Addr(mem)))
	r, _, _ := purego.SyscallN(d.lib.queryGIDTable, d.ctx, addrOf(entries), mostListed, 0, unsafe.Sizeof(c))
	n := int(r) // an ssize_t
	if n < 0 || n > mostListed {
		return nil, failure("query GIDs of "+d.name, number(int32(n)))
	}
	all := make([]GIDEntry, 0, n)
	for _, c := range unsafe.Slice(entries, n) {
		if int(c.PortNum) == port && c.GID != (cGID{}) {
			all = append(all, c.entry())
		}
	}
	return all, nil
}

func (c *cGIDEntry) entry() GIDEntry {
	return GIDEntry{GID: c.GID.bytes(), Index: int(c.GIDIndex), Kind: GIDKind(c.GIDType), IfIndex: int(c.NdevIfindex)}
}

func (d *device) gidEntry(port, index int) (GIDEntry, error) {
	var e GIDEntry
	err := with(d, func(c *cGIDEntry) error {
		err := d.lib.code("query GID", d.lib.queryGIDEntry, d.ctx, uintptr(port), uintptr(index), addrOf(c), 0, unsafe.Sizeof(*c))
		e = c.entry()
		return err
	})
	return e, err
}

func (d *device) gid(port, index int) (GIDEntry, error) {
	e := GIDEntry{Index: index}
	err := with(d, func(c *cGID) error {
		err := d.lib.code("query GID", d.lib.queryGID, d.ctx, uintptr(port), uintptr(index), addrOf(c))
		e.GID = c.bytes()
		return err
	})
	if err != nil || e.GID == (GID{}) {
		return e, err // an empty entry, as most are
	}
	var netdev string
	e.Kind, netdev = gidKind(d.name, port, index)
	if i, ierr := net.InterfaceByName(netdev); ierr == nil {
		e.IfIndex = i.Index
	}
	return e, err
}

// bytes is the GID as it is on the wire.
func (c *cGID) bytes() GID { return *(*GID)(unsafe.Pointer(c)) }

// gidOf is the opposite of bytes.
func gidOf(g GID) (c cGID) {
	*(*GID)(unsafe.Pointer(&c)) = g
	return c
}

func (d *device) Event(ctx context.Context) (Event, error) {
	var e Event
	if d.events == nil {
		return e, fmt.Errorf("%w: events of %s", ErrUnsupported, d.name)
	}
	woken, err := d.events.wait(ctx, func() error {
		if err := d.lib.code("get event of "+d.name, d.lib.getAsync, d.ctx, addrOf(d.event)); err != nil {
			return err
		}
		e = d.translate(d.event)
		// Only now: until then objects that the event is about cannot go.
		purego.SyscallN(d.lib.ackAsync, addrOf(d.event))
		return nil
	})
	if err == nil && woken {
		err = ErrClosed // nobody else wakes it
	}
	return e, err
}

// translate reads an event that was not acknowledged yet.
func (d *device) translate(c *cAsyncEvent) Event {
	e := Event{Kind: EventKind(c.Type)}
	switch e.Kind {
	case EventQPFatal, EventQPRequest, EventQPAccess, EventEstablished, EventSQDrained, eventMigrated, eventMigrateError, EventLastWQE:
		e.QP = at[cQP](c.Element).QPNum
	case EventPortActive, EventPortError, EventLIDChange, eventPkeyChange, eventSMChange, EventReregister, EventGIDChange:
		e.Port = int(int32(c.Element))
	}
	return e
}

func (d *device) NewPD() (PD, error) {
	if err := d.life.use(); err != nil {
		return nil, err
	}
	c, err := d.lib.pointer("make a protection domain on "+d.name, d.lib.allocPD, d.ctx)
	if err != nil {
		d.life.leave()
		return nil, err
	}
	return &pd{dev: d, c: c}, nil
}

func (d *device) Close() error {
	return d.life.end("device "+d.name, func() error {
		if d.events != nil {
			d.events.close()
		}
		return d.lib.code("close device "+d.name, d.lib.closeDevice, d.ctx)
	}, d.unmap)
}

// errnoIs reports whether a call failed for that reason.
func errnoIs(err error, no ...syscall.Errno) bool {
	for _, n := range no {
		if errors.Is(err, n) {
			return true
		}
	}
	return false
}
