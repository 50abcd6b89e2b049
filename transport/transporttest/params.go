package transporttest

import "time"

// Times of the suite. What has to happen is waited for as long as soon, which
// a loaded machine under the race detector does not reach; what must not happen
// is given quiet to happen in.
const (
	// soon bounds everything that has to happen, unless the harness has less
	// patience.
	soon = 8 * time.Second

	// quiet is how long the suite watches for what must not happen: a
	// hundred round trips of a loopback connection.
	quiet = 25 * time.Millisecond

	// brief is the deadline of calls that are expected to run into it.
	brief = 25 * time.Millisecond

	// poll is the pause between looks at a state that changes on its own.
	poll = time.Millisecond
)

// Sizes of the suite's own rings and transfers: small, so that limits are
// reached with little traffic.
const (
	testSlots   = 16       // slots of a ring that a check did not ask for
	testPayload = 28 << 10 // payload bytes of their slots
	testWindow  = 4        // frames granted ahead
)

// SeedVariable is the environment variable that sets the seed of the random
// choices: a decimal number. Without it each run draws its own.
const SeedVariable = "TRANSPORTTEST_SEED"
