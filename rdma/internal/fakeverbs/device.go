package fakeverbs

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// device implements verbs.Device. The network's mutex guards its state.
type device struct {
	h      *Host
	events chan verbs.Event
	gone   chan struct{} // closed by Close

	closed bool
	pds    int
	mrs    map[uint32]*region // by key
	pinned int64
}

// keyStep is odd, so that its multiples by different numbers differ.
const keyStep = 0x9e3779b1

// tell queues an event. The caller holds mu.
func (d *device) tell(e verbs.Event) {
	select {
	case d.events <- e:
	default: // nobody listens
	}
}

// Attr implements verbs.Device.
func (d *device) Attr() (verbs.DeviceAttr, error) {
	p := &d.h.p
	size := uint64(p.MaxMRSize)
	if size == 0 || p.Class == verbs.ClassMCDMA { // which advertises what it does not keep
		size = 1 << 40
	}
	return verbs.DeviceAttr{
		Firmware: "fake", Ports: 1, MaxMRSize: size, MaxQPWR: p.MaxQPWR,
		MaxRead: p.MaxRead, MaxReadOut: p.MaxRead,
	}, nil
}

// Port implements verbs.Device.
func (d *device) Port(port int) (verbs.PortAttr, error) {
	if port != 1 {
		return verbs.PortAttr{}, fmt.Errorf("fakeverbs: query port %d: %w", port, syscall.EINVAL)
	}
	d.h.net.mu.Lock()
	defer d.h.net.mu.Unlock()
	state := verbs.PortActive
	if d.h.down {
		state = verbs.PortDown
	}
	layer := verbs.LinkEthernet
	if d.h.p.Class == verbs.ClassApple {
		layer = verbs.LinkThunderbolt
	}
	return verbs.PortAttr{
		State: state, LinkLayer: layer, MaxMTU: verbs.MTU4096, ActiveMTU: d.h.p.MTU, GIDs: d.h.p.GIDs + 2,
		MaxMsg: 1 << 30, Width: 2, Speed: 32,
	}, nil
}

// GIDs implements verbs.Device. Before the right one come those of the older kind.
func (d *device) GIDs(port int) ([]verbs.GIDEntry, error) {
	if _, err := d.Port(port); err != nil {
		return nil, err
	}
	var list []verbs.GIDEntry
	for i := range d.h.gid.Index {
		e := d.h.gid
		e.Index, e.Kind = i, verbs.GIDRoCEv1
		list = append(list, e)
	}
	return append(list, d.h.gid), nil
}

// Event implements verbs.Device.
func (d *device) Event(ctx context.Context) (verbs.Event, error) {
	if d.h.p.NoEvents {
		return verbs.Event{}, verbs.ErrUnsupported
	}
	select {
	case e := <-d.events:
		return e, nil
	case <-d.gone:
		return verbs.Event{}, verbs.ErrClosed
	case <-ctx.Done():
		return verbs.Event{}, ctx.Err()
	}
}

// NewPD implements verbs.Device.
func (d *device) NewPD() (verbs.PD, error) {
	d.h.net.mu.Lock()
	defer d.h.net.mu.Unlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	d.pds++
	d.h.counts.PDs++
	if d.mrs == nil {
		d.mrs = map[uint32]*region{}
	}
	return &domain{d: d}, nil
}

// Close implements verbs.Device.
func (d *device) Close() error {
	d.h.net.mu.Lock()
	defer d.h.net.mu.Unlock()
	switch {
	case d.closed:
		return nil
	case d.pds > 0:
		return verbs.ErrBusy
	}
	d.closed = true
	close(d.gone)
	d.h.opens = slices.DeleteFunc(d.h.opens, func(o *device) bool { return o == d })
	d.h.counts.Devices--
	return nil
}

// domain implements verbs.PD.
type domain struct {
	d      *device
	users  int
	closed bool
}

// Close implements verbs.PD.
func (p *domain) Close() error {
	h := p.d.h
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	switch {
	case p.closed:
		return nil
	case p.users > 0:
		return verbs.ErrBusy
	}
	p.closed = true
	p.d.pds--
	h.counts.PDs--
	return nil
}

// region implements verbs.MR.
type region struct {
	p      *domain
	mem    []byte
	access verbs.Access
	info   verbs.MRInfo
	gone   bool
}

// Register implements verbs.PD.
func (p *domain) Register(mem []byte, access verbs.Access) (verbs.MR, error) {
	d, h := p.d, p.d.h
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	limits := &h.p
	size := int64(len(mem))
	switch {
	case p.closed:
		return nil, verbs.ErrClosed
	case len(mem) == 0:
		return nil, fmt.Errorf("fakeverbs: register no bytes: %w", syscall.EINVAL)
	case access&^limits.Access != 0:
		return nil, fmt.Errorf("fakeverbs: register: %w: access %#x", verbs.ErrUnsupported, uint32(access))
	case access&verbs.AccessRemoteWrite != 0 && access&verbs.AccessLocalWrite == 0:
		return nil, fmt.Errorf("fakeverbs: register: remote write without local write: %w", syscall.EINVAL)
	case limits.MaxMRSize > 0 && len(mem) > limits.MaxMRSize:
		return nil, fmt.Errorf("fakeverbs: register %d bytes: %w", len(mem), syscall.EINVAL)
	case limits.MaxMR > 0 && len(d.mrs) >= limits.MaxMR:
		return nil, fmt.Errorf("fakeverbs: register: %d regions: %w", len(d.mrs), syscall.ENOMEM)
	case limits.MaxPinned > 0 && d.pinned+size > limits.MaxPinned:
		return nil, fmt.Errorf("fakeverbs: register: %d bytes are pinned: %w", d.pinned, syscall.ENOMEM)
	case h.limit > 0 && h.locked+size > h.limit:
		return nil, fmt.Errorf("fakeverbs: register: %w: %d bytes may be locked: raise RLIMIT_MEMLOCK", transport.ErrUnavailable, h.limit)
	}
	// Keys are no small numbers, and none comes twice.
	h.keys++
	r := &region{p: p, mem: mem, access: access}
	key := h.keys * keyStep
	r.info = verbs.MRInfo{Addr: verbs.Addr(mem), Length: len(mem), Local: key}
	if access&(verbs.AccessRemoteRead|verbs.AccessRemoteWrite) != 0 {
		r.info.Remote = key
	}
	d.mrs[key] = r
	d.pinned += size
	h.locked += size
	p.users++
	h.counts.MRs++
	return r, nil
}

// Info implements verbs.MR.
func (r *region) Info() verbs.MRInfo { return r.info }

// Deregister implements verbs.MR.
func (r *region) Deregister() error {
	d, h := r.p.d, r.p.d.h
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	switch {
	case r.gone:
		return nil
	case h.refuse() || h.p.SlowClose && h.net.references(r):
		return verbs.ErrBusy
	}
	r.gone = true
	delete(d.mrs, r.info.Local)
	d.pinned -= int64(len(r.mem))
	h.locked -= int64(len(r.mem))
	r.p.users--
	h.counts.MRs--
	return nil
}

// refuse takes one of the refusals. The caller holds mu.
func (h *Host) refuse() bool {
	if h.refusals == 0 {
		return false
	}
	h.refusals--
	return true
}

// local is the memory of a segment, or false where it is not registered like that.
// The caller holds mu.
func (d *device) local(p *domain, s verbs.Segment, access verbs.Access) ([]byte, bool) {
	r := d.mrs[s.Key]
	if r == nil || r.p != p {
		return nil, false
	}
	return r.slice(s.Addr, uint64(s.Length), access)
}

// remote is the memory that a peer names, or false.
func (d *device) remote(p *domain, addr uint64, key uint32, n uint64, access verbs.Access) ([]byte, bool) {
	r := d.mrs[key]
	if r == nil || r.p != p || r.info.Remote != key || key == 0 {
		return nil, false
	}
	return r.slice(addr, n, access)
}

func (r *region) slice(addr, n uint64, access verbs.Access) ([]byte, bool) {
	at := addr - r.info.Addr
	if r.access&access != access || addr < r.info.Addr || at > uint64(len(r.mem)) || n > uint64(len(r.mem))-at {
		return nil, false
	}
	return r.mem[at : at+n], true
}
