package rdma

import (
	"time"

	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// Scheme is the name of the link, and the scheme of its URLs.
const Scheme = "rdma"

// feature is the name by which the ends of such a connection know each other.
const feature = "rdma/1"

const (
	// defaultSlots is how many frames a lane's receiver has room for: 16 MiB of 1 MiB
	// frames, 10 ms at 12 Gbit/s and 2.5 ms at 50, which hides the round trip of the
	// grants and the copying of some slots. maxSlots bounds what a peer may offer, and
	// with it the size of its offer. With leastSlots one is filled while the other is read.
	defaultSlots = 16
	leastSlots   = 2
	maxSlots     = 32

	// stages is how many frames a sender that copies has in hand: one is copied while
	// others are on their way.
	stages = 4

	// headRoom is the part of a slot for the head of a frame: the longest sealed one.
	headRoom = 8 << 10

	// noticeSize is the length of an announcement, noticeRoom what one has of memory.
	noticeSize = 32
	noticeRoom = 64

	// strideSize is the length of a message in stride mode, a multiple of the 4 KiB in
	// which Thunderbolt counts. A frame of 1 MiB wastes 1.5 % of one; strides of them
	// stay below the 4 MiB that old systems take as posted receives.
	strideSize = 32 << 10
	strides    = 96
	strideHead = 16

	// smallRegion is what is tried when all memory as one region was refused: MCDMA
	// takes no more.
	smallRegion = 4 << 20

	// openStep is how many bytes of a sealed frame are opened at a time, while they are
	// in the cache.
	openStep = 2 * seal.DefaultRecord

	// surveyUnit is the parts in which a survey registers memory: the frames that links
	// use by themselves.
	surveyUnit = 1 << 20

	// testBody is the bytes of the frame that tries a lane.
	testBody = 4 << 10
)

// Queues.
const (
	// frameWRs is how many requests a frame takes: its payload, its head, the notice.
	frameWRs = 3

	// readAhead is how many frames are read at a time in pull mode, two requests each:
	// with 1 MiB frames one is enough to fill a link, and the other one hides the pause.
	readAhead = 2

	// leastDepth is the depth that every provider gives: a queue pair that gets less is
	// of no use.
	leastDepth = 16

	// scarceDepth is what MCDMA gives at most, tried when more was refused.
	scarceDepth = 31

	// pollBatch is how many completions are taken at a time.
	pollBatch = 16

	// spinRounds and spinTime bound how long a lane polls in vain before it sleeps:
	// longer than a frame of 1 MiB takes at 200 Gbit/s, and short enough that other
	// goroutines get the processor.
	spinRounds = 256
	spinTime   = 50 * time.Microsecond

	// spinAgain is how often a lane that polls in vain sleeps before it tries once more
	// whether polling is worth it: that costs 1 µs each time.
	spinAgain = 50
)

// Sleeping without a completion channel.
const (
	napLeast = 20 * time.Microsecond // while frames come
	napMost  = time.Millisecond      // when nothing came for some naps
	napIdle  = 10 * time.Millisecond // when nothing came for idleNaps of the longest
	idleNaps = 1000
)

// Attributes of queue pairs: those of every peer that was studied.
const (
	hopLimit    = 64
	minRNRTimer = 12 // 0.64 ms; grants see to it that it is never needed
	ackTimeout  = 14 // 67 ms
	retries     = 7
	rnrRetries  = 7 // for ever: the watchdog is what ends it
	readsPush   = 1
	readsPull   = 4
)

// Failure.
const (
	// watchEvery is how often lanes are looked at.
	watchEvery = 500 * time.Millisecond

	// stallTime is how long requests may be outstanding without any progress, counted in
	// looks: longer than a card's own retries of one lost packet take, and far below the
	// 15 s in which it gives up by itself.
	stallTime = 2 * time.Second

	// testTime bounds what the trying of lanes waits for, and immediateTime what the
	// trying of immediates does: a link that has them shows it within a millisecond.
	testTime      = 5 * time.Second
	immediateTime = time.Second

	// drainTime bounds the wait for flushed completions, destroyTime how long an object
	// may refuse to go.
	drainTime    = time.Second
	destroyTime  = 3 * time.Second
	destroyPause = time.Millisecond
)

// maxLanes bounds the lanes of a connection; all take part in one offer.
const maxLanes = wire.MaxLanes
