package transport

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// advised reports whether the mapping of mem was advised to use huge pages: the
// flag hg in its entry of smaps.
func advised(t *testing.T, mem []byte) bool {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := uintptr(unsafe.Pointer(&mem[len(mem)/2]))
	inside := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var begin, end uintptr
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x ", &begin, &end); n == 2 {
			inside = begin <= at && at < end
		}
		if flags, ok := strings.CutPrefix(s.Text(), "VmFlags:"); ok && inside {
			return slices.Contains(strings.Fields(flags), "hg")
		}
	}
	t.Fatal("the memory is not mapped")
	return false
}

func TestLargeRingAsksForHugePages(t *testing.T) {
	_, err := os.Stat("/sys/kernel/mm/transparent_hugepage")
	has := err == nil // the kernel may have been built without
	for _, tt := range []struct {
		slots, size int
		want        bool
	}{
		{4, 1<<20 + HeaderRoom, has},
		{2, 2 * HeaderRoom, false},
	} {
		r, err := NewRing(tt.slots, tt.size)
		if err != nil {
			t.Fatal(err)
		}
		if got := advised(t, r.Memory()); got != tt.want {
			t.Errorf("ring of %d bytes: advised %v, want %v", len(r.Memory()), got, tt.want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkTouch is what the first use of a ring's memory costs, with the pages
// that NewRing asks for and with those that the system gives by itself.
func BenchmarkTouch(b *testing.B) {
	const size = DefaultSlots * DefaultSlot
	touch := func(b *testing.B, prepare func([]byte)) {
		b.SetBytes(size)
		for b.Loop() {
			mem, unmap, err := mapMemory(size)
			if err != nil {
				b.Fatal(err)
			}
			prepare(mem)
			cutRing(mem, DefaultSlot).Touch()
			if err := unmap(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("asked", func(b *testing.B) { touch(b, preferHugePages) })
	b.Run("plain", func(b *testing.B) { touch(b, func([]byte) {}) })
}
