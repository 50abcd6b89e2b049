package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// DefaultDir is where keys are unless the user says otherwise: pdlink in the
// user's configuration directory (os.UserConfigDir).
func DefaultDir() (string, error) {
	base, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("keys: find the configuration directory: %w", err)
	}
	return filepath.Join(base, "pdlink"), nil
}

// Modes that a file may not have.
const (
	othersWrite fs.FileMode = 0o022 // or they could put a key of theirs there
	othersAny   fs.FileMode = 0o077
)

// readFile returns the content of a file that nobody else can write (with secret:
// nor read), at most limit bytes. The checks are of the file that is read, and of
// its directory: who can write there can put another file in its place.
func readFile(path string, limit int, secret bool) ([]byte, error) {
	if err := checkDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if isLink(err) {
		return nil, fmt.Errorf("%w: %s is a symbolic link: put the file itself there", ErrPermissions, path)
	}
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrPermissions, path)
	}
	not, fix := othersWrite, "go-w"
	if secret {
		not, fix = othersAny, "600"
	}
	if err := errors.Join(checkOwner(path, fi), checkMode(path, fi, not, fix)); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("keys: read %s: %w", path, err)
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrBadFile, path, limit)
	}
	return b, nil
}

// checkDir refuses a directory that others can write.
func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("%w: %s is no directory", ErrBadFile, dir)
	}
	return errors.Join(checkOwner(dir, fi), checkMode(dir, fi, othersWrite, "go-w"))
}

// change runs f while no other process changes files of dir by this package. It
// makes the directory, for this user only, where there is none.
func change(dir string, f func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	defer d.Close()
	if err := lock(d); err != nil {
		return fmt.Errorf("keys: lock %s: %w", dir, err)
	}
	if err := f(); err != nil {
		return err
	}
	// Not every system can sync a directory; the file itself was synced.
	d.Sync() //nolint:errcheck // see above
	return nil
}

// writeFile makes path a file of mode 0600 with this content, which nobody sees
// half-written. Without replace the error Is fs.ErrExist where there is one.
func writeFile(path string, content []byte, replace bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	temp := f.Name()
	defer func() {
		if rm := os.Remove(temp); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("keys: %w", rm))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("keys: write %s: %w", path, err)
	}
	if replace {
		err = os.Rename(temp, path)
	} else {
		err = os.Link(temp, path) // unlike a rename it does not replace
	}
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return nil
}
