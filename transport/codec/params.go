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
	// maxRate is the rate of a link in bytes a second from which Auto does not even
	// try. 2.5 Gbit/s Ethernet carries 295e6 of payload. From 5 Gbit/s on a core is not
	// fast enough for a lane, and 10 Gbit/s are not reached beside codecs at all.
	maxRate = 400e6

	// maxParts bounds what Share believes: transport.MaxParts.
	maxParts = 64

	// minPeriod and minFrames are what a rate is measured over: some ten times the
	// round trip of a link whose queues are full, and enough writes that those cut by
	// the period's ends do not count.
	minPeriod = 250 * time.Millisecond
	minFrames = 8

	// bufferBytes is what the buffer of a socket takes at once, where nobody can ask
	// it: the largest that Linux gives by itself, and as much as macOS does. At 100
	// Mbit/s that would be a third of a second for nothing.
	bufferBytes = 4 << 20

	// rateLasts is how long a rate counts for the sum of a Meter: until the others'
	// periods that it fell into are over, with the frames by which a rest may end late.
	// At 1 Gbit/s three connections fit in one after the other, which is below maxRate.
	rateLasts = 3 * minPeriod

	// maxGap between two payloads ends a period without a verdict: one transfer is
	// over, and the next has not begun.
	maxGap = 100 * time.Millisecond

	// minWaiting is the part of their time that lanes spend in writes where the link
	// is what they wait for. A source that is as fast as its link leaves less.
	minWaiting = 0.7

	// minFilling is how many times what the link carries is written where it is what
	// lanes wait for, though no write has to wait yet: many lanes have large buffers. A
	// source that is slow has one payload of minFrames on its way, not more.
	minFilling = 1.25

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

	// fastPause is how long nobody looks at a link that carries maxRate. A transfer
	// that moves to a slow link finds out after that; measuring, a twentieth of the
	// time, costs 0.2 µs a frame.
	fastPause = 5 * time.Second
)
