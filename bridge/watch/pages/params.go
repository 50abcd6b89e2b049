package pages

import "time"

// Times and bounds, each with its reason.
const (
	// tick is how often a page hears of the state: fast enough to see a 20 MB block move
	// on 10GbE, slow enough to read.
	tick = 500 * time.Millisecond

	// writeTime is how long a client may take to read one state; then it is gone. The page
	// comes again by itself.
	writeTime = 5 * time.Second

	// maxClients bounds the pages that are open at a time.
	maxClients = 32

	// retryAfter is when one that was turned away may come again, in seconds.
	retryAfter = "5"

	// maxConns bounds the connections of all clients: pages, and scrapes beside them.
	maxConns = 128

	// freshFor is how long the result of a check counts: a page that is open and probes of
	// several orchestrators cost one in that time, which is a file in the store and a call
	// to the decoder.
	freshFor = 3 * time.Second

	// checkTime bounds one check. Kubernetes gives a probe one second by default, systemd
	// and people wait longer.
	checkTime = 900 * time.Millisecond

	// readTime is how long a client may take to say what it wants, idleTime how long it may
	// want nothing, maxHeader what it may say.
	readTime  = 10 * time.Second
	idleTime  = 2 * time.Minute
	maxHeader = 16 << 10

	// answerTime bounds an answer other than /events, until it is read: a scrape may take
	// eight seconds to be made.
	answerTime = 15 * time.Second

	// closeTime is how long answers may take when the server closes.
	closeTime = time.Second
)
