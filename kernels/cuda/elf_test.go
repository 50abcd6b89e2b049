package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// image is a library of one segment and, last as linkers leave it, a table of sections.
type image struct {
	header   elf.Header64
	segment  elf.Prog64
	sections [2]elf.Section64
}

// newImage is one that is whole.
func newImage() image {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	const begin, data = 64 + 56, 5000
	i := image{
		header: elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
			Phoff: 64, Shoff: begin + data, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: 2, Shstrndx: 1,
		},
		segment: elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Off: 0, Filesz: begin + data, Memsz: begin + data, Align: 4096},
	}
	i.sections[1] = elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: begin, Size: 1}
	return i
}

func (i image) bytes(tb testing.TB) []byte {
	tb.Helper()
	var b bytes.Buffer
	for _, part := range []any{i.header, i.segment, make([]byte, 5000), i.sections} {
		must(tb, binary.Write(&b, binary.LittleEndian, part))
	}
	return b.Bytes()
}

// TestWhole: a library that lacks bytes, is no library or another machine's is refused
// before the system's loader sees it, which would die of it.
func TestWhole(t *testing.T) {
	dir := t.TempDir()
	good := newImage().bytes(t)
	changed := func(change func(*image)) []byte {
		i := newImage()
		change(&i)
		return i.bytes(t)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"whole":        {good, ""},
		"longer":       {append(bytes.Clone(good), 1, 2, 3), ""},
		"no sections":  {changed(func(i *image) { i.header.Shoff, i.header.Shnum, i.header.Shstrndx = 0, 0, 0 }), ""},
		"last byte":    {good[:len(good)-1], "cut short"},
		"half":         {good[:len(good)/2], "cut short"},
		"header":       {good[:70], "cut short"},
		"empty":        {nil, "cut short"},
		"text":         {[]byte("not a library"), "no library"},
		"beyond":       {changed(func(i *image) { i.segment.Filesz = uint64(len(good)) + 1 }), "cut short"},
		"far":          {changed(func(i *image) { i.segment.Off = 1 << 40 }), "cut short"},
		"wraps":        {changed(func(i *image) { i.segment.Off, i.segment.Filesz = 1<<63-1, 1<<63-1 }), "cut short"},
		"nothing":      {changed(func(i *image) { i.segment.Type = uint32(elf.PT_NOTE) }), "nothing to load"},
		"machine":      {changed(func(i *image) { i.header.Machine = uint16(elf.EM_RISCV) }), "this machine is " + runtime.GOARCH},
		"program":      {changed(func(i *image) { i.header.Type = uint16(elf.ET_EXEC) }), "ET_EXEC"},
		"object":       {changed(func(i *image) { i.header.Type = uint16(elf.ET_REL) }), "ET_REL"},
		"other endian": {changed(func(i *image) { i.header.Ident[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }), "no library"},
	} {
		path := filepath.Join(dir, name+".so")
		must(t, os.WriteFile(path, c.file, 0o600))
		err := whole(path)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want one about %q that names the file", name, err, c.want)
		}
		m := model{g: smallGeometry(4)}
		if _, err := Open(m.g, m, 256, Options{Engine: GPU, CuBLASLt: path}); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s as cuBLASLt: %v, want %v with the path", name, err, ErrUnavailable)
		}
		if _, err := Open(m.g, m, 256, Options{Engine: GPU, Library: path}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want %v", name, err, ErrUnavailable)
		}
	}
	if err := whole(dir); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a directory: %v", err)
	}
	if err := whole(filepath.Join(dir, "none.so")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
