package rdma

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// message is the body of a link message.
type message interface{ append([]byte) []byte }

// empty is a body that says nothing.
type empty struct{}

func (empty) append(b []byte) []byte { return b }

// swap sends a message of a type and returns the peer's of the same type. The client
// speaks first.
func (s *setUp) swap(t wire.Type, m message) (*reader, error) {
	if s.b.Role == session.Client {
		if err := s.tell(t, m); err != nil {
			return nil, err
		}
		return s.hear(t)
	}
	r, err := s.hear(t)
	if err != nil {
		return nil, err
	}
	return r, s.tell(t, m)
}

func (s *setUp) tell(t wire.Type, m message) error {
	msg, err := wire.AppendLink(nil, &wire.Link{Of: t, Body: m.append(nil)})
	if err != nil {
		return err
	}
	if err := s.b.Control.WriteControl(msg); err != nil {
		s.refused = true
		return fmt.Errorf("%w: %w", transport.ErrLost, err)
	}
	return nil
}

// hear returns the peer's next message, which has to be of type t. Optional ones that
// this version does not know may come before it: the context bounds how many.
func (s *setUp) hear(t wire.Type) (*reader, error) {
	for {
		m, err := s.next()
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case *wire.Link:
			switch {
			case m.Of == t:
				return &reader{b: slices.Clone(m.Body)}, nil
			case m.Of == typeRefuse:
				s.refused = true
				return nil, refusal(m.Body)
			case m.Optional && !known(m.Of):
				continue
			}
		case *wire.Unknown: // optional
			continue
		case *wire.Bye:
			s.refused = true
			return nil, fmt.Errorf("%w: the peer said %q", transport.ErrLost, m.Reason)
		}
		return nil, wire.Violation("rdma: %v where %v was due", m.Type(), t)
	}
}

// next returns the next message of the control channel.
func (s *setUp) next() (wire.Message, error) {
	msg, err := s.b.Control.ReadControl()
	if err != nil {
		s.refused = true
		if errors.Is(err, io.EOF) {
			err = errors.New("the peer hung up")
		}
		return nil, fmt.Errorf("%w: %w", transport.ErrLost, err)
	}
	return wire.Decode(msg)
}

// refuse tells the peer why there will be no lanes, and gives it the time to read
// that: a channel that is closed while bytes come loses what was said last.
func (s *setUp) refuse(why error) {
	if s.tell(typeRefuse, reason{why}) != nil {
		return
	}
	for {
		msg, err := s.b.Control.ReadControl()
		if err != nil {
			return
		}
		if _, t, err := wire.ControlLength(msg); err != nil || t == typeRefuse {
			return // the peer is about to hang up too
		}
	}
}
