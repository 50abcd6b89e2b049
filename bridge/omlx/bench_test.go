package omlx

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// BenchmarkStore writes blocks of DeepSeek-V4-Flash as they arrive, layer by
// layer with four blocks open, and next to it the same bytes into one file, in
// sequence, with the same early write-back and one sync, as the bar. Their files
// are removed unmeasured.
func BenchmarkStore(b *testing.B) {
	const blocks = 16
	spec := flash(Format5, 0)
	l, err := NewLayout(spec)
	if err != nil {
		b.Fatal(err)
	}
	wire := make([]byte, l.WireSize())
	for i := range wire {
		wire[i] = byte(i * 7)
	}
	total := int64(blocks) * l.WireSize()
	b.SetBytes(total)
	var store, raw time.Duration
	serial := uint32(0)
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		s, err := Open(dir, StoreOptions{})
		if err != nil {
			b.Fatal(err)
		}
		p := Plan{Spec: spec}
		for range blocks {
			serial++
			p.Hashes = append(p.Hashes, chainHash("m", nil, []uint32{serial}, nil))
		}
		raw += rawWrite(b, filepath.Join(dir, "raw"), wire, blocks)
		j := mustBegin(b, s, p)
		b.StartTimer()
		start := time.Now()
		writeLayers(b, j, wire)
		store += time.Since(start)
		b.StopTimer()
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	n := float64(b.N) * float64(total)
	b.ReportMetric(n/store.Seconds()/1e9, "GB/s")
	b.ReportMetric(n/raw.Seconds()/1e9, "raw-GB/s")
	b.ReportMetric(raw.Seconds()/store.Seconds(), "of-raw")
}

// writeLayers sends four blocks at a time, layer by layer. As in a transfer, the
// blocks that are whole are sealed next to each other and published in order
// while the next four arrive.
func writeLayers(b *testing.B, j *Job, wire []byte) {
	const open = 4
	finished := make(chan error, 1)
	finished <- nil
	for first := 0; first < j.Blocks(); first += open {
		for layer := range j.Layout().Spec().Layers {
			off, size := j.Layout().LayerRange(layer)
			for k := first; k < first+open; k++ {
				if err := j.Write(k, off, wire[off:off+size]); err != nil {
					b.Fatal(err)
				}
			}
		}
		if err := <-finished; err != nil {
			b.Fatal(err)
		}
		go func() { finished <- finishBlocks(j, first, open) }()
	}
	if err := <-finished; err != nil {
		b.Fatal(err)
	}
}

func finishBlocks(j *Job, first, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, 2*n)
	for i := range n {
		wg.Go(func() { errs[i] = j.Seal(first + i) })
	}
	wg.Wait()
	for i := range n {
		errs[n+i] = j.Publish(first + i)
	}
	return errors.Join(errs...)
}

func rawWrite(b *testing.B, path string, wire []byte, blocks int) time.Duration {
	const step = 4 << 20
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	pos := int64(0)
	for range blocks {
		for at := 0; at < len(wire); at += step {
			n, err := f.Write(wire[at:min(at+step, len(wire))])
			if err == nil {
				err = writeBack(f, pos, int64(n))
			}
			if err != nil {
				b.Fatal(err)
			}
			pos += int64(n)
		}
	}
	if err := dataSync(f); err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return took
}
