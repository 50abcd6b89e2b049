package front

import "errors"

// Sentinels, one for each decision that a caller can take.
var (
	// ErrUnplannable is returned by a Planner for a request that it cannot
	// plan: the decoder answers it as it is.
	ErrUnplannable = errors.New("front: request cannot be planned")

	// ErrBusy is returned when no prefill engine had room in time.
	ErrBusy = errors.New("front: no prefill engine has room")

	// ErrNoEngine is returned when no prefill engine is healthy.
	ErrNoEngine = errors.New("front: no prefill engine is up")

	// ErrClosed ends what runs when the front is closed.
	ErrClosed = errors.New("front: closed")

	// ErrOptions is returned by New, NewHosts, NewMatches and NewPlugin.
	ErrOptions = errors.New("front: invalid options")
)
