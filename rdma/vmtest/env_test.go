package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// numberOf is the number in a variable of the environment: otherwise where that is not
// set. What is no number is an error, since a run with another seed repeats nothing.
func numberOf(name, text string, otherwise uint64) (uint64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s=%q: want a whole number: %w", name, text, err)
	}
	return n, nil
}

func TestNumberOf(t *testing.T) {
	for text, want := range map[string]uint64{"": 7, "0": 0, "123": 123} {
		if n, err := numberOf("X", text, 7); n != want || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"x", "-1", "1.5", "99999999999999999999"} {
		if _, err := numberOf("RDMA_SEED", text, 7); err == nil || !strings.Contains(err.Error(), "RDMA_SEED") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestEmulator: nothing is installed where nobody asked for that.
func TestEmulator(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	ran := filepath.Join(dir, "ran")
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\n: >"+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := emulator()
	if err == nil || !strings.Contains(err.Error(), "apt-get install --no-install-recommends qemu-system-x86 xz-utils") {
		t.Errorf("no programs: %v", err)
	}
	if isFile(ran) {
		t.Error("apt-get was run")
	}
	for _, name := range []string{"qemu-system-x86_64", "xz"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := emulator(); err != nil {
		t.Error(err)
	}
}

// TestNoStatus: an emulator that ends quietly is no error by itself.
func TestNoStatus(t *testing.T) {
	if err := noStatus(nil, []byte("a"), []byte("b")); !strings.Contains(err.Error(), "machine\nab") || strings.Contains(err.Error(), "%!") {
		t.Errorf("a quiet end: %q", err)
	}
	if err := noStatus(os.ErrClosed, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("an end with an error: %v", err)
	}
}
