package fakeverbs

import (
	"context"
	"sync"

	"pdlink/rdma/internal/verbs"
)

// Null is a provider that does nothing at once: every send request succeeds when it
// is posted, and nothing is ever received. It measures what a caller costs by itself.
// The zero value works.
type Null struct{}

// Devices implements verbs.Provider.
func (Null) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: "null", Class: verbs.ClassMellanox}}, nil
}

// Open implements verbs.Provider.
func (Null) Open(string) (verbs.Device, error) { return &nullDevice{gone: make(chan struct{})}, nil }

type nullDevice struct {
	once sync.Once
	gone chan struct{}
}

func (d *nullDevice) Attr() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{Ports: 1, MaxQPWR: 1 << 12, MaxMRSize: 1 << 40, MaxRead: 1, MaxReadOut: 1}, nil
}

func (d *nullDevice) Port(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{State: verbs.PortActive, LinkLayer: verbs.LinkEthernet, ActiveMTU: verbs.MTU4096, GIDs: 1}, nil
}

func (d *nullDevice) GIDs(int) ([]verbs.GIDEntry, error) {
	return []verbs.GIDEntry{{Kind: verbs.GIDRoCEv2}}, nil
}

func (d *nullDevice) Event(ctx context.Context) (verbs.Event, error) {
	select {
	case <-d.gone:
		return verbs.Event{}, verbs.ErrClosed
	case <-ctx.Done():
		return verbs.Event{}, ctx.Err()
	}
}

func (d *nullDevice) NewPD() (verbs.PD, error) { return nullPD{}, nil }

func (d *nullDevice) Close() error {
	d.once.Do(func() { close(d.gone) })
	return nil
}

type nullPD struct{}

func (nullPD) Register(mem []byte, _ verbs.Access) (verbs.MR, error) {
	return nullMR{verbs.MRInfo{Addr: verbs.Addr(mem), Length: len(mem), Local: 1, Remote: 1}}, nil
}

func (nullPD) NewChannel() (verbs.Channel, error) {
	return &channelOfNull{wake: make(chan struct{}, 1), gone: make(chan struct{})}, nil
}

func (nullPD) NewCQ(depth int, ch verbs.Channel) (verbs.CQ, error) {
	c := &nullCQ{ring: make([]verbs.Completion, depth)}
	c.ch, _ = ch.(*channelOfNull)
	return c, nil
}

func (nullPD) NewQP(o verbs.QPOptions) (verbs.QP, error) {
	cq, ok := o.SendCQ.(*nullCQ)
	if !ok {
		return nil, errStrange
	}
	return &nullQP{o: o, cq: cq}, nil
}

func (nullPD) Close() error { return nil }

type nullMR struct{ info verbs.MRInfo }

func (m nullMR) Info() verbs.MRInfo { return m.info }
func (m nullMR) Deregister() error  { return nil }

type channelOfNull struct {
	wake chan struct{}
	once sync.Once
	gone chan struct{}
}

func (c *channelOfNull) Wait(ctx context.Context) error {
	select {
	case <-c.wake:
		return nil
	case <-c.gone:
		return verbs.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *channelOfNull) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *channelOfNull) Close() error {
	c.once.Do(func() { close(c.gone) })
	return nil
}

// nullCQ is a ring of completions.
type nullCQ struct {
	ch *channelOfNull

	mu    sync.Mutex // guards the rest
	ring  []verbs.Completion
	from  int
	n     int
	armed bool
}

func (c *nullCQ) put(w *verbs.SendWR) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring[(c.from+c.n)%len(c.ring)] = verbs.Completion{ID: w.ID, QP: 1}
	c.n++
	if c.armed {
		c.armed = false
		c.ch.Wake()
	}
}

func (c *nullCQ) Poll(out []verbs.Completion) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(out), c.n)
	for i := range n {
		out[i] = c.ring[c.from]
		c.from = (c.from + 1) % len(c.ring)
	}
	c.n -= n
	return n, nil
}

func (c *nullCQ) Arm() error {
	if c.ch == nil {
		return verbs.ErrUnsupported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return nil
}

func (c *nullCQ) Close() error { return nil }

type nullQP struct {
	o  verbs.QPOptions
	cq *nullCQ
}

func (q *nullQP) Info() verbs.QPInfo {
	return verbs.QPInfo{Number: 1, Kind: verbs.RC, MaxSend: q.o.MaxSend, MaxRecv: q.o.MaxRecv, SendSegments: 2, MaxInline: q.o.MaxInline}
}

func (q *nullQP) Modify(verbs.QPState, verbs.QPAttr) error { return nil }

func (q *nullQP) PostSend(list []verbs.SendWR) (int, error) {
	for i := range list {
		if list[i].Flags&verbs.FlagSignalled != 0 {
			q.cq.put(&list[i])
		}
	}
	return len(list), nil
}

func (q *nullQP) PostRecv(list []verbs.RecvWR) (int, error) { return len(list), nil }
func (q *nullQP) Close() error                              { return nil }
