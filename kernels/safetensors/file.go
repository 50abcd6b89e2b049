package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// lengthSize is the size of the length field in front of the header.
const lengthSize = 8

// File is an open, verified file. Its methods may be called by several
// goroutines at once; Close must not run while another method does.
type File struct {
	r      io.ReaderAt
	closer io.Closer
	header Header
	raw    []byte
	index  map[string]int
	base   int64
}

// Open opens a file and verifies its whole header against the file's size (see
// ParseHeader). The data is not read. It never waits for what is no regular file,
// a pipe for example: that is ErrHeader. The caller closes the File.
//
// Errors are those of os.Open, ErrHeader, or ErrLayout, with the path.
func Open(path string) (*File, error) { return OpenLimited(path, MaxHeader) }

// OpenLimited is Open for files whose header has at most maxHeader bytes; a
// longer one is ErrHeader and not read.
func OpenLimited(path string, maxHeader int64) (*File, error) {
	// Devices may do something when they are opened, so the look comes first; what
	// lies there may be another file by then, so there is a second one.
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("open %s: %w: not a regular file", path, ErrHeader)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	st, err = f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: not a regular file", ErrHeader)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), f.Close())
	}
	file, err := newFile(f, st.Size(), maxHeader)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), f.Close())
	}
	file.closer = f
	return file, nil
}

// NewFile verifies the container of size bytes behind r. It reads the header
// only, and never allocates more than size bytes for it. Close does not close r.
func NewFile(r io.ReaderAt, size int64) (*File, error) { return newFile(r, size, MaxHeader) }

func newFile(r io.ReaderAt, size, maxHeader int64) (*File, error) {
	maxHeader = min(maxHeader, MaxHeader)
	var length [lengthSize]byte
	if size < lengthSize {
		return nil, fmt.Errorf("%w: file of %d bytes has no header", ErrHeader, size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n == 0 || n > uint64(max(maxHeader, 0)) {
		return nil, fmt.Errorf("%w: header length %d is not in 1..%d", ErrHeader, n, maxHeader)
	}
	if n > uint64(size-lengthSize) {
		return nil, fmt.Errorf("%w: header length %d exceeds the file's %d bytes", ErrHeader, n, size)
	}
	raw := make([]byte, n)
	if got, err := r.ReadAt(raw, lengthSize); got < len(raw) {
		return nil, fmt.Errorf("read header: %w", err)
	}
	base := lengthSize + int64(n)
	h, err := ParseHeader(raw, size-base)
	if err != nil {
		return nil, err
	}
	f := &File{r: r, header: h, raw: raw, base: base, index: make(map[string]int, len(h.Tensors))}
	for i, t := range h.Tensors {
		f.index[t.Name] = i
	}
	return f, nil
}

// Close closes the file. It is idempotent.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	c := f.closer
	f.closer = nil
	return c.Close()
}

// Tensor returns the tensor of that name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.header.Tensors[i], true
}

// Tensors returns all tensors in data order. The slice belongs to the File.
func (f *File) Tensors() []Tensor { return f.header.Tensors }

// Metadata returns a new map of the metadata; empty if there is none.
func (f *File) Metadata() map[string]string {
	m := make(map[string]string, len(f.header.Metadata))
	for _, kv := range f.header.Metadata {
		m[kv.Key] = kv.Value
	}
	return m
}

// MetadataKeys returns the metadata keys in the order of the file.
func (f *File) MetadataKeys() []string {
	keys := make([]string, len(f.header.Metadata))
	for i, kv := range f.header.Metadata {
		keys[i] = kv.Key
	}
	return keys
}

// Header returns the parsed header. It belongs to the File and must not be changed.
func (f *File) Header() Header { return f.header }

// HeaderBytes returns the JSON header as it lies in the file, padding included,
// without the length field. It belongs to the File and must not be changed.
func (f *File) HeaderBytes() []byte { return f.raw }

// DataOffset returns the file offset of the data region.
func (f *File) DataOffset() int64 { return f.base }

// DataLen returns the bytes of the data region.
func (f *File) DataLen() int64 { return f.header.DataLen }

// ReadTensor reads all of t into dst, whose length must be t.Size().
func (f *File) ReadTensor(t Tensor, dst []byte) error {
	if int64(len(dst)) != t.Size() {
		return fmt.Errorf("read tensor %q: destination has %d bytes, tensor has %d", t.Name, len(dst), t.Size())
	}
	if n, err := f.ReadAt(dst, t.Begin); n < len(dst) {
		return fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	return nil
}

// ReadAt reads from the data region; off is relative to its first byte. It obeys
// io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at negative offset %d", off)
	}
	if off >= f.header.DataLen {
		return 0, io.EOF
	}
	if rest := f.header.DataLen - off; int64(len(p)) > rest {
		n, err := f.r.ReadAt(p[:rest], f.base+off)
		if err == nil {
			err = io.EOF
		}
		return n, err
	}
	return f.r.ReadAt(p, f.base+off)
}
