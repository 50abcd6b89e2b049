//go:build linux && (amd64 || arm64) && !nocuda && !nordma

package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// load opens libpdproj.so; every failure is ErrUnavailable. The library stays
// loaded: the CUDA runtime in it has threads that cannot be taken out.
func load(path string) (*library, error) {
	if path == "" {
		path = "libpdproj.so"
		if exe, err := os.Executable(); err == nil {
			if beside := filepath.Join(filepath.Dir(exe), path); isFile(beside) {
				path = beside
			}
		}
	}
	if strings.ContainsRune(path, filepath.Separator) { // else the system's loader looks for it
		if err := whole(path); err != nil {
			return nil, fmt.Errorf("%w: load libpdproj.so: %w (make cuda builds it)", ErrUnavailable, err)
		}
	}
	runtime.LockOSThread() // the reason of a failure is the thread's
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	runtime.UnlockOSThread()
	if err != nil {
		return nil, fmt.Errorf("%w: load libpdproj.so: %w (make cuda builds it)", ErrUnavailable, err)
	}
	l := &library{}
	all := l.symbols()
	// One C function under two Go types: which side is Go memory differs.
	for name, f := range map[string][]any{"pdproj_copy": {&l.copyIn, &l.copyOut}} {
		for _, f := range f {
			if err := bind(handle, name, f); err != nil {
				return nil, err
			}
		}
	}
	for name, f := range all {
		if err := bind(handle, name, f); err != nil {
			return nil, err
		}
	}
	if v := l.abi(); v != libraryABI {
		return nil, fmt.Errorf("%w: %s has interface %d, want %d: build it from the same sources", ErrUnavailable, path, v, libraryABI)
	}
	return l, nil
}

func bind(handle uintptr, name string, f any) error {
	at, err := purego.Dlsym(handle, name)
	if err != nil {
		return fmt.Errorf("%w: libpdproj.so lacks %s: build it from the same sources", ErrUnavailable, name)
	}
	purego.RegisterFunc(f, at)
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
