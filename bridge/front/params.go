package front

import "time"

// Defaults and bounds, each with its reason.
const (
	// DefaultMinTokens is the shortest prompt that is bridged: below it the
	// engine's queue and the hand-over cost as much as the decoder needs to read.
	DefaultMinTokens = 4096

	// DefaultMinTail is the fewest tokens that the decoder does not hold yet:
	// for less its own prefill is sooner done.
	DefaultMinTail = 2048

	// DefaultMaxBody bounds a request that is planned, in bytes: a million tokens
	// of text are about 5 MB, their ids as JSON 8 MB; images in the body may be
	// larger and are then forwarded unread.
	DefaultMaxBody = 64 << 20

	// DefaultPerEngine is how many prompts one engine reads at a time: it batches
	// chunks of several, but long prompts slow each other down.
	DefaultPerEngine = 4

	// DefaultQueueWait is how long a request waits for an engine before the
	// decoder reads the prompt itself.
	DefaultQueueWait = 20 * time.Second

	// DefaultSlowest is the slowest prefill, in tokens a second, that is still
	// waited for while nothing has been measured.
	DefaultSlowest = 200

	// DefaultKept is how many records Transfers lists.
	DefaultKept = 1024

	// DefaultRejoin is how long a call waits for its host after a lost connection: a
	// sidecar dials again within a second or two, and the request's client waits.
	DefaultRejoin = 5 * time.Second

	// seatWait is how long a host waits for its place in a group while another process
	// has it: a connection on which something happens is given up after 6 s of silence.
	seatWait = 10 * time.Second

	// resultWait is how long the results of a group's other hosts are waited for when
	// the one that leads has said that all is done: they come with the same verdict.
	resultWait = 2 * time.Second

	// maxRejoins bounds the connections of one call: each costs the time above.
	maxRejoins = 8

	// deadlineBase is what a bridge may take beyond its tokens: the connection,
	// the engine's start of a request, adoption.
	deadlineBase = 15 * time.Second

	// deadlineSlack is how much slower than measured an engine may be before it
	// is given up.
	deadlineSlack = 4

	// rateWeight is the weight of a new measurement in the rate's moving mean.
	rateWeight = 0.3

	// probeAfter is how long an engine that failed rests; it doubles with each
	// failure in a row up to probeMax. A request is the probe.
	probeAfter = 2 * time.Second
	probeMax   = time.Minute

	// planTimeout bounds the planner's work on one request beyond a second a
	// megabyte of body: it tokenises 1 MB in less than half a second.
	planTimeout = 5 * time.Second

	// startWait bounds how long a plan waits for a decoder that is starting: that loads the
	// model, or makes the block that others are compared with. Native reading waits for the
	// same load, and behind the same block, so that nothing is lost meanwhile. 150 GB of
	// weights take an SSD two minutes.
	startWait = 5 * time.Minute

	// startPoll is how often such a decoder is asked.
	startPoll = time.Second

	// adoptTimeout bounds the decoder's adoption: it reads headers only. A decoder that let
	// it pass is not asked again.
	adoptTimeout = 30 * time.Second

	// maxIdle is how many connections to the decoder are kept: as many as clients
	// stream at a time, so that none is made anew for each request.
	maxIdle = 256

	// maxIdleTime is how long an idle one is kept: the decoder's server closes it after
	// 5 s, and not every request that it crosses with can be sent again.
	maxIdleTime = 4 * time.Second

	// crossTime is how long after it got a connection a request may be said to have crossed
	// with its end: the decoder is on this host or near it. One that ends later ended while
	// the decoder worked on the request, which may be the cause.
	crossTime = time.Second

	// closeAdopt is how long a front that is closed waits for adoptions that run: one takes
	// milliseconds, and whoever stops the process kills it after ten seconds or so.
	closeAdopt = 2 * time.Second

	// tailKept is how many bytes of an answer's end are looked at for the usage
	// object, which is the last thing in it; without streaming an answer with
	// many choices still ends with it.
	tailKept = 16 << 10

	// bodyIdle is how long a client that is sending its request may stand still, and how
	// long it is waited for beyond what bodyRate allows: a laptop that changes its network
	// is back by then.
	bodyIdle = 30 * time.Second

	// bodyRate is the slowest upload, in bytes a second of waiting for it: half of what the
	// worst mobile link does. It holds for the whole of a body, so that single bytes do not
	// keep a connection; who was faster may stand still for bodyIdle more, whatever it sent.
	bodyRate = 4 << 10

	// lingerTime is how long the rest of a body is waited for that the decoder did not
	// want: a connection that is closed with something unread loses the answer.
	lingerTime = time.Second

	// firstBody is the memory for a body of which nothing came yet, and which no budget
	// counts: what a client says of its length costs it nothing.
	firstBody = 64 << 10

	// growth bounds the memory for a body whose client says its length, by what came of
	// it: few steps, since each copies and leaves garbage, and no 64 MB for a hundred bytes.
	growth = 16

	// DefaultMaxBodies is the memory for bodies of all requests: four of the longest, or 50
	// prompts of a million tokens. The decoder wants what else there is.
	DefaultMaxBodies = 256 << 20

	// roomWait is how long a long body waits for memory: one that is sent to the decoder
	// goes within crossTime, and others wait for engines; then it is passed on as it comes.
	roomWait = 2 * time.Second

	// maxVerdict bounds the verdict in a header, without its id: servers and clients
	// take 8 KB of headers and more.
	maxVerdict = 1000

	// copyBuffer is the size of the pooled buffers that answers are copied with, and bodies
	// that are not in memory.
	copyBuffer = 32 << 10

	// sendBuffer is the size of the pooled buffers that bodies in memory are sent to the
	// decoder with: a long prompt in few writes, each of which wakes the decoder up. It is
	// counted as memory for bodies; where there is none, and for bodies that come meanwhile,
	// it is copyBuffer, which no budget counts: any proxy takes that.
	sendBuffer = 256 << 10
)

// waits are the times that tests shorten.
type waits struct{ plan, start, poll, adopt, closing, idle, room, cross time.Duration }

// withDefaults returns w with the times above in place of zero values.
func (w waits) withDefaults() waits {
	for _, x := range []struct {
		t   *time.Duration
		def time.Duration
	}{
		{&w.plan, planTimeout}, {&w.start, startWait}, {&w.poll, startPoll}, {&w.adopt, adoptTimeout},
		{&w.closing, closeAdopt}, {&w.idle, bodyIdle}, {&w.room, roomWait}, {&w.cross, crossTime},
	} {
		*x.t = orDefault(*x.t, x.def)
	}
	return w
}
