package keys

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// LoadName returns what other hosts are to call this one, as SaveName kept it in dir;
// "" where nothing was kept. Errors: ErrPermissions, ErrBadFile, what the file system
// said.
func LoadName(dir string) (string, error) {
	path := filepath.Join(dir, NameFile)
	b, err := readFile(path, maxNameFile, false)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(b))
	if err := CheckName(name); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrBadFile, path, err)
	}
	return name, nil
}

// SaveName keeps in dir what other hosts are to call this one. It is what a user wants
// them to, and decides nothing. The context bounds the wait for another change of the
// directory. Errors: ErrBadKey for what is no name, ErrPermissions, ErrLocked, the
// context's, what the file system said.
func SaveName(ctx context.Context, dir, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return change(ctx, dir, func() error { return writeFile(filepath.Join(dir, NameFile), []byte(name+"\n"), true) })
}
