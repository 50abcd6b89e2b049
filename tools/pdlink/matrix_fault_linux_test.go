//go:build faults

package main

import (
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The moments at which a fault strikes.
const (
	inHandshake = "handshake" // until the first frame
	whenIdle    = "idle"      // one of two senders has sent its share and waits for the other
	inMiddle    = "middle"    // of the frames, but for those of the last block
	inLast      = "last"      // frames of the last block, and the end
)

func matrixPhases() []string { return []string{inHandshake, whenIdle, inMiddle, inLast} }

// matrixFault is one kind of fault.
type matrixFault struct {
	name string

	// One of these happens at the chosen moment: now when it is not about bytes,
	// bytes to those of one direction from there on.
	now   func(*matrixRun)
	bytes func(*matrixRun, *leg, []byte) (out []byte, alive bool)

	ends  bool             // whatever now is about, the direction's bytes end with it
	after func(*matrixRun) // what the world does next
	mends func(*matrixRun) // what the world does before the transfer is run again
	delay time.Duration    // of every byte, all the time
	gone  bool             // somebody does not come back: the transfer need not complete
	harm  func(*matrixRun) // replaces the store's place; nil: it is fine
	long  bool             // once in a matrix only
	why   []string         // one of which a verdict names when the transfer is not complete
}

// brokenDisk is what a verdict says of one.
func brokenDisk() []string { return []string{"input/output error"} }

func matrixFaults() []matrixFault {
	restartReceiver := func(r *matrixRun) {
		r.lose()
		time.Sleep(time.Duration(r.rng.IntN(300)) * time.Millisecond)
		r.startReceiver()
	}
	restartSender := func(r *matrixRun) {
		time.Sleep(time.Duration(r.rng.IntN(100)) * time.Millisecond)
		r.senders[0] = r.startSender(r.relays[0], 0)
	}
	hole := func(d time.Duration) func(*matrixRun) { return func(r *matrixRun) { r.relays[0].pause(d) } }
	breakDisk := func(how string) func(*matrixRun) { return func(r *matrixRun) { r.receiver.say(r, how) } }
	return []matrixFault{
		{name: "cut", now: func(r *matrixRun) { r.relays[0].cut(false) }, ends: true},
		{name: "reset", now: func(r *matrixRun) { r.relays[0].cut(true) }, ends: true},
		{name: "half-close", bytes: func(_ *matrixRun, l *leg, _ []byte) ([]byte, bool) { l.to.CloseWrite(); return nil, false }},
		{name: "black hole", now: hole(7500 * time.Millisecond)}, // the detector needs 6 s
		{name: "black hole 30 s", now: hole(30 * time.Second), long: true},
		{name: "corrupt", bytes: func(r *matrixRun, _ *leg, b []byte) ([]byte, bool) { b[0] ^= 1 << r.rng.IntN(8); return b, true }},
		{name: "duplicate", bytes: func(r *matrixRun, _ *leg, b []byte) ([]byte, bool) {
			return append(slices.Clone(b[:1+r.rng.IntN(min(len(b), 4096))]), b...), true
		}},
		{name: "truncate", bytes: func(r *matrixRun, l *leg, b []byte) ([]byte, bool) { // some bytes are missing, the next end the connection
			l.write(b[1+r.rng.IntN(min(len(b), 4096)):])
			l.r.cut(false)
			return nil, false
		}},
		{name: "delay", delay: 200 * time.Millisecond, now: func(*matrixRun) {}},
		{name: "loss", now: func(r *matrixRun) { r.relays[0].lose(r, 3+r.rng.IntN(12)) }},
		{name: "kill sender", now: func(r *matrixRun) { r.senders[0].kill() }, gone: true},
		{name: "kill receiver", now: func(r *matrixRun) { r.receiver.kill() }, gone: true},
		{name: "restart sender", now: func(r *matrixRun) { r.senders[0].kill() }, after: restartSender},
		{name: "restart receiver", now: func(r *matrixRun) { r.receiver.kill() }, after: restartReceiver},
		{name: "stop and start receiver", now: func(r *matrixRun) { r.receiver.signal() },
			after: func(r *matrixRun) { r.endReceiver(); restartReceiver(r) }},
		{name: "disk full", harm: smallDisk, now: (*matrixRun).fillDisk, gone: true,
			mends: func(r *matrixRun) { os.Remove(r.filler()) }, why: []string{"no space left"}},
		{name: "EIO on write", now: breakDisk(sayBreakWrite), gone: true, mends: anotherReceiver, why: brokenDisk()},
		{name: "EIO on sync", now: breakDisk(sayBreakSync), gone: true, mends: anotherReceiver, why: brokenDisk()},
		{name: "slow disk", now: breakDisk(saySlow)},
	}
}

// lose notes what a receiver that is gone takes along: what it was sent and had not
// made a visible block of.
func (r *matrixRun) lose() {
	had := r.plan.want.check(r, r.store).visible
	r.lost += max(0, r.sent()-r.clean.handshake-int64(had)*r.blockBytes())
}

// anotherReceiver is one whose disk works.
func anotherReceiver(r *matrixRun) {
	r.endReceiver()
	r.startReceiver()
}

// smallDisk puts the store on a disk of its own.
func smallDisk(r *matrixRun) {
	dir := r.TempDir()
	if err := mountDisk(dir, 4*r.clean.all+8<<20); err != nil {
		r.Fatalf("mount a small disk: %v", err)
	}
	r.Cleanup(func() { unmountDisk(dir) })
	r.store = filepath.Join(dir, "store")
}

func (r *matrixRun) filler() string { return filepath.Join(filepath.Dir(r.store), "filler") }

// fillDisk leaves room for less than the transfer.
func (r *matrixRun) fillDisk() {
	if err := fillDisk(r.filler(), r.rng.Int64N(r.clean.dialler)); err != nil {
		r.Errorf("fill the disk: %v", err)
	}
}
