package main

import "time"

// Tuned numbers, each with its reason.
const (
	// grace is how long a program may take beyond its time: Python imports its
	// modules, and UCX looks at every device.
	grace = 20 * time.Second

	// poll is how often output is looked at: far below anything that is measured.
	poll = 20 * time.Millisecond

	// stopGrace is how long a program may take to end after a signal.
	stopGrace = 3 * time.Second

	// settle is how long programs get that do not say when they listen, or say so
	// before they do: one that comes too early fails its trial.
	settle = 500 * time.Millisecond

	// quietCores is what may run besides without being waited for, and quietLook how
	// long that is watched: 50 ticks of the kernel's accounting on each core.
	quietCores = 0.2
	quietLook  = 500 * time.Millisecond

	// ticksPerSecond is the kernel's, on every Linux that people run.
	ticksPerSecond = 100

	// ucxWarmup is the blocks that UCX sends before it measures: buffers and
	// connections are made by then.
	ucxWarmup = 2

	// nixlBlocks is the blocks of memory at each end, as many as Mooncake's below,
	// and nixlDepth how many are on their way: more made it no faster.
	nixlBlocks = 16
	nixlDepth  = 4

	// mooncakeBatch is the blocks of one request.
	mooncakeBatch  = 2
	mooncakeBlocks = 16
)
