// Package plugin asks the plug-in that runs in the decoder's process ([Client]), and
// turns its answers into plans. The plug-in itself is the Python package
// beside this file; API.md is what the two agree on, and testdata has examples that
// both are held to.
//
// Nothing is taken on trust: hashes are computed again from the ids, and what the
// decoder's blocks look like comes from a block that it made itself ([Native]),
// which this module's writer must reproduce byte for byte.
package plugin

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"pdlink/bridge/facts"
	"pdlink/bridge/omlx"
)

// Sentinels, one for each decision that a caller can take.
var (
	// ErrAnswer reports an answer that does not follow the API: another version
	// of the plug-in, or something else altogether. Do without it and say so.
	ErrAnswer = errors.New("plug-in's answer does not follow the API")
	// ErrForeign reports a decoder whose blocks this module does not write, with
	// the first difference. Nothing may be written for it.
	ErrForeign = errors.New("decoder's blocks are not those that pdlink writes")
)

// APIVersion is the version of the API that this package reads.
const APIVersion = 1

// Limits on an answer, far above what any decoder says.
const (
	// maxText bounds a model id or a path.
	maxText = 4096
	// maxTokens bounds a prompt: sixteen times a 1M-token context, as for a plan.
	maxTokens = 1 << 24
	// maxModels bounds the models that a decoder knows.
	maxModels = 1 << 14
	// maxReason bounds the reasons that are kept, for people.
	maxReason = 1000
)

// Plan is the answer to a plan call.
type Plan struct {
	Model       string      `json:"model"`        // the API's id
	HashModel   string      `json:"hash_model"`   // the id in hashes and metadata
	Layout      string      `json:"layout"`       // names what blocks look like; see Info
	Facts       string      `json:"facts"`        // names what the loaded model is; see ModelInfo
	Tokens      int         `json:"tokens"`       // of the whole prompt
	BlockTokens int         `json:"block_tokens"` // of a block
	Blocks      int         `json:"blocks"`       // worth having: at least one token stays uncovered
	Present     int         `json:"present"`      // of those, from the first, that the decoder holds
	Bytes       int64       `json:"bytes"`        // of files, reserved for the others
	Hashes      []omlx.Hash `json:"hashes"`       // of the blocks, in order
	Tail        *Tail       `json:"tail"`         // what lies behind those blocks; nil: it is not asked for, or none can be had
	IDs         packedIDs   `json:"ids"`          // of the tokens of those blocks and the tail; none where all are present
}

// Tail is the tokens between a prompt's last whole block and its last token, whose
// rows come as a block that is filled up with zeros.
type Tail struct {
	Tokens int       `json:"tokens"`
	Hash   omlx.Hash `json:"hash"`
}

// packedIDs are token ids as base64 of little-endian unsigned 32-bit numbers.
type packedIDs []uint32

// UnmarshalJSON implements json.Unmarshaler.
func (p *packedIDs) UnmarshalJSON(data []byte) error {
	var raw []byte
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if len(raw)%4 != 0 || len(raw)/4 > maxTokens {
		return fmt.Errorf("%d bytes are no list of ids", len(raw))
	}
	out := make(packedIDs, len(raw)/4)
	for i := range out {
		if out[i] = binary.LittleEndian.Uint32(raw[4*i:]); out[i] > 1<<31-1 {
			return fmt.Errorf("id %d is out of range", out[i])
		}
	}
	*p = out
	return nil
}

// ParsePlan reads and verifies the answer to a plan call: the hashes too, unless all
// blocks are present, when nothing will be made of them. Unknown fields are skipped.
// The result keeps no reference to data.
//
// The error is ErrAnswer with the reason.
func ParsePlan(data []byte) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%w: plan: %w", ErrAnswer, err)
	}
	switch {
	case p.Model == "" || len(p.Model) > maxText || p.HashModel == "" || len(p.HashModel) > maxText || p.Layout == "" || len(p.Layout) > maxText ||
		len(p.Facts) > maxText:
		return nil, fmt.Errorf("%w: plan: model, hash_model, layout or facts is no text of 1 to %d bytes", ErrAnswer, maxText)
	case p.BlockTokens < 1 || p.BlockTokens > maxTokens || p.Blocks > maxTokens || p.Tokens < 0 || p.Blocks < 0 || p.Present < 0 || p.Present > p.Blocks:
		return nil, fmt.Errorf("%w: plan: %d tokens, blocks of %d, %d of %d present", ErrAnswer, p.Tokens, p.BlockTokens, p.Present, p.Blocks)
	case p.Tail != nil && (p.Present == p.Blocks || p.Tail.Tokens < 1 || p.Tail.Tokens >= p.BlockTokens || p.covers() != p.Tokens-1):
		return nil, fmt.Errorf("%w: plan: a tail of %d tokens behind %d of %d blocks of %d, of %d tokens",
			ErrAnswer, p.Tail.Tokens, p.Present, p.Blocks, p.BlockTokens, p.Tokens)
	case len(p.Hashes) != p.Blocks || len(p.IDs) != p.covers() && (len(p.IDs) > 0 || p.Present < p.Blocks):
		return nil, fmt.Errorf("%w: plan: %d hashes and %d ids for %d blocks of %d tokens",
			ErrAnswer, len(p.Hashes), len(p.IDs), p.Blocks, p.BlockTokens)
	case p.Blocks > 0 && p.Blocks*p.BlockTokens >= p.Tokens:
		return nil, fmt.Errorf("%w: plan: blocks cover %d of %d tokens, one must stay", ErrAnswer, p.Blocks*p.BlockTokens, p.Tokens)
	}
	if p.Present == p.Blocks {
		return &p, nil
	}
	own := omlx.Chain(p.HashModel, p.BlockTokens, p.IDs, nil)
	for k, h := range own {
		if h != p.Hashes[k] {
			return nil, fmt.Errorf("%w: plan: block %d has hash %s, its tokens give %s", ErrAnswer, k, p.Hashes[k], h)
		}
	}
	if p.Tail != nil {
		if h := omlx.TailHash(p.HashModel, own[p.Blocks-1], p.IDs[p.Blocks*p.BlockTokens:]); h != p.Tail.Hash {
			return nil, fmt.Errorf("%w: plan: the tail has hash %s, its tokens give %s", ErrAnswer, p.Tail.Hash, h)
		}
	}
	return &p, nil
}

// covers is the tokens of the blocks and of the tail.
func (p *Plan) covers() int {
	n := p.Blocks * p.BlockTokens
	if p.Tail != nil {
		n += p.Tail.Tokens
	}
	return n
}

// Transfer returns the plan as it travels: the layout and the hashes, without the
// tokens, which no receiver needs. spec is the layout that the plan names.
//
// The error is ErrAnswer where plan and layout disagree, or omlx.ErrPlan.
func (p *Plan) Transfer(spec omlx.Spec) (*omlx.Plan, error) {
	if spec.Model != p.HashModel || spec.BlockTokens != p.BlockTokens {
		return nil, fmt.Errorf("%w: plan: model %q with blocks of %d tokens, its layout is of %q with %d",
			ErrAnswer, p.HashModel, p.BlockTokens, spec.Model, spec.BlockTokens)
	}
	out := &omlx.Plan{Spec: spec, Hashes: slices.Clone(p.Hashes)}
	if p.Tail != nil {
		out.Hashes = append(out.Hashes, p.Tail.Hash)
	}
	if _, err := out.Check(); err != nil {
		return nil, err
	}
	return out, nil
}

// Signed returns the ids as the front passes them on.
func (p *Plan) Signed() []int32 {
	out := make([]int32, len(p.IDs))
	for i, id := range p.IDs {
		out[i] = int32(id) // in range: UnmarshalJSON checks
	}
	return out
}

// Info is the answer to an info call, as far as it is needed here.
type Info struct {
	API   int        `json:"api"`
	Model *ModelInfo `json:"model"`
}

// ModelInfo describes a loaded model.
type ModelInfo struct {
	ID        string `json:"id"`
	HashModel string `json:"hash_model"`
	Layout    string `json:"layout"`
	Native    Native `json:"native"`

	BlockTokens int    `json:"block_tokens"` // of a block
	BlockBytes  int64  `json:"block_bytes"`  // of a block's file, about; 0: not told
	Format      string `json:"format"`       // of the files, for people
	Store       Store  `json:"store"`

	// Facts is a document of package facts; nil: it is not told. Told reads it.
	Facts json.RawMessage `json:"facts"`
}

// Store is where the decoder keeps a model's blocks. What is not told is zero.
type Store struct {
	Path  string `json:"path"`  // of the directory, on the decoder's host
	UID   int    `json:"uid"`   // whose it is
	GID   int    `json:"gid"`   // as above
	Limit *int64 `json:"limit"` // bytes that the decoder lets it have; nil: no limit, or not told
}

// Dir is the store's directory; "" where none is told, or one that is not absolute.
func (s Store) Dir() string {
	if !filepath.IsAbs(s.Path) {
		return ""
	}
	return s.Path
}

// Told is what the plug-in says of the loaded model. Where it says nothing that can be
// read, that is what the result says.
func (m *ModelInfo) Told() *facts.Facts {
	f := &facts.Facts{Version: facts.Version}
	if len(m.Facts) == 0 {
		f.Unknown = map[string]string{"": "its plug-in does not tell: update pdlink-omlx"}
	} else if got, err := facts.Parse(m.Facts); err == nil {
		f = got
	} else {
		f.Unknown = map[string]string{"": err.Error()}
	}
	return f
}

// ParseInfo reads the answer to an info call with a model. Unknown fields are
// skipped. The error is ErrAnswer with the reason.
func ParseInfo(data []byte) (*Info, error) {
	var i Info
	if err := json.Unmarshal(data, &i); err != nil {
		return nil, fmt.Errorf("%w: info: %w", ErrAnswer, err)
	}
	switch {
	case i.API != APIVersion:
		return nil, fmt.Errorf("%w: info: it speaks version %d, this program %d: install both of one release", ErrAnswer, i.API, APIVersion)
	case i.Model == nil || i.Model.Layout == "":
		return nil, fmt.Errorf("%w: info: no model", ErrAnswer)
	}
	return &i, nil
}

// Status is what the answer to an info call says of the decoder as a whole.
type Status struct {
	API int `json:"api"`

	Plugin  string            `json:"plugin"`  // its version, for people
	Decoder map[string]string `json:"decoder"` // versions of the decoder and what it is made of, for people

	// Plans has for each path that takes prompts "", or why it cannot be planned.
	Plans map[string]string `json:"plans"`

	// Starting is what the decoder does before it can plan, for people; "" where it could,
	// and from plug-ins that do not say.
	Starting string `json:"starting"`

	// Models are those that the decoder knows, at most maxModels.
	Models []Listed `json:"models"`
}

// Listed is a model that the decoder knows.
type Listed struct {
	ID     string `json:"id"`
	Loaded bool   `json:"loaded"`
}

// Loaded returns the ids of the models that are loaded, in the decoder's order.
func (s *Status) Loaded() (ids []string) {
	for _, m := range s.Models {
		if m.Loaded {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// ParseStatus reads the answer to an info call, with a model or without. Unknown fields
// are skipped. The error is ErrAnswer with the reason.
func ParseStatus(data []byte) (*Status, error) {
	var s Status
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%w: info: %w", ErrAnswer, err)
	}
	if s.API != APIVersion || len(s.Models) > maxModels {
		return nil, fmt.Errorf("%w: info: it speaks version %d, this program %d (install both of one release), of %d models", ErrAnswer, s.API, APIVersion, len(s.Models))
	}
	s.Starting = clip(s.Starting)
	return &s, nil
}

// AdoptCall is the body of an adopt call.
type AdoptCall struct {
	Model  string      `json:"model"`
	First  int         `json:"first,omitempty"` // number of the first hash's block; the decoder has those before it
	Hashes []omlx.Hash `json:"hashes"`          // from that block of the prompt on
	Tail   *omlx.Hash  `json:"tail,omitempty"`  // of what is behind these, the prompt's last blocks; nil: nothing
}

// Adoption is the answer to an adopt call.
type Adoption struct {
	Blocks  int               `json:"blocks"`  // usable, from the prompt's first on
	Tail    int               `json:"tail"`    // tokens behind all of them that are usable too
	Reason  string            `json:"reason"`  // why it is not all of them
	Adopted []omlx.Hash       `json:"adopted"` // new to the decoder
	Known   []omlx.Hash       `json:"known"`   // not new
	Refused map[string]string `json:"refused"` // reason by hash
}

// ParseAdoption reads the answer to an adopt call. The error is ErrAnswer with the
// reason.
func ParseAdoption(data []byte, call AdoptCall) (*Adoption, error) {
	var a Adoption
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("%w: adoption: %w", ErrAnswer, err)
	}
	if end := call.First + len(call.Hashes); a.Blocks < call.First || a.Blocks > end {
		return nil, fmt.Errorf("%w: adoption: %d blocks of %d to %d", ErrAnswer, a.Blocks, call.First, end)
	} else if a.Tail < 0 || a.Tail > 0 && (call.Tail == nil || a.Blocks < end) {
		return nil, fmt.Errorf("%w: adoption: a tail of %d tokens behind %d of %d blocks", ErrAnswer, a.Tail, a.Blocks, end)
	}
	a.Reason = clip(a.Reason)
	return &a, nil
}

// Refusal is why the plug-in did not do what it was asked: a code of API.md, and a
// text for people.
type Refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ParseRefusal reads the body of an answer that is no success; ok is false where it
// is not one of the plug-in's.
func ParseRefusal(data []byte) (r Refusal, ok bool) {
	var v struct {
		Error *Refusal `json:"error"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&v); err != nil || v.Error == nil || v.Error.Code == "" || v.Error.Message == "" {
		return Refusal{}, false
	}
	v.Error.Message = clip(v.Error.Message)
	return *v.Error, true
}

// clip bounds a text that is kept.
func clip(s string) string {
	if len(s) > maxReason {
		return string(bytes.ToValidUTF8([]byte(s[:maxReason]), nil)) + "…"
	}
	return s
}
