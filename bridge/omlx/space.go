package omlx

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// prepare makes the block ready for n more bytes: its temporary file with the
// first, the space for all of it then or once enough has come. again is as in write.
func (j *Job) prepare(k int, b *block, n int64) (again bool, err error) {
	b.mu.RLock()
	ready := b.state != stateFresh && !j.due(k, b, n)
	b.mu.RUnlock()
	if ready {
		return false, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var header []byte
	if b.state == stateFresh {
		if header, err = j.start(k, b); err != nil {
			return errors.Is(err, ErrNoSpace) && int64(k) < j.limit.Load(), err
		}
	}
	switch due := j.due(k, b, n); {
	case due && b.reserved:
		j.earn(b)
		return false, nil
	case !due && !j.borrow(k, b):
		return false, nil
	}
	if err = j.reserve(k, b, header); err != nil {
		err = fmt.Errorf("reserve space for block %d: %w", k, diskError(err))
	}
	return errors.Is(err, ErrNoSpace), err
}

// due reports whether n more bytes are enough for the block's space, and something
// is to be done about it. The caller holds b.mu, possibly shared.
func (j *Job) due(k int, b *block, n int64) bool {
	return b.state == stateOpen && b.file != nil && (!b.reserved || b.advance > 0) &&
		(b.taken.count()+n)*reserveAt >= j.fileSize(k, b)
}

func (j *Job) fileSize(k int, b *block) int64 { return b.head + j.layout.DataLen(k) }

// borrow reports whether the block's space may be reserved in advance. The caller
// holds b.mu and reserves it then.
func (j *Job) borrow(k int, b *block) bool {
	if b.file == nil || b.reserved || b.taken.count() > 0 { // only the first byte
		return false
	}
	size := j.fileSize(k, b)
	if j.store.advance.Add(size) > maxAdvance {
		j.store.advance.Add(-size)
		return false
	}
	j.earn(b) // of an attempt that failed
	b.advance = size
	return true
}

// earn ends the block's advance. The caller holds b.mu.
func (j *Job) earn(b *block) {
	j.store.advance.Add(-b.advance)
	b.advance = 0
}

// start makes the temporary file of a fresh block, with nothing in it, and returns
// the header that belongs there. It is not kept, since thousands of blocks may be
// open, and made again if it is not written now. The caller holds b.mu.
func (j *Job) start(k int, b *block) (header []byte, err error) {
	switch {
	case j.closed.Load():
		return nil, fmt.Errorf("write block %d: %w", k, os.ErrClosed)
	case int64(k) >= j.limit.Load():
		return nil, j.gone(k)
	case j.store.discard:
		b.state = stateOpen
		return nil, nil
	}
	if header, err = j.layout.Header(k, b.hash, j.created); err != nil {
		return nil, err
	}
	if j.store.open.Add(1) > int64(j.store.opt.MaxOpen) {
		j.store.open.Add(-1)
		return nil, fmt.Errorf("open block %d: %w: the limit is %d", k, ErrFull, j.store.opt.MaxOpen)
	}
	if b.file, b.temp, err = j.create(b.hash.String()); err != nil {
		b.file = nil
		j.store.open.Add(-1)
		return nil, fmt.Errorf("open block %d: %w", k, partError(err))
	}
	b.head, b.headSum = int64(len(header)), sha256.Sum256(header)
	b.state = stateOpen
	return header, nil
}

// partError says what an error of making a temporary file means.
func partError(err error) error {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return fmt.Errorf("%w: %w (raise the limit of open files)", ErrFull, err)
	}
	return diskError(err)
}

// create opens a temporary file under the first name that no live writer holds.
func (j *Job) create(name string) (part, string, error) {
	dir := filepath.Join(j.store.root, name[:1])
	for i := 0; ; i++ {
		temp := "." + name + partSuffix
		if i > 0 {
			temp = "." + name + "." + strconv.Itoa(i) + partSuffix
		}
		temp = filepath.Join(dir, temp)
		f, err := j.store.disk.create(temp)
		if errors.Is(err, fs.ErrNotExist) { // somebody cleared the store meanwhile
			if err = j.store.makeDir(dir); err == nil {
				f, err = j.store.disk.create(temp)
			}
		}
		if !errors.Is(err, errHeld) || i == maxPartNames-1 {
			return f, temp, err
		}
	}
}

// reserve gives the file its size, its space, and everything in it that is known
// before the bytes come: header, if the caller has it, and constants. Placeholders
// are zeros, which a new file has anyway. It can be repeated. The caller holds b.mu.
func (j *Job) reserve(k int, b *block, header []byte) (err error) {
	if header == nil {
		if header, err = j.layout.Header(k, b.hash, j.created); err != nil {
			return err
		}
	}
	if err := b.file.allocate(j.fileSize(k, b)); err != nil {
		return err
	}
	if _, err := b.file.WriteAt(header, 0); err != nil {
		return err
	}
	err = j.eachRange(k, func(off int64, value []byte) error {
		_, err := b.file.WriteAt(value, b.head+off)
		return err
	})
	b.reserved = err == nil
	return err
}

// makeRoom gives up the job's last open block when block k found no space, and
// reports whether it may try again: nobody gives up more than one block for one
// attempt, which began when the limit was before. If k itself is the last open block
// it is given up if own says so.
func (j *Job) makeRoom(k int, before int64, own bool) bool {
	j.room.Lock()
	defer j.room.Unlock()
	if now := j.limit.Load(); now != before {
		return int64(k) < now
	}
	for m := len(j.blocks) - 1; m > k; m-- {
		if j.giveUp(m) {
			return true
		}
	}
	if own {
		j.giveUp(k)
	}
	return false
}

// giveUp removes the temporary file of a block that has one, and with that ends the
// job there: blocks become visible in order, so of those that compete for the last
// space the ones in front are worth more. The caller holds j.room.
func (j *Job) giveUp(k int) bool {
	b := &j.blocks[k]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file == nil {
		return false
	}
	j.limit.Store(min(j.limit.Load(), int64(k)))
	j.drop(b) //nolint:errcheck // the block is lost either way; a name that stays is a dead writer's
	b.state = stateFresh
	return true
}

// gone says why a block has no file any more.
func (j *Job) gone(k int) error {
	if limit := j.limit.Load(); int64(k) >= limit {
		return fmt.Errorf("block %d: %w: it was given up at block %d", k, ErrNoSpace, limit)
	}
	return fmt.Errorf("block %d: %w", k, os.ErrClosed)
}
