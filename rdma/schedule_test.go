package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// Schedules of faults: how many run, and the first seed, can be set to repeat one.
const (
	schedulesVariable = "RDMA_SCHEDULES"
	seedVariable      = "RDMA_SEED"
	schedules         = 16
)

// fault is something that goes wrong at a time.
type fault struct {
	name string
	do   func(e *ends, rng *rand.Rand)
}

func faults() []fault {
	one := func(e *ends, rng *rand.Rand) *fakeverbs.Host {
		if rng.IntN(2) == 0 {
			return e.a
		}
		return e.b
	}
	statuses := []verbs.Status{
		verbs.StatusRetries, verbs.StatusRNR, verbs.StatusRemoteAccess, verbs.StatusLocalLength, verbs.StatusFatal, verbs.StatusGeneral,
	}
	return []fault{
		{"completion error", func(e *ends, rng *rand.Rand) { one(e, rng).FailAfter(rng.IntN(20), statuses[rng.IntN(len(statuses))]) }},
		{"port flap", func(e *ends, rng *rand.Rand) {
			h := one(e, rng)
			h.SetPort(false)
			time.AfterFunc(time.Duration(rng.IntN(3000))*time.Millisecond, func() { h.SetPort(true) })
		}},
		{"queue pairs break", func(e *ends, rng *rand.Rand) { one(e, rng).Break() }},
		{"refused teardown", func(e *ends, rng *rand.Rand) { one(e, rng).Refuse(1 + rng.IntN(6)) }},
		{"nothing", func(*ends, *rand.Rand) {}},
	}
}

// schedule runs one transfer with the faults that a seed gives, over as many
// connections as that takes; the last one has none.
func schedule(t *testing.T, p func() fakeverbs.Personality, o Options, seed uint64) (lost int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	e := newEnds(p, 1+rng.IntN(2), o)
	e.net.Seed, e.net.Latency = seed, time.Duration(1+rng.IntN(300))*time.Microsecond
	e.net.Odds = fakeverbs.Odds{Fail: 0.002 * rng.Float64(), Drop: 0.002 * rng.Float64(), Slow: 0.2 * rng.Float64(), RNR: 0.1 * rng.Float64()}
	free := e.rings(t, 16, 32<<10)
	defer free()
	load := &cargo{}
	for range 10 + rng.IntN(80) {
		load.sizes = append(load.sizes, 1+rng.IntN(60<<10))
	}
	load.had = make([]bool, len(load.sizes))
	const most = 8
	for try := 1; !load.complete(); try++ {
		if try == most {
			e.net.Odds = fakeverbs.Odds{}
			e.a.FailAfter(-1, 0)
			e.b.FailAfter(-1, 0)
			time.Sleep(5 * time.Second) // every port is up again
		}
		var timers []*time.Timer
		if try < most {
			for range rng.IntN(4) {
				f := faults()[rng.IntN(len(faults()))]
				own := rand.New(rand.NewPCG(rng.Uint64(), 2))
				timers = append(timers, time.AfterFunc(time.Duration(rng.IntN(10_000))*time.Microsecond, func() { f.do(e, own) }))
			}
		}
		err := attempt(t.Context(), e, load)
		for _, timer := range timers {
			timer.Stop()
		}
		switch {
		case errors.Is(err, errWrong):
			t.Fatal(err)
		case err != nil && try == most:
			t.Fatalf("connection %d, without faults: %v", try, err)
		case err == nil && !load.complete():
			t.Fatalf("connection %d ended well with blocks missing", try)
		}
		if err != nil {
			lost++
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		}
	}
	time.Sleep(5 * time.Second) // whatever was told to happen later has
	if err := e.left(); err != nil {
		t.Error(err)
	}
	return lost
}

// attempt is one connection.
func attempt(ctx context.Context, e *ends, load *cargo) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	a, b, err := e.connect(ctx)
	if err != nil {
		if !errors.Is(err, transport.ErrLost) && !errors.Is(err, transport.ErrUnavailable) {
			return fmt.Errorf("%w: %w", errWrong, err) // an error that nobody knows what to do about
		}
		return err
	}
	err = load.move(ctx, a, b)
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: it hangs: %w", errWrong, err)
	}
	return errors.Join(err, closeBoth(a, b))
}

// number is the value of an environment variable, or def.
func number(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: %v", name, s, err)
	}
	return n
}

// TestSchedules runs seeded faults on every personality, in bubbles where time is
// virtual: each transfer completes, nothing wrong is delivered, and nothing is left.
func TestSchedules(t *testing.T) {
	n, first := number(t, schedulesVariable, schedules), number(t, seedVariable, 1)
	for name, c := range map[string]struct {
		p func() fakeverbs.Personality
		o Options
	}{
		"mlx5":     {fakeverbs.MLX5, Options{}},
		"read":     {fakeverbs.MLX5, Options{NoRemoteWrite: true}},
		"mcdma":    {fakeverbs.MCDMA, Options{}},
		"melondma": {fakeverbs.MelonDMA, Options{}},
		"apple":    {fakeverbs.Apple, Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			struck, lost := 0, 0
			for seed := first; seed < first+n && !t.Failed(); seed++ {
				here := 0
				synctest.Test(t, func(t *testing.T) { here = schedule(t, c.p, c.o, seed) })
				if lost += here; here > 0 {
					struck++
				}
				if t.Failed() {
					t.Logf("set %s=%d and %s=1 to repeat it", seedVariable, seed, schedulesVariable)
				}
			}
			t.Logf("%d schedules: %d lost %d connections", n, struck, lost)
			if n >= schedules && uint64(struck) < n/10 {
				t.Errorf("faults strike %d of %d schedules: they try nothing", struck, n)
			}
		})
	}
}
