package kernels

import (
	"encoding/json"
	"fmt"
	"math"
)

// Geometry is what the projection needs to know of a DeepSeek-V4 model. It is
// plain data: copy it freely, share it read-only between goroutines.
type Geometry struct {
	// Hidden is the width of the attention input x, in elements.
	Hidden int
	// HeadDim is the width of a window row and of a pooled row, in elements.
	HeadDim int
	// IndexDim is the width of an indexer's pooled row; only used if a ratio is 4.
	IndexDim int
	// RopeDim is how many of a row's last elements are rotated; even.
	RopeDim int
	// Window is how many rows the sliding window keeps, in tokens.
	Window int
	// MaxPositions is the number of token positions of the model.
	MaxPositions int
	// NormEps is added to the mean of squares before the root.
	NormEps float64
	// RopeTheta is the rotation base of layers without compression,
	// CompressRopeTheta that of all others and of every pool.
	RopeTheta, CompressRopeTheta float64
	// Yarn scales the frequencies of CompressRopeTheta; nil means no scaling.
	Yarn *Yarn
	// Ratios has one entry per layer: 0 (window only), 4 (pool of 4 with overlap,
	// and an indexer) or 128 (pool of 128).
	Ratios []int
}

// Yarn holds the parameters of the frequency scaling of that name.
type Yarn struct {
	Factor, OriginalMaxPositions, BetaFast, BetaSlow float64
}

// Layers returns the number of layers that are cached.
func (g Geometry) Layers() int { return len(g.Ratios) }

// poolWidth returns the columns of a pool's two projections for rows of dim.
func poolWidth(ratio, dim int) int {
	if ratio == overlapRatio {
		return 2 * dim
	}
	return dim
}

// overlapRatio is the ratio whose windows overlap and which has an indexer;
// plainRatio is the other one.
const (
	overlapRatio = 4
	plainRatio   = 128
)

// config mirrors the keys of a checkpoint's config.json; a pointer tells absent
// from zero.
type config struct {
	Hidden       *int            `json:"hidden_size"`
	Layers       *int            `json:"num_hidden_layers"`
	HeadDim      *int            `json:"head_dim"`
	RopeDim      *int            `json:"qk_rope_head_dim"`
	IndexDim     *int            `json:"index_head_dim"`
	Window       *int            `json:"sliding_window"`
	MaxPositions *int            `json:"max_position_embeddings"`
	NormEps      *float64        `json:"rms_norm_eps"`
	RopeTheta    *float64        `json:"rope_theta"`
	CompressRope *float64        `json:"compress_rope_theta"`
	Ratios       []int           `json:"compress_ratios"`
	RopeScaling  json.RawMessage `json:"rope_scaling"`
}

type ropeScaling struct {
	Type     *string  `json:"type"`
	RopeType *string  `json:"rope_type"`
	Factor   *float64 `json:"factor"`
	Original *float64 `json:"original_max_position_embeddings"`
	BetaFast *float64 `json:"beta_fast"`
	BetaSlow *float64 `json:"beta_slow"`
}

// ParseGeometry reads a checkpoint's config.json, or an object with the same
// keys; other keys are ignored. The result is valid.
//
// compress_ratios is never invented: engines make up different schedules when it
// is absent, so a configuration without it is refused. It may be longer than
// num_hidden_layers by one entry (the draft layer, which is not cached), not
// shorter. rope_scaling may be absent or null, which means no scaling; a type
// other than "yarn" is refused. beta_fast and beta_slow default to 32 and 1.
// Every failure is ErrGeometry.
func ParseGeometry(text []byte) (Geometry, error) {
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return Geometry{}, fmt.Errorf("%w: read configuration: %w", ErrGeometry, err)
	}
	g, err := c.geometry()
	if err != nil {
		return Geometry{}, err
	}
	if g.Yarn, err = parseYarn(c.RopeScaling); err != nil {
		return Geometry{}, err
	}
	return g, g.Validate()
}

func (c *config) geometry() (Geometry, error) {
	var g Geometry
	if c.Layers == nil || *c.Layers < 1 || *c.Layers > maxLayers {
		return g, fmt.Errorf("%w: num_hidden_layers must be between 1 and %d", ErrGeometry, maxLayers)
	}
	if c.Ratios == nil {
		return g, fmt.Errorf("%w: compress_ratios is missing; take the list from the checkpoint's config.json, it cannot be derived", ErrGeometry)
	}
	if n := len(c.Ratios); n != *c.Layers && n != *c.Layers+1 {
		return g, fmt.Errorf("%w: compress_ratios has %d entries for %d layers (one more, for a draft layer, is allowed)", ErrGeometry, n, *c.Layers)
	}
	for _, f := range []struct {
		name     string
		src      *int
		dst      *int
		optional bool
	}{
		{"hidden_size", c.Hidden, &g.Hidden, false}, {"head_dim", c.HeadDim, &g.HeadDim, false},
		{"qk_rope_head_dim", c.RopeDim, &g.RopeDim, false}, {"index_head_dim", c.IndexDim, &g.IndexDim, true},
		{"sliding_window", c.Window, &g.Window, false}, {"max_position_embeddings", c.MaxPositions, &g.MaxPositions, false},
	} {
		switch {
		case f.src != nil:
			*f.dst = *f.src
		case !f.optional:
			return g, fmt.Errorf("%w: %s is missing", ErrGeometry, f.name)
		}
	}
	for _, f := range []struct {
		name string
		src  *float64
		dst  *float64
	}{{"rms_norm_eps", c.NormEps, &g.NormEps}, {"rope_theta", c.RopeTheta, &g.RopeTheta}, {"compress_rope_theta", c.CompressRope, &g.CompressRopeTheta}} {
		if f.src == nil {
			return g, fmt.Errorf("%w: %s is missing", ErrGeometry, f.name)
		}
		*f.dst = *f.src
	}
	g.Ratios = append([]int(nil), c.Ratios[:*c.Layers]...)
	return g, nil
}

func parseYarn(text json.RawMessage) (*Yarn, error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var s ropeScaling
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%w: read rope_scaling: %w", ErrGeometry, err)
	}
	kind := s.Type
	if kind == nil {
		kind = s.RopeType
	}
	if kind == nil || *kind != "yarn" {
		return nil, fmt.Errorf("%w: rope_scaling has no type \"yarn\", and no other scaling is known", ErrGeometry)
	}
	if s.Factor == nil || s.Original == nil {
		return nil, fmt.Errorf("%w: rope_scaling lacks factor or original_max_position_embeddings", ErrGeometry)
	}
	y := &Yarn{Factor: *s.Factor, OriginalMaxPositions: *s.Original, BetaFast: 32, BetaSlow: 1}
	if s.BetaFast != nil {
		y.BetaFast = *s.BetaFast
	}
	if s.BetaSlow != nil {
		y.BetaSlow = *s.BetaSlow
	}
	return y, nil
}

// Validate reports the first value that no layer could be built from, as
// ErrGeometry.
func (g Geometry) Validate() error {
	if n := len(g.Ratios); n < 1 || n > maxLayers {
		return fmt.Errorf("%w: %d layers, want 1 to %d", ErrGeometry, n, maxLayers)
	}
	widest := g.HeadDim
	for i, r := range g.Ratios {
		switch r {
		case 0, plainRatio:
		case overlapRatio:
			widest = min(widest, g.IndexDim)
			if g.IndexDim < 1 || g.IndexDim > maxHeadDim {
				return fmt.Errorf("%w: index_head_dim is %d, but layer %d has ratio 4 and needs 1 to %d", ErrGeometry, g.IndexDim, i, maxHeadDim)
			}
		default:
			return fmt.Errorf("%w: compress_ratios[%d] is %d, want 0, 4 or 128", ErrGeometry, i, r)
		}
	}
	for _, f := range []struct {
		name  string
		v     int
		limit int
	}{
		{"hidden_size", g.Hidden, maxHidden}, {"head_dim", g.HeadDim, maxHeadDim}, {"qk_rope_head_dim", g.RopeDim, widest},
		{"sliding_window", g.Window, maxWindow}, {"max_position_embeddings", g.MaxPositions, maxPositions},
	} {
		if f.v < 1 || f.v > f.limit {
			return fmt.Errorf("%w: %s is %d, want 1 to %d", ErrGeometry, f.name, f.v, f.limit)
		}
	}
	if g.RopeDim%2 != 0 {
		return fmt.Errorf("%w: qk_rope_head_dim is %d, but features rotate in pairs", ErrGeometry, g.RopeDim)
	}
	return g.validateReals()
}

func (g Geometry) validateReals() error {
	type bound struct {
		name     string
		v        float64
		low, top float64
	}
	check := []bound{
		{"rms_norm_eps", g.NormEps, 1e-30, 1}, {"rope_theta", g.RopeTheta, 1.001, 1e15},
		{"compress_rope_theta", g.CompressRopeTheta, 1.001, 1e15},
	}
	if y := g.Yarn; y != nil {
		check = append(check, bound{"rope_scaling.factor", y.Factor, 1, 1e6},
			bound{"rope_scaling.original_max_position_embeddings", y.OriginalMaxPositions, 1, maxPositions},
			bound{"rope_scaling.beta_fast", y.BetaFast, 1e-3, 1e6}, bound{"rope_scaling.beta_slow", y.BetaSlow, 1e-3, 1e6})
	}
	for _, b := range check {
		if math.IsNaN(b.v) || b.v < b.low || b.v > b.top {
			return fmt.Errorf("%w: %s is %g, want %g to %g", ErrGeometry, b.name, b.v, b.low, b.top)
		}
	}
	return nil
}
