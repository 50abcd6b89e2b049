package omlx

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tiny is a small dsv4 layout and a plan of n blocks with made-up hashes.
func tiny(format string, n int) Plan {
	p := Plan{CreatedAt: "1.5", Spec: Spec{Kind: KindDSV4, Model: "m", BlockTokens: 128, Format: format, PoolState: 5,
		HeadDim: 8, IndexHeadDim: 4, Window: 16, Ratios: []int{0, 4, 128}}}
	for k := range n {
		p.Hashes = append(p.Hashes, chainHash("m", nil, []uint32{uint32(k)}, nil))
	}
	return p
}

// content is block k's made-up wire data.
func content(j *Job, k int) []byte {
	b := make([]byte, j.WireSize())
	rng := rand.New(rand.NewPCG(uint64(k), 7))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func writeAll(j *Job) error {
	for k := range j.Blocks() {
		if j.Present(k) {
			continue
		}
		wire := content(j, k)
		half := len(wire) / 2
		if err := errors.Join(j.Write(k, int64(half), wire[half:]), j.Write(k, 0, wire[:half])); err != nil {
			return err
		}
		if err := j.Sync(k); err != nil {
			return err
		}
		if err := j.Seal(k); err != nil {
			return err
		}
		if err := j.Publish(k); err != nil {
			return err
		}
		if n, err := j.Settle(k, 1); err != nil || n != 1 {
			return errors.Join(err, fmt.Errorf("%d settled", n))
		}
	}
	return nil
}

// files returns everything in the store's subdirectories.
func files(t testing.TB, root string) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		out[filepath.Base(path)] = data
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !bytes.Equal(a[k], b[k]) {
			return false
		}
	}
	return true
}

func TestJobRefuses(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	j := mustBegin(t, s, tiny(Format3, 2))
	wire := content(j, 0)
	size := j.WireSize()
	// The calls build on each other, so they are made in this order.
	steps := []struct {
		name string
		call func() error
		want string // text of the ErrCall; empty for none
	}{
		{"block -1", func() error { return j.Write(-1, 0, wire) }, "block -1 is outside"},
		{"block 2", func() error { return j.Write(2, 0, wire) }, "block 2 is outside"},
		{"negative offset", func() error { return j.Write(0, -1, wire[:1]) }, "at -1 are outside"},
		{"past the end", func() error { return j.Write(0, 1, wire) }, "at 1 are outside"},
		{"far past the end", func() error { return j.Write(0, 1<<62, wire[:1]) }, "are outside"},
		{"too long", func() error { return j.Write(0, 0, make([]byte, size+1)) }, "are outside"},
		{"sync outside", func() error { return j.Sync(7) }, "block 7 is outside"},
		{"seal outside", func() error { return j.Seal(7) }, "block 7 is outside"},
		{"publish outside", func() error { return j.Publish(7) }, "block 7 is outside"},
		{"conflict outside", func() error { return j.Conflict(7) }, "block 7 is outside"},
		{"header outside", func() error { _, err := j.Layout().Header(-1, Hash{}, "0.0"); return err }, "block -1"},
		{"seal unwritten", func() error { return j.Seal(0) }, "of 1936 bytes are missing"},
		{"publish unsealed", func() error { return j.Publish(0) }, "not sealed"},
		{"write all but one", func() error { return j.Write(0, 0, wire[:size-1]) }, ""},
		{"write some again", func() error { return j.Write(0, 7, wire[7:9]) }, "bytes 7 to 9 were written before"},
		{"write the last and more", func() error { return j.Write(0, size-2, wire[size-2:]) }, "were written before"},
		{"write nothing", func() error { return j.Write(0, 3, nil) }, ""},
		{"seal one short", func() error { return j.Seal(0) }, "1 of 1936 bytes are missing, the first are 1935 to 1936"},
		{"write block 1", func() error { return j.Write(1, 0, wire) }, ""},
		{"seal before parent", func() error { return j.Seal(1) }, "need block 0 sealed first"},
		{"write the last", func() error { return j.Write(0, size-1, wire[size-1:]) }, ""},
		{"seal twice", func() error { return errors.Join(j.Seal(0), j.Seal(0)) }, ""},
		{"write sealed", func() error { return j.Write(0, 0, wire) }, "sealed or present"},
		{"seal block 1", func() error { return j.Seal(1) }, ""},
		{"publish before parent", func() error { return j.Publish(1) }, "block 0 is not visible"},
		{"publish", func() error { return errors.Join(j.Publish(0), j.Publish(0), j.Publish(1)) }, ""},
		{"write published", func() error { return j.Write(0, 0, wire) }, "sealed or present"},
		{"seal published", func() error { return j.Seal(0) }, ""},
		{"sync published", func() error { return j.Sync(0) }, ""},
		{"close", func() error { return errors.Join(j.Close(), j.Close()) }, ""},
	}
	for _, st := range steps {
		err := st.call()
		if st.want == "" && err != nil {
			t.Errorf("%s: %v", st.name, err)
		}
		if st.want != "" && (!errors.Is(err, ErrCall) || !strings.Contains(err.Error(), st.want)) {
			t.Errorf("%s: %v; want ErrCall with %q", st.name, err, st.want)
		}
	}
}

// TestTwiceIsNotAll: as many bytes as a block has are not the block.
func TestTwiceIsNotAll(t *testing.T) {
	for name, s := range map[string]*Store{"disk": mustOpen(t, t.TempDir()), "discard": NewDiscard()} {
		j := mustBegin(t, s, tiny(Format5, 1))
		wire := content(j, 0)
		half := int64(len(wire)) / 2
		if err := j.Write(0, 0, wire[:half]); err != nil {
			t.Fatal(err)
		}
		if err := j.Write(0, 0, make([]byte, half)); !errors.Is(err, ErrCall) {
			t.Errorf("%s: second write of a half: %v", name, err)
		}
		if err := j.Seal(0); !errors.Is(err, ErrCall) || j.Publish(0) == nil || j.Present(0) {
			t.Errorf("%s: sealed a half: %v", name, err)
		}
		if err := j.Write(0, half, wire[half:]); err != nil {
			t.Fatal(err)
		}
		sealAndPublish(t, j, 0)
		if name == "discard" {
			continue
		}
		l := j.Layout()
		if got := wireOf(t, l, j.Path(0)); !bytes.Equal(got, wire) {
			t.Error("the second write changed bytes of the first")
		}
	}
}

func TestClosedJob(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	j := mustBegin(t, s, tiny(Format5, 3))
	wire := content(j, 0)
	if err := errors.Join(j.Write(0, 0, wire), j.Seal(0), j.Write(1, 0, wire)); err != nil {
		t.Fatal(err)
	}
	if n := len(files(t, s.root)); n != 2 {
		t.Fatalf("%d temporary files", n)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"write open": j.Write(1, 0, wire), "write fresh": j.Write(2, 0, wire), "seal": j.Seal(1), "publish": j.Publish(0),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(files(t, s.root)); n != 0 || s.open.Load() != 0 {
		t.Errorf("%d files left, %d counted open", n, s.open.Load())
	}
}

func TestTooManyOpen(t *testing.T) {
	s, err := Open(t.TempDir(), StoreOptions{MaxOpen: 2})
	if err != nil {
		t.Fatal(err)
	}
	j := mustBegin(t, s, tiny(Format5, 3))
	for k := range 2 {
		if err := j.Write(k, 0, content(j, k)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Write(2, 0, content(j, 2)); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "limit is 2") {
		t.Fatal(err)
	}
	sealAndPublish(t, j, 0)
	if err := j.Write(2, 0, content(j, 2)); err != nil {
		t.Errorf("after one was finished: %v", err)
	}
}

// TestCumulativeFromOlder: earlier rows come from a block that another job
// published with another header length.
func TestCumulativeFromOlder(t *testing.T) {
	plan := tiny(Format3, 3)
	s := mustOpen(t, t.TempDir())
	first := plan
	first.Hashes, first.CreatedAt = plan.Hashes[:2], "1795973845.4564774"
	if err := writeAll(mustBegin(t, s, first)); err != nil {
		t.Fatal(err)
	}
	j := mustBegin(t, s, plan)
	if !j.Present(0) || !j.Present(1) || j.Present(2) || j.Present(3) || j.Present(-1) {
		t.Fatal("presence")
	}
	if err := writeAll(j); err != nil {
		t.Fatal(err)
	}
	alone := mustOpen(t, t.TempDir())
	if err := writeAll(mustBegin(t, alone, plan)); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, alone.Path(plan.Hashes[2]), s.Path(plan.Hashes[2]))
}

func TestDiscard(t *testing.T) {
	plan := tiny(Format3, 3)
	j := mustBegin(t, NewDiscard(), plan)
	if err := j.Seal(0); !errors.Is(err, ErrCall) {
		t.Error(err)
	}
	if err := errors.Join(writeAll(j), j.Close()); err != nil || !j.Present(2) || j.Path(0) != "" {
		t.Errorf("%v", err)
	}
}

func TestCreatedAtText(t *testing.T) {
	for want, at := range map[string]time.Time{
		"1795973194.33088": time.Unix(1795973194, 330880000),
		"1795973194.0":     time.Unix(1795973194, 0),
		// Clocks that are far off.
		"0.0":               time.Date(1969, 12, 31, 23, 59, 55, 0, time.UTC),
		"9223372036.854776": time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got := CreatedAt(at); got != want || !validCreatedAt(got) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, at := range []time.Time{{}, time.Unix(-1<<60, 0), time.Unix(1<<60, 0)} {
		if got := CreatedAt(at); !validCreatedAt(got) {
			t.Errorf("%v gives %s", at, got)
		}
	}
	for _, s := range []string{"", "x", "nan", "inf", "-1.0", "1.0 ", "0x1p3", strings.Repeat("1", 40), "1_0"} {
		if validCreatedAt(s) {
			t.Errorf("%q accepted", s)
		}
	}
	j := mustBegin(t, mustOpen(t, t.TempDir()), Plan{Spec: tiny(Format5, 1).Spec, Hashes: tiny(Format5, 1).Hashes})
	if !validCreatedAt(j.created) || j.created == "0.0" {
		t.Errorf("default %q", j.created)
	}
}

// TestWriteAllocations: the hot path allocates nothing.
func TestWriteAllocations(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	j := mustBegin(t, s, tiny(Format3, 3))
	wire := content(j, 2)
	step := j.WireSize() / 102
	if err := j.Write(2, 0, wire[:step]); err != nil {
		t.Fatal(err)
	}
	at := step // a piece joins the one before it
	if n := testing.AllocsPerRun(100, func() {
		if err := j.Write(2, at, wire[at:at+step]); err != nil {
			t.Fatal(err)
		}
		at += step
	}); n != 0 {
		t.Errorf("%v allocations a write", n)
	}
}

// TestOpenNowhere: an unset variable must not make a store of the current
// directory.
func TestOpenNowhere(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := Open("", StoreOptions{}); err == nil {
		t.Error("a store without a directory was opened")
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) > 0 {
		t.Errorf("%v in the current directory, %v", entries, err)
	}
}
