package omlx

import (
	"errors"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// gateDisk holds synchronisations of directories up, counts them and fails those
// that it is told to.
type gateDisk struct {
	osDisk
	entered chan string
	release chan struct{}
	mu      sync.Mutex
	bad     map[string]error
	calls   map[string]int
}

func (d *gateDisk) syncDir(path string) error {
	if d.entered != nil {
		d.entered <- path
		<-d.release
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls == nil {
		d.calls = make(map[string]int)
	}
	d.calls[path]++
	return d.bad[path]
}

// published returns a job whose blocks have their names and are not settled.
func published(t *testing.T, s *Store, plan Plan) *Job {
	t.Helper()
	j := mustBegin(t, s, plan)
	for k := range j.Blocks() {
		if err := j.Write(k, 0, content(j, k)); err != nil {
			t.Fatal(err)
		}
		sealAndPublish(t, j, k)
	}
	return j
}

// TestSettleSharesSynchronisations: of many who ask while one runs, all are served
// by the next, which begins after they asked.
func TestSettleSharesSynchronisations(t *testing.T) {
	const others = 12
	s := mustOpen(t, t.TempDir())
	var jobs []*Job
	for i := range others + 1 {
		plan := tiny(Format5, 1)
		for n := uint32(0); ; n++ { // blocks in one directory
			plan.Hashes[0] = chainHash("m", nil, []uint32{uint32(i), n}, nil)
			if plan.Hashes[0][0]>>4 == 7 {
				break
			}
		}
		jobs = append(jobs, published(t, s, plan))
	}
	d := &gateDisk{entered: make(chan string), release: make(chan struct{})}
	s.disk, s.opt.NoSync = d, false
	var wg sync.WaitGroup
	settle := func(j *Job) {
		wg.Go(func() {
			if n, err := j.Settle(0, 1); n != 1 || err != nil {
				t.Errorf("%d settled, %v", n, err)
			}
		})
	}
	settle(jobs[0])
	<-d.entered
	for _, j := range jobs[1:] {
		settle(j)
	}
	c := &s.commits.dirs[7]
	for waiting := 0; waiting < others; time.Sleep(time.Millisecond) { // until all wait for the next round
		c.mu.Lock()
		if c.next != nil {
			waiting = c.next.waiting
		}
		c.mu.Unlock()
	}
	d.release <- struct{}{}
	rounds := 1
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for run := true; run; {
		select {
		case <-d.entered:
			d.release <- struct{}{}
			rounds++
		case <-done:
			run = false
		}
	}
	if rounds != 2 {
		t.Errorf("%d synchronisations for 1 and then %d at once, want 2", rounds, others)
	}
}

// TestSettleCountsInChainOrder: a directory that cannot be made durable ends the
// count there; what lies behind it in others is settled too, and costs nothing later.
func TestSettleCountsInChainOrder(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	plan := tiny(Format5, 6)
	j := published(t, s, plan)
	path := func(k int) string { return filepath.Dir(s.Path(plan.Hashes[k])) }
	d := &gateDisk{bad: map[string]error{path(3): syscall.EIO}}
	s.disk, s.opt.NoSync = d, false
	want := 0
	for path(want) != path(3) {
		want++
	}
	if n, err := j.Settle(0, 6); n != want || !errors.Is(err, syscall.EIO) {
		t.Errorf("%d settled, want %d: %v", n, want, err)
	}
	for p, n := range d.calls {
		if n != 1 {
			t.Errorf("%s synchronised %d times for one call", p, n)
		}
	}
	d.bad = nil
	if n, err := j.Settle(0, 6); n != 6 || err != nil || d.calls[path(3)] != 2 {
		t.Errorf("second attempt: %d, %v, %v", n, err, d.calls)
	}
	d.calls = nil
	if n, err := j.Settle(0, 6); n != 6 || err != nil || d.calls != nil {
		t.Errorf("third: %d, %v, %v", n, err, d.calls)
	}
}

func TestSettleRefuses(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	plan := tiny(Format5, 3)
	j := mustBegin(t, s, plan)
	if err := j.Write(0, 0, content(j, 0)); err != nil {
		t.Fatal(err)
	}
	sealAndPublish(t, j, 0)
	for _, c := range []struct{ first, n, want int }{{-1, 1, 0}, {0, 4, 0}, {2, 2, 0}, {0, -1, 0}, {1, 1, 0}, {0, 2, 1}} {
		if n, err := j.Settle(c.first, c.n); n != c.want || !errors.Is(err, ErrCall) {
			t.Errorf("%d from %d on: %d, %v", c.n, c.first, n, err)
		}
	}
	if n, err := j.Settle(1, 0); n != 0 || err != nil {
		t.Errorf("none: %d, %v", n, err)
	}
}

// backDisk fails early write-back.
type backDisk struct{ osDisk }

type backPart struct{ part }

func (backPart) writeBack(int64, int64) error { return syscall.EIO }

func (d backDisk) create(path string) (part, error) {
	p, err := d.osDisk.create(path)
	if err != nil {
		return nil, err
	}
	return backPart{p}, nil
}

// TestFailedWriteBackIsSticky: a block whose bytes the disk did not take is not
// sealed, although every write reported success before.
func TestFailedWriteBackIsSticky(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	s.disk, s.opt.NoSync = backDisk{}, false
	plan := Plan{Spec: flash(Format5, 0), CreatedAt: "1.5"}
	plan.Hashes = append(plan.Hashes, chainHash("m", nil, []uint32{1}, nil))
	j := mustBegin(t, s, plan)
	wire := make([]byte, j.WireSize())
	if len(wire) < 2*writeBackStep {
		t.Fatalf("%d bytes never start write-back", len(wire))
	}
	for at := 0; at < len(wire); at += 1 << 20 {
		if err := j.Write(0, int64(at), wire[at:min(at+1<<20, len(wire))]); err != nil && !errors.Is(err, syscall.EIO) {
			t.Errorf("write: %v", err)
		}
	}
	if err := j.Seal(0); !errors.Is(err, syscall.EIO) {
		t.Errorf("seal: %v", err)
	}
	if err := j.Close(); err != nil || len(files(t, s.root)) != 0 {
		t.Errorf("%d files stay, %v", len(files(t, s.root)), err)
	}
}

// TestSyncOfASealedBlock: what Seal made durable is not paid for twice.
func TestSyncOfASealedBlock(t *testing.T) {
	d := &faultDisk{}
	j := mustBegin(t, openWith(t, d), tiny(Format5, 1))
	if err := errors.Join(j.Write(0, 0, content(j, 0)), j.Seal(0)); err != nil {
		t.Fatal(err)
	}
	before := d.calls
	if err := j.Sync(0); err != nil {
		t.Fatal(err)
	}
	if d.calls > before {
		t.Error("a block that Seal made durable was synchronised again")
	}
}
