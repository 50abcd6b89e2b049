package omlx

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
)

// faultDisk fails the call number at of those that change something.
type faultDisk struct {
	osDisk
	mu    sync.Mutex
	calls int
	at    int
	err   error
	short bool // writes put half of their bytes before they fail
	what  string
}

func (d *faultDisk) fault(what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.calls == d.at {
		d.what = what
		return d.err
	}
	return nil
}

func (d *faultDisk) create(path string) (part, error) {
	if err := d.fault("create"); err != nil {
		return nil, err
	}
	p, err := d.osDisk.create(path)
	if err != nil {
		return nil, err
	}
	return &faultPart{part: p, disk: d}, nil
}

func (d *faultDisk) publish(temp, final string) error {
	if err := d.fault("publish"); err != nil {
		return err
	}
	return d.osDisk.publish(temp, final)
}

func (d *faultDisk) syncDir(path string) error {
	if err := d.fault("syncDir"); err != nil {
		return err
	}
	return nil // nobody cuts the power of a test
}

type faultPart struct {
	part
	disk *faultDisk
}

func (p *faultPart) WriteAt(b []byte, off int64) (int, error) {
	if err := p.disk.fault("write"); err != nil {
		n := 0
		if p.disk.short {
			n, _ = p.part.WriteAt(b[:len(b)/2], off)
		}
		return n, err
	}
	return p.part.WriteAt(b, off)
}

func (p *faultPart) ReadAt(b []byte, off int64) (int, error) {
	if err := p.disk.fault("read"); err != nil {
		return 0, err
	}
	return p.part.ReadAt(b, off)
}

func (p *faultPart) allocate(size int64) error {
	if err := p.disk.fault("allocate"); err != nil {
		return err
	}
	return p.part.allocate(size)
}

func (p *faultPart) sync() error {
	if err := p.disk.fault("sync"); err != nil {
		return err
	}
	return nil
}

func (p *faultPart) writeBack(int64, int64) error { return p.disk.fault("writeBack") }

func (p *faultPart) Close() error {
	return errors.Join(p.part.Close(), p.disk.fault("close"))
}

// openWith opens a store on a faulty disk without synchronising anything.
func openWith(t testing.TB, d *faultDisk) *Store {
	t.Helper()
	s, err := Open(t.TempDir(), StoreOptions{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	s.disk, s.opt.NoSync = d, false
	return s
}

// TestEveryFault lets every single disk call fail once. Whatever fails, no wrong
// block is visible, nothing temporary stays after Close, and a second attempt
// finishes the same files.
func TestEveryFault(t *testing.T) {
	for _, format := range []string{Format3, Format5} {
		plan := tiny(format, 3)
		counter := &faultDisk{}
		clean := openWith(t, counter)
		if err := writeAll(mustBegin(t, clean, plan)); err != nil {
			t.Fatal(err)
		}
		want := files(t, clean.root)
		if len(want) != 3 || counter.calls < 50 {
			t.Fatalf("%d files, %d calls", len(want), counter.calls)
		}
		for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
			for at := 1; at <= counter.calls; at++ {
				d := &faultDisk{at: at, err: fault, short: true}
				s := openWith(t, d)
				j := mustBegin(t, s, plan)
				err := writeAll(j)
				full := errors.Is(fault, syscall.ENOSPC) && d.what != "close"
				if !errors.Is(err, fault) || full != errors.Is(err, ErrNoSpace) {
					t.Fatalf("format %s call %d (%s): got %v", format, at, d.what, err)
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				for name, data := range files(t, s.root) {
					if !bytes.Equal(data, want[name]) {
						t.Fatalf("format %s call %d (%s): wrong file %s", format, at, d.what, name)
					}
				}
				d.at = 0
				if err := writeAll(mustBegin(t, s, plan)); err != nil {
					t.Fatalf("second attempt: %v", err)
				}
				if !same(files(t, s.root), want) {
					t.Fatalf("format %s call %d (%s): second attempt made other files", format, at, d.what)
				}
			}
		}
	}
}

// TestFailedWriteIsSticky: a block with a failed write or sync can not be sealed
// even if all its bytes were taken, and the bytes are not taken again.
func TestFailedWriteIsSticky(t *testing.T) {
	for _, call := range []string{"write", "sync"} {
		d := &faultDisk{err: syscall.EIO}
		j := mustBegin(t, openWith(t, d), tiny(Format5, 1))
		wire := content(j, 0)
		most := len(wire) * 9 / 10 // the space is reserved before
		if err := j.Write(0, 0, wire[:most]); err != nil {
			t.Fatal(err)
		}
		d.at = d.calls + 1
		fail := func() error { return j.Sync(0) }
		if call == "write" {
			fail = func() error { return j.Write(0, int64(most), wire[most:]) }
		}
		if err := fail(); !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		if err := j.Write(0, int64(most), wire[most:]); (call == "write") != errors.Is(err, ErrCall) || (call == "sync") != (err == nil) {
			t.Fatal(err)
		}
		if err := j.Seal(0); !errors.Is(err, syscall.EIO) {
			t.Errorf("seal after a failed %s: %v", call, err)
		}
	}
}

// TestSealNoticesDamage: header or constants changed behind our back.
func TestSealNoticesDamage(t *testing.T) {
	for name, damage := range map[string]func(f *os.File, header int64) error{
		"header": func(f *os.File, _ int64) error { _, err := f.WriteAt([]byte{'x'}, 20); return err },
		"longer": func(f *os.File, _ int64) error {
			st, err := f.Stat()
			return errors.Join(err, f.Truncate(st.Size()+1))
		},
		"shorter": func(f *os.File, header int64) error { return f.Truncate(header) },
		"range": func(f *os.File, _ int64) error {
			st, err := f.Stat()
			_, werr := f.WriteAt([]byte{9}, st.Size()-1)
			return errors.Join(err, werr)
		},
	} {
		s := mustOpen(t, t.TempDir())
		j := mustBegin(t, s, tiny(Format5, 1))
		if err := j.Write(0, 0, content(j, 0)); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(j.blocks[0].temp, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(damage(f, j.blocks[0].head), f.Close()); err != nil {
			t.Fatal(err)
		}
		if err := j.Seal(0); !errors.Is(err, ErrBlock) {
			t.Errorf("%s: %v", name, err)
		}
		if err := j.Publish(0); !errors.Is(err, ErrCall) || j.Present(0) {
			t.Errorf("%s: published: %v", name, err)
		}
	}
}

func TestNoSync(t *testing.T) {
	d := &faultDisk{}
	s := openWith(t, d)
	s.opt.NoSync = true
	if err := writeAll(mustBegin(t, s, tiny(Format5, 1))); err != nil {
		t.Fatal(err)
	}
	// create, allocate, header, 3 ranges, writes, header, tail and ranges back, publish, close.
	before := d.calls
	s.opt.NoSync = false
	plan := tiny(Format5, 1)
	plan.Hashes[0][0]++
	if err := writeAll(mustBegin(t, s, plan)); err != nil {
		t.Fatal(err)
	}
	if with := d.calls - before; with != before+4 { // Sync, twice in Seal, and the directory
		t.Errorf("%d calls with, %d without synchronisation", with, before)
	}
}
