package cmdline

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ReadFile returns what is in a file that a user named, no larger than most bytes. Only
// regular files will do, and the null device, which is an empty one: a pipe would be
// waited for, for ever. What counts is the file that was opened, whatever has the name
// meanwhile. trust, if not nil, judges it before it is read.
func ReadFile(path string, most int64, trust func(*os.File) error) ([]byte, error) {
	irregular := fmt.Errorf("%s is no regular file: name a file", path)
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if isDevice(err) {
		return nil, irregular
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !isNull(info) {
		return nil, irregular
	}
	if trust != nil {
		if err := trust(f); err != nil {
			return nil, err
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

// isNull reports that a file is the null device.
func isNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(null, info)
}
