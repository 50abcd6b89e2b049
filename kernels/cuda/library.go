package cuda

import (
	"bytes"
	"fmt"
	"unsafe"

	"pdlink/kernels"
)

// The structs of pdproj.h, for 64-bit systems. The library compares their sizes.
type (
	cError struct {
		_    int32 // code, which the call returns too
		text [256]byte
	}
	cLayer struct {
		ratio, _                  int32
		kv, kvNorm                *uint16
		compKV, compGate, compNrm *uint16
		idxKV, idxGate, idxNrm    *uint16
		compAPE, idxAPE           *float32
		offset                    [arrays]int64
	}
	cConfig struct {
		size, _                                            uint32
		device, layers                                     int32
		layer                                              *cLayer
		hidden, headDim, indexDim, ropeDim, window         int32
		blockTokens, maxTokens, maxRequests                int32
		maxPositions                                       int64
		normEps, ropeTheta, compressRopeTheta              float64
		yarnFactor, yarnOriginal, yarnBetaFast, yarnBetaSl float64
		_                                                  uint64 // staging: the default
		cublaslt                                           *byte
	}
	cFacts struct {
		size uint32
		_    [3]int32 // interface, runtime, driver
		sm   int32
		_    [3]int32  // multiprocessors, integrated, reserved
		_    [2]uint64 // memory, free
		name [64]byte
	}
	cUsage struct {
		size                                 uint32
		_                                    int32 // direct
		weights, carries, workspace, staging uint64
		_                                    uint64    // version of cuBLASLt
		_                                    [512]byte // algorithms
	}
)

// Arrays of a block, as in pdproj.h.
const (
	aWindow = iota
	aPooled
	aPrevKV
	aPrevGate
	aIdxPooled
	aIdxPrevKV
	aIdxPrevGate
	aWindowPre
	arrays
)

// Error codes of pdproj.h that lead to different errors here.
const (
	codeArgument = 1
	codeNoDevice = 2
	codeLibrary  = 3
	codeMemory   = 4
	codeDevice   = 5
	codeState    = 6
	codeFull     = 7
	codeAlgo     = 8
	codeLost     = 9

	libraryABI = 2
)

// library is libpdproj.so, opened. Handles are addresses that only it reads. Its
// functions may be called by several goroutines; the loader fills them in.
type library struct {
	abi           func() int32
	query         func(device int32, out *cFacts, err *cError) int32
	create        func(c *cConfig, out *uintptr, err *cError) int32
	destroy       func(h uintptr)
	used          func(h uintptr, out *cUsage, err *cError) int32
	requestCreate func(h uintptr, out *uintptr, err *cError) int32
	requestFree   func(h, r uintptr)
	seed          func(h, r uintptr, layer int32, pos int64, kv, gate, idxKV, idxGate *uint16, stream uintptr, err *cError) int32
	project       func(h, r uintptr, layer int32, x uintptr, n int32, first int64, dst *uintptr, dsts int32, pieces uintptr, most int32, count *int32, ticket *uint64, stream uintptr, err *cError) int32
	wait          func(h uintptr, ticket uint64, err *cError) int32
	carry         func(h, r uintptr, layer int32, out *uint16, bytes uint64, stream uintptr, err *cError) int32
	alloc         func(device int32, bytes uint64, pinned int32, out *uintptr, err *cError) int32
	free          func(at uintptr, pinned int32, err *cError) int32
	copyIn        func(device int32, to uintptr, from unsafe.Pointer, bytes uint64, err *cError) int32
	copyOut       func(device int32, to unsafe.Pointer, from uintptr, bytes uint64, err *cError) int32
	leaf          func(op int32, in, out *float32, n uint64) int32
	frequencies   func(c *cConfig, compressed int32, out *float32, err *cError) int32
}

// symbols lists what the loader resolves: name and address of the function value.
func (l *library) symbols() map[string]any {
	return map[string]any{
		"pdproj_abi": &l.abi, "pdproj_query": &l.query, "pdproj_create": &l.create, "pdproj_destroy": &l.destroy,
		"pdproj_used": &l.used, "pdproj_request_create": &l.requestCreate, "pdproj_request_free": &l.requestFree,
		"pdproj_seed": &l.seed, "pdproj_project": &l.project, "pdproj_wait": &l.wait, "pdproj_carry": &l.carry,
		"pdproj_alloc": &l.alloc, "pdproj_free": &l.free, "pdproj_leaf": &l.leaf, "pdproj_frequencies": &l.frequencies,
	}
}

// opening turns the code of a call that Open makes into an error; doing names the
// call. What another machine, another model or less of it would not run into is ErrUnavailable.
func (e *cError) opening(code int32, doing string) error {
	kind := ErrDevice
	switch code {
	case codeArgument, codeNoDevice, codeLibrary, codeMemory, codeAlgo:
		kind = ErrUnavailable
	}
	return e.wrap(code, kind, doing)
}

// check turns the code of a call on an open projector into an error: what it says
// there of devices, memory or arguments is a failure.
func (e *cError) check(code int32, doing string) error {
	kind := ErrDevice
	switch code {
	case codeState:
		kind = kernels.ErrState
	case codeFull:
		kind = ErrFull
	}
	return e.wrap(code, kind, doing)
}

func (e *cError) wrap(code int32, kind error, doing string) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", kind, doing, text(e.text[:]))
}

// text returns the C string in b.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
