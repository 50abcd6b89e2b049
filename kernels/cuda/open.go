package cuda

import (
	"errors"
	"fmt"

	"pdlink/kernels"
)

// Engine says who computes.
type Engine uint8

const (
	// Auto is the GPU where there is one, else the reference.
	Auto Engine = iota
	// GPU is the GPU or ErrUnavailable.
	GPU
	// Reference is package kernels.
	Reference
)

// String returns a lower-case name.
func (e Engine) String() string {
	switch e {
	case Auto:
		return "auto"
	case GPU:
		return "cuda"
	case Reference:
		return "reference"
	}
	return fmt.Sprintf("Engine(%d)", uint8(e))
}

// Weights yields the decoder's weights of one layer; *kernels.Weights does. It is
// only called during Open.
type Weights interface {
	Layer(i int) (kernels.LayerWeights, error)
}

// Options of Open. The zero value is usable.
type Options struct {
	// Engine to use; Auto by default.
	Engine Engine
	// Library is the path of libpdproj.so; empty means the one beside the program,
	// else whatever the system's loader finds.
	Library string
	// CuBLASLt is the path of NVIDIA's library; empty means one that is loaded
	// already, else whatever the system's loader finds.
	CuBLASLt string
	// Device is the GPU's ordinal.
	Device int
	// Layers of the model that this projector serves, ascending; nil means all, and
	// none is refused. A host that shares the work with others serves some.
	Layers []int
	// MaxTokens is the longest run of tokens that the GPU works on at once; longer
	// input is cut, which changes no bit. 0 means 8,192.
	MaxTokens int
	// MaxRequests is how many requests may be open at once; 0 means 4.
	MaxRequests int
	// WithPre yields the window before rotation too, for tests.
	WithPre bool
	// Workers of the reference, as in kernels.NewLayer.
	Workers int
	// Numerics of the reference; a GPU has kernels.MLXMetal's, whatever this says.
	Numerics kernels.Numerics
}

const (
	defaultTokens   = 8192
	defaultRequests = 4
)

func (o Options) withDefaults() Options {
	if o.MaxTokens == 0 {
		o.MaxTokens = defaultTokens
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = defaultRequests
	}
	return o
}

// Choice is what Open settled on.
type Choice struct {
	// Engine is GPU or Reference.
	Engine Engine
	// Why says it for a person: the device, or why there is none.
	Why string
}

// Projector computes the layers of one model for several requests at once. Its
// methods may be called by several goroutines.
type Projector interface {
	// Choice returns what Open settled on.
	Choice() Choice
	// Request opens a request at position 0 in every layer. Errors: ErrFull, ErrClosed.
	Request() (Request, error)
	// Close closes the requests that are open and frees everything. It is idempotent.
	Close() error
}

// Request is the state of one sequence. One goroutine may use it at a time.
type Request interface {
	// Feed computes the next tokens of a layer, as kernels.Layer.Feed does: x is bf16
	// [n, hidden]. out.Boundaries has the blocks that the call completed; WinPre is empty
	// unless Options.WithPre. Errors: those of kernels.Layer.Feed, ErrDevice, ErrClosed.
	Feed(layer int, x []uint16, out *kernels.Output) error
	// Seed puts a layer at a block boundary, as kernels.Layer.Seed does. The window's
	// rows are checked but not kept: nothing is computed from them. Errors: those of kernels.Layer.Seed,
	// ErrDevice, ErrClosed.
	Seed(layer, pos int, s kernels.State) error
	// Carry writes the pools' remainders and previous windows to dst, whose memory is
	// reused; its Win and WinPre are emptied.
	Carry(layer int, dst *kernels.State) error
	// Close gives the request's place back. It is idempotent.
	Close() error
}

// Open returns a projector for the geometry with the decoder's weights.
//
// Errors: those of kernels.NewLayer and of w; ErrUnavailable with the reason where
// the GPU is required and cannot be had, or has too little memory; ErrDevice where it fails.
func Open(g kernels.Geometry, w Weights, blockTokens int, o Options) (Projector, error) {
	o = o.withDefaults()
	if o.Engine > Reference {
		return nil, fmt.Errorf("%w: no engine %v", ErrUnavailable, o.Engine)
	}
	if err := check(g, blockTokens, &o); err != nil {
		return nil, err
	}
	why := "it was asked for"
	if o.Engine != Reference {
		p, err := openDevice(g, w, blockTokens, o)
		if err == nil || o.Engine == GPU || !errors.Is(err, ErrUnavailable) {
			return p, err
		}
		why = err.Error()
	}
	return openReference(g, w, blockTokens, o, why)
}

// check validates what both engines need and fills in the layers.
func check(g kernels.Geometry, blockTokens int, o *Options) error {
	if err := g.Validate(); err != nil {
		return err
	}
	if o.Layers == nil {
		for i := range g.Layers() {
			o.Layers = append(o.Layers, i)
		}
	}
	if len(o.Layers) == 0 {
		return fmt.Errorf("%w: no layers to serve: name some, or leave Layers nil for all", kernels.ErrGeometry)
	}
	for i, l := range o.Layers {
		if l < 0 || l >= g.Layers() || (i > 0 && l <= o.Layers[i-1]) {
			return fmt.Errorf("%w: layers %v are not an ascending choice of %d", kernels.ErrGeometry, o.Layers, g.Layers())
		}
		if r := g.Ratios[l]; blockTokens < 1 || blockTokens > maxBlock || r > 0 && blockTokens%r != 0 {
			return fmt.Errorf("%w: block of %d tokens for ratio %d", kernels.ErrGeometry, blockTokens, r)
		}
	}
	if o.MaxTokens < 1 || o.MaxTokens > maxTokens || o.MaxRequests < 1 || o.MaxRequests > maxRequests {
		return fmt.Errorf("%w: %d tokens at once for %d requests, want at most %d and %d", kernels.ErrGeometry, o.MaxTokens, o.MaxRequests, maxTokens, maxRequests)
	}
	return nil
}

// The largest values that libpdproj takes.
const (
	maxBlock    = 1 << 20
	maxTokens   = 1 << 17
	maxRequests = 1024
)
