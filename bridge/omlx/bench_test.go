package omlx

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// openAtOnce is how many blocks of DeepSeek-V4-Flash an engine's chunk of 8,192
// tokens fills together.
const openAtOnce = 4

// rig is a store with a job for blocks of DeepSeek-V4-Flash, and their bytes.
type rig struct {
	b    *testing.B
	dir  string
	job  *Job
	wire []byte
}

// newRig makes one that a benchmark removes unmeasured; serial tells apart the
// blocks of several.
func newRig(b *testing.B, blocks, serial int) *rig {
	b.Helper()
	dir := b.TempDir()
	s, err := Open(filepath.Join(dir, "store"), StoreOptions{})
	if err != nil {
		b.Fatal(err)
	}
	p := Plan{Spec: flash(Format5, 0)}
	for k := range blocks {
		p.Hashes = append(p.Hashes, chainHash("m", nil, []uint32{uint32(serial), uint32(k)}, nil))
	}
	r := &rig{b: b, dir: dir, job: mustBegin(b, s, p)}
	r.wire = make([]byte, r.job.WireSize())
	for i := range r.wire {
		r.wire[i] = byte(i * 7)
	}
	return r
}

func (r *rig) remove() {
	if err := errors.Join(r.job.Close(), os.RemoveAll(r.dir)); err != nil {
		r.b.Fatal(err)
	}
}

// layer writes one layer of the blocks from first on, in pieces as they arrive.
func (r *rig) layer(layer, first int) {
	const piece = 512 << 10 // the largest that a kernel makes
	off, size := r.job.Layout().LayerRange(layer)
	for k := first; k < first+openAtOnce; k++ {
		for at := off; at < off+size; at += piece {
			if err := r.job.Write(k, at, r.wire[at:min(at+piece, off+size)]); err != nil {
				r.b.Fatal(err)
			}
		}
	}
}

// finish seals blocks next to each other, publishes them in order and settles them.
func (r *rig) finish(first int) error {
	var wg sync.WaitGroup
	var errs [2*openAtOnce + 1]error
	for i := range openAtOnce {
		wg.Go(func() { errs[i] = r.job.Seal(first + i) })
	}
	wg.Wait()
	for i := range openAtOnce {
		errs[openAtOnce+i] = r.job.Publish(first + i)
	}
	_, errs[2*openAtOnce] = r.job.Settle(first, openAtOnce)
	return errors.Join(errs[:]...)
}

// all writes everything: the blocks that are whole are finished while the next
// ones arrive.
func (r *rig) all() {
	finished := make(chan error, 1)
	finished <- nil
	for first := 0; first < r.job.Blocks(); first += openAtOnce {
		for layer := range r.job.Layout().Spec().Layers {
			r.layer(layer, first)
		}
		if err := <-finished; err != nil {
			r.b.Fatal(err)
		}
		go func() { finished <- r.finish(first) }()
	}
	if err := <-finished; err != nil {
		r.b.Fatal(err)
	}
}

// raw writes the bytes of so many blocks into one file, in sequence, with the same
// early write-back and one synchronisation.
func (r *rig) raw(path string, blocks int) time.Duration {
	f, err := os.Create(path)
	if err != nil {
		r.b.Fatal(err)
	}
	start := time.Now()
	pos := int64(0)
	for range blocks {
		for at := 0; at < len(r.wire); at += writeBackStep {
			n, err := f.Write(r.wire[at:min(at+writeBackStep, len(r.wire))])
			if err == nil {
				err = writeBack(f, pos, int64(n))
			}
			if err != nil {
				r.b.Fatal(err)
			}
			pos += int64(n)
		}
	}
	err = dataSync(f)
	took := time.Since(start)
	if err = errors.Join(err, f.Close()); err != nil {
		r.b.Fatal(err)
	}
	return took
}

// BenchmarkStore writes blocks as they arrive, layer by layer with four open, and
// in the same round the same bytes in sequence into one file, as the bar.
func BenchmarkStore(b *testing.B) {
	const blocks = 16
	var store, raw time.Duration
	var ratios []float64
	var total int64
	for serial := 0; b.Loop(); serial++ {
		b.StopTimer()
		r := newRig(b, blocks, serial)
		total = blocks * r.job.WireSize()
		var took [2]time.Duration
		for i := range took { // each is first in every other round
			if i == serial%2 {
				took[1] = r.raw(filepath.Join(r.dir, "raw"), blocks)
				continue
			}
			b.StartTimer()
			start := time.Now()
			r.all()
			took[0] = time.Since(start)
			b.StopTimer()
		}
		store, raw = store+took[0], raw+took[1]
		ratios = append(ratios, took[1].Seconds()/took[0].Seconds())
		r.remove()
		b.StartTimer()
	}
	b.SetBytes(total)
	n := float64(b.N) * float64(total)
	b.ReportMetric(n/store.Seconds()/1e9, "GB/s")
	b.ReportMetric(n/raw.Seconds()/1e9, "raw-GB/s")
	b.ReportMetric(quantile(ratios, 0.5), "of-raw")
}

// BenchmarkTail is what a request waits for at the end: from the last layer's bytes
// to four blocks visible and durable. What comes before comes at 10 Gbit/s.
func BenchmarkTail(b *testing.B) {
	const rate = 1.2e9
	var took []float64
	for serial := 0; b.Loop(); serial++ {
		b.StopTimer()
		r := newRig(b, openAtOnce, serial)
		start, sent := time.Now(), 0.0
		last := r.job.Layout().Spec().Layers - 1
		for layer := range last {
			_, size := r.job.Layout().LayerRange(layer)
			sent += openAtOnce * float64(size)
			r.layer(layer, 0)
			time.Sleep(time.Duration(sent/rate*1e9) - time.Since(start))
		}
		b.StartTimer()
		start = time.Now()
		r.layer(last, 0)
		err := r.finish(0)
		took = append(took, time.Since(start).Seconds()*1e3)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		r.remove()
		b.StartTimer()
	}
	b.ReportMetric(quantile(took, 0.5), "p50-ms")
	b.ReportMetric(quantile(took, 0.99), "p99-ms")
}

// BenchmarkReadBack reads blocks that came in pieces, and the same files written in
// sequence by one writer, as a decoder's own are: from the page cache and, where it
// can be dropped, from the disk.
func BenchmarkReadBack(b *testing.B) {
	const blocks = 16
	r := newRig(b, blocks, 0)
	r.all()
	var ours, theirs []string
	for k := range blocks {
		path := filepath.Join(r.dir, filepath.Base(r.job.Path(k)))
		if err := r.copyAsDecoder(k, path); err != nil {
			b.Fatal(err)
		}
		ours, theirs = append(ours, r.job.Path(k)), append(theirs, path)
	}
	for name, cold := range map[string]bool{"warm": false, "cold": true} {
		b.Run(name, func(b *testing.B) {
			var mine, bar time.Duration
			var ratios []float64
			for i := 0; b.Loop(); i++ {
				var took [2]time.Duration
				for j := range took {
					which := (i + j) % 2
					took[which] = readFiles(b, [][]string{ours, theirs}[which], cold)
				}
				mine, bar = mine+took[0], bar+took[1]
				ratios = append(ratios, took[1].Seconds()/took[0].Seconds())
			}
			n := float64(b.N) * float64(blocks) * float64(r.job.WireSize())
			b.ReportMetric(n/mine.Seconds()/1e9, "GB/s")
			b.ReportMetric(n/bar.Seconds()/1e9, "sequential-GB/s")
			b.ReportMetric(quantile(ratios, 0.5), "of-sequential")
		})
	}
	r.remove()
}

// copyAsDecoder writes block k again as the decoder writes its own: in sequence,
// header and tensors with a call each, and then durable.
func (r *rig) copyAsDecoder(k int, path string) error {
	data, err := os.ReadFile(r.job.Path(k))
	if err != nil {
		return err
	}
	cuts := []int{len(data) - int(r.job.Layout().DataLen(k))}
	for i := range r.job.Layout().slots {
		_, end := r.job.Layout().slots[i].span(k)
		cuts = append(cuts, cuts[0]+int(end))
	}
	slices.Sort(cuts)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	from := 0
	for _, to := range append(cuts, len(data)) {
		if err == nil {
			_, err = f.Write(data[from:to])
		}
		from = to
	}
	return errors.Join(err, dataSync(f), f.Close())
}

// readFiles opens files and reads them to the end.
func readFiles(b *testing.B, paths []string, cold bool) time.Duration {
	buf := make([]byte, 1<<20)
	var took time.Duration
	for _, path := range paths {
		if cold {
			dropCache(b, path)
		}
		start := time.Now()
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = f.Read(buf)
		}
		took += time.Since(start)
		if cerr := f.Close(); cerr != nil || !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
	}
	return took
}

// quantile sorts values.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[int(q*float64(len(values)-1)+0.5)]
}
