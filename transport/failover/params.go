package failover

import "time"

// Tuned numbers, each with its reason.
const (
	// DefaultWindow is how long a dialler tries without progress: a receiver
	// that was killed is started again by its supervisor within seconds, a
	// switch that reboots is back within half a minute, and a request should
	// not hang longer than that on a host that is gone.
	DefaultWindow = 30 * time.Second

	// backoffFirst is the longest pause after the first failure, backoffMax the
	// longest of all; it doubles in between. A listener that restarts is back
	// within a second, and a hundred senders that all try every two seconds
	// cost it nothing.
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 2 * time.Second

	// tripFailures within tripSpan make a route the last choice: three attempts
	// with pauses take a third of a second, so the next route is used before
	// anybody notices; a route that fails once an hour stays the first.
	tripFailures = 3
	tripSpan     = time.Minute

	// tripFor is how long it stays the last choice. A transfer that went over
	// to the next route is in no hurry to come back.
	tripFor = 30 * time.Second

	// attempt bounds one dial where there is no other route to take: hosts on a
	// LAN answer within milliseconds, busy ones within a second or two, and a
	// fresh attempt is faster than a system that repeats its first packet after
	// 1, 3 and 7 s. attemptOther bounds it where there is one.
	attempt      = 5 * time.Second
	attemptOther = 2 * time.Second

	// maxLive bounds the connections whose routes are remembered. A transfer has
	// one, or one for each link.
	maxLive = 16

	// endless is what is left of a window where there is none: longer than any
	// dial may take.
	endless = 24 * time.Hour
)
