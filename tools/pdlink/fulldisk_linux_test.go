//go:build faults

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// mountsEnv, set to 1, says that the test binary runs in a mount namespace of
// its own, where it may mount what it likes and nobody sees it.
const mountsEnv = "PDLINK_TEST_MOUNTS"

// fullDiskTries is how many full disks are made for each case, format and way
// of filling.
const fullDiskTries = 4

// roomy is the size of a disk on which any case fits many times over.
const roomy = 64 << 20

// TestFullDisk lets transfers run into a full disk at random points. The
// verdict says so, nothing partial is visible, and with more space a second
// run completes.
func TestFullDisk(t *testing.T) {
	if os.Getenv(mountsEnv) != "1" {
		inNamespace(t)
		return
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
	seed := envNumber(t, "PDLINK_FAULT_SEED", rand.Uint64())
	t.Logf("PDLINK_FAULT_SEED=%d", seed)
	number := uint64(0)
	stopped := map[int]int{} // by the number of visible blocks
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		for _, format := range []string{"3", "5"} {
			want := expect(t, name, format)
			for _, d := range fullDisks() {
				for range fullDiskTries {
					number++
					t.Run(fmt.Sprintf("%03d %s format %s %s", number, name, format, d.name), func(t *testing.T) {
						f := &fullDisk{T: t, want: want, rng: rand.New(rand.NewPCG(seed, number)), dir: t.TempDir()}
						stopped[f.run(d)]++
					})
				}
			}
		}
	}
	t.Logf("%d full disks, by visible blocks: %v", number, stopped)
}

// inNamespace runs this test again as a process that may mount. Root needs a
// mount namespace for that, anybody else a user namespace too; so does a root
// that is none, in a container.
func inNamespace(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	attrs := []*syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWNS},
		{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		},
	}
	var why error
	for _, attr := range attrs {
		cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
		cmd.Env = append(os.Environ(), mountsEnv+"=1")
		cmd.SysProcAttr = attr
		var out output
		cmd.Stdout, cmd.Stderr = &out, &out
		if why = cmd.Start(); why != nil {
			continue
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			t.Errorf("in a namespace of its own: %v", err)
		}
		t.Logf("%s", out.String())
		return
	}
	t.Fatalf("no mount namespace to be had, it takes root or user namespaces: %v", why)
}

// fullDisk is one transfer into a small tmpfs.
type fullDisk struct {
	*testing.T
	want *expectation
	rng  *rand.Rand
	dir  string // the mount

	room   int64 // bytes that are free
	inodes int   // files that can be made, where that is what runs out
}

// diskKind is a way to make a disk that gets full, and to give it space again.
type diskKind struct {
	name       string
	fill, free func(*fullDisk)
	inodes     bool // it runs out of inodes, not of bytes
}

func fullDisks() []diskKind {
	filler := func(f *fullDisk) string { return filepath.Join(f.dir, "filler") }
	return []diskKind{
		{
			name: "small",
			fill: func(f *fullDisk) { f.mount(0, "size="+strconv.FormatInt(f.room, 10)) },
			free: func(f *fullDisk) { f.mount(syscall.MS_REMOUNT, "size="+strconv.Itoa(roomy)) },
		},
		{
			name: "filled",
			fill: func(f *fullDisk) {
				f.mount(0, "size="+strconv.Itoa(roomy))
				if err := os.WriteFile(filler(f), make([]byte, roomy-f.room), 0o600); err != nil {
					f.Fatal(err)
				}
			},
			free: func(f *fullDisk) {
				if err := os.Remove(filler(f)); err != nil {
					f.Fatal(err)
				}
			},
		},
		{
			name: "out of inodes", inodes: true,
			fill: func(f *fullDisk) {
				// The root and 16 folders take 17; each block takes one more.
				f.mount(0, "size="+strconv.Itoa(roomy)+",nr_inodes="+strconv.Itoa(17+f.inodes))
			},
			free: func(f *fullDisk) { f.mount(syscall.MS_REMOUNT, "nr_inodes=1000") },
		},
	}
}

// mount mounts a tmpfs, or changes the one that is there.
func (f *fullDisk) mount(flags uintptr, options string) {
	f.Helper()
	if err := syscall.Mount("tmpfs", f.dir, "tmpfs", flags, options); err != nil {
		f.Fatalf("mount tmpfs, %s: %v", options, err)
	}
	if flags == 0 {
		f.Cleanup(func() { syscall.Unmount(f.dir, syscall.MNT_DETACH) })
	}
}

// pages is the space that a file of so many bytes takes.
func wholePages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// pick decides how much room there is: less than all blocks need.
func (f *fullDisk) pick() {
	need := int64(0)
	for _, n := range f.want.bytes {
		need += wholePages(n)
	}
	f.room = wholePages(1 + f.rng.Int64N(need-wholePages(1)))
	f.inodes = f.rng.IntN(len(f.want.hashes))
}

// fit is how many blocks the disk has space for.
func (f *fullDisk) fit(d diskKind) (k int) {
	if d.inodes {
		return f.inodes
	}
	for left := f.room; k < len(f.want.bytes) && left >= wholePages(f.want.bytes[k]); k++ {
		left -= wholePages(f.want.bytes[k])
	}
	return k
}

// run fills the disk by a transfer and returns how many blocks are visible
// then.
func (f *fullDisk) run(d diskKind) int {
	f.pick()
	d.fill(f)
	// One sender with chunks that end with the blocks opens a block when the one
	// before it is whole: then every block that fits must be there.
	inOrder := f.rng.IntN(4) > 0
	chunk, senders := 64, 1
	if !inOrder {
		chunk, senders = 1+f.rng.IntN(512), 1+f.rng.IntN(3)
	}
	args := []string{
		"replay", filepath.Join(casesDir, f.want.name), "--format", f.want.format, "--json",
		"--chunk", strconv.Itoa(chunk), "--senders", strconv.Itoa(senders),
	}
	var r *receiver
	if f.rng.IntN(2) == 0 {
		r = startReceiver(f, f.dir)
		args = append(args, "--to", "tcp://"+r.addr)
	} else {
		args = append(args, "--store", f.dir)
	}
	visible := f.partial(start(f, args...), r)
	if fit := f.fit(d); visible > fit || (inOrder && visible < fit) {
		f.Errorf("%d blocks are visible, there is room for %d", visible, fit)
	}
	d.free(f)
	if p := start(f, args...); p.wait() != exitOK {
		f.Errorf("second run, with enough space: %v", p)
	}
	if c := f.check(); c.visible != len(f.want.hashes) || c.parts > 0 {
		f.Errorf("second run, with enough space: %d of %d blocks and %d temporary files", c.visible, len(f.want.hashes), c.parts)
	}
	if r != nil {
		r.stop(f, f.want, f.dir)
	}
	f.Logf("%s: %d of %d blocks", strings.Join(args, " "), visible, len(f.want.hashes))
	return visible
}

// check is that of the store, less the file that fills the disk.
func (f *fullDisk) check() contents {
	f.Helper()
	filler := filepath.Join(f.dir, "filler")
	away := filepath.Join(f.dir, ".filler.part") // neither a block nor one of ours: not counted below
	moved := os.Rename(filler, away) == nil
	c := f.want.check(f, f.dir)
	if moved {
		c.parts--
		if err := os.Rename(away, filler); err != nil {
			f.Fatal(err)
		}
	}
	return c
}

// partial checks what a sender, and a receiver if it is another process, say of
// a transfer that filled the disk.
func (f *fullDisk) partial(p *process, r *receiver) int {
	f.Helper()
	status := p.wait()
	c := f.check()
	var res replayResult
	if err := json.Unmarshal([]byte(p.out.String()), &res); err != nil {
		f.Fatalf("no result: %v: status %d: %v", err, status, p)
	}
	if status != exitFailed || !strings.HasPrefix(res.Verdict, "partial ") || !strings.Contains(res.Verdict, "no space left") {
		f.Errorf("status %d, verdict %q, want 1 and a partial one that names the full disk: %v", status, res.Verdict, p)
	}
	if res.Blocks != c.visible || res.Total != len(f.want.hashes) || c.parts > 0 || p.crashed() != "" {
		f.Errorf("%d of %d blocks are visible, %d temporary files: %v", c.visible, len(f.want.hashes), c.parts, p)
	}
	if r != nil {
		eventually(settleLimit, func() bool { return len(r.verdicts(f)) > 0 }) // the sender may have heard of it first
		if v := r.verdicts(f); len(v) != 1 || v[0].Verdict != res.Verdict {
			f.Errorf("receiver says %v, sender %q", v, res.Verdict)
		}
	}
	return c.visible
}

// TestFileSizeLimit lets a transfer run into the limit of a file's size, which
// the system enforces by a signal.
func TestFileSizeLimit(t *testing.T) {
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		for _, format := range []string{"3", "5"} {
			t.Run(name+" format "+format, func(t *testing.T) {
				want := expect(t, name, format)
				store := t.TempDir()
				args := []string{"replay", filepath.Join(casesDir, name), "--format", format, "--json", "--store", store}
				// Every block's file but one of cumulative pools has about the same size.
				last := want.bytes[len(want.bytes)-1]
				limit := strconv.FormatInt((last-1)/512, 10) // in the shell's unit
				p := start(t, append([]string{"/bin/sh", "-c", `ulimit -f "$0" && exec "$@"`, limit, "{}"}, args...)...)
				status := p.wait()
				c := want.check(t, store)
				var res replayResult
				if err := json.Unmarshal([]byte(p.out.String()), &res); err != nil || p.crashed() != "" {
					t.Fatalf("no result: %v: status %d: %v", err, status, p)
				}
				if status != exitFailed || res.Blocks != c.visible || c.visible == len(want.hashes) || c.parts > 0 ||
					!strings.Contains(res.Verdict, "file too large") {
					t.Errorf("status %d, %d of %d blocks, %d temporary files: %v", status, c.visible, len(want.hashes), c.parts, p)
				}
				if again := start(t, args...); again.wait() != exitOK {
					t.Errorf("second run, without a limit: %v", again)
				}
				if c := want.check(t, store); c.visible != len(want.hashes) || c.parts > 0 {
					t.Errorf("second run, without a limit: %d of %d blocks, %d temporary files", c.visible, len(want.hashes), c.parts)
				}
			})
		}
	}
}
