package omlx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
)

// Job writes the blocks of one plan. Its methods may be called from several
// goroutines: Write for any blocks and ranges at once, Sync at any time, Seal for
// several blocks at once (a cumulative layout needs the block before sealed), and
// Publish in chain order. A call for a block waits for conflicting calls for it.
type Job struct {
	store   *Store
	layout  *Layout
	created string
	closed  atomic.Bool
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
	header     []byte
	dirPending bool // published, but the directory is not durable yet

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
	b.mu.RLock()
	if b.state == stateFresh {
		b.mu.RUnlock()
		if err := j.start(k, b); err != nil {
			return err
		}
		b.mu.RLock()
	}
	defer b.mu.RUnlock()
	if err := b.writable(k); err != nil {
		return err
	}
	if b.file == nil && !j.store.discard {
		return fmt.Errorf("write block %d: %w", k, os.ErrClosed)
	}
	if len(p) == 0 {
		return nil
	}
	// The claim comes first: Seal waits for the write, and fails if the write did.
	if err := b.taken.claim(off, off+int64(len(p))); err != nil {
		return fmt.Errorf("write block %d: %w", k, err)
	}
	if j.store.discard {
		return nil
	}
	if err := j.put(k, b, off, p); err != nil {
		err = fmt.Errorf("write block %d: %w", k, diskError(err))
		b.dirty.fail(err)
		return err
	}
	return nil
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

// put writes p piece by piece where its bytes lie in the file.
func (j *Job) put(k int, b *block, off int64, p []byte) error {
	base := int64(len(b.header))
	lo, hi := int64(-1), int64(0)
	for n := int64(len(p)); n > 0; {
		data, run := j.layout.Locate(k, off, n)
		if _, err := b.file.WriteAt(p[:run], base+data); err != nil {
			return err
		}
		if lo < 0 {
			lo = base + data
		}
		hi = base + data + run
		p, off, n = p[run:], off+run, n-run
	}
	if j.store.opt.NoSync || lo < 0 {
		return nil
	}
	from, size := b.dirty.add(lo, hi)
	if size == 0 {
		return nil
	}
	return b.file.writeBack(from, size)
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

func (d *dirtyRange) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
}

func (d *dirtyRange) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// start makes the temporary file of a fresh block: full size, header and
// constants in place. Placeholders are zeros, which a new file has anyway.
func (j *Job) start(k int, b *block) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != stateFresh {
		return nil
	}
	if j.closed.Load() {
		return fmt.Errorf("write block %d: %w", k, os.ErrClosed)
	}
	if j.store.discard {
		b.state = stateOpen
		return nil
	}
	header, err := j.layout.Header(k, b.hash, j.created)
	if err != nil {
		return err
	}
	if j.store.open.Add(1) > int64(j.store.opt.MaxOpen) {
		j.store.open.Add(-1)
		return fmt.Errorf("open block %d: %w: the limit is %d", k, ErrFull, j.store.opt.MaxOpen)
	}
	b.header = header
	if err := j.create(k, b); err != nil {
		return errors.Join(fmt.Errorf("open block %d: %w", k, diskError(err)), j.drop(b))
	}
	b.state = stateOpen
	return nil
}

// create opens a temporary file under the first name that no live writer holds
// and fills in what is known. On error the caller drops the block.
func (j *Job) create(k int, b *block) error {
	name := b.hash.String()
	dir := filepath.Join(j.store.root, name[:1])
	var err error
	for i := range maxPartNames {
		temp := "." + name + partSuffix
		if i > 0 {
			temp = "." + name + "." + strconv.Itoa(i) + partSuffix
		}
		b.temp = filepath.Join(dir, temp)
		if b.file, err = j.store.disk.create(b.temp); !errors.Is(err, errHeld) {
			break
		}
	}
	if err != nil {
		b.file = nil
		return err
	}
	if err := b.file.allocate(int64(len(b.header)) + j.layout.DataLen(k)); err != nil {
		return err
	}
	if _, err := b.file.WriteAt(b.header, 0); err != nil {
		return err
	}
	return j.eachRange(k, func(off int64, value []byte) error {
		_, err := b.file.WriteAt(value, int64(len(b.header))+off)
		return err
	})
}

// drop closes and removes a block's temporary file and forgets it. The caller
// holds b.mu.
func (j *Job) drop(b *block) error {
	var err error
	if b.file != nil {
		// The name goes first: once the file is closed it counts as a dead writer's.
		err = errors.Join(j.store.disk.remove(b.temp), b.file.Close())
	}
	if b.header != nil {
		j.store.open.Add(-1)
	}
	b.file, b.header = nil, nil
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
	if b.file == nil || j.store.opt.NoSync {
		return nil
	}
	if err := b.file.sync(); err != nil {
		err = fmt.Errorf("sync block %d: %w", k, diskError(err))
		b.dirty.fail(err) // a failed sync may have dropped dirty pages
		return err
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
