package prefill

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"pdlink/bridge/facts"
	"pdlink/kernels"
)

// told is the body of FACTS.
type told struct {
	Size, Form uint32
	Sum        [sha256.Size]byte
}

// factsForm is the form of the documents that FACTS announces.
const factsForm = 1

func (m *told) put(b *[bodySize]byte) {
	put32(b[0:], m.Size)
	put32(b[4:], m.Form)
	copy(b[8:40], m.Sum[:])
}

func (m *told) get(b *[bodySize]byte) {
	*m = told{Size: u32(b[0:]), Form: u32(b[4:]), Sum: [sha256.Size]byte(b[8:40])}
}

// document reads what is attached to FACTS. A document of another form, and one that
// cannot be used, is no breach: then nothing is known of the worker's model, and why.
func (m *told) document(f *os.File) (*facts.Facts, error) {
	if m.Form != factsForm {
		return unknownFacts(fmt.Sprintf("a worker tells them in form %d, this sidecar knows %d: install the same release on both sides", m.Form, factsForm)), nil
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || m.Size > facts.MaxSize || info.Size() != int64(m.Size):
		return nil, breach("facts of %d bytes in a file of %d, limit %d", m.Size, info.Size(), facts.MaxSize)
	}
	b := make([]byte, m.Size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(m.Size)), b); err != nil {
		return nil, breach("facts: %w", err)
	}
	if sha256.Sum256(b) != m.Sum {
		return nil, breach("facts of another sum than their file")
	}
	doc, err := facts.Parse(b)
	if err != nil {
		return unknownFacts(err.Error()), nil
	}
	return doc, nil
}

// unknownFacts says why nothing is known.
func unknownFacts(why string) *facts.Facts {
	return &facts.Facts{Version: facts.Version, Unknown: map[string]string{"": why}}
}

// onFacts takes FACTS; f is closed.
func (w *worker) onFacts(m *message, f *os.File) error {
	if f == nil {
		return breach("facts without a file")
	}
	defer f.Close() //nolint:errcheck // nothing was written
	var t told
	t.get(&m.body)
	doc, err := t.document(f)
	if err != nil {
		return err
	}
	w.s.mu.Lock()
	w.facts = doc
	changed := w.s.onFacts
	w.s.mu.Unlock()
	if changed != nil {
		changed()
	}
	return nil
}

// facts is what the workers say of the engine's model, and of the projection, if there
// is one. ready is false while a worker is so new that it may say something yet.
func (s *Server) facts() (doc *facts.Facts, ready bool) {
	s.mu.Lock()
	var all []*facts.Facts
	ready = true
	silent := 0
	for w := range s.workers {
		switch {
		case w.facts != nil:
			all = append(all, w.facts)
		case time.Since(w.came) < s.o.waits.facts:
			ready = false
		default:
			silent++
		}
	}
	s.mu.Unlock()
	if silent > 0 {
		return unknownFacts(fmt.Sprintf("%d of its workers do not tell: update pdlink-vllm", silent)), ready
	}
	doc, err := facts.Merge(all)
	if err != nil {
		return unknownFacts(err.Error()), ready
	}
	if doc != nil && s.weights != nil {
		if p, err := s.weights.facts(); err == nil {
			doc.Projection = p
		} else {
			unknown := maps.Clone(doc.Unknown)
			if unknown == nil {
				unknown = make(map[string]string, 1)
			}
			unknown["projection"] = err.Error()
			doc.Unknown = unknown
		}
	}
	return doc, ready
}

// facts are the projection's, computed once.
func (w *weights) facts() (*facts.Projection, error) {
	w.once.Do(func() { w.told, w.untold = w.p.Facts() })
	return w.told, w.untold
}

// Facts fingerprints the weights, all of which are read, and tells how the kernels
// rotate.
func (p *Projection) Facts() (*facts.Projection, error) {
	g := p.Geometry
	out := &facts.Projection{Rope: ropesOf(g)}
	for i := range g.Layers() {
		l, err := p.Weights.Layer(i)
		if err != nil {
			return nil, err
		}
		out.Layers = append(out.Layers, layerHash(g, i, l))
	}
	return out, nil
}

// ropesOf is how the kernels rotate what they make.
func ropesOf(g kernels.Geometry) map[string]facts.Rope {
	out := make(map[string]facts.Rope)
	for _, i := range facts.SampledLayers(g.Layers(), g.Ratios) {
		out[strconv.Itoa(i)] = facts.RopeOf(g.HeadDim-g.RopeDim, facts.PairsNeighbours, g.InverseFrequencies(g.Ratios[i] != 0))
	}
	return out
}

// layerHash is the hash of one layer's weights that FACTS.md defines.
func layerHash(g kernels.Geometry, layer int, l kernels.LayerWeights) string {
	tensors := map[string]func(h io.Writer){
		"wkv.weight": bf16Tensor(l.KV, g.HeadDim, g.Hidden), "kv_norm.weight": bf16Tensor(l.Norm, g.HeadDim),
	}
	pool := func(name string, p kernels.PoolWeights) {
		if len(p.Norm) == 0 {
			return
		}
		tensors[name+".wkv.weight"] = bf16Tensor(p.KV, len(p.KV)/g.Hidden, g.Hidden)
		tensors[name+".wgate.weight"] = bf16Tensor(p.Gate, len(p.Gate)/g.Hidden, g.Hidden)
		tensors[name+".ape"] = f32Tensor(p.APE, g.Ratios[layer], len(p.APE)/g.Ratios[layer])
		tensors[name+".norm.weight"] = bf16Tensor(p.Norm, len(p.Norm))
	}
	pool("comp", l.Comp)
	pool("idx", l.Index)
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		io.WriteString(h, name) //nolint:errcheck // a hash takes everything
		tensors[name](h)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// bf16Tensor writes a tensor as FACTS.md wants it, behind its name.
func bf16Tensor(values []uint16, dims ...int) func(io.Writer) {
	return func(h io.Writer) {
		b := head("BF16", dims)
		for _, v := range values {
			b = append(b, byte(v), byte(v>>8))
		}
		h.Write(b) //nolint:errcheck // a hash takes everything
	}
}

// f32Tensor is bf16Tensor for floats.
func f32Tensor(values []float32, dims ...int) func(io.Writer) {
	return func(h io.Writer) {
		b := head("F32", dims)
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		h.Write(b) //nolint:errcheck // a hash takes everything
	}
}

// head is what stands in front of a tensor's bytes, behind its name.
func head(dtype string, dims []int) []byte {
	b := append([]byte{' '}, dtype...)
	for i, n := range dims {
		b = strconv.AppendInt(append(b, " ,"[min(i, 1)]), int64(n), 10)
	}
	return append(b, '\n')
}

// Tokenizer is an Engine that says what its tokenizer makes of a text.
type Tokenizer interface {
	// Tokens returns the ids of a text as a prompt, with the engine's id of a
	// model. Errors: the context's; another says that it cannot.
	Tokens(ctx context.Context, model, text string) ([]int32, error)
}

// Tokens implements Tokenizer.
func (v *VLLM) Tokens(ctx context.Context, model, text string) ([]int32, error) {
	d, err := v.describe(ctx, model, text)
	return d.Tokens, err
}

// MaxModelLen is how many tokens a prompt and its answer may have, by the engine's id
// of a model. Errors: those of Tokens.
func (v *VLLM) MaxModelLen(ctx context.Context, model string) (int, error) {
	d, err := v.describe(ctx, model, "a")
	return d.MaxModelLen, err
}

// described is an engine's answer about a text.
type described struct {
	Tokens      []int32 `json:"tokens"`
	MaxModelLen int     `json:"max_model_len"`
}

func (v *VLLM) describe(ctx context.Context, model, text string) (d described, err error) {
	body, err := json.Marshal(map[string]string{"model": model, "prompt": text})
	if err != nil {
		return d, err
	}
	b, err := v.send(ctx, http.MethodPost, v.base.JoinPath("tokenize"), body)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil || len(d.Tokens) == 0 {
		return d, errors.Join(errors.New("its answer has no tokens"), err)
	}
	return d, nil
}

// describe completes what the workers told for an announcement.
func (s *Service) describe(ctx context.Context, doc *facts.Facts, served []string) *facts.Facts {
	if doc == nil {
		return nil
	}
	if t, ok := s.o.Engine.(Tokenizer); ok && len(served) > 0 && doc.Text == nil {
		if s.text == nil || s.textOf != served[0] {
			if ids, err := t.Tokens(ctx, served[0], facts.ProbeText()); err == nil {
				s.text, s.textOf = facts.TextOf(ids), served[0]
			}
		}
		if s.textOf == served[0] {
			doc.Text = s.text
		}
	}
	return doc
}

// encodeFacts is a document as it travels; nil where there is none.
func encodeFacts(doc *facts.Facts) json.RawMessage {
	if doc == nil {
		return nil
	}
	b, err := doc.Encode()
	if err != nil {
		if b, err = unknownFacts(err.Error()).Encode(); err != nil {
			return nil
		}
	}
	return b
}

// Loaded is what the workers that are connected have loaded, and the projection, as it
// is announced; nil without workers. settled is false while one is so new that it may
// say something yet. The result is the caller's.
func (s *Server) Loaded() (doc *facts.Facts, settled bool) { return s.facts() }

// Expected is how many workers of the engine there are on this host, as those say that
// are connected.
func (s *Server) Expected() int {
	_, n := s.present()
	return n
}
