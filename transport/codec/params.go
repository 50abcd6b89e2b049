package codec

import "time"

// The codecs' numbers.
const (
	// minGain is the part of a payload that has to be saved: 1/32. Less is not worth
	// the receiver's time, which decodes at about the rate of 10 Gbit/s.
	minGain = 32

	// blockBytes is how much is coded with one table. Its planes and its tables fit in
	// the second-level cache of every core in question, and a table of some 50 bytes
	// is nothing beside it. Both ends have to know it; an even number.
	blockBytes = 128 << 10

	// sampleGroups is how many groups of 8 numbers of a block are looked at before it
	// is coded: 1,024 samples tell 7 bits of entropy from 8, at 2 % of a block's cost.
	sampleGroups = 128

	// worthSquares says when a plane may be coded: samples of 2^7.4 equally likely
	// values meet each other once in 168 pairs. More values than that give too little.
	worthSquares = 168
)

// The rule's numbers.
const (
	// maxRate is the rate in bytes a second from which Auto does not even try. 2.5
	// Gbit/s Ethernet carries 295e6 of payload. From 5 Gbit/s on a core is not fast
	// enough for a lane, and 10 Gbit/s are not reached beside codecs at all.
	maxRate = 400e6

	// minPeriod and minFrames are what a rate is measured over: the 4 MiB that a
	// socket's buffer takes at once are a seventh of what 1 Gbit/s carries meanwhile.
	minPeriod = 250 * time.Millisecond
	minFrames = 8

	// maxGap between two payloads ends a period without a verdict: one transfer is
	// over, and the next has not begun.
	maxGap = 100 * time.Millisecond

	// minWaiting is the part of their time that lanes spend in writes where the link
	// is what they wait for. A source that is as fast as its link leaves less.
	minWaiting = 0.7

	// onGain is what coding has to promise. A smaller gain drowns in what the rate of
	// a link does by itself. That it is above keepGain is the rule's hysteresis.
	onGain = 1.2

	// keepGain is what it has to bring, measured against plain payloads.
	keepGain = 1.05

	// maxLosing is how many periods in a row may miss that, once one has shown it:
	// one may have had a loss on the way, or a busy host. The first one has no such
	// excuse: it is the trial of a host whose cores are too busy, which coding one
	// payload, a millisecond, does not tell.
	maxLosing = 2

	// spare is how many times faster than needed the codec has to be at this end:
	// at 1.5 a lane codes for two thirds of its time, while the socket's
	// buffer, filled meanwhile, keeps the link busy.
	spare = 1.5

	// minFrame is the smallest payload that is worth a codec's call.
	minFrame = 16 << 10

	// plainEvery is how long payloads are coded before a period of plain ones. It
	// costs a period's gain, 0.4 % of it.
	plainEvery = 60 * time.Second

	// firstPause and lastPause bound the time from a try that failed to the next. A
	// try codes one payload with every codec, some 6 ms: 0.3 % of the time at first,
	// nothing later.
	firstPause = 2 * time.Second
	lastPause  = 2 * time.Minute
)
