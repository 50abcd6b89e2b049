package main

import "time"

// Defaults of the command line, and limits.
const (
	// defaultURL is where serve listens. 7411 is pdlink's.
	defaultURL = "tcp://127.0.0.1:7412"

	// defaultBlock is in the range of a decoder's blocks (2,048 tokens of
	// DeepSeek-V4 are 20 MB), and what other transports are measured with.
	defaultBlock = 16 << 20

	// defaultFrame is the payload of one frame, as the product's rings have it.
	defaultFrame = 1 << 20

	// defaultInFlight blocks are on their way at a time: two hide the round
	// trip of an acknowledgement on a LAN, the third hides a busy scheduler.
	defaultInFlight = 3

	// defaultGroups of a model's blocks are on their way at a time: the chunk that is made
	// and the one before it.
	defaultGroups = 2

	// defaultGroup and more at a time is cold whatever the number of buffers: it is more
	// than caches have.
	defaultGroup = 64 << 20

	// defaultBack is what a receiving end has to send from when it is asked to: eight
	// default blocks.
	defaultBack = 128

	// defaultTime is long enough that the first and last block's edges are
	// below one part in a thousand at 10 Gbit/s.
	defaultTime = 10 * time.Second

	// defaultWarmup fills congestion windows and buffers, and touches memory.
	defaultWarmup = time.Second

	// defaultSlots is the receive ring: 64 MiB of default frames, as pdlink
	// decode has it.
	defaultSlots = 64

	// minBuffers blocks are what a sender owns at least, so that each is cold
	// when its turn comes: 128 MiB of default blocks are four times the
	// largest cache of a current server's core complex.
	minBuffers = 8

	// maxBlock and maxMemory keep a mistyped size from taking the host down.
	maxBlock  = 1 << 30
	maxMemory = 8 << 30

	// unit is the grain of block and frame sizes: a frame begins with a tag of
	// so many bytes that names its slot.
	unit = 8

	// maxInFlight bounds the goroutines of a sender. The contract asks for the
	// acknowledgement of at most a few blocks at a time; with more in flight
	// block times are upper bounds.
	maxInFlight = 64

	// maxRun bounds --time and --warmup: 64 bytes of samples a block, and
	// nobody waits longer.
	maxRun = time.Hour

	// maxBlocks ends a run early: 128 MiB of samples.
	maxBlocks = 1 << 23

	// patience is how long a run may go on after its time for the blocks that
	// are on their way: 48 MiB at 100 Mbit/s take 4 s.
	patience = 30 * time.Second

	// turnWait is how long a run waits for the one before it: that has ended when its
	// connection has, which this end learns a moment after the other one.
	turnWait = 10 * time.Second

	// floorMemory is what a floor may have a receiving end take, whatever that was told
	// about its memory: the receive ring by default.
	floorMemory = defaultSlots * defaultFrame

	// strangerWait bounds how long others wait while a host is told that it gets no floor.
	strangerWait = 2 * time.Second

	// maxHosts bounds how many hosts a receiving end remembers that have connected.
	maxHosts = 1024

	// maxPoints bounds the combinations of a sweep: nobody waits longer.
	maxPoints = 4096

	// maxOpen is how many blocks a receiver assembles at a time.
	maxOpen = 4 * maxInFlight

	// sampleEvery is how often a receiving end looks whether bytes wait for it. A look
	// takes about 0.1 ms of a core, so all of them take less than a hundredth of what
	// receiving at 1 GB/s does; a second has as many as why wants to say something.
	sampleEvery = 50 * time.Millisecond

	// maxLine bounds one line of the conversation of a floor's two ends, and
	// of a child's first word.
	maxLine = 64 << 10

	// greeting bounds how long a child may take to listen, and a floor's peer
	// to say what it wants.
	greeting = 20 * time.Second
)
