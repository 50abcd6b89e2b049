package omlx

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
)

// Job writes the blocks of one plan. Its methods may be called from several
// goroutines: Write for any blocks and ranges at once, Sync at any time, Seal for
// several blocks at once (a cumulative layout needs the block before sealed), Publish
// in chain order, and Settle behind it. A call for a block waits for conflicting calls for it.
type Job struct {
	store   *Store
	layout  *Layout
	created string
	closed  atomic.Bool
	pushing atomic.Bool  // a write-back runs next to the writes
	room    sync.Mutex   // guards the lowering of limit; comes before a block's mu
	limit   atomic.Int64 // this block and those behind it were given up
	blocks  []block
}

// blockState is how far a block is.
type blockState int

const (
	stateFresh     blockState = iota // nothing written
	stateOpen                        // has a temporary file
	stateSealed                      // complete, checked and durable under its temporary name
	statePublished                   // visible
	statePresent                     // was there already
	stateConflict                    // the name is taken by something else
)

// block is one block of a job.
type block struct {
	hash       Hash
	mu         sync.RWMutex // guards the fields up to dirPending; Write holds it shared
	state      blockState
	conflict   error
	file       part
	temp       string
	head       int64             // bytes of the header and its length field; 0 without a file
	headSum    [sha256.Size]byte // of these
	reserved   bool              // the file has its size, its header and its constants
	advance    int64             // what of it counts against the store's maxAdvance
	dirPending bool              // visible, but the directory is not durable yet

	taken coverage // wire bytes that a Write took
	dirty dirtyRange
}

// dirtyRange gathers written ranges until they are worth a write-back call, and
// keeps the first write error.
type dirtyRange struct {
	mu           sync.Mutex
	lo, hi, size int64
	err          error
}

// Blocks returns the number of blocks of the plan.
func (j *Job) Blocks() int { return len(j.blocks) }

// WireSize returns the bytes of one block's wire data.
func (j *Job) WireSize() int64 { return j.layout.size }

// Layout returns the layout of all blocks.
func (j *Job) Layout() *Layout { return j.layout }

// Path returns the final path of a block; empty for an index outside the plan or
// a discarding store.
func (j *Job) Path(k int) string {
	if k < 0 || k >= len(j.blocks) || j.store.discard {
		return ""
	}
	return j.store.Path(j.blocks[k].hash)
}

// Present reports whether block k is visible in the store: a file of this hash
// with exactly this layout was there at Begin, or Publish made one.
func (j *Job) Present(k int) bool {
	b, err := j.block(k)
	if err != nil {
		return false
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.state == statePresent || b.state == statePublished
}

// Conflict returns ErrConflict with the reason if block k's name is taken by a
// file that is not this block; nil otherwise.
func (j *Job) Conflict(k int) error {
	b, err := j.block(k)
	if err != nil {
		return err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.conflict
}

func (j *Job) block(k int) (*block, error) {
	if k < 0 || k >= len(j.blocks) {
		return nil, fmt.Errorf("%w: block %d is outside the plan of %d", ErrCall, k, len(j.blocks))
	}
	return &j.blocks[k], nil
}

// Write puts wire bytes of block k at wire offset off: any order, any length, any
// alignment, every byte once. Different goroutines may write different ranges of
// one block. p is not kept. Nothing is visible before Publish.
//
// A range of which a byte was written before is refused whole with ErrCall and
// what is there stays, equal or not; of two overlapping ranges that are written at
// the same time exactly one is taken.
//
// When there is no space, the job gives up its last open block and tries again, so
// that the blocks in front get what there is. With ErrNoSpace this block was given
// up: it takes no more bytes, nor do those behind it.
//
// Errors: ErrCall also for a range outside the plan, a block that is sealed,
// published or present, and ErrFull: they change nothing. ErrConflict, ErrNoSpace,
// os.ErrClosed after Close, or the file system's: a block with bytes that could not
// be written can no longer be sealed.
func (j *Job) Write(k int, off int64, p []byte) error {
	b, err := j.block(k)
	if err != nil {
		return err
	}
	if off < 0 || int64(len(p)) > j.layout.size || off > j.layout.size-int64(len(p)) {
		return fmt.Errorf("%w: %d bytes at %d are outside block %d of %d", ErrCall, len(p), off, k, j.layout.size)
	}
	for {
		limit := j.limit.Load()
		again, err := j.write(k, b, off, p)
		if !again || !j.makeRoom(k, limit, true) {
			return err
		}
	}
}

// write is one attempt to Write. With again there was no space for it, and nothing
// was taken.
func (j *Job) write(k int, b *block, off int64, p []byte) (again bool, err error) {
	if again, err := j.prepare(k, b, int64(len(p))); err != nil {
		return again, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err := b.writable(k); err != nil {
		return false, err
	}
	if b.file == nil && !j.store.discard {
		return false, j.gone(k)
	}
	if len(p) == 0 {
		return false, nil
	}
	// The claim comes first: Seal waits for the write, and fails if the write did.
	end := off + int64(len(p))
	if err := b.taken.claim(off, end); err != nil {
		return false, fmt.Errorf("write block %d: %w", k, err)
	}
	if j.store.discard {
		return false, nil
	}
	lo, hi, err := j.put(k, b, off, p)
	if err = diskError(err); errors.Is(err, ErrNoSpace) {
		b.taken.unclaim(off, end)
		return true, fmt.Errorf("write block %d: %w", k, err)
	}
	if err == nil {
		err = diskError(j.push(b, lo, hi))
	}
	if err != nil {
		err = b.dirty.fail(fmt.Errorf("write block %d: %w", k, err))
	}
	return false, err
}

// writable reports why the block takes no bytes. The caller holds b.mu.
func (b *block) writable(k int) error {
	switch b.state {
	case stateConflict:
		return fmt.Errorf("write block %d: %w", k, b.conflict)
	case stateSealed, statePublished, statePresent:
		return fmt.Errorf("write block %d: %w: it is sealed or present", k, ErrCall)
	}
	return nil
}

// put writes p piece by piece where its bytes lie in the file, and returns the
// range of the file that holds them.
func (j *Job) put(k int, b *block, off int64, p []byte) (lo, hi int64, err error) {
	lo = -1
	for n := int64(len(p)); n > 0; {
		data, run := j.layout.Locate(k, off, n)
		if _, err := b.file.WriteAt(p[:run], b.head+data); err != nil {
			return 0, 0, err
		}
		if lo < 0 {
			lo = b.head + data
		}
		hi = b.head + data + run
		p, off, n = p[run:], off+run, n-run
	}
	return lo, hi, nil
}

// push starts write-back once enough has gathered: next to the caller, who goes on
// copying, unless that runs already. Then the disk is behind, and the caller waits
// with it. Its errors are those of bytes that were taken before. The caller holds
// b.mu, shared.
func (j *Job) push(b *block, lo, hi int64) error {
	if j.store.opt.NoSync {
		return nil
	}
	from, size := b.dirty.add(lo, hi)
	if size == 0 {
		return nil
	}
	if !j.pushing.CompareAndSwap(false, true) {
		return b.file.writeBack(from, size)
	}
	if !b.mu.TryRLock() { // somebody waits to have the block alone
		j.pushing.Store(false)
		return b.file.writeBack(from, size)
	}
	go func() {
		defer b.mu.RUnlock()
		defer j.pushing.Store(false)
		b.dirty.fail(diskError(b.file.writeBack(from, size))) //nolint:errcheck // kept: Seal reports it
	}()
	return nil
}

// add notes a written range and returns the range to write back once enough has
// gathered; size 0 before that.
func (d *dirtyRange) add(lo, hi int64) (from, size int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.size == 0 {
		d.lo, d.hi = lo, hi
	} else {
		d.lo, d.hi = min(d.lo, lo), max(d.hi, hi)
	}
	if d.size += hi - lo; d.size < writeBackStep {
		return 0, 0
	}
	d.size = 0
	return d.lo, d.hi - d.lo
}

// fail keeps and returns an error; nil is none.
func (d *dirtyRange) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
	return err
}

func (d *dirtyRange) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// drop closes and removes a block's temporary file and forgets it. The caller
// holds b.mu.
func (j *Job) drop(b *block) error {
	var err error
	if b.file != nil {
		// The name goes first: once the file is closed it counts as a dead writer's.
		err = j.store.disk.remove(b.temp)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // somebody cleared the store meanwhile
		}
		err = errors.Join(err, b.file.Close())
	}
	if b.head > 0 {
		j.store.open.Add(-1)
	}
	b.file, b.head, b.reserved = nil, 0, false
	j.earn(b)
	return err
}

// Sync makes what was written to block k so far durable under its temporary
// name; a no-op for a block without one, or with NoSync.
func (j *Job) Sync(k int) error {
	b, err := j.block(k)
	if err != nil {
		return err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.file == nil || j.store.opt.NoSync || (b.state == stateSealed) {
		return nil
	}
	if err := b.file.sync(); err != nil {
		// A failed sync may have dropped dirty pages.
		return b.dirty.fail(fmt.Errorf("sync block %d: %w", k, diskError(err)))
	}
	return nil
}

// Close removes the temporary files of all blocks that were not published and
// waits for running calls. Later calls fail with os.ErrClosed. It is idempotent.
func (j *Job) Close() error {
	j.closed.Store(true)
	var errs []error
	for k := range j.blocks {
		b := &j.blocks[k]
		b.mu.Lock()
		if b.file != nil {
			errs = append(errs, j.drop(b))
		}
		b.mu.Unlock()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
