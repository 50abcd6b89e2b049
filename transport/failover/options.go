package failover

import (
	"fmt"
	"time"

	"pdlink/transport"
)

// ErrGaveUp is returned by Dial and Wait when the window is over without
// progress: whoever has a transfer ends it with what arrived. It is wrapped with
// the last error of each route, and Is transport.ErrUnreachable.
var ErrGaveUp = fmt.Errorf("failover: %w", transport.ErrUnreachable)

// Route is one way to the peer: a link and an address that its Dial takes. The
// name is for people, for Options.Require and for reports; it is usually the
// link's scheme.
type Route struct {
	Name string
	Link transport.Link
	Addr string
}

// Options of a Dialer. Routes is required; the zero value of the rest works.
type Options struct {
	// Routes are the ways to the peer, the preferred one first. The slice is
	// not changed and must not be.
	Routes []Route

	// Require leaves only the routes of this name. Empty: all.
	Require string

	// Window is how long to try without progress (see Dialer.Progress), however
	// much is to be moved: the time that a connection lives does not count, so
	// what is slow and moves is never given up. 0: DefaultWindow. Negative: each
	// route that is not barred is tried once, nothing is waited for, and a
	// connection that is lost stays lost.
	Window time.Duration

	// Permanent reports errors of Dial that trying again does not mend, beside
	// those of the contract: ErrInsecure, ErrIncompatible, ErrUnavailable and
	// ErrInvalid. A wrong key, for example. Nil: none.
	Permanent func(error) bool

	// OnEvent, when set, is told what happens, one event at a time and in the order
	// in which it happened. It is called by the goroutines that call the dialler's
	// methods, before those return, and must not block or call them. Nil: nobody is
	// told.
	OnEvent func(Event)
}

// usable checks o, fills defaults in and returns the routes that count.
func (o *Options) usable() ([]*route, error) {
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if len(o.Routes) == 0 {
		return nil, fmt.Errorf("failover: %w: no routes", transport.ErrInvalid)
	}
	var routes []*route
	var names []string
	for i, r := range o.Routes {
		if r.Link == nil {
			return nil, fmt.Errorf("failover: %w: route %d (%q) has no link", transport.ErrInvalid, i, r.Name)
		}
		names = append(names, r.Name)
		if o.Require == "" || r.Name == o.Require {
			routes = append(routes, &route{Route: r, use: Use{Route: r.Name, Addr: r.Addr}})
		}
	}
	if len(routes) == 0 {
		return nil, fmt.Errorf("failover: %w: %q is required, the routes to the peer are %q", transport.ErrUnavailable, o.Require, names)
	}
	return routes, nil
}
