package omlx

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"pdlink/kernels/safetensors"
)

// rangeBytes is a pool delta's range tensor: two little-endian 64-bit numbers.
const rangeBytes = 16

// eachRange calls put with the data offset and the value of every range tensor
// of block k. The value is valid during the call.
func (j *Job) eachRange(k int, put func(off int64, value []byte) error) error {
	var value [rangeBytes]byte
	for i := range j.layout.slots {
		s := &j.layout.slots[i]
		if s.mark != markRange {
			continue
		}
		binary.LittleEndian.PutUint64(value[:8], uint64(int64(k)*s.rows))
		binary.LittleEndian.PutUint64(value[8:], uint64(int64(k+1)*s.rows))
		begin, _ := s.span(k)
		if err := put(begin, value[:]); err != nil {
			return err
		}
	}
	return nil
}

// Seal finishes block k, of which all wire bytes were written. It copies the earlier
// rows of cumulative pools from block k-1, reads header and constants back and checks
// them strictly, and brings the bytes to where no power cut can leave a name without
// them. It waits for running writes of the block; several blocks may be sealed at
// once. Sealing a sealed, published or present block does nothing.
//
// It fails with ErrCall if a byte was not written, or if a cumulative layout needs
// block k-1 and that is not sealed yet: the call can be repeated then. It fails
// with ErrBlock if the file does not read back as written, and with ErrConflict,
// ErrNoSpace, os.ErrClosed or the file system's error. When there is no space, the
// open blocks behind k are given up first, from the last on, as by Write.
func (j *Job) Seal(k int) error {
	b, err := j.block(k)
	if err != nil {
		return err
	}
	for {
		limit := j.limit.Load()
		if err = j.seal(k, b); !errors.Is(err, ErrNoSpace) || !j.makeRoom(k, limit, false) {
			return err
		}
	}
}

// seal is one attempt to Seal.
func (j *Job) seal(k int, b *block) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case stateSealed, statePublished, statePresent:
		return nil
	case stateConflict:
		return fmt.Errorf("seal block %d: %w", k, b.conflict)
	}
	if err := b.dirty.failure(); err != nil {
		return fmt.Errorf("seal block %d: %w", k, diskError(err))
	}
	if j.closed.Load() {
		return fmt.Errorf("seal block %d: %w", k, os.ErrClosed)
	}
	if int64(k) >= j.limit.Load() && b.state == stateFresh {
		return fmt.Errorf("seal: %w", j.gone(k))
	}
	if gap, n := b.taken.missing(j.layout.size); n > 0 {
		return fmt.Errorf("seal block %d: %w: %d of %d bytes are missing, the first are %d to %d", k, ErrCall, n, j.layout.size, gap.begin, gap.end)
	}
	if !j.store.discard {
		if err := j.finish(k, b); err != nil {
			return fmt.Errorf("seal block %d: %w", k, diskError(err))
		}
	}
	b.state = stateSealed
	b.taken.release()
	j.earn(b)
	return nil
}

// finish does the work of Seal. The caller holds b.mu.
func (j *Job) finish(k int, b *block) error {
	if !b.reserved {
		if err := j.reserve(k, b, nil); err != nil {
			return err
		}
	}
	if err := j.compose(k, b); err != nil {
		return err
	}
	if !j.store.opt.NoSync { // the disk works on the last bytes while they are checked
		if err := b.file.writeBack(0, j.fileSize(k, b)); err != nil {
			return b.dirty.fail(err)
		}
	}
	if err := j.verify(k, b); err != nil || j.store.opt.NoSync {
		return err
	}
	return b.dirty.fail(b.file.sync())
}

// verify reads back everything that this package wrote by itself.
func (j *Job) verify(k int, b *block) error {
	size := b.head + j.layout.DataLen(k)
	got := make([]byte, b.head)
	if _, err := b.file.ReadAt(got, 0); err != nil {
		return fmt.Errorf("%w: read header back: %w", ErrBlock, err)
	}
	if sha256.Sum256(got) != b.headSum {
		return fmt.Errorf("%w: header differs", ErrBlock)
	}
	h, err := safetensors.ParseHeader(got[8:], j.layout.DataLen(k))
	if err != nil {
		return fmt.Errorf("%w: header does not parse: %w", ErrBlock, err)
	}
	if len(h.Tensors) != len(j.layout.slots) {
		return fmt.Errorf("%w: %d tensors, want %d", ErrBlock, len(h.Tensors), len(j.layout.slots))
	}
	var tail [2]byte
	n, err := b.file.ReadAt(tail[:], size-1)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("%w: read the end back: %w", ErrBlock, err)
	case n != 1:
		return fmt.Errorf("%w: file does not have %d bytes", ErrBlock, size)
	}
	var value [rangeBytes]byte
	return j.eachRange(k, func(off int64, want []byte) error {
		if _, err := b.file.ReadAt(value[:], b.head+off); err != nil {
			return fmt.Errorf("%w: read range back: %w", ErrBlock, err)
		}
		if !bytes.Equal(value[:], want) {
			return fmt.Errorf("%w: row range differs", ErrBlock)
		}
		return nil
	})
}

// compose copies the rows of earlier blocks into the cumulative pools of block k
// from the file of block k-1, which has them all.
func (j *Job) compose(k int, b *block) error {
	if k == 0 || !j.layout.Cumulative() {
		return nil
	}
	prev := &j.blocks[k-1]
	prev.mu.RLock() // always the lower index after the higher: no cycle
	defer prev.mu.RUnlock()
	if prev.state == stateSealed && prev.file != nil {
		return j.copyRows(k, b, prev.file, prev.head)
	}
	if prev.state != statePublished && prev.state != statePresent {
		return fmt.Errorf("%w: cumulative pools need block %d sealed first", ErrCall, k-1)
	}
	path := j.store.Path(prev.hash)
	f, err := openBlock(path)
	if err != nil {
		return fmt.Errorf("open block %d: %w", k-1, err)
	}
	if err := sameBlock(f, path, j.layout, k-1, prev.hash); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(j.copyRows(k, b, f, 0), f.Close())
}

// copyRows copies every cumulative tensor of block k-1 to the front of the same
// tensor of block k. base is the offset of the data region in src.
func (j *Job) copyRows(k int, b *block, src io.ReaderAt, base int64) error {
	buf := make([]byte, copyStep)
	for i := range j.layout.slots {
		s := &j.layout.slots[i]
		if !s.cumulates {
			continue
		}
		from, end := s.span(k - 1)
		to, _ := s.span(k)
		for from < end {
			n := min(end-from, copyStep)
			if got, err := src.ReadAt(buf[:n], base+from); int64(got) < n {
				return fmt.Errorf("read rows of block %d: %w", k-1, err)
			}
			if _, err := b.file.WriteAt(buf[:n], b.head+to); err != nil {
				return fmt.Errorf("write earlier rows: %w", err)
			}
			from, to = from+n, to+n
		}
	}
	return nil
}

// Publish makes sealed block k visible under its final name; Settle makes that
// durable. It is called in chain order: block k-1 must be published or present. If
// another writer published the same block meanwhile, its file stays and this one's
// is dropped. Publishing a published or present block again does nothing.
//
// It fails with ErrCall if the block is not sealed or the one before is not
// visible, and with ErrConflict if the name was taken by something else. Present
// says whether the block is visible: it is if only closing the file failed.
func (j *Job) Publish(k int) error {
	b, err := j.block(k)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == statePublished || b.state == statePresent:
		return nil
	case b.state == stateConflict:
		return fmt.Errorf("publish block %d: %w", k, b.conflict)
	case b.state == stateFresh && int64(k) >= j.limit.Load():
		return fmt.Errorf("publish: %w", j.gone(k))
	case b.state != stateSealed:
		return fmt.Errorf("publish block %d: %w: not sealed", k, ErrCall)
	case k > 0 && !j.Present(k-1):
		return fmt.Errorf("publish block %d: %w: block %d is not visible", k, ErrCall, k-1)
	}
	if j.store.discard {
		b.state = statePublished
		return nil
	}
	if b.file == nil {
		return fmt.Errorf("publish block %d: %w", k, os.ErrClosed)
	}
	if err = j.reveal(k, b); err != nil {
		return fmt.Errorf("publish block %d: %w", k, err)
	}
	return nil
}

// reveal renames the file. The caller holds b.mu.
func (j *Job) reveal(k int, b *block) error {
	err := j.store.disk.publish(b.temp, j.store.Path(b.hash))
	if errors.Is(err, fs.ErrExist) {
		return j.yield(k, b)
	}
	if err != nil {
		return diskError(err)
	}
	b.state, b.dirPending = statePublished, true
	err = b.file.Close()
	b.file, b.head = nil, 0
	j.store.open.Add(-1)
	return err
}

// yield leaves the name to the file that is there, if it is the same block. Its
// writer may have died before the name was durable.
func (j *Job) yield(k int, b *block) error {
	switch err := j.store.examine(j.layout, k, b.hash); {
	case err == nil:
		b.state, b.dirPending = statePresent, true
		return j.drop(b)
	case errors.Is(err, ErrConflict):
		b.state, b.conflict = stateConflict, err
		return errors.Join(err, j.drop(b))
	default:
		return err
	}
}
