package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"pdlink/kernels"
	"pdlink/kernels/cuda"
	"pdlink/kernels/safetensors"
)

// Recording is a prefill of a DeepSeek-V4 model and what its decoder cached. The
// files are read during Run, and stay the caller's.
type Recording struct {
	Geometry    kernels.Geometry
	BlockTokens int              // of the decoder's blocks
	Numerics    kernels.Numerics // the decoder's roundings
	Tokens      int              // that Capture holds
	Weights     *kernels.Weights // the decoder's
	// Capture holds layer_{i}.x, bf16 [Tokens, hidden], for each layer.
	Capture *safetensors.File
	// State holds layer_{i}.pooled and .idx_pooled at the end, and
	// layer_{i}.{win,win_pre,prev_kv,prev_gate,buf_kv,buf_gate,idx_…}@{boundary or "end"},
	// bf16, and nothing else; a boundary is the end of a block of the prompt. Some of
	// them may be missing. Nil: nothing was recorded.
	State *safetensors.File
}

// Options of Run. The zero value takes the GPU where there is one, and everything
// else that the recording has.
type Options struct {
	Engine  cuda.Engine
	Library string // path of libpdproj.so, see cuda.Options
	Tokens  int    // at most so many from the prompt's start; 0: all
	Layers  []int  // these only, ascending; nil: all
	Workers int    // of the reference, see cuda.Options
	// Progress is called after each layer. Nil: nobody is told.
	Progress func(done, total int64)
}

// Run makes the checks. A check that fails is in the report; an error means that
// they could not be made: ErrInput, those of cuda.Open and of its requests, and the
// context's.
//
// The reference has the decoder's own roundings: what MLX on a CPU recorded must be
// equal bit for bit. A GPU has those of a Mac, in another order of sums, and is held
// to limits, against what was recorded and against the reference of its roundings.
func Run(ctx context.Context, rec Recording, o Options) (Report, error) {
	if o.Tokens <= 0 || o.Tokens > rec.Tokens {
		o.Tokens = rec.Tokens
	}
	if o.Layers == nil {
		for i := range rec.Geometry.Layers() {
			o.Layers = append(o.Layers, i)
		}
	}
	if o.Tokens == 0 || len(o.Layers) == 0 {
		return Report{}, fmt.Errorf("%w: no tokens, or no layers", ErrInput)
	}
	for i, layer := range o.Layers {
		if layer < 0 || layer >= rec.Geometry.Layers() || i > 0 && layer <= o.Layers[i-1] {
			return Report{}, fmt.Errorf("%w: layers %v are not an ascending choice of the model's %d", ErrInput, o.Layers, rec.Geometry.Layers())
		}
	}
	if err := rec.checkState(); err != nil {
		return Report{}, err
	}
	v := &verifier{rec: &rec, o: o}
	if err := v.open(); err != nil {
		return Report{}, err
	}
	for i, layer := range o.Layers {
		if err := v.layer(ctx, layer); err != nil {
			return Report{}, errors.Join(err, v.close())
		}
		if o.Progress != nil {
			o.Progress(int64(i+1), int64(len(o.Layers)))
		}
	}
	return v.report(), v.close()
}

// verifier is a Run.
type verifier struct {
	rec      *Recording
	o        Options
	engine   cuda.Projector
	yard     cuda.Projector // the reference that a GPU is held against; nil for the reference
	numerics kernels.Numerics
	why      string // there is no GPU, where one was looked for

	recorded, reference *tally
	found               [2]coverage // of inArrays and inPooled
	cuts, seeds         int         // that were tried
	wrong               [4]string
}

// What of wrong is which check's.
const (
	inArrays = iota
	inPooled
	inCuts
	inSeeds
)

// open opens the engine: the GPU has its own roundings, the reference the decoder's.
func (v *verifier) open() error {
	limits := nearRecorded
	g, block := v.rec.Geometry, v.rec.BlockTokens
	o := cuda.Options{Engine: cuda.GPU, Library: v.o.Library, Layers: v.o.Layers, Workers: v.o.Workers, WithPre: true, MaxRequests: 1}
	var err error
	if v.o.Engine != cuda.Reference {
		v.engine, err = cuda.Open(g, v.rec.Weights, block, o)
		if err != nil && (v.o.Engine == cuda.GPU || !errors.Is(err, cuda.ErrUnavailable)) {
			return err
		}
		if err != nil {
			v.why = "reference: " + err.Error()
		}
	}
	o.Engine = cuda.Reference
	if v.engine == nil {
		o.Numerics = v.rec.Numerics
		if v.engine, err = cuda.Open(g, v.rec.Weights, block, o); err != nil {
			return err
		}
		v.numerics = v.rec.Numerics
		if v.numerics == kernels.MLXCPU {
			limits = exact
		}
	} else if v.yard, err = cuda.Open(g, v.rec.Weights, block, o); err != nil {
		return errors.Join(err, v.close())
	}
	v.recorded, v.reference = newTally("recorded", limits), newTally("reference", nearReference)
	return nil
}

func (v *verifier) close() error {
	var errs []error
	for _, p := range []cuda.Projector{v.engine, v.yard} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// once runs a layer in a request of its own. seed, if not nil, is where it begins.
func (v *verifier) once(p cuda.Projector, layer, pos int, seed *kernels.State, x []uint16, cuts ...int) (s *sequence, err error) {
	q, err := p.Request()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	if seed != nil {
		if err := q.Seed(layer, pos, *seed); err != nil {
			return nil, fmt.Errorf("seed layer %d at %d: %w", layer, pos, err)
		}
	}
	return follow(q, layer, v.rec.Geometry.Hidden, x, cuts...)
}

// layer makes all checks of one layer.
func (v *verifier) layer(ctx context.Context, layer int) error {
	x, err := v.input(layer)
	if err != nil {
		return err
	}
	whole, err := v.once(v.engine, layer, 0, nil, x, v.o.Tokens)
	if err != nil {
		return err
	}
	if err := v.compare(layer, whole); err != nil {
		return err
	}
	if v.yard != nil {
		want, err := v.once(v.yard, layer, 0, nil, x, v.o.Tokens)
		if err != nil {
			return err
		}
		v.against(layer, v.reference, whole.arrays, want.arrays)
	}
	for _, try := range []func(context.Context, int, []uint16, *sequence) error{v.cut, v.resume} {
		if err := try(ctx, layer, x, whole); err != nil {
			return err
		}
	}
	return nil
}

// input reads what a layer's attention was given.
func (v *verifier) input(layer int) ([]uint16, error) {
	name := fmt.Sprintf("layer_%d.x", layer)
	t, ok := v.rec.Capture.Tensor(name)
	hidden := v.rec.Geometry.Hidden
	if want := []int64{int64(v.rec.Tokens), int64(hidden)}; !ok || t.DType != safetensors.BF16 || !slices.Equal(t.Shape, want) {
		return nil, fmt.Errorf("%w: the capture has no %s of type BF16 and shape %v", ErrInput, name, want)
	}
	b := make([]byte, 2*v.o.Tokens*hidden) // no more than the file has, which its reader checked
	if _, err := v.rec.Capture.ReadAt(b, t.Begin); err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", ErrInput, name, err)
	}
	return patterns(b), nil
}

func patterns(b []byte) []uint16 {
	out := make([]uint16, len(b)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return out
}

// fail notes what failed first.
func (v *verifier) fail(check int, format string, args ...any) {
	if v.wrong[check] == "" {
		v.wrong[check] = fmt.Sprintf(format, args...)
	}
}
