package cuda

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// whole refuses a file that is not a library for this machine with all its bytes. The
// system's loader believes the headers: it maps segments that a file which was cut
// short does not hold, and the process dies of a bus error when it comes to them. The
// error names the path.
func whole(path string) error {
	info, err := os.Stat(path) // first: opening a pipe waits
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = wholeLibrary(f, uint64(info.Size()))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(err, f.Close())
}

// wholeLibrary is whole of a file that is open.
func wholeLibrary(f *os.File, size uint64) error {
	e, err := elf.NewFile(f) // which reads the table of sections, a library's last bytes
	if err != nil {
		return fmt.Errorf("no library, or cut short: %w", err)
	}
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if e.Class != elf.ELFCLASS64 || e.Data != elf.ELFDATA2LSB || e.Machine != machine {
		return fmt.Errorf("made for %v, this machine is %s", e.Machine, runtime.GOARCH)
	}
	if e.Type != elf.ET_DYN {
		return fmt.Errorf("no library but %v", e.Type)
	}
	loads := 0
	for _, p := range e.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		loads++
		if p.Filesz > size || p.Off > size-p.Filesz {
			return fmt.Errorf("cut short: %d bytes, a segment has %d from %d on", size, p.Filesz, p.Off)
		}
	}
	if loads == 0 {
		return errors.New("no library: it has nothing to load")
	}
	return nil
}
