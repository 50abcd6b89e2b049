package omlx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// EntryKind says what a directory entry of a store is.
type EntryKind string

// The kinds of entry.
const (
	EntryBlock   EntryKind = "block"   // named like a block
	EntryPart    EntryKind = "part"    // a temporary file of this package
	EntryTemp    EntryKind = "temp"    // a temporary file of the decoder, which scans pick up
	EntrySymlink EntryKind = "symlink" // followed by decoders, never by this package
	EntryOther   EntryKind = "other"   // anything else
)

// Entry is one directory entry of a store.
type Entry struct {
	Path    string
	Kind    EntryKind
	Size    int64 // bytes
	ModTime time.Time
	// The fields of a block; zero for other kinds and where Err is set. Hash is
	// the recorded one.
	Hash                        Hash
	Model, Format               string
	Tokens, BlockTokens, Layers int
	// Err says why a block cannot be used, or why the entry could not be examined.
	Err error
}

// List calls visit for every entry of the store's subdirectories, in order of
// name, and stops at its first error, which it returns. Blocks are opened and
// their structure verified; nothing is changed. Entries that vanish meanwhile are
// left out. Missing subdirectories are no error, a missing store is.
func List(dir string, visit func(Entry) error) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("list store: %w", err)
	}
	for _, digit := range "0123456789abcdef" {
		sub := filepath.Join(dir, string(digit))
		entries, err := os.ReadDir(sub)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list store: %w", err)
		}
		for _, d := range entries {
			e, err := describeEntry(filepath.Join(sub, d.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err := visit(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// describeEntry examines one entry; the error is fs.ErrNotExist or nil.
func describeEntry(path string) (Entry, error) {
	e := Entry{Path: path, Kind: EntryOther}
	st, err := os.Lstat(path)
	if err != nil {
		e.Err = err
		return e, err
	}
	e.Size, e.ModTime = st.Size(), st.ModTime()
	name := filepath.Base(path)
	hash, isBlock := strings.CutSuffix(name, blockSuffix)
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		e.Kind = EntrySymlink
	case !st.Mode().IsRegular():
	case partName.MatchString(name):
		e.Kind = EntryPart
	case isBlock && strings.HasSuffix(hash, "_tmp"):
		e.Kind = EntryTemp
	case isBlock:
		e.Kind = EntryBlock
	}
	if e.Kind != EntryBlock {
		return e, nil
	}
	b, err := ReadBlock(path)
	if err != nil {
		e.Err = err
		if errors.Is(err, fs.ErrNotExist) {
			return e, err
		}
		return e, nil
	}
	e.Hash, e.Model, e.Format = b.Hash, b.Model, b.Format
	e.Tokens, e.BlockTokens, e.Layers = b.Tokens, b.BlockTokens, len(b.Layers)
	return e, nil
}
