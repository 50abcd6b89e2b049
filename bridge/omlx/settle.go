package omlx

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
)

// commits makes names durable for all jobs of a store: whoever asks for a
// directory while its synchronisation runs shares the next one with all others who
// do.
type commits struct {
	dirs [16]commit // by the hash's first digit, which names the directory
}

// commit is one directory.
type commit struct {
	turn sync.Mutex // held by the round that runs

	mu   sync.Mutex // guards next and its waiting
	next *round     // has not begun: whoever joins it is served by it
}

// round is one synchronisation.
type round struct {
	waiting int           // calls that it serves
	done    chan struct{} // closed when err is set
	err     error
}

// run returns when a call of sync that began after run did has ended, with its
// error.
func (c *commit) run(sync func() error) error {
	c.mu.Lock()
	if r := c.next; r != nil {
		r.waiting++
		c.mu.Unlock()
		<-r.done
		return r.err
	}
	r := &round{waiting: 1, done: make(chan struct{})}
	c.next = r
	c.mu.Unlock()
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	c.next = nil // names given from here on may be too late for it
	c.mu.Unlock()
	r.err = sync()
	close(r.done)
	return r.err
}

// syncName makes the names in the directory of a hash durable.
func (s *Store) syncName(h Hash) error {
	return s.commits.dirs[h[0]>>4].run(func() error {
		return s.disk.syncDir(filepath.Dir(s.Path(h)))
	})
}

// Settle makes n published blocks from first on durable, names and bytes: one
// synchronisation for each directory that they are in, shared with other jobs of
// the store that ask at the same time. It returns for how many of the n, from first
// on, it did so; where that is fewer, the error says why of the next. Blocks that
// are settled or were present cost nothing. Calls for different blocks may run at
// the same time.
//
// It fails with ErrCall for a block that is not published, or with the file system's
// error. A repeated call tries again.
func (j *Job) Settle(first, n int) (int, error) {
	if n < 0 || first < 0 || n > len(j.blocks)-first {
		return 0, fmt.Errorf("settle: %w: %d blocks from %d on are outside the plan of %d", ErrCall, n, first, len(j.blocks))
	}
	var dirs [16]bool
	for k := first; k < first+n; k++ {
		b := &j.blocks[k]
		b.mu.RLock()
		dirs[b.hash[0]>>4] = dirs[b.hash[0]>>4] || b.dirPending
		b.mu.RUnlock()
	}
	errs := j.syncDirs(dirs, first, n)
	for k := first; k < first+n; k++ {
		b := &j.blocks[k]
		if err := b.settle(k, errs[b.hash[0]>>4]); err != nil {
			return k - first, err
		}
	}
	return n, nil
}

// syncDirs makes the names in directories durable, next to each other.
func (j *Job) syncDirs(dirs [16]bool, first, n int) (errs [16]error) {
	if j.store.opt.NoSync {
		return errs
	}
	var wg sync.WaitGroup
	for k := first; k < first+n; k++ {
		if d := j.blocks[k].hash[0] >> 4; dirs[d] {
			dirs[d] = false
			wg.Go(func() { errs[d] = j.store.syncName(j.blocks[k].hash) })
		}
	}
	wg.Wait()
	return errs
}

// settle notes that the block's name is durable, unless err says that it is not.
func (b *block) settle(k int, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state != statePublished && b.state != statePresent:
		return fmt.Errorf("settle block %d: %w: not published", k, ErrCall)
	case b.dirPending && err != nil:
		return fmt.Errorf("settle block %d: %w", k, diskError(err))
	}
	b.dirPending = false
	return nil
}

// settlePresent makes the names of the blocks that are there durable: a writer may
// have died between giving a name and that. Nobody else has the job yet.
func (j *Job) settlePresent() error {
	if j.store.opt.NoSync || j.store.discard {
		return nil
	}
	var done [16]bool // by the hash's first digit, which names the directory
	for k := range j.blocks {
		b := &j.blocks[k]
		digit := b.hash[0] >> 4
		if b.state != statePresent || done[digit] {
			continue
		}
		err := j.store.syncName(b.hash)
		switch {
		case errors.Is(err, fs.ErrNotExist): // somebody cleared the store meanwhile
			b.state = stateFresh
		case err != nil:
			return err
		default:
			done[digit] = true
		}
	}
	return nil
}
