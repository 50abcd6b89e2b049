package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// root is a directory with unpacked packages.
type root string

// Where Debian keeps shared libraries.
func libraryDirs() []string {
	return []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib", "lib64", "usr/lib64"}
}

// program finds a program by its name.
func (r root) program(name string) (string, error) {
	for _, dir := range []string{"usr/bin", "bin", "usr/sbin", "sbin"} {
		if path := filepath.Join(string(r), dir, name); isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %s in the unpacked packages", name)
}

// library finds a shared library by its name.
func (r root) library(name string) (string, error) {
	for _, dir := range libraryDirs() {
		if path := filepath.Join(string(r), dir, name); isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no library %s in the unpacked packages", name)
}

// libraries adds to found what the files at paths are linked with, and what that is
// linked with: name to path.
func (r root) libraries(found map[string]string, paths ...string) error {
	for _, path := range paths {
		needed, err := neededBy(path)
		if err != nil {
			return err
		}
		for _, name := range needed {
			if found[name] != "" {
				continue
			}
			lib, err := r.library(name)
			if err != nil {
				return fmt.Errorf("%s needs it: %w", path, err)
			}
			found[name] = lib
			if err := r.libraries(found, lib); err != nil {
				return err
			}
		}
	}
	return nil
}

// neededBy is the libraries that a file names, nothing for one that is static.
func neededBy(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("read libraries of %s: %w", path, err)
	}
	return needed, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// modules finds kernel modules and what they depend on.
type modules struct {
	paths   map[string]string // name to file
	builtin map[string]bool
}

// findModules looks through lib/modules/release.
func findModules(dir string) (*modules, error) {
	m := &modules{paths: map[string]string{}, builtin: map[string]bool{}}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read the kernel's list of modules: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		m.builtin[moduleName(line)] = true
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			m.paths[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for modules: %w", err)
	}
	return m, nil
}

// moduleName is the name of a module's file, which may be written in two ways.
func moduleName(path string) string {
	name := strings.TrimSuffix(filepath.Base(strings.TrimSpace(path)), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// order appends the files of a module, dependencies first, each once.
func (m *modules) order(list []string, name string) ([]string, error) {
	name = moduleName(name)
	path := m.paths[name]
	if path == "" {
		if m.builtin[name] {
			return list, nil
		}
		return nil, fmt.Errorf("the kernel has no module %s", name)
	}
	for _, have := range list {
		if have == path {
			return list, nil
		}
	}
	depends, err := moduleDepends(path)
	if err != nil {
		return nil, err
	}
	for _, d := range depends {
		if list, err = m.order(list, d); err != nil {
			return nil, fmt.Errorf("%s needs it: %w", name, err)
		}
	}
	return append(list, path), nil
}

// moduleDepends reads a module's own description.
func moduleDepends(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("read module %s: %w", path, errors.New("no description in it"))
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
