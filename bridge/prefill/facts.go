package prefill

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"pdlink/bridge/facts"
)

// factsBody is the body of FACTS.
type factsBody struct {
	Size, Form uint32
	Sum        [sha256.Size]byte
}

// factsForm is the form of the documents that FACTS announces.
const factsForm = 1

func (m *factsBody) put(b *[bodySize]byte) {
	put32(b[0:], m.Size)
	put32(b[4:], m.Form)
	copy(b[8:40], m.Sum[:])
}

func (m *factsBody) get(b *[bodySize]byte) {
	*m = factsBody{Size: u32(b[0:]), Form: u32(b[4:]), Sum: [sha256.Size]byte(b[8:40])}
}

// document reads what is attached to FACTS. A document of another form, and one that
// cannot be used, is no breach: then nothing is known of the worker's model, and why.
func (m *factsBody) document(f *os.File) (*facts.Facts, error) {
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
	var body factsBody
	body.get(&m.body)
	doc, err := body.document(f)
	if err != nil {
		return err
	}
	w.s.mu.Lock()
	w.facts = doc
	changed := w.s.watcher
	w.s.mu.Unlock()
	if changed != nil {
		(*changed)()
	}
	return nil
}

// watch has f called whenever a worker has said what it has loaded, until stop, which is
// idempotent. f must return at once, and may still be called once while stop returns. Errors:
// ErrClosed; ErrJob where somebody watches already.
func (s *Server) watch(f func()) (stop func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.watcher != nil:
		return nil, fmt.Errorf("%w: a server has one service, and this one has it already: close that first", ErrJob)
	}
	mine := &f
	s.watcher = mine
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watcher == mine {
			s.watcher = nil
		}
	}, nil
}

// Loaded is what the workers that are connected have loaded, and the projection, if
// there is one; nil without workers. settled is false while a worker is so new that it may
// say something yet. The result is the caller's, the parts of it are not to be changed.
func (s *Server) Loaded() (doc *facts.Facts, settled bool) {
	all, silent, wait := s.heard()
	settled = wait <= 0
	if silent > 0 {
		return unknownFacts(fmt.Sprintf("%d of its workers do not tell: update pdlink-vllm", silent)), settled
	}
	doc, err := facts.Merge(all)
	if err != nil {
		return unknownFacts(err.Error()), settled
	}
	if doc == nil || s.weights == nil {
		return doc, settled
	}
	p, err := s.weights.facts()
	if err != nil {
		unknown := maps.Clone(doc.Unknown)
		if unknown == nil {
			unknown = make(map[string]string, 1)
		}
		unknown["projection"] = err.Error()
		doc.Unknown = unknown
		return doc, settled
	}
	doc.Projection = p
	return doc, settled
}

// settles is how long to wait until Loaded is settled, whatever workers do that are
// connected; 0: it is.
func (s *Server) settles() time.Duration {
	_, _, wait := s.heard()
	return max(wait, 0)
}

// heard is what workers have said that they have loaded, how many have had their time and
// have not, and how much of it the others have left; below 1: there are no others.
func (s *Server) heard() (all []*facts.Facts, silent int, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.workers {
		left := s.o.waits.facts - time.Since(w.came)
		switch {
		case w.facts != nil:
			all = append(all, w.facts)
		case left > 0:
			wait = max(wait, left)
		default:
			silent++
		}
	}
	return all, silent, wait
}

// probeText is what the engine's tokenizer makes of the probe text, once for a model. It
// belongs to the goroutine of watch.
func (s *Service) probeText(ctx context.Context, served []string) *facts.Text {
	if len(served) == 0 {
		return nil
	}
	if s.text == nil || s.textOf != served[0] {
		s.text, s.textOf = ProbeText(ctx, s.o.Engine, served), served[0]
	}
	return s.text
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
