package keys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
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
		return nil, fileError(path, err)
	}
	defer f.Close()
	not, fix := othersWrite, "go-w"
	if secret {
		not, fix = othersAny, "600"
	}
	if err := checkFile(path, f, not, fix); err != nil {
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

// checkFile refuses an open file that is not the user's own, regular, and closed
// to others as not says.
func checkFile(path string, f *os.File, not fs.FileMode, fix string) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is no regular file", ErrPermissions, path)
	}
	return errors.Join(checkOwner(path, fi), checkMode(path, fi, not, fix))
}

// fileError is what the system said about a file. One that this process may not
// read is as little to be trusted as one that others can write.
func fileError(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: this process may not use %s: run it as the owner of the file, or see to it with `ls -ld %s`: %w",
			ErrPermissions, path, ShellPath(path), err)
	}
	return fmt.Errorf("keys: %w", err)
}

// checkDir refuses a directory that others can write.
func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return fileError(dir, err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("%w: %s is no directory", ErrBadFile, dir)
	}
	return errors.Join(checkOwner(dir, fi), checkMode(dir, fi, othersWrite, "go-w"))
}

// change runs f while no other process changes files of dir by this package. It
// makes the directory, for this user only, where there is none. Errors: ErrLocked,
// the context's, ErrPermissions, what the file system said, and those of f.
func change(ctx context.Context, dir string, f func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return err
	}
	l, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := errors.Join(f(), sweep(dir)); err != nil {
		return err
	}
	return syncDir(dir)
}

// lockDir waits for the exclusive right to change the files of a directory, which
// ends when the result is closed, or with the process. What is locked is a file
// that nobody else can open: the directory itself could be held by everybody who
// may list it.
func lockDir(ctx context.Context, dir string) (_ *os.File, err error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|openFlags, 0o600)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer func() {
		if err != nil {
			f.Close() //nolint:errcheck // the error that counts is returned
		}
	}()
	if err := checkFile(path, f, othersAny, "600"); err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	late := time.NewTimer(lockWait)
	defer late.Stop()
	for {
		if ok, err := tryLock(f); err != nil || ok {
			return f, err
		}
		select {
		case <-tick.C:
		case <-late.C:
			return nil, fmt.Errorf("%w: another process has held %s for %v: end it, `fuser %s` says which it is",
				ErrLocked, path, lockWait, ShellPath(path))
		case <-ctx.Done():
			return nil, fmt.Errorf("keys: wait for %s: %w", path, ctx.Err())
		}
	}
}

// sweep removes what processes left that died while they wrote: a private key may
// be in it. It is called under the lock.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), newPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("keys: remove what an earlier process left: %w", err))
		}
	}
	return errors.Join(errs...)
}

// syncDir makes names durable. Not every system can; the files themselves were
// synced.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	d.Sync() //nolint:errcheck // see above
	return d.Close()
}

// writeFile makes path a file of mode 0600 with this content, which nobody sees
// half-written. Without replace the error Is fs.ErrExist where there is one.
func writeFile(path string, content []byte, replace bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), newPrefix+"*") // mode 0600
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
