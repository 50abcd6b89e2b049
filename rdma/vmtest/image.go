package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// guestInit is the first program of the machine.
//
//go:embed init.sh
var guestInit string

// imageVersion changes with what build puts into an image beside guestInit and the
// lists of this package.
const imageVersion = "1"

// image is what a machine boots.
type image struct {
	kernel string // an ELF file: unpacking one inside the machine takes seconds
	base   string // the initial file system, to which a job is appended
}

// programs of the machine beside busybox's.
func guestPrograms() []string {
	return []string{
		"dash", "ip", "tc", "rdma", "ss", "ibv_devinfo", "ibv_rc_pingpong", "ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_read_bw",
	}
}

// guestLibraries are those that programs load without naming them, or that a job may
// be linked with.
func guestLibraries() []string {
	return []string{
		"libibverbs.so.1", "librdmacm.so.1", "libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libresolv.so.2",
		"libgcc_s.so.1", "libstdc++.so.6", "libnss_files.so.2",
	}
}

// guestModules by the list that the machine loads them from. Without the generic
// checksum Soft-RoCE would get one that is slower when its instructions are emulated.
func guestModules() map[string][]string {
	return map[string][]string{
		"base": {"virtio_pci", "virtio_console"},
		"rdma": {"veth", "crc32_generic", "rdma_rxe"},
		"tc":   {"sch_tbf", "sch_netem"},
	}
}

// prepare returns an image below cache, made now unless it is there.
func prepare(ctx context.Context, cache string) (image, error) {
	sum := sha256.New()
	fmt.Fprint(sum, imageVersion, guestInit, guestPackages(), guestPrograms(), guestLibraries(), guestModules())
	dir := filepath.Join(cache, "image-"+hex.EncodeToString(sum.Sum(nil))[:16])
	img := image{kernel: filepath.Join(dir, "vmlinux"), base: filepath.Join(dir, "base.cpio")}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return img, fmt.Errorf("make cache: %w", err)
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return img, err
	}
	defer unlock()
	if err := emulator(); err != nil {
		return img, err
	}
	if isFile(img.base) && isFile(img.kernel) {
		return img, nil
	}
	pkgs := filepath.Join(cache, "packages")
	if err := errors.Join(os.RemoveAll(pkgs), os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return img, fmt.Errorf("clear cache: %w", err)
	}
	r, err := packages{pkgs}.fetch(ctx)
	if err != nil {
		return img, err
	}
	if err := extractKernel(ctx, r, img.kernel); err != nil {
		return img, err
	}
	if err := writeBase(r, img.base+".new"); err != nil {
		return img, err
	}
	return img, os.Rename(img.base+".new", img.base)
}

// lock keeps other processes from making the same image at the same time.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// extractKernel takes the kernel's ELF file out of the one that a boot loader wants.
func extractKernel(ctx context.Context, r root, to string) error {
	packed, err := filepath.Glob(filepath.Join(string(r), "boot", "vmlinuz-*"))
	if err != nil || len(packed) != 1 {
		return errors.Join(fmt.Errorf("%d kernels in the packages, want one", len(packed)), err)
	}
	data, err := os.ReadFile(packed[0])
	if err != nil {
		return fmt.Errorf("read kernel: %w", err)
	}
	magic := []byte("\xfd7zXZ\x00")
	for from := 0; ; {
		i := bytes.Index(data[from:], magic)
		if i < 0 {
			return fmt.Errorf("no kernel in %s: it is not packed with xz", packed[0])
		}
		from += i
		cmd := exec.CommandContext(ctx, "xz", "--decompress", "--stdout", "--single-stream")
		cmd.Stdin = bytes.NewReader(data[from:])
		var out bytes.Buffer
		cmd.Stdout = &out
		// xz complains about what follows the stream; what counts is what came out.
		_ = cmd.Run()
		if bytes.HasPrefix(out.Bytes(), []byte("\x7fELF")) {
			if err := os.WriteFile(to, out.Bytes(), 0o644); err != nil {
				return fmt.Errorf("write kernel: %w", err)
			}
			return nil
		}
		from += len(magic)
	}
}

// writeBase writes the file system without a job.
func writeBase(r root, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	a := newArchive(f)
	err = errors.Join(addPrograms(a, r), addModules(a, r), addSettings(a, r))
	return errors.Join(err, a.close(), f.Close())
}

func addPrograms(a *archive, r root) error {
	busybox, err := r.program("busybox")
	if err != nil {
		return err
	}
	a.file("bin/busybox", busybox)
	var paths []string
	for _, name := range guestPrograms() {
		path, err := r.program(name)
		if err != nil {
			return err
		}
		paths = append(paths, path)
		a.file("bin/"+name, path)
	}
	// The shell of busybox would prefer its own programs to those above.
	a.link("bin/sh", "dash")
	found := map[string]string{}
	providers, err := filepath.Glob(filepath.Join(string(r), "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so"))
	if err != nil || len(providers) != 1 {
		return errors.Join(fmt.Errorf("%d providers for Soft-RoCE in the packages, want one", len(providers)), err)
	}
	a.file("usr/lib/x86_64-linux-gnu/libibverbs/"+filepath.Base(providers[0]), providers[0])
	a.text("etc/libibverbs.d/rxe.driver", "driver rxe\n", 0o644)
	paths = append(paths, providers[0])
	for _, name := range guestLibraries() {
		path, err := r.library(name)
		if err != nil {
			return err
		}
		found[name] = path
		paths = append(paths, path)
	}
	if err := r.libraries(found, paths...); err != nil {
		return err
	}
	for name, path := range found {
		if name == "ld-linux-x86-64.so.2" {
			a.file("lib64/"+name, path)
		}
		a.file("usr/lib/x86_64-linux-gnu/"+name, path)
	}
	a.link("lib/x86_64-linux-gnu", "../usr/lib/x86_64-linux-gnu")
	return nil
}

func addModules(a *archive, r root) error {
	dirs, err := filepath.Glob(filepath.Join(string(r), "lib/modules/*"))
	if err != nil || len(dirs) != 1 {
		return errors.Join(fmt.Errorf("modules of %d kernels in the packages, want one", len(dirs)), err)
	}
	all, err := findModules(dirs[0])
	if err != nil {
		return err
	}
	for list, names := range guestModules() {
		var files []string
		for _, name := range names {
			if files, err = all.order(files, name); err != nil {
				return err
			}
		}
		var text strings.Builder
		for _, path := range files {
			fmt.Fprintln(&text, filepath.Base(path))
			a.file("modules/"+filepath.Base(path), path)
		}
		a.text("modules/"+list+".list", text.String(), 0o644)
	}
	return nil
}

func addSettings(a *archive, r root) error {
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "sbin", "usr/bin", "var/run"} {
		a.dir(d)
	}
	a.text("init", guestInit, 0o755)
	a.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", 0o644)
	a.text("etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644)
	a.text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644)
	a.text("etc/nsswitch.conf", "hosts: files\n", 0o644)
	versions, err := filepath.Glob(filepath.Join(string(r), "..", "debs", "*.deb"))
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}
	sort.Strings(versions)
	var text strings.Builder
	for _, v := range versions {
		fmt.Fprintln(&text, filepath.Base(v))
	}
	a.text("etc/packages", text.String(), 0o644)
	return nil
}
