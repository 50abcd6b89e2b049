package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// kernelMeta is the package whose dependency is the kernel. The one for clouds has no
// Soft-RoCE.
const kernelMeta = "linux-image-amd64"

// guestPackages is what the machine has, with what these depend on.
func guestPackages() []string {
	return []string{
		"busybox-static", "dash", "iproute2", "ibverbs-providers", "ibverbs-utils", "libibverbs1", "perftest", "rdma-core",
		"libstdc++6", "libgcc-s1",
	}
}

// packages fetches from Debian through apt, below dir.
type packages struct{ dir string }

// apt runs apt-get with its own idea of what is installed: nothing.
func (p packages) apt(ctx context.Context, args ...string) error {
	status := filepath.Join(p.dir, "status")
	for _, d := range []string{filepath.Join(p.dir, "debs", "partial")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make directory for packages: %w", err)
		}
	}
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return fmt.Errorf("pretend that nothing is installed: %w", err)
	}
	all := append([]string{
		"-qq", "-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + filepath.Join(p.dir, "debs"),
		"-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1", "--no-install-recommends",
	}, args...)
	return command(ctx, "apt-get", all...)
}

// fetch downloads and unpacks everything and returns the root that it makes, the
// kernel included.
func (p packages) fetch(ctx context.Context) (root, error) {
	kernel, err := p.kernel(ctx)
	if err != nil {
		return "", err
	}
	args := append([]string{"install", "--yes", "--download-only"}, guestPackages()...)
	if err := p.apt(ctx, args...); err != nil {
		return "", err
	}
	debs := filepath.Join(p.dir, "debs")
	if err := commandIn(ctx, debs, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", kernel); err != nil {
		return "", err
	}
	list, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(list) < len(guestPackages()) {
		return "", errors.Join(fmt.Errorf("apt fetched %d packages only", len(list)), err)
	}
	to := filepath.Join(p.dir, "root")
	for _, deb := range list {
		if err := command(ctx, "dpkg-deb", "--extract", deb, to); err != nil {
			return "", err
		}
	}
	return root(to), nil
}

// headers fetches the C headers of verbs and returns the directory to include from.
func (p packages) headers(ctx context.Context) (string, error) {
	include := filepath.Join(p.dir, "root", "usr", "include")
	if isFile(filepath.Join(include, "infiniband", "verbs.h")) {
		return include, nil
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory for headers: %w", err)
	}
	if _, err := p.kernel(ctx); err != nil { // fetches the lists where they are missing
		return "", err
	}
	if err := commandIn(ctx, p.dir, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "libibverbs-dev"); err != nil {
		return "", err
	}
	list, err := filepath.Glob(filepath.Join(p.dir, "libibverbs-dev_*.deb"))
	if err != nil || len(list) == 0 {
		return "", errors.Join(errors.New("apt fetched no libibverbs-dev"), err)
	}
	return include, command(ctx, "dpkg-deb", "--extract", list[len(list)-1], filepath.Join(p.dir, "root"))
}

// kernel is the package that kernelMeta stands for today; lists that are missing or
// old are fetched.
func (p packages) kernel(ctx context.Context) (string, error) {
	pattern := regexp.MustCompile(`Depends: (linux-image-[0-9][^ \n]*)`)
	for range 2 {
		out, err := exec.CommandContext(ctx, "apt-cache", "depends", kernelMeta).Output()
		if m := pattern.FindSubmatch(out); err == nil && m != nil {
			return string(m[1]), nil
		}
		if err := command(ctx, "apt-get", "-qq", "update"); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("apt knows no %s: this needs Debian's packages", kernelMeta)
}

// emulator finds qemu and xz. The error says how to get what is missing.
func emulator() error {
	var missing []string
	for program, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "xz": "xz-utils"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("this host lacks programs: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
}

func command(ctx context.Context, name string, args ...string) error {
	return commandIn(ctx, "", name, args...)
}

// commandIn runs a program in a directory and shows its output only when it failed.
func commandIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s %q: %w\n%s", name, args, err, out.Bytes())
	}
	return nil
}
