package cuda

import (
	"fmt"
	"slices"
	"sync"

	"pdlink/kernels"
)

// reference serves requests by package kernels. Weights are read once and shared
// by all requests.
type reference struct {
	g       kernels.Geometry
	o       Options
	block   int
	why     string
	weights map[int]kernels.LayerWeights

	mu     sync.Mutex // guards what follows
	open   int
	closed bool
}

func openReference(g kernels.Geometry, w Weights, blockTokens int, o Options, why string) (Projector, error) {
	r := &reference{g: g, o: o, block: blockTokens, why: why, weights: make(map[int]kernels.LayerWeights, len(o.Layers))}
	for _, i := range o.Layers {
		lw, err := w.Layer(i)
		if err != nil {
			return nil, fmt.Errorf("read weights of layer %d: %w", i, err)
		}
		// Built once to see that it can be.
		if _, err := kernels.NewLayer(g, i, lw, o.Numerics, blockTokens, o.Workers); err != nil {
			return nil, err
		}
		r.weights[i] = lw
	}
	return r, nil
}

// Choice implements Projector.
func (r *reference) Choice() Choice { return Choice{Reference, "reference: " + r.why} }

// Request implements Projector.
func (r *reference) Request() (Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, ErrClosed
	case r.open == r.o.MaxRequests:
		return nil, fmt.Errorf("%w: %d are open", ErrFull, r.open)
	}
	r.open++
	return &referenceRequest{owner: r, layers: map[int]*kernels.Layer{}}, nil
}

// Close implements Projector.
func (r *reference) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

// referenceRequest builds each layer when it is first used.
type referenceRequest struct {
	owner  *reference
	layers map[int]*kernels.Layer
	closed bool
}

func (q *referenceRequest) layer(i int) (*kernels.Layer, error) {
	q.owner.mu.Lock()
	closed := q.closed || q.owner.closed
	q.owner.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	if l := q.layers[i]; l != nil {
		return l, nil
	}
	w, ok := q.owner.weights[i]
	if !ok {
		return nil, fmt.Errorf("%w: layer %d is not one of %v", kernels.ErrGeometry, i, q.owner.o.Layers)
	}
	l, err := kernels.NewLayer(q.owner.g, i, w, q.owner.o.Numerics, q.owner.block, q.owner.o.Workers)
	if err != nil {
		return nil, err
	}
	q.layers[i] = l
	return l, nil
}

// Feed implements Request.
func (q *referenceRequest) Feed(layer int, x []uint16, out *kernels.Output) error {
	l, err := q.layer(layer)
	if err != nil {
		return err
	}
	if out != nil {
		out.WithPre = q.owner.o.WithPre
	}
	return l.Feed(x, out)
}

// Seed implements Request.
func (q *referenceRequest) Seed(layer, pos int, s kernels.State) error {
	l, err := q.layer(layer)
	if err != nil {
		return err
	}
	return l.Seed(pos, s)
}

// Carry implements Request.
func (q *referenceRequest) Carry(layer int, dst *kernels.State) error {
	l, err := q.layer(layer)
	if err != nil {
		return err
	}
	l.State(dst)
	dst.Win, dst.WinPre = slices.Delete(dst.Win, 0, len(dst.Win)), slices.Delete(dst.WinPre, 0, len(dst.WinPre))
	return nil
}

// Close implements Request.
func (q *referenceRequest) Close() error {
	q.owner.mu.Lock()
	defer q.owner.mu.Unlock()
	if !q.closed {
		q.closed = true
		q.owner.open--
	}
	return nil
}
