package main

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// bundled are small cases with the blocks that a real decoder wrote for them;
// testdata/README.md says how they were made. state.safetensors, which only
// tests read, stays out of the binary.
//
//go:embed testdata/cases/*/case.json testdata/cases/*/capture.safetensors
//go:embed testdata/cases/*/weights.safetensors testdata/cases/*/expected
var bundled embed.FS

const bundledRoot = "testdata/cases"

// bundledCases are the names of the bundled cases.
func bundledCases() ([]string, error) {
	entries, err := fs.ReadDir(bundled, bundledRoot)
	if err != nil {
		return nil, fmt.Errorf("bundled cases: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// unpackCase writes a bundled case below dir and returns where it is.
func unpackCase(name, dir string) (string, error) {
	to := filepath.Join(dir, name)
	sub, err := fs.Sub(bundled, bundledRoot+"/"+name)
	if err != nil {
		return "", fmt.Errorf("bundled case %s: %w", name, err)
	}
	if err := os.CopyFS(to, sub); err != nil {
		return "", fmt.Errorf("unpack case %s: %w", name, err)
	}
	return to, nil
}
