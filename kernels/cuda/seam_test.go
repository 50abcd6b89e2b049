package cuda

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"pdlink/kernels"
)

// fakeDevice is a projector of one layer whose library is in Go.
func fakeDevice(lib *library) (*device, *deviceRequest) {
	g := smallGeometry(4)
	l := newLayout(g, 4, 256, false)
	d := &device{lib: lib, g: g, block: 256, o: Options{Layers: []int{0}}.withDefaults(), index: map[int]int{0: 0}, layouts: []layout{l}}
	return d, &deviceRequest{owner: d, layers: make([]progress, 1)}
}

// TestSeedWaits: a stream that reads the previous window late still finds it, and
// nobody goes on before it has, whether the call succeeded or not.
func TestSeedWaits(t *testing.T) {
	for _, code := range []int32{0, codeDevice} {
		var pending []*uint16
		lib := &library{}
		lib.seed = func(_, _ uintptr, _ int32, _ int64, kv, gate, idxKV, idxGate *uint16, _ uintptr, _ *cError) int32 {
			for _, p := range []*uint16{kv, gate, idxKV, idxGate} {
				if p != nil {
					pending = append(pending, p)
				}
			}
			return code
		}
		waits := 0
		lib.carry = func(uintptr, uintptr, int32, *uint16, uint64, uintptr, *cError) int32 {
			runtime.GC()
			for i, p := range pending {
				if *p != uint16(i+1) {
					t.Errorf("code %d: array %d has %d when the stream reads it", code, i, *p)
				}
			}
			pending = nil
			waits++
			return 0
		}
		d, q := fakeDevice(lib)
		s := kernels.State{Win: make([]uint16, d.g.Window*d.g.HeadDim)}
		for i, a := range []*[]uint16{&s.Comp.PrevKV, &s.Comp.PrevGate, &s.Index.PrevKV, &s.Index.PrevGate} {
			*a = make([]uint16, 8*d.g.HeadDim)
			if i >= 2 {
				*a = make([]uint16, 8*d.g.IndexDim)
			}
			(*a)[0] = uint16(i + 1)
		}
		if err := q.Seed(0, 256, s); errors.Is(err, ErrDevice) != (code != 0) {
			t.Errorf("code %d: %v", code, err)
		}
		if waits != 1 || len(pending) != 0 {
			t.Errorf("code %d: the call returned after %d waits, with %d arrays unread", code, waits, len(pending))
		}
		if code != 0 && q.layers[0].pos != 0 {
			t.Errorf("code %d: the layer stands at %d", code, q.layers[0].pos)
		}
		if code == 0 {
			must(t, q.Seed(0, 256, kernels.State{Win: s.Win, WithoutPrevious: true}))
			if waits != 1 {
				t.Errorf("%d waits for a seed that gives nothing to read", waits)
			}
		}
	}
}

// TestErrorKinds: the same code leads to another decision while a projector is
// opened than when it is open.
func TestErrorKinds(t *testing.T) {
	for code, want := range map[int32][2]error{
		codeArgument: {ErrUnavailable, ErrDevice}, codeNoDevice: {ErrUnavailable, ErrDevice}, codeLibrary: {ErrUnavailable, ErrDevice},
		codeMemory: {ErrUnavailable, ErrDevice}, codeDevice: {ErrDevice, ErrDevice}, codeState: {ErrDevice, kernels.ErrState},
		codeFull: {ErrDevice, ErrFull}, codeAlgo: {ErrUnavailable, ErrDevice}, codeLost: {ErrDevice, ErrDevice},
	} {
		var e cError
		copy(e.text[:], "why")
		for i, err := range []error{e.opening(code, "open"), e.check(code, "work")} {
			if !errors.Is(err, want[i]) {
				t.Errorf("code %d: %v, want %v", code, err, want[i])
			}
		}
	}
	var e cError
	must(t, e.opening(0, "open"))
	must(t, e.check(0, "work"))
}

// TestOpenWithoutMemory: a GPU without room for the weights is not a failure of it.
func TestOpenWithoutMemory(t *testing.T) {
	lib := &library{create: func(c *cConfig, _ *uintptr, e *cError) int32 {
		if c.size != uint32(unsafe.Sizeof(cConfig{})) || c.layers != 1 {
			return codeArgument
		}
		copy(e.text[:], "take memory for the weights: out of memory")
		return codeMemory
	}}
	d, _ := fakeDevice(lib)
	w, err := model{g: d.g}.Layer(0)
	must(t, err)
	if err := d.create([]kernels.LayerWeights{w}); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDevice) {
		t.Errorf("%v, want %v", err, ErrUnavailable)
	}
}
