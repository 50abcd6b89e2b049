package transporttest

import (
	"hash/fnv"
	"net"
	"slices"
	"testing"
)

// check is one outcome that the contract names.
type check struct {
	name    string
	run     func(e *env)
	sockets bool // needs Harness.Sockets
	frames  bool // needs frames that pass the sockets
}

// checks is the whole suite, in the order of the contract.
func checks() []check {
	return slices.Concat(factChecks(), linkChecks(), trafficChecks(), creditChecks(), keepChecks(), salvageChecks(),
		flushChecks(), finishChecks(), cancelChecks(), deadlineChecks(), silenceChecks(), closeChecks(), admitChecks(), errorChecks(), partChecks(),
		faultChecks(), damageChecks(), peerChecks(), proxyChecks())
}

// Run runs the suite on a link, each check as a subtest with connections of
// its own.
func Run(t *testing.T, h Harness) {
	warmUp(t)
	seed := Seed(t)
	for _, c := range checks() {
		if c.sockets && !h.Sockets || c.frames && h.ControlOnly {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.guarded(t, h, seed) })
	}
}

// guarded runs the check under a watchdog, with random choices that depend on
// the seed and its name only, so that it repeats alone.
func (c check) guarded(tb testing.TB, h Harness, seed uint64) {
	tb.Helper()
	name := fnv.New64a()
	name.Write([]byte(c.name))
	own := seed ^ name.Sum64()
	guard(tb, h.watchdog(), func(tb testing.TB) {
		e := newEnv(tb, h, own)
		e.printed = seed
		c.run(e)
	})
}

// warmUp lets the runtime open the files that it keeps for sockets, so that no
// check takes them for a leak.
func warmUp(tb testing.TB) {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen on loopback: %v", err)
	}
	l.Close() //nolint:errcheck // nothing was done with it
}
