package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport/carrier"
)

// Options of a Link. The zero value works.
type Options struct {
	// Device names the device to use, "mlx5_0", or "mlx5_0:2" with a port. Empty: the
	// one whose port has the address of the control connection, or is on its network
	// interface; else the only one with an active port.
	Device string

	// Slots is how many frames this end has room for on each lane, 2 to 32. 0 and
	// negative numbers mean 16, 1 counts as 2, and what is above 32 as 32. Fewer are
	// offered where the device's limits want it.
	Slots int

	// NoRemoteWrite keeps the peer from writing into memory of this end: frames are
	// read by whom they are for.
	NoRemoteWrite bool

	// NoImmediate announces frames by messages of their own even where immediates work.
	NoImmediate bool

	// OnChoice is told which device and address each connection uses, and why. It must
	// not block. Nil: nobody is told.
	OnChoice func(Choice)
}

// Link makes the lanes of connections out of queue pairs. It implements
// carrier.Carrier and may be used concurrently.
type Link struct {
	o    Options
	load func() (verbs.Provider, error)

	worked atomic.Bool // a connection was made

	mu  sync.Mutex       // guards bad
	bad map[string]error // devices that are not used again, and why
}

var _ carrier.Carrier = (*Link)(nil)

// New returns a link over the devices of this host. It opens nothing: the library of
// verbs is loaded when it is first needed.
func New(o Options) *Link {
	return newLink(o, func() (verbs.Provider, error) { return verbs.Load(verbs.Options{}) })
}

// NewOver returns a link over the devices of a provider, as tests of this module have one.
func NewOver(p verbs.Provider, o Options) *Link {
	return newLink(o, func() (verbs.Provider, error) { return p, nil })
}

func newLink(o Options, load func() (verbs.Provider, error)) *Link {
	o.Slots = min(max(cmp.Or(max(o.Slots, 0), defaultSlots), leastSlots), maxSlots)
	if o.OnChoice == nil {
		o.OnChoice = func(Choice) {}
	}
	return &Link{o: o, load: sync.OnceValues(load), bad: map[string]error{}}
}

// Link implements carrier.Carrier.
func (l *Link) Link() string { return Scheme }

// Features implements carrier.Carrier.
func (l *Link) Features() []string { return []string{feature} }

// Available implements carrier.Carrier: the library loads and lists a device that is
// usable and, where one is named, that one.
func (l *Link) Available() error {
	_, err := l.devices()
	return err
}

// stock is the devices of a provider.
type stock struct {
	verbs.Provider
	usable []verbs.DeviceInfo
	bad    map[string]error // why others are not
}

// devices lists the devices, at least one that is usable.
func (l *Link) devices() (*stock, error) {
	p, err := l.load()
	if err != nil {
		return nil, unavailable(err)
	}
	all, err := p.Devices()
	if err != nil {
		return nil, unavailable(err)
	}
	name, _, err := ParseDevice(l.o.Device)
	if err != nil {
		return nil, err
	}
	list := stock{Provider: p, bad: map[string]error{}}
	var why []error
	for _, d := range all {
		if name != "" && d.Name != name {
			continue
		}
		if err := l.isBad(d.Name); err != nil {
			why, list.bad[d.Name] = append(why, err), err
			continue
		}
		list.usable = append(list.usable, d)
	}
	switch {
	case len(list.usable) > 0:
		return &list, nil
	case len(why) > 0:
		return nil, unavailable(errors.Join(why...))
	case name != "":
		return nil, unavailable(fmt.Errorf("no device %q, there are %s", name, deviceNames(all)))
	}
	return nil, unavailable(errors.New("this host has no RDMA device"))
}

// setBad marks a device that is not to be used again by this process.
func (l *Link) setBad(device string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad[device] = lasting{fmt.Errorf("device %s is not used again until this program restarts: %w", device, err)}
}

func (l *Link) isBad(device string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bad[device]
}
