// Package plugin reads the answers of the plug-in that runs in the decoder's
// process, and turns them into plans. The plug-in itself is the Python package
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
	"slices"

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
	// maxReason bounds the reasons that are kept, for people.
	maxReason = 1000
)

// Plan is the answer to a plan call.
type Plan struct {
	Model       string      `json:"model"`        // the API's id
	HashModel   string      `json:"hash_model"`   // the id in hashes and metadata
	Layout      string      `json:"layout"`       // names what blocks look like; see Info
	Tokens      int         `json:"tokens"`       // of the whole prompt
	BlockTokens int         `json:"block_tokens"` // of a block
	Blocks      int         `json:"blocks"`       // worth having: at least one token stays uncovered
	Present     int         `json:"present"`      // of those, from the first, that the decoder holds
	Bytes       int64       `json:"bytes"`        // of files, reserved for the others
	Hashes      []omlx.Hash `json:"hashes"`       // of the blocks, in order
	IDs         packedIDs   `json:"ids"`          // of the tokens of those blocks
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

// ParsePlan reads and verifies the answer to a plan call, hashes included. Unknown
// fields are skipped. The result keeps no reference to data.
//
// The error is ErrAnswer with the reason.
func ParsePlan(data []byte) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%w: plan: %w", ErrAnswer, err)
	}
	switch {
	case p.Model == "" || len(p.Model) > maxText || p.HashModel == "" || len(p.HashModel) > maxText || p.Layout == "" || len(p.Layout) > maxText:
		return nil, fmt.Errorf("%w: plan: model, hash_model or layout is no text of 1 to %d bytes", ErrAnswer, maxText)
	case p.BlockTokens < 1 || p.BlockTokens > maxTokens || p.Blocks > maxTokens || p.Tokens < 0 || p.Blocks < 0 || p.Present < 0 || p.Present > p.Blocks:
		return nil, fmt.Errorf("%w: plan: %d tokens, blocks of %d, %d of %d present", ErrAnswer, p.Tokens, p.BlockTokens, p.Present, p.Blocks)
	case len(p.Hashes) != p.Blocks || len(p.IDs) != p.Blocks*p.BlockTokens:
		return nil, fmt.Errorf("%w: plan: %d hashes and %d ids for %d blocks of %d tokens",
			ErrAnswer, len(p.Hashes), len(p.IDs), p.Blocks, p.BlockTokens)
	case p.Blocks > 0 && len(p.IDs) >= p.Tokens:
		return nil, fmt.Errorf("%w: plan: blocks cover %d of %d tokens, one must stay", ErrAnswer, len(p.IDs), p.Tokens)
	}
	own := omlx.Chain(p.HashModel, p.BlockTokens, p.IDs, nil)
	for k, h := range own {
		if h != p.Hashes[k] {
			return nil, fmt.Errorf("%w: plan: block %d has hash %s, its tokens give %s", ErrAnswer, k, p.Hashes[k], h)
		}
	}
	return &p, nil
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
		return nil, fmt.Errorf("%w: info: version %d, this program reads %d", ErrAnswer, i.API, APIVersion)
	case i.Model == nil || i.Model.Layout == "":
		return nil, fmt.Errorf("%w: info: no model", ErrAnswer)
	}
	return &i, nil
}

// AdoptCall is the body of an adopt call.
type AdoptCall struct {
	Model  string      `json:"model"`
	Hashes []omlx.Hash `json:"hashes"` // from the first block of the prompt
}

// Adoption is the answer to an adopt call.
type Adoption struct {
	Blocks  int               `json:"blocks"`  // usable, from the first on
	Reason  string            `json:"reason"`  // why it is not all of them
	Adopted []omlx.Hash       `json:"adopted"` // new to the decoder
	Known   []omlx.Hash       `json:"known"`   // not new
	Refused map[string]string `json:"refused"` // reason by hash
}

// ParseAdoption reads the answer to an adopt call of so many hashes. The error is
// ErrAnswer with the reason.
func ParseAdoption(data []byte, hashes int) (*Adoption, error) {
	var a Adoption
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("%w: adoption: %w", ErrAnswer, err)
	}
	if a.Blocks < 0 || a.Blocks > hashes {
		return nil, fmt.Errorf("%w: adoption: %d of %d blocks", ErrAnswer, a.Blocks, hashes)
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
