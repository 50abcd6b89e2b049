package rdma

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/wire"
)

// A cause decides whether a link is tried again: transport.ErrLost means that it may
// work the next time, transport.ErrUnavailable that it does not while this program, or
// the peer's, runs.

// passing marks a cause that may be gone the next time, although a host says it of
// itself: a port that is down.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }

// lasting marks a cause that stays even where the link has worked: a device that is not
// used again.
type lasting struct{ error }

func (l lasting) Unwrap() error { return l.error }

// unavailable is err as transport.ErrUnavailable, once.
func unavailable(err error) error {
	if errors.Is(err, transport.ErrUnavailable) {
		return named(err)
	}
	return fmt.Errorf("rdma: %w: %w", transport.ErrUnavailable, err)
}

// lost is err as transport.ErrLost and nothing else, once.
func lost(err error) error {
	return fmt.Errorf("rdma: %w: %s", transport.ErrLost, bare(err.Error()))
}

// prefix begins the errors of this package.
const prefix = "rdma: "

// named is err with the prefix, once.
func named(err error) error {
	if strings.HasPrefix(err.Error(), prefix) {
		return err
	}
	return fmt.Errorf(prefix+"%w", err)
}

// bare is a text without what says which kind of error it is of: that is said in front.
func bare(text string) string {
	for _, kind := range []error{transport.ErrUnavailable, transport.ErrLost} {
		text = strings.ReplaceAll(text, kind.Error()+": ", "")
	}
	for strings.HasPrefix(text, prefix) {
		text = text[len(prefix):]
	}
	return text
}

// worded gives an error its sentinel: what a host cannot do is unavailable. Where the
// link has worked before it may again, and so it may where both devices are able to.
func (s *setUp) worded(err error, able bool) error {
	if errors.Is(err, transport.ErrIncompatible) || errors.Is(err, transport.ErrProtocol) {
		return named(err)
	}
	if errors.As(err, &lasting{}) {
		return unavailable(err)
	}
	if s.c.link.worked.Load() || errors.As(err, &passing{}) {
		return lost(err)
	}
	for _, known := range []error{transport.ErrUnavailable, transport.ErrLost, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return named(err)
		}
	}
	if able && !errors.Is(err, verbs.ErrUnsupported) {
		return lost(err)
	}
	return unavailable(err)
}

// The last line of a refusal says of which kind its reason is. An end that knows
// nothing of it shows it behind the reason.
const (
	saysPassing = "\n(passing)"
	saysLasting = "\n(lasting)"
)

// reason is the body of a refusal.
type reason struct{ error }

func (r reason) append(b []byte) []byte {
	says := saysPassing
	if errors.Is(r.error, transport.ErrUnavailable) || errors.Is(r.error, transport.ErrIncompatible) {
		says = saysLasting
	}
	b = append(b, wire.Printable(bare(r.Error()), transport.MaxReason-len(says))...)
	return append(b, says...)
}

// refusal is the error for what the peer said. Where it does not say of which kind the
// reason is, it is one that lasts unless the link has worked.
func refusal(body []byte) error {
	text, isPassing := strings.CutSuffix(string(body), saysPassing)
	text, isLasting := strings.CutSuffix(text, saysLasting)
	text = bare(wire.Printable(text, transport.MaxReason))
	switch {
	case isPassing:
		return fmt.Errorf("%w: the other end says: %s", transport.ErrLost, text)
	case isLasting:
		return lasting{fmt.Errorf("%w: the other end says: %s", transport.ErrUnavailable, text)}
	}
	return fmt.Errorf("%w: the other end says: %s", transport.ErrUnavailable, text)
}
