package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Limits of free space, with their reasons.
const (
	// leastBlocks is how many blocks have to fit: fewer are not worth a transfer.
	leastBlocks = 8

	// goodShare is the share of a disk below which it is about to fill: file systems
	// become slow, and others on it need room too.
	goodShare = 0.05
)

// lookStore looks at the store that blocks go to: that it is the decoder's, that files
// can be made there, that the decoder can read them, and that they fit.
func (d *decodeDoctor) lookStore(context.Context) (found []finding) {
	var dirs []string
	if d.f.store != "" {
		dirs = append(dirs, d.f.store)
	}
	for _, m := range d.models {
		dir := m.Store.Path
		if _, err := os.Stat(dir); err != nil {
			cure := "run pdlink decode on the decoder's host, as a user who may enter the store"
			if errors.Is(err, fs.ErrPermission) {
				cure = "let this user enter it, or run pdlink decode as the decoder's user"
			}
			found = append(found, bad(fmt.Sprintf("the decoder's store %s: %v", dir, err), cure))
			continue
		}
		switch {
		case d.f.store == "" && !slices.Contains(dirs, dir):
			dirs = append(dirs, dir)
		case d.f.store != "" && !sameDir(d.f.store, dir):
			found = append(found, bad(fmt.Sprintf("--store %s is not the decoder's store, which is %s", d.f.store, dir), "leave --store out, or name that directory"))
		}
	}
	for _, dir := range dirs {
		found = append(found, d.lookDir(dir)...)
	}
	return found
}

func sameDir(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// lookDir looks at one directory of blocks.
func (d *decodeDoctor) lookDir(dir string) []finding {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []finding{doubt(dir+" does not exist: pdlink decode makes it", "make sure that it is the directory that the decoder reads (--paged-ssd-cache-dir)")}
	case err != nil:
		return []finding{bad(err.Error(), "let this user enter the store")}
	case !info.IsDir():
		return []finding{bad(dir+" is no directory", "name the decoder's store with --store")}
	}
	made, err := tryFile(dir)
	if err != nil {
		return []finding{bad(fmt.Sprintf("no file can be made in %s: %v", dir, err), "give this user the right to write there, or run as the decoder's user")}
	}
	found := []finding{good("%s can be written", dir)}
	if owner, ok := ownerOf(info); ok && owner != os.Geteuid() && made.Mode().Perm()&0o044 != 0o044 {
		found = append(found, bad(fmt.Sprintf("user %d, whose store it is, could not read the files of user %d (mode %04o)", owner, os.Geteuid(), made.Mode().Perm()),
			"run pdlink decode as that user, or with umask 022"))
	}
	for _, digit := range storeFolders {
		sub := filepath.Join(dir, string(digit))
		if x, err := os.Stat(sub); err == nil && !sameDevice(info, x) {
			found = append(found, bad(sub+" is on another file system than "+dir, "a store has to be on one: make it a plain directory"))
		}
	}
	return append(found, d.lookSpace(dir)...)
}

// tryFile makes a file in a directory as blocks are made, and removes it.
func tryFile(dir string) (fs.FileInfo, error) {
	f, err := os.CreateTemp(dir, ".pdlink-doctor-*.part")
	if err != nil {
		return nil, err
	}
	name := f.Name()
	// CreateTemp gives no rights to others, whatever the umask; blocks have what the
	// umask leaves.
	again := name + ".mode"
	g, err := os.OpenFile(again, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	var info fs.FileInfo
	if err == nil {
		info, err = g.Stat()
		err = errors.Join(err, g.Sync(), g.Close(), os.Remove(again))
	}
	return info, errors.Join(err, f.Close(), os.Remove(name))
}

// lookSpace looks whether blocks fit, by the disk and by the decoder's limit.
func (d *decodeDoctor) lookSpace(dir string) (found []finding) {
	free, total, ok := freeSpace(dir)
	if !ok {
		return nil
	}
	block := int64(0)
	for _, m := range d.models {
		block = max(block, m.BlockBytes)
		if l := m.Store.Limit; l != nil && m.BlockBytes > 0 && *l < leastBlocks*m.BlockBytes {
			found = append(found, bad(fmt.Sprintf("the decoder's limit of the store, %s, takes %d blocks of %s", bytesText(uint64(*l)), *l/m.BlockBytes, m.ID),
				"raise the decoder's ssd_cache_max_size"))
		}
	}
	text := fmt.Sprintf("%s of %s are free", bytesText(free), bytesText(total))
	if block > 0 {
		text += fmt.Sprintf(": %d blocks", free/uint64(block))
	}
	switch {
	case free < uint64(leastBlocks*max(block, 1<<20)):
		return append(found, bad(text, "free the disk"))
	case float64(free) < goodShare*float64(total):
		return append(found, doubt(text, "free the disk soon"))
	}
	return append(found, good("%s", text))
}
