package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"pdlink/bridge/omlx"
	"pdlink/kernels"
	"pdlink/kernels/safetensors"
)

// ErrCase is returned for a directory that is no usable case; the text says
// which file and what to mend.
var ErrCase = errors.New("replay: unusable case")

// maxCaseJSON bounds case.json: the ids of a 16,000,000-token prompt.
const maxCaseJSON = 128 << 20

// Case is a recorded prefill. It is read-only after Load and may be used
// concurrently.
type Case struct {
	Dir       string
	Name      string // last element of Dir
	Kind      string // omlx.KindKV or omlx.KindDSV4
	Format    string // block format that the decoder wrote
	PoolState int    // elements of a pool's state (dsv4)
	Numerics  string // rounding profile that the decoder used
	Tokens    []uint32
	Captured  int // tokens that the capture holds, from the start of the prompt

	spec     omlx.Spec
	geometry kernels.Geometry // dsv4
}

// caseFile is case.json. Decoder, boundaries and note are for people.
type caseFile struct {
	Kind      string          `json:"kind"`
	Model     string          `json:"model"`
	Format    string          `json:"format"`
	BlockSize int             `json:"block_size"`
	Numerics  string          `json:"numerics"`
	PoolState int             `json:"pool_state_elements"`
	Layers    int             `json:"layers"`
	KVHeads   int             `json:"kv_heads"`
	HeadDim   int             `json:"head_dim"`
	DType     string          `json:"dtype"`
	Config    json.RawMessage `json:"config"`
	Tokens    ids             `json:"tokens"`
	Captured  *int            `json:"captured_tokens"`
	Blocks    []omlx.Hash     `json:"blocks"`
	Options   json.RawMessage `json:"layout_options"`

	Decoder    string          `json:"decoder"`
	Boundaries []int           `json:"boundaries"`
	Note       json.RawMessage `json:"note"`
}

// Load reads a case: case.json, and for the rest whether the files are there.
//
// The form: case.json holds kind ("kv" or "dsv4"), model, format, block_size,
// numerics, tokens (the whole prompt), captured_tokens, blocks (chain hashes,
// checked if present), layout_options (of a fork, rarely), and layers, kv_heads,
// head_dim and dtype (kv) or config and pool_state_elements (dsv4).
// capture.safetensors holds layer_{i}.k and layer_{i}.v [tokens, kv_heads,
// head_dim] or layer_{i}.x [tokens, hidden]; weights.safetensors (dsv4) the
// decoder's projection weights; expected/<h0>/<hash>.safetensors the decoder's
// own blocks, if any. decoder, boundaries and note (of any form) may be there too.
//
// case.json is read strictly: other fields, but for those of config, are refused,
// and so are a field twice, a name that differs in case, null, a token that is no
// plain number, and text that is not UTF-8 or has half a character escaped.
func Load(dir string) (*Case, error) {
	text, err := readBounded(filepath.Join(dir, "case.json"), maxCaseJSON)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCase, err)
	}
	var f caseFile
	if err := checkText(text); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCase, filepath.Join(dir, "case.json"), err)
	}
	if err := decode(text, &f); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCase, filepath.Join(dir, "case.json"), err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCase, err)
	}
	c := &Case{
		Dir: dir, Name: filepath.Base(abs), Kind: f.Kind, Format: f.Format, PoolState: f.PoolState,
		Numerics: f.Numerics, Tokens: f.Tokens, Captured: len(f.Tokens),
	}
	if f.Captured != nil {
		c.Captured = *f.Captured
	}
	if err := c.build(&f); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCase, dir, err)
	}
	return c, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // a pipe would be waited for
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, err
}

// build checks what case.json says and makes the layout spec of it.
func (c *Case) build(f *caseFile) error {
	if len(f.Tokens) == 0 {
		return errors.New("tokens: the prompt is empty")
	}
	if c.Captured < 0 || c.Captured > len(f.Tokens) {
		return fmt.Errorf("captured_tokens: %d is not in 0..%d, the length of the prompt", c.Captured, len(f.Tokens))
	}
	c.spec = omlx.Spec{Kind: f.Kind, Model: f.Model, BlockTokens: f.BlockSize, Format: f.Format}
	if len(f.Options) > 0 {
		if err := decode(f.Options, &c.spec.Options); err != nil {
			return fmt.Errorf("layout_options: %w", err)
		}
	}
	switch f.Kind {
	case omlx.KindKV:
		c.spec.Layers, c.spec.KVHeads, c.spec.HeadDim, c.spec.DType = f.Layers, f.KVHeads, f.HeadDim, f.DType
	case omlx.KindDSV4:
		if len(f.Config) == 0 {
			return errors.New("config: it is missing")
		}
		if err := checkConfig(f.Config); err != nil {
			return fmt.Errorf("config: %w", err)
		}
		g, err := kernels.ParseGeometry(f.Config)
		if err != nil {
			return fmt.Errorf("config: %w", err)
		}
		c.geometry = g
		c.spec.Layers, c.spec.Ratios, c.spec.HeadDim = g.Layers(), g.Ratios, g.HeadDim
		c.spec.IndexHeadDim, c.spec.Window, c.spec.PoolState = g.IndexDim, g.Window, f.PoolState
	default:
		return fmt.Errorf("kind: %q is not %q or %q", f.Kind, omlx.KindKV, omlx.KindDSV4)
	}
	if err := c.spec.Validate(); err != nil {
		return err
	}
	if end := c.Blocks() * c.spec.BlockTokens; f.Kind == omlx.KindDSV4 && end > c.geometry.MaxPositions {
		return fmt.Errorf("config: max_position_embeddings is %d, the %d blocks to place end at token %d: take the model's own value, or capture less",
			c.geometry.MaxPositions, c.Blocks(), end)
	}
	return c.checkHashes(f.Blocks)
}

// checkHashes compares the chain that case.json records with the prompt's own.
func (c *Case) checkHashes(blocks []omlx.Hash) error {
	if len(blocks) == 0 {
		return nil
	}
	chain := omlx.Chain(c.spec.Model, c.spec.BlockTokens, c.Tokens, c.spec.Options.ExtraKeys)
	n := min(len(chain), len(blocks))
	if len(blocks) > len(chain) || !slices.Equal(chain[:n], blocks) {
		return fmt.Errorf("blocks: the %d hashes are not those of tokens and model %q", len(blocks), c.spec.Model)
	}
	return nil
}

// Overrides change how a case is written; zero fields keep what the case says.
type Overrides struct {
	Format    string // "3", "4" or "5"
	PoolState int    // 3 or 5 (dsv4)
}

// Spec is the layout of the case's blocks.
func (c *Case) Spec(o Overrides) (omlx.Spec, error) {
	s := c.spec
	if o.Format != "" && o.Format != s.Format {
		s.Format = o.Format
		s.PoolState = 0 // what that format's writer does
	}
	if o.PoolState != 0 {
		if c.Kind != omlx.KindDSV4 {
			return s, fmt.Errorf("%w: pool state has no meaning for kind %q", ErrCase, c.Kind)
		}
		s.PoolState = o.PoolState
	}
	return s, s.Validate()
}

// Blocks is how many blocks of the prompt are placed: whole blocks that the
// capture covers, less one where the decoder could not use the last (see
// omlx.Spec.UsableBlocks).
func (c *Case) Blocks() int {
	return min(c.Captured/c.spec.BlockTokens, c.spec.UsableBlocks(len(c.Tokens)))
}

// Withheld is how many whole captured blocks are not placed, so that the decoder
// has a token left to compute.
func (c *Case) Withheld() int { return c.Captured/c.spec.BlockTokens - c.Blocks() }

// Plan is the transfer's plan for a layout of Spec.
func (c *Case) Plan(s omlx.Spec) omlx.Plan {
	n := c.Blocks()
	tokens := c.Tokens[:n*s.BlockTokens]
	return omlx.Plan{Spec: s, Tokens: tokens, Hashes: omlx.Chain(s.Model, s.BlockTokens, tokens, s.Options.ExtraKeys)}
}

// Share says which layers one of several senders serves.
type Share struct{ Part, Parts int }

// Layers picks the sender's layers, so that all have about the same work: the
// columns of each layer's projection for dsv4, equal for plain KV. Every sender
// of a transfer computes the same split.
func (c *Case) Layers(s Share) []int {
	parts := max(s.Parts, 1)
	load := make([]int, parts)
	order := make([]int, c.spec.Layers)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return c.cost(b) - c.cost(a) })
	var mine []int
	for _, layer := range order {
		p := 0
		for q := range load {
			if load[q] < load[p] {
				p = q
			}
		}
		load[p] += c.cost(layer)
		if p == s.Part {
			mine = append(mine, layer)
		}
	}
	slices.Sort(mine)
	return mine
}

func (c *Case) cost(layer int) int {
	if c.Kind != omlx.KindDSV4 {
		return 1
	}
	g := c.geometry
	switch g.Ratios[layer] {
	case 0:
		return g.HeadDim
	case 4:
		return 5*g.HeadDim + 4*g.IndexDim
	default:
		return 3 * g.HeadDim
	}
}

// openCapture opens capture.safetensors.
func (c *Case) openCapture() (*safetensors.File, error) {
	f, err := safetensors.Open(filepath.Join(c.Dir, "capture.safetensors"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCase, err)
	}
	return f, nil
}

// captured finds a tensor of the capture and checks its form.
func (c *Case) captured(f *safetensors.File, name string, dtype safetensors.DType, shape ...int64) (safetensors.Tensor, error) {
	t, ok := f.Tensor(name)
	want := append([]int64{int64(c.Captured)}, shape...)
	switch {
	case !ok:
		return t, fmt.Errorf("%w: capture has no tensor %s", ErrCase, name)
	case t.DType != dtype || !slices.Equal(t.Shape, want):
		return t, fmt.Errorf("%w: capture: %s is %s %v, want %s %v", ErrCase, name, t.DType, t.Shape, dtype, want)
	}
	return t, nil
}
