package cuda

import "errors"

// One sentinel for each decision that a caller can take; errors of package kernels
// come through as they are.
var (
	// ErrUnavailable: the GPU was required, but there is no library, no device, too
	// little memory on it, or the model has a shape that the kernels do not take.
	ErrUnavailable = errors.New("no CUDA projection")
	// ErrDevice: the GPU or its libraries reported a failure; the projector is of no
	// further use.
	ErrDevice = errors.New("CUDA projection failed")
	// ErrFull: as many requests are open as the projector was opened for.
	ErrFull = errors.New("no room for another request")
	// ErrClosed: the projector or the request was closed.
	ErrClosed = errors.New("projection is closed")
)
