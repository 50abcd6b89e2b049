package pages

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// house is a listener that bounds its connections. One too many takes the place of the one
// that has waited longest without being answered: clients that only stand there, idle or
// with half a request, keep nobody out. What is being answered keeps its place, for a time
// that the server bounds.
type house struct {
	net.Listener
	room int

	mu     sync.Mutex // guards the fields below, and those of the guests
	guests map[*guest]struct{}
	turn   uint64 // of who began to wait last
}

// guest is a connection that takes room until it closes.
type guest struct {
	net.Conn
	house *house

	// Guarded by house.mu.
	busy  bool   // it is being answered
	waits uint64 // the turn at which it began to wait
}

func newHouse(l net.Listener, room int) *house {
	return &house{Listener: l, room: room, guests: make(map[*guest]struct{})}
}

// Accept implements net.Listener.
func (h *house) Accept() (net.Conn, error) {
	for {
		c, err := h.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g := &guest{Conn: c, house: h}
		gone, ok := h.admit(g)
		if gone != nil {
			gone.Conn.Close() //nolint:errcheck // nobody was promised anything
		}
		if ok {
			return g, nil
		}
		c.Close() //nolint:errcheck // the same
	}
}

// admit lets a guest in, for which another one may have to go; false: all are busy.
func (h *house) admit(g *guest) (gone *guest, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.guests) >= h.room {
		for x := range h.guests {
			if !x.busy && (gone == nil || x.waits < gone.waits) {
				gone = x
			}
		}
		if gone == nil {
			return nil, false
		}
		delete(h.guests, gone)
	}
	h.turn++
	g.waits = h.turn
	h.guests[g] = struct{}{}
	return gone, true
}

// answering notes that a guest is being answered, or waits again.
func (g *guest) answering(busy bool) {
	g.house.mu.Lock()
	defer g.house.mu.Unlock()
	g.house.turn++
	g.busy, g.waits = busy, g.house.turn
}

// Close implements net.Conn.
func (g *guest) Close() error {
	g.house.mu.Lock()
	delete(g.house.guests, g)
	g.house.mu.Unlock()
	return g.Conn.Close()
}

// guestKey is the key of a request's guest in its context.
type guestKey struct{}

// withGuest is for http.Server.ConnContext.
func withGuest(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, guestKey{}, c)
}

// attend notes that a request is being answered, until the function that it returns is
// called.
func attend(r *http.Request) func() {
	g, ok := r.Context().Value(guestKey{}).(*guest)
	if !ok {
		return func() {}
	}
	g.answering(true)
	return func() { g.answering(false) }
}
