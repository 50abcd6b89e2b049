package cuda

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"pdlink/kernels"
)

// device serves requests by libpdproj. Input is copied to the GPU and finished
// bytes come back through pinned memory, in the form that kernels.Output has.
type device struct {
	lib     *library
	o       Options
	g       kernels.Geometry
	block   int
	why     string
	handle  uintptr
	index   map[int]int // layer of the model to layer of the handle
	layouts []layout    // of the handle's layers

	mu     sync.Mutex // guards what follows, and orders all calls: they share x and image
	x      uintptr    // device memory [MaxTokens, hidden]
	image  uintptr    // pinned memory for the blocks of one call
	closed bool
}

// layout is where a layer's arrays lie in the image of one block.
type layout struct {
	ratio, slots, width int
	offset              [arrays]int64 // -1 where there is none
	span                int
}

// newLayout packs the arrays of one layer one after another.
func newLayout(g kernels.Geometry, ratio, block int, pre bool) layout {
	l := layout{ratio: ratio}
	add := func(a, elements int) {
		l.offset[a] = int64(l.span)
		l.span += 2 * elements
	}
	for a := range l.offset {
		l.offset[a] = -1
	}
	add(aWindow, g.Window*g.HeadDim)
	if pre {
		add(aWindowPre, g.Window*g.HeadDim)
	}
	switch ratio {
	case 4:
		l.slots, l.width = 8, 4*g.HeadDim+4*g.IndexDim
		add(aPooled, block/4*g.HeadDim)
		add(aPrevKV, 8*g.HeadDim)
		add(aPrevGate, 8*g.HeadDim)
		add(aIdxPooled, block/4*g.IndexDim)
		add(aIdxPrevKV, 8*g.IndexDim)
		add(aIdxPrevGate, 8*g.IndexDim)
	case 128:
		l.slots, l.width = 128, 2*g.HeadDim
		add(aPooled, block/128*g.HeadDim)
	}
	return l
}

func openDevice(g kernels.Geometry, w Weights, block int, o Options) (Projector, error) {
	if strings.ContainsRune(o.CuBLASLt, filepath.Separator) { // else the system's loader looks for it
		if err := whole(o.CuBLASLt); err != nil {
			return nil, fmt.Errorf("%w: load cuBLASLt: %w (install nvidia-cublas again, or name another file)", ErrUnavailable, err)
		}
	}
	lib, err := load(o.Library)
	if err != nil {
		return nil, err
	}
	facts := cFacts{size: uint32(unsafe.Sizeof(cFacts{}))}
	var e cError
	if err := e.opening(lib.query(int32(o.Device), &facts, &e), "look for a GPU"); err != nil {
		return nil, err
	}
	d := &device{lib: lib, o: o, g: g, block: block, index: make(map[int]int, len(o.Layers))}
	weights := make([]kernels.LayerWeights, len(o.Layers))
	for i, layer := range o.Layers {
		if weights[i], err = w.Layer(layer); err != nil {
			return nil, fmt.Errorf("read weights of layer %d: %w", layer, err)
		}
		// The reference's checks hold for both.
		if _, err := kernels.NewLayer(g, layer, weights[i], kernels.MLXMetal, block, 1); err != nil {
			return nil, err
		}
		d.index[layer] = i
		d.layouts = append(d.layouts, newLayout(g, g.Ratios[layer], block, o.WithPre))
	}
	if err := d.create(weights); err != nil {
		return nil, err
	}
	usage := cUsage{size: uint32(unsafe.Sizeof(cUsage{}))}
	if err := e.opening(lib.used(d.handle, &usage, &e), "ask for its memory"); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.why = fmt.Sprintf("cuda: %s, compute capability %d.%d, %d layers, %d MB", text(facts.name[:]), facts.sm/10, facts.sm%10, len(o.Layers),
		(usage.weights+usage.carries+usage.workspace+usage.staging)>>20)
	if err := d.buffers(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// create uploads the weights. What C sees of Go's memory is pinned meanwhile.
func (d *device) create(weights []kernels.LayerWeights) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	words := func(v []uint16) *uint16 {
		if len(v) == 0 {
			return nil
		}
		pin.Pin(&v[0])
		return &v[0]
	}
	floats := func(v []float32) *float32 {
		if len(v) == 0 {
			return nil
		}
		pin.Pin(&v[0])
		return &v[0]
	}
	layers := make([]cLayer, len(weights))
	pin.Pin(&layers[0])
	for i, w := range weights {
		layers[i] = cLayer{
			ratio: int32(d.layouts[i].ratio), kv: words(w.KV), kvNorm: words(w.Norm),
			compKV: words(w.Comp.KV), compGate: words(w.Comp.Gate), compNrm: words(w.Comp.Norm), compAPE: floats(w.Comp.APE),
			idxKV: words(w.Index.KV), idxGate: words(w.Index.Gate), idxNrm: words(w.Index.Norm), idxAPE: floats(w.Index.APE),
			offset: d.layouts[i].offset,
		}
	}
	c := d.config()
	c.layers, c.layer = int32(len(layers)), &layers[0]
	if d.o.CuBLASLt != "" {
		path := append([]byte(d.o.CuBLASLt), 0)
		pin.Pin(&path[0])
		c.cublaslt = &path[0]
	}
	var e cError
	return e.opening(d.lib.create(c, &d.handle, &e), "create")
}

// config is the handle's configuration without weights.
func (d *device) config() *cConfig {
	g := &d.g
	c := &cConfig{
		size: uint32(unsafe.Sizeof(cConfig{})), device: int32(d.o.Device), hidden: int32(g.Hidden), headDim: int32(g.HeadDim),
		indexDim: int32(g.IndexDim), ropeDim: int32(g.RopeDim), window: int32(g.Window), blockTokens: int32(d.block),
		maxTokens: int32(d.o.MaxTokens), maxRequests: int32(d.o.MaxRequests), maxPositions: int64(g.MaxPositions),
		normEps: g.NormEps, ropeTheta: g.RopeTheta, compressRopeTheta: g.CompressRopeTheta,
	}
	if y := g.Yarn; y != nil {
		c.yarnFactor, c.yarnOriginal, c.yarnBetaFast, c.yarnBetaSl = y.Factor, y.OriginalMaxPositions, y.BetaFast, y.BetaSlow
	}
	return c
}

// blocks is how many blocks one call can touch.
func (d *device) blocks() int { return d.o.MaxTokens/d.block + 2 }

func (d *device) buffers() error {
	span := 0
	for _, l := range d.layouts {
		span = max(span, l.span)
	}
	var e cError
	if err := e.opening(d.lib.alloc(int32(d.o.Device), uint64(2*d.o.MaxTokens*d.g.Hidden), 0, &d.x, &e), "take memory for input"); err != nil {
		return err
	}
	return e.opening(d.lib.alloc(int32(d.o.Device), uint64(span*d.blocks()), 1, &d.image, &e), "take memory for output")
}

// Choice implements Projector.
func (d *device) Choice() Choice { return Choice{GPU, d.why} }

// Request implements Projector.
func (d *device) Request() (Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	q := &deviceRequest{owner: d, layers: make([]progress, len(d.layouts))}
	var e cError
	if err := e.check(d.lib.requestCreate(d.handle, &q.handle, &e), "open a request"); err != nil {
		return nil, err
	}
	return q, nil
}

// Close implements Projector.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.lib.destroy(d.handle)
	var errs []error
	for _, m := range []struct {
		at     uintptr
		pinned int32
	}{{d.x, 0}, {d.image, 1}} {
		if m.at != 0 {
			var e cError
			errs = append(errs, e.check(d.lib.free(m.at, m.pinned, &e), "give memory back"))
		}
	}
	return errors.Join(errs...)
}
