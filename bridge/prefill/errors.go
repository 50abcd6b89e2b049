package prefill

import (
	"errors"
	"fmt"

	"pdlink/transport"
)

// Sentinels, one for each decision that a caller can take.
var (
	// ErrUnavailable is returned by Listen on systems without the memory and the
	// sockets that it needs.
	ErrUnavailable = errors.New("prefill: not available on this system")

	// ErrInUse is returned by Listen when another sidecar has the socket: stop it
	// or take another path.
	ErrInUse = errors.New("prefill: socket in use")

	// ErrClosed is returned by a Server that was closed. It Is
	// transport.ErrClosed.
	ErrClosed = fmt.Errorf("prefill: %w", transport.ErrClosed)

	// ErrJob is returned by Open for a job that cannot be right: the program or
	// the configuration has to change.
	ErrJob = errors.New("prefill: unusable job")

	// ErrDuplicate is returned by Open while a transfer of the same id is open
	// here.
	ErrDuplicate = errors.New("prefill: transfer is open already")

	// ErrRing is returned for shared memory that is not a ring of this version
	// and size, and for a connection whose slots are not the server's.
	ErrRing = errors.New("prefill: wrong ring")

	// ErrWorker wraps what Options.OnFault is told: a worker was refused or
	// dropped.
	ErrWorker = errors.New("prefill: worker dropped")

	// ErrUnreachable is returned when the decode host could not be reached for as
	// long as a transfer waits, or had no room for it. It Is
	// transport.ErrUnreachable.
	ErrUnreachable = fmt.Errorf("prefill: decode host: %w", transport.ErrUnreachable)

	// ErrEngine is returned by an Engine that did not read a prompt: it cannot be
	// reached, or refused.
	ErrEngine = errors.New("prefill: engine did not read the prompt")

	// ErrUnauthorized is returned by a VLLM that wants an API key, or another one.
	ErrUnauthorized = errors.New("prefill: engine wants another API key")

	// ErrPrompt is returned by an Engine that refused a prompt: it is too long for
	// it, most often. Others may be read.
	ErrPrompt = errors.New("prefill: engine refuses the prompt")

	// errProtocol is a breach of the protocol; the worker is dropped.
	errProtocol = errors.New("prefill: protocol breach")
)

// breach describes a breach.
func breach(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errProtocol, fmt.Errorf(format, args...))
}
