package omlx

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
)

// smallDisk is a disk of limited space that counts pages as tmpfs does: those of
// ranges that were reserved or written.
type smallDisk struct {
	osDisk
	mu       sync.Mutex
	free     int64 // pages
	reserved int64 // bytes asked for by allocate, in all
	parts    map[string]*smallPart
}

const testPage = 512

func newSmallDisk(bytes int64) *smallDisk {
	return &smallDisk{free: bytes / testPage, parts: make(map[string]*smallPart)}
}

func (d *smallDisk) create(path string) (part, error) {
	p, err := d.osDisk.create(path)
	if err != nil {
		return nil, err
	}
	out := &smallPart{part: p, disk: d, pages: make(map[int64]struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.parts[path] = out
	return out, nil
}

func (d *smallDisk) remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.parts[path]; p != nil {
		d.free += int64(len(p.pages))
		delete(d.parts, path)
	}
	return d.osDisk.remove(path)
}

func (d *smallDisk) publish(temp, final string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.parts, temp) // the pages stay taken
	return d.osDisk.publish(temp, final)
}

type smallPart struct {
	part
	disk  *smallDisk
	pages map[int64]struct{}
}

// take takes the pages of a range, all or none.
func (p *smallPart) take(off, n int64) error {
	d := p.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	var more []int64
	for page := off / testPage; page*testPage < off+n; page++ {
		if _, has := p.pages[page]; !has {
			more = append(more, page)
		}
	}
	if int64(len(more)) > d.free {
		return syscall.ENOSPC
	}
	d.free -= int64(len(more))
	for _, page := range more {
		p.pages[page] = struct{}{}
	}
	return nil
}

func (p *smallPart) allocate(size int64) error {
	if err := p.take(0, size); err != nil {
		return err
	}
	p.disk.mu.Lock()
	p.disk.reserved += size
	p.disk.mu.Unlock()
	return p.part.allocate(size)
}

func (p *smallPart) WriteAt(b []byte, off int64) (int, error) {
	if err := p.take(off, int64(len(b))); err != nil {
		return 0, err
	}
	return p.part.WriteAt(b, off)
}

// wide is a layout whose data is larger than its header.
func wide(format string, n int) Plan {
	p := tiny(format, n)
	p.Spec.HeadDim, p.Spec.IndexHeadDim = 256, 128
	return p
}

// openSmall opens a store on a small disk; exhausted says that nothing is reserved
// with the first byte.
func openSmall(t *testing.T, d *smallDisk, exhausted bool) *Store {
	t.Helper()
	s := mustOpen(t, t.TempDir())
	s.disk = d
	if exhausted {
		s.advance.Store(maxAdvance)
	}
	return s
}

// TestReservedFollowsArrived: whatever the order, beyond the advance no more than
// four times what came is reserved, and when a quarter came all is.
func TestReservedFollowsArrived(t *testing.T) {
	for _, format := range []string{Format3, Format5} {
		d := newSmallDisk(1 << 30)
		j := mustBegin(t, openSmall(t, d, true), wide(format, 8))
		arrived := int64(0)
		step := j.WireSize() / 50
		for at := int64(0); at+step <= j.WireSize(); at += step {
			for k := range j.Blocks() {
				if err := j.Write(k, at, make([]byte, step)); err != nil {
					t.Fatal(err)
				}
				if arrived += step; d.reserved > reserveAt*arrived {
					t.Fatalf("format %s: %d bytes reserved, %d arrived", format, d.reserved, arrived)
				}
				b := &j.blocks[k]
				if due := (at + step) * reserveAt; b.reserved != (due >= b.head+j.layout.DataLen(k)) {
					t.Fatalf("format %s: block %d with %d of %d bytes: reserved is %v", format, k, at+step, b.head+j.layout.DataLen(k), b.reserved)
				}
			}
		}
		if format == Format5 && d.reserved == 0 {
			t.Error("nothing was reserved")
		}
	}
}

// TestAdvance: what is reserved with the first byte has a bound for the whole store,
// and comes back when the block has earned it, is finished or dropped.
func TestAdvance(t *testing.T) {
	d := newSmallDisk(1 << 30)
	s := openSmall(t, d, false)
	plan := wide(Format5, 6)
	j := mustBegin(t, s, plan)
	one := make([]byte, 1)
	if err := j.Write(0, 0, one); err != nil {
		t.Fatal(err)
	}
	size := j.blocks[0].head + j.layout.DataLen(0)
	if d.reserved != size || s.advance.Load() != size {
		t.Fatalf("%d bytes reserved, %d in advance, want %d", d.reserved, s.advance.Load(), size)
	}
	s.advance.Store(maxAdvance - size) // block 0's is a part of it
	for k := 1; k < 4; k++ {
		if err := j.Write(k, 0, one); err != nil {
			t.Fatal(err)
		}
	}
	if d.reserved != 2*size || s.advance.Load() != maxAdvance {
		t.Errorf("%d bytes reserved, %d in advance", d.reserved, s.advance.Load())
	}
	// A quarter of block 0 makes room for one more, and that it is finished for none.
	wire := content(j, 0)
	if err := j.Write(0, 1, wire[1:len(wire)/2]); err != nil || s.advance.Load() != maxAdvance-size {
		t.Errorf("%d in advance, %v", s.advance.Load(), err)
	}
	if err := j.Write(0, int64(len(wire)/2), wire[len(wire)/2:]); err != nil {
		t.Fatal(err)
	}
	sealAndPublish(t, j, 0)
	if s.advance.Load() != maxAdvance-size {
		t.Errorf("%d in advance", s.advance.Load())
	}
	if err := j.Write(4, 0, one); err != nil || !j.blocks[4].reserved {
		t.Errorf("reserved is %v, %v", j.blocks[4].reserved, err)
	}
	if err := j.Close(); err != nil || s.advance.Load() != maxAdvance-2*size {
		t.Errorf("%d in advance after the end, %v", s.advance.Load()-maxAdvance, err)
	}
}

// TestAdvanceOfCumulative: a block whose bytes are less than a quarter of its file
// has its space when it is sealed.
func TestAdvanceOfCumulative(t *testing.T) {
	s := openSmall(t, newSmallDisk(1<<30), false)
	j := mustBegin(t, s, wide(Format3, 12))
	for k := range j.Blocks() {
		wire := content(j, k)
		if err := errors.Join(j.Write(k, 0, wire[:1]), j.Write(k, 1, wire[1:])); err != nil {
			t.Fatal(err)
		}
		if b := &j.blocks[k]; k == 11 && (b.advance == 0 || !b.reserved) {
			t.Errorf("block %d tests nothing: %d in advance", k, b.advance)
		}
		if err := j.Seal(k); err != nil || s.advance.Load() != 0 {
			t.Errorf("%d in advance of sealed blocks, %v", s.advance.Load(), err)
		}
	}
}

// TestLastSpaceGoesToTheFront: blocks that arrive side by side, layer by layer, on a
// disk that has no space for all of them. Those in front can be finished, the others
// say ErrNoSpace and leave nothing behind.
func TestLastSpaceGoesToTheFront(t *testing.T) {
	for _, format := range []string{Format3, Format5} {
		for _, exhausted := range []bool{false, true} {
			for fit := range 4 {
				plan := wide(format, 4)
				d := newSmallDisk(0)
				s := openSmall(t, d, exhausted)
				j := mustBegin(t, s, plan)
				for k := range fit {
					d.free += (fileBytes(t, j, k) + testPage - 1) / testPage
				}
				d.free += fileBytes(t, j, fit) / testPage * 3 / 4 // not enough for one more
				visible := fillSideBySide(t, j)
				if visible != fit {
					t.Errorf("format %s, exhausted %v: %d blocks are visible, there is space for %d", format, exhausted, visible, fit)
				}
				for k := fit; k < 4; k++ {
					for what, err := range map[string]error{"write": j.Write(k, 0, []byte{1}), "seal": j.Seal(k), "publish": j.Publish(k)} {
						if !errors.Is(err, ErrNoSpace) {
							t.Errorf("%s of block %d that was given up: %v", what, k, err)
						}
					}
				}
				if n := len(files(t, s.root)); n != fit || s.open.Load() != 0 {
					t.Errorf("%d files, %d counted open, want %d blocks", n, s.open.Load(), fit)
				}
				// With more space a second attempt finishes them, and they are right.
				d.free = 1 << 20
				if err := writeAll(mustBegin(t, s, plan)); err != nil {
					t.Fatal(err)
				}
				alone := mustOpen(t, t.TempDir())
				if err := writeAll(mustBegin(t, alone, plan)); err != nil {
					t.Fatal(err)
				}
				if !same(files(t, s.root), files(t, alone.root)) {
					t.Error("files differ from those on a large disk")
				}
			}
		}
	}
}

func fileBytes(t *testing.T, j *Job, k int) int64 {
	t.Helper()
	head, err := j.layout.Header(k, Hash{}, j.created)
	if err != nil {
		t.Fatal(err)
	}
	return int64(len(head)) + j.layout.DataLen(k)
}

// fillSideBySide writes all blocks in steps, goes on with those that have space, and
// returns how many are visible in the end.
func fillSideBySide(t *testing.T, j *Job) (visible int) {
	t.Helper()
	step := j.WireSize() / 40
	var wires [][]byte
	for k := range j.Blocks() {
		wires = append(wires, content(j, k))
	}
	for at := int64(0); at < j.WireSize(); at += step {
		for k, wire := range wires {
			if err := j.Write(k, at, wire[at:min(at+step, j.WireSize())]); err != nil && !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
		}
	}
	for k := range j.Blocks() {
		err := j.Seal(k)
		if err == nil {
			err = j.Publish(k)
		}
		if err != nil && !errors.Is(err, ErrNoSpace) {
			t.Fatal(err)
		}
		if err == nil && visible == k {
			visible++
		}
	}
	return visible
}

// TestOneBlockAnAttempt: of two writers that run out of space at the same time the
// second tries again with what the first one freed.
func TestOneBlockAnAttempt(t *testing.T) {
	j := mustBegin(t, mustOpen(t, t.TempDir()), tiny(Format5, 4))
	for k := range 4 {
		if err := j.Write(k, 0, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	before := j.limit.Load()
	for _, c := range []struct {
		k     int
		again bool
		limit int64
	}{{0, true, 3}, {1, true, 3}, {3, false, 3}} {
		if again := j.makeRoom(c.k, before, true); again != c.again || j.limit.Load() != c.limit {
			t.Errorf("block %d: again is %v, the limit %d; want %v, %d", c.k, again, j.limit.Load(), c.again, c.limit)
		}
	}
	if j.makeRoom(2, 3, false) || j.blocks[2].file == nil {
		t.Error("a block that keeps its bytes was given up")
	}
	if j.makeRoom(2, 3, true) || j.blocks[2].file != nil || j.limit.Load() != 2 {
		t.Error("the last open block was not given up")
	}
}

// TestSpaceRace: many writers run out of space at the same time.
func TestSpaceRace(t *testing.T) {
	for _, exhausted := range []bool{false, true} {
		d := newSmallDisk(0)
		s := openSmall(t, d, exhausted)
		plan := wide(Format5, 8)
		j := mustBegin(t, s, plan)
		d.free = (3*fileBytes(t, j, 0) + fileBytes(t, j, 0)/2) / testPage
		var wg sync.WaitGroup
		step := j.WireSize() / 40
		for k := range j.Blocks() {
			wg.Go(func() {
				wire := content(j, k)
				for at := int64(0); at < j.WireSize(); at += step {
					if err := j.Write(k, at, wire[at:min(at+step, j.WireSize())]); err != nil {
						if !errors.Is(err, ErrNoSpace) {
							t.Error(err)
						}
						return
					}
				}
				if err := j.Seal(k); err != nil && !errors.Is(err, ErrNoSpace) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		visible := 0
		for k := 0; k < j.Blocks() && j.Publish(k) == nil; k++ {
			visible++
		}
		if visible != 3 {
			t.Errorf("%d blocks are visible, there is space for 3", visible)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		alone := mustOpen(t, t.TempDir())
		plan.Hashes = plan.Hashes[:visible]
		if err := writeAll(mustBegin(t, alone, plan)); err != nil {
			t.Fatal(err)
		}
		if !same(files(t, s.root), files(t, alone.root)) {
			t.Error("files differ from those on a large disk")
		}
	}
}

// TestSystemLimit: no more open files is a reason to wait, and leaves nothing behind.
func TestSystemLimit(t *testing.T) {
	for _, fault := range []error{syscall.EMFILE, syscall.ENFILE} {
		d := &faultDisk{at: 1, err: &os.PathError{Op: "open", Path: "x", Err: fault}}
		s := openWith(t, d)
		j := mustBegin(t, s, tiny(Format5, 1))
		if err := j.Write(0, 0, content(j, 0)); !errors.Is(err, ErrFull) || !errors.Is(err, fault) {
			t.Errorf("%v: %v", fault, err)
		}
		if n := len(files(t, s.root)); n != 0 || s.open.Load() != 0 {
			t.Errorf("%d files left, %d counted open", n, s.open.Load())
		}
		if err := writeAll(j); err != nil {
			t.Errorf("again: %v", err)
		}
	}
}

// TestOneShotPrompt: all blocks of a long prompt may be open at once.
func TestOneShotPrompt(t *testing.T) {
	if got := mustOpen(t, t.TempDir()).opt.MaxOpen; got < (1<<20)/256 {
		t.Errorf("%d blocks may be open, 1M tokens of plain KV have %d", got, (1<<20)/256)
	}
}
