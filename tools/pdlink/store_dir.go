package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pdlink/bridge/omlx"
)

const (
	// storeFolders name the folders of a store: a block's is its first digit.
	storeFolders = "0123456789abcdef"

	// blockSuffix ends the name of a block's file.
	blockSuffix = ".safetensors"
)

// checkStore says what is wrong with a path that is to be looked at as a store.
// A store that was never written may lack some of the folders, not all.
func checkStore(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case strings.TrimSpace(dir) == "":
		return errors.New("the store is empty: name a directory")
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no block store at %s: there is no such directory", dir)
	case err != nil:
		return fmt.Errorf("block store: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s is a file, not a block store: `pdlink store show FILE` looks into a block", dir)
	case !hasFolder(dir):
		return fmt.Errorf("%s is not a block store (no folders 0 to f)", dir)
	}
	return nil
}

// hasFolder reports whether a directory has any of a store's folders.
func hasFolder(dir string) bool {
	for _, digit := range storeFolders {
		if info, err := os.Stat(filepath.Join(dir, string(digit))); err == nil && info.IsDir() {
			return true
		}
	}
	return false
}

// place is the directory of a store that blocks are to go to.
type place struct {
	dir      string
	expected bool // it should be there: a word if it is not
}

// state is what is at a place before anything is written.
type state struct {
	path    string // absolute
	created bool   // there was no such directory
	blocks  int    // by their names
}

// open examines the place and opens the store. An error is the user's to mend,
// but for a full disk.
func (p place) open(std streams, noSync bool) (state, *omlx.Store, error) {
	was, err := p.look(std)
	if err != nil {
		return was, nil, unusable(err)
	}
	store, err := omlx.Open(p.dir, omlx.StoreOptions{NoSync: noSync})
	switch {
	case errors.Is(err, omlx.ErrNoSpace):
		err = failed(err)
	case err != nil:
		err = unusable(err)
	}
	return was, store, err
}

// look examines the place.
func (p place) look(std streams) (state, error) {
	path, err := filepath.Abs(p.dir)
	if err != nil {
		return state{}, fmt.Errorf("--store: %w", err)
	}
	s := state{path: path}
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.created = true
		if p.expected {
			std.warnf("--store %s: there was no such directory: is this the decoder's store?", path)
		}
		return s, nil
	case err != nil:
		return s, fmt.Errorf("--store: %w", err)
	case len(entries) > 0 && !hasFolder(path):
		std.warnf("--store %s: it holds other things and none of a store's folders 0 to f: is this the decoder's store?", path)
	}
	for _, digit := range storeFolders {
		names, err := os.ReadDir(filepath.Join(path, string(digit)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("--store: %w", err)
		}
		for _, e := range names {
			if !strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), blockSuffix) {
				s.blocks++
			}
		}
	}
	return s, nil
}

// what describes a store in a few words.
func (s state) what() string {
	if s.created {
		return "new"
	}
	return count(s.blocks, "block")
}
