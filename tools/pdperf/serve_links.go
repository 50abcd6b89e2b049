package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/session"
)

// station is a receiving end at all of its addresses.
type station struct {
	f       *serveFlags
	io      streams
	end     *receivingEnd
	session session.Options
	given   func(string) bool

	links  []transport.Listener
	keys   []linkkeys.Choice
	floors net.Listener // nil: none

	mu    sync.Mutex // guards the output and what follows
	bad   error
	hosts map[netip.Addr]struct{} // that have connected, by whatever a link demands
}

// listen adds an address.
func (h *station) listen(ctx context.Context, url string) error {
	o := linkOptions{session: h.session, note: h.io.notef, listens: true, ports: h.end.ports}
	if h.f.asChild {
		o.note = nil // the result has it
	}
	o.reject = func(remote string, err error) {
		h.io.warn([]string{fmt.Sprintf("peer %s dropped: %s", remote, cmdline.Plain(o.keys.Explain(err)))})
	}
	var err error
	if o.keys, err = openKeys(ctx, h.io, &h.f.keys, url, h.given); err != nil {
		return err
	}
	h.keys = append(h.keys, o.keys)
	link, addr, err := openLink(url, o)
	if err != nil {
		return err
	}
	ln, err := link.Listen(ctx, addr)
	if err != nil {
		return listenError(url, o.keys.Explain(err))
	}
	h.links = append(h.links, ln)
	if !h.f.asChild && len(h.links) == 1 { // the other end says it
		h.io.warn(o.keys.Warnings(true))
	}
	h.f.say(h.io, serving{listening{"listening", schemeOf(url) + "://" + ln.Addr()}, o.keys.Dir.Path, o.keys.Encrypt})
	return nil
}

// listenFloor adds the floor's address, if there is one.
func (h *station) listenFloor(ctx context.Context) error {
	if h.f.floorListen == "" {
		return nil
	}
	addr, err := tcpAddress(h.f.floorListen)
	if err != nil {
		return fmt.Errorf("--floor-listen: %w", err)
	}
	var lc net.ListenConfig
	if h.floors, err = lc.Listen(ctx, "tcp", addr); err != nil {
		return listenError(h.f.floorListen, err)
	}
	if h.f.asJSON {
		return h.io.json(listening{"floor", "tcp://" + h.floors.Addr().String()})
	}
	h.io.printf("floors on tcp://%s\n", h.floors.Addr())
	return nil
}

// close ends what listens.
func (h *station) close() {
	for _, ln := range h.links {
		ln.Close() //nolint:errcheck // nobody waits for it
	}
	if h.floors != nil {
		h.floors.Close() //nolint:errcheck // likewise
	}
	for _, k := range h.keys {
		k.Close() //nolint:errcheck // it cannot fail
	}
}

// serve serves connections until the command is to end.
func (h *station) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	ends := make(chan error, len(h.links)+1)
	for _, ln := range h.links {
		loops.Go(func() { ends <- h.loop(ctx, ln) })
	}
	if h.floors != nil {
		loops.Go(func() { h.serveFloors(ctx) })
	}
	err := <-ends // one that failed, or that has done what it was for
	cancel()
	if h.floors != nil {
		h.floors.Close() //nolint:errcheck // it ends the serving
	}
	loops.Wait()
	return err
}

// tell prints what a transfer came to.
func (h *station) tell(s served) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.f.say(h.io, s)
	if !s.OK {
		h.bad = fmt.Errorf("the transfer from %s failed: %s", s.Remote, s.Why)
	}
}

// loop serves the connections of one listener.
func (h *station) loop(ctx context.Context, ln transport.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		conn, err := ln.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // interrupted, which is how it ends
		case err != nil:
			return failed(fmt.Errorf("accept: %w", err))
		}
		h.remember(conn.Facts().Remote)
		serve := func() {
			h.end.serve(ctx, conn, h.tell)
			conn.Close() //nolint:errcheck // its transfers have been told of
		}
		if !h.f.once {
			conns.Go(serve)
			continue
		}
		serve()
		return h.outcome()
	}
}

// outcome is the error that one of the transfers ended with.
func (h *station) outcome() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bad != nil {
		return failed(h.bad)
	}
	return nil
}

// remember notes a host that has connected.
func (h *station) remember(remote string) {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return // a link without addresses of hosts
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hosts == nil {
		h.hosts = make(map[netip.Addr]struct{})
	}
	host := at.Addr().Unmap().WithZone("")
	if _, ok := h.hosts[host]; !ok && len(h.hosts) >= maxHosts {
		for other := range h.hosts { // any one: it only has to connect again
			delete(h.hosts, other)
			break
		}
	}
	h.hosts[host] = struct{}{}
}

// errStranger says who gets no floor.
var errStranger = errors.New("floors are for hosts that have connected to a link of this end, from the same address: measure a link first, over the same network")

// admits is floorHost's: programs of this host, and hosts that a link has let in.
func (h *station) admits(remote net.Addr) error {
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return errStranger
	}
	host := at.Addr().Unmap().WithZone("")
	if host.IsLoopback() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.hosts[host]; !ok {
		return fmt.Errorf("%s: %w", host, errStranger)
	}
	return nil
}

// serveFloors receives one floor after the other.
func (h *station) serveFloors(ctx context.Context) {
	o := &h.end.o
	may := floorHost{memory: max(floorMemory, int64(o.slots)*int64(o.frame)), admits: h.admits, turns: &h.end.turns}
	for ctx.Err() == nil {
		if err := serveFloor(ctx, h.floors, may); err != nil && ctx.Err() == nil {
			h.io.warn([]string{"floor: " + cmdline.Plain(err)})
			if errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}
}
