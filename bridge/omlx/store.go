package omlx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"
)

// StoreOptions tune a store; the zero value is right for use.
type StoreOptions struct {
	// NoSync leaves out everything that makes blocks durable. A power cut can
	// then leave a visible block with wrong bytes: for tests, and for stores on
	// memory file systems, where it changes nothing.
	NoSync bool
	// MaxOpen bounds the temporary files open at once; 4,096 if 0 or negative.
	MaxOpen int
}

// Store is a decoder's block store: a directory with subdirectories 0 to f. All
// methods may be called concurrently, and several stores and processes, the
// decoder among them, may use one directory.
//
// A block appears only as a complete, checked file, in one step: every byte of it
// was written once, and what the store itself wrote was read back. No existing
// block file is ever replaced or removed.
type Store struct {
	root    string
	disk    disk
	opt     StoreOptions
	discard bool
	open    atomic.Int64 // temporary files open now
	advance atomic.Int64 // bytes reserved with the first byte of blocks, see maxAdvance
	commits commits
}

const (
	blockSuffix = ".safetensors"
	partSuffix  = ".part"
)

// partName matches the store's temporary files and nothing that the decoder
// writes. It begins with a dot and does not end like a block, so that no scan of
// the decoder picks it up.
var partName = regexp.MustCompile(`^\.[0-9a-f]{64}(\.[0-9]{1,2})?\.part$`)

// Open opens the store in dir, makes its directories, and removes temporary
// files that writers of this package left behind when they died. Files of live
// writers, files that this account may not examine or remove, files in
// subdirectories that are links, and everything else, stay. An empty dir is refused: it would be the current directory.
func Open(dir string, opt StoreOptions) (*Store, error) { return open(dir, opt, osDisk{}) }

func open(dir string, opt StoreOptions, d osDisk) (*Store, error) {
	if dir == "" {
		return nil, errors.New("open block store: no directory is named")
	}
	if opt.MaxOpen <= 0 {
		opt.MaxOpen = maxOpenParts
	}
	s := &Store{root: dir, disk: d, opt: opt}
	for _, digit := range "0123456789abcdef" {
		sub := filepath.Join(dir, string(digit))
		if err := os.MkdirAll(sub, dirMode); err != nil {
			return nil, fmt.Errorf("open block store: %w", diskError(err))
		}
		if err := cleanParts(d, sub); err != nil {
			return nil, fmt.Errorf("open block store: remove stale temporary files: %w", diskError(err))
		}
	}
	if !opt.NoSync {
		if err := s.disk.syncDir(dir); err != nil {
			return nil, fmt.Errorf("open block store: %w", diskError(err))
		}
	}
	return s, nil
}

// makeDir makes a subdirectory that somebody removed.
func (s *Store) makeDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil || s.opt.NoSync {
		return err
	}
	return s.disk.syncDir(s.root)
}

// NewDiscard returns a store that checks plans and calls like any other but keeps
// nothing: for measuring everything in front of the disk.
func NewDiscard() *Store {
	return &Store{discard: true, opt: StoreOptions{NoSync: true, MaxOpen: maxOpenParts}}
}

// Path returns where the block of that hash lies, whether it exists or not.
func (s *Store) Path(h Hash) string {
	name := h.String()
	return filepath.Join(s.root, name[:1], name+blockSuffix)
}

// cleanParts removes the temporary files of dead writers from one subdirectory.
func cleanParts(d osDisk, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !partName.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		if err := d.removeStale(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, errHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Begin checks the plan and looks at what is already there. It creates nothing:
// a block's temporary file appears with its first byte. The names of blocks that
// are present are made durable, whoever made them: at most 16 directories.
//
// The error is ErrPlan, or the file system's.
func (s *Store) Begin(p Plan) (*Job, error) {
	l, err := p.Check()
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if p.CreatedAt == "" {
		p.CreatedAt = CreatedAt(time.Now())
	}
	j := &Job{store: s, layout: l, created: p.CreatedAt, blocks: make([]block, len(p.Hashes))}
	j.limit.Store(int64(len(j.blocks)))
	for k := range j.blocks {
		b := &j.blocks[k]
		b.hash = p.Hashes[k]
		if s.discard {
			continue
		}
		switch err := s.examine(l, k, b.hash); {
		case err == nil:
			b.state = statePresent
		case errors.Is(err, ErrConflict):
			b.state, b.conflict = stateConflict, err
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("begin: block %d: %w", k, err)
		}
	}
	if err := j.settlePresent(); err != nil {
		return nil, fmt.Errorf("begin: %w", diskError(err))
	}
	return j, nil
}
