package watch

import (
	"time"

	"pdlink/transport"
)

// Bounds, each with its reason.
const (
	// keptDone is how many transfers and requests that ended are shown: a screen of them.
	keptDone = 32

	// maxOpen bounds the transfers that are followed at a time: four times what a receiver
	// has. What is beyond is counted and not shown.
	maxOpen = 1 << 10

	// forgetAfter is how long a transfer is followed of which no connection is left: a
	// receiver waits for minutes for its senders to come again, then it has a verdict.
	forgetAfter = 30 * time.Minute

	// maxShown bounds the rows of a list in a State: more would be read by nobody, and the
	// State is encoded several times a second.
	maxShown = 64

	// maxText bounds a text of a peer, in bytes: a name, an address, a reason. A reason
	// that is cut is whole in the log.
	maxText = 300

	// maxLogged bounds a reason in a log line, in bytes: four times what a peer may say,
	// since what is found here may stand around it.
	maxLogged = 4 * transport.MaxReason

	// storeWait is how long a look at the store may take: statfs of a disk takes
	// microseconds, of a file server milliseconds.
	storeWait = time.Second

	// maxPeers bounds the senders of one transfer that are named.
	maxPeers = 16
)
