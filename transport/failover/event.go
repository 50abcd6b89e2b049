package failover

import (
	"fmt"
	"time"
)

// Kind says what an Event is.
type Kind string

// Kinds of events.
const (
	Connected Kind = "connected" // a dial succeeded
	Failed    Kind = "failed"    // a dial failed and the route is tried again
	Barred    Kind = "barred"    // a dial failed in a way that trying again does not mend
	Lost      Kind = "lost"      // a connection was lost
	Tripped   Kind = "tripped"   // a route failed so often that others are preferred for a while
	GaveUp    Kind = "gave-up"   // the window is over
)

// Event is one thing that happened.
type Event struct {
	Kind  Kind
	Route string // its name; empty for GaveUp
	Addr  string
	Err   error // why; of Connected the reason that it is no better route, nil if it is the first

	// Tries is how many dials of this route have failed since its last
	// connection; of Connected, before it.
	Tries int
	// Again says that a connection replaces one that was lost.
	Again bool
	// Left is how much of the window is left; 0 where nothing is tried again.
	Left time.Duration
}

// String is the event as one line for people.
func (e Event) String() string {
	where := e.Route + " to " + e.Addr
	switch e.Kind {
	case Connected:
		s := "connected over " + where
		if e.Again {
			s = "connected again over " + where
		}
		if e.Err != nil {
			s += fmt.Sprintf(", no better route: %v", e.Err)
		}
		return s
	case Failed:
		if e.Left > 0 {
			return fmt.Sprintf("cannot connect, trying for %v more: %v", max(e.Left.Round(time.Second), time.Second), e.Err)
		}
		return fmt.Sprintf("cannot connect: %v", e.Err)
	case Barred:
		return fmt.Sprintf("cannot connect, and trying again will not help: %v", e.Err)
	case Lost:
		return fmt.Sprintf("lost the connection over %s: %v", where, e.Err)
	case Tripped:
		return fmt.Sprintf("%s fails again and again, preferring others: %v", where, e.Err)
	}
	return fmt.Sprint(e.Err)
}

// Use is what became of one route.
type Use struct {
	Route    string `json:"route"`
	Addr     string `json:"addr"`
	Connects int    `json:"connects"`         // dials that succeeded
	Failures int    `json:"failures"`         // dials that failed
	Losses   int    `json:"losses"`           // connections that were lost
	Trips    int    `json:"trips,omitempty"`  // times that others were preferred
	Reason   string `json:"reason,omitempty"` // the last failure or loss
}

// Add adds what another dialler says of the same route.
func (u *Use) Add(v Use) {
	u.Connects, u.Failures = u.Connects+v.Connects, u.Failures+v.Failures
	u.Losses, u.Trips = u.Losses+v.Losses, u.Trips+v.Trips
	if v.Reason != "" {
		u.Reason = v.Reason
	}
}

// Report is what a verdict says about the way to the peer.
type Report struct {
	Reconnects int   `json:"reconnects"` // connections that replaced lost ones
	Routes     []Use `json:"routes"`     // in order of preference
}
