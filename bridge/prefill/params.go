package prefill

import "time"

// Limits and times, each with its reason.
const (
	// defaultSlots slots of transport.DefaultSlot are 202 MB: twice the blocks
	// that a chunk of 8,192 tokens of DeepSeek-V4 has open (80 MB), and room for the
	// next request.
	defaultSlots = 192

	// maxRingBytes bounds the ring: its pages are locked for the device and
	// taken from the memory that the engine wants.
	maxRingBytes = 512 << 20

	// defaultLeaseWait is how long an engine may be held up by one missing slot: a
	// 10 Gbit/s link frees one every millisecond, so a quarter of a second without
	// any says that the link or the decoder's store stands.
	defaultLeaseWait = 250 * time.Millisecond
	maxLeaseWait     = 10 * time.Second

	// beginWait is how long a request waits for its transfer to be opened: a round
	// trip to the decode host, and a restarted sidecar's way back.
	beginWait = 1500 * time.Millisecond

	// defaultMemFloor is the free memory below which nothing more is taken on. A
	// machine with unified memory that runs out stalls, driver and all, before the
	// kernel kills anybody.
	defaultMemFloor = 2 << 30

	// memInfoAge is how old the number may be: reading it takes 30 µs.
	memInfoAge = 100 * time.Millisecond

	// maxMemInfo bounds what is read of the file, which has 1.5 KB.
	maxMemInfo = 64 << 10

	// defaultReclaim is how long a sidecar that was there before waits for its
	// workers to bring the ring: they try every 500 ms.
	defaultReclaim = 1500 * time.Millisecond

	// orphanWait is how long slots of workers and transfers that did not come back
	// after a restart are kept. A decode host gives up on a sender sooner.
	orphanWait = 30 * time.Second

	// returnWait is how long a worker whose connection broke may take to come
	// back before its part of a transfer counts as ended.
	returnWait = 2 * time.Second

	// pushAfter is how long a frame that is at least half full waits for more of
	// what the kernels make: a layer of a fast engine takes less.
	pushAfter = 20 * time.Millisecond

	// pushLate is how many times as long one that is emptier waits: longer than
	// a layer of 8,192 tokens takes a GB10.
	pushLate = 10

	// endWait is how long a transfer goes on for workers that have not said END
	// after the engine has answered: the last chunk's copies take milliseconds.
	endWait = 5 * time.Second

	// maxWorkers and maxRequests are what is kept track of at a time.
	maxWorkers  = 64
	maxRequests = 64

	// maxStrangers is how many connections of users that are not accepted are told so at a
	// time.
	maxStrangers = 8

	// maxLeases is what one request may hold: 32 MiB of slots under way hide any
	// copy from the device.
	maxLeases = 32

	// helloWait is how long a connection may take to introduce itself.
	helloWait = 2 * time.Second

	// factsWait is how long a worker that has come is waited for to say what model it has
	// loaded: it is the first thing that it says.
	factsWait = 300 * time.Millisecond

	// refuseWait is how long a worker that is refused may take to read why.
	refuseWait = 200 * time.Millisecond

	// writeWait is how long a worker may leave its messages unread: one that does
	// is stuck, and messages for it would pile up.
	writeWait = 2 * time.Second

	// DefaultPatience is how long a transfer waits without progress for another
	// connection: a decode host that is started again is back within seconds, and
	// the request's client waits meanwhile.
	DefaultPatience = 20 * time.Second

	// waitFirst and waitMax are the pauses before a receiver is asked again that has
	// the transfer still, or no room; they double in between.
	waitFirst = 20 * time.Millisecond
	waitMax   = time.Second

	// probeEvery is how often an engine is looked at that is not ready, probeRarely
	// how many times as long one that is: it writes a line into its log each time, and
	// a call that fails makes it the next thing to be done. probeWait is how long it may take
	// to answer, probeTries how many times in a row it may not: a busy one is slow.
	probeEvery  = time.Second
	probeRarely = 10
	probeWait   = 5 * time.Second
	probeTries  = 2

	// engineIdle is how long an idle connection to an engine is kept: vLLM's server
	// closes it after 5 s, and a prompt that crosses with that is not sent again.
	engineIdle = 4 * time.Second

	// announceAgain is how long after a refusal a decode host is asked again: its
	// front door may have been added meanwhile.
	announceAgain = 30 * time.Second

	// maxCalls bounds the calls that are served at a time, as the engine socket's
	// requests are.
	maxCalls = 64

	// callGrace is how long the work of a call, or its result, is kept after its
	// connection was lost: twice what a caller waits for the next one.
	callGrace = 10 * time.Second

	// maxAnswer bounds what is read of an engine's answer: one token and a few
	// numbers, or an error; and of its list of models.
	maxAnswer = 1 << 20

	// maxSaid bounds what is repeated of an engine's error.
	maxSaid = 300

	// hashChunk is how many bytes of a weight tensor are hashed at a time: layers have
	// tens of MB, and what is hashed fits into a cache.
	hashChunk = 64 << 10

	// queued is the messages that wait for one worker: the arrays of a model of 100
	// layers are 900.
	queued = 4096
)

// waits are the times that tests shorten.
type waits struct{ begin, orphan, back, end, push, facts time.Duration }

// withDefaults returns w with the times above in place of zero values.
func (w waits) withDefaults() waits {
	for _, x := range []struct {
		t   *time.Duration
		def time.Duration
	}{{&w.begin, beginWait}, {&w.orphan, orphanWait}, {&w.back, returnWait}, {&w.end, endWait}, {&w.push, pushAfter}, {&w.facts, factsWait}} {
		if *x.t == 0 {
			*x.t = x.def
		}
	}
	return w
}
