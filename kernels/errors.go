package kernels

import "errors"

// One sentinel per decision that a caller can take. Every error of this package
// wraps exactly one of them, or an error of the operating system or of package
// safetensors.
var (
	// ErrGeometry: the model's configuration cannot be used.
	ErrGeometry = errors.New("unusable model geometry")
	// ErrWeights: the projection weights do not belong to the geometry, or are
	// stored in a form that would not give the decoder's bits.
	ErrWeights = errors.New("unusable projection weights")
	// ErrNumerics: no rounding profile has this name.
	ErrNumerics = errors.New("unknown numerics profile")
	// ErrInput: rows of the wrong size, or more tokens than the model has positions.
	ErrInput = errors.New("unusable input rows")
	// ErrState: a state does not fit the layer or the position.
	ErrState = errors.New("unusable layer state")
	// ErrNoPrevious: a state lacks the rows of the previous window, so the next
	// pooled row would be wrong; see [State.WithoutPrevious].
	ErrNoPrevious = errors.New("state lacks the previous window")
	// ErrConcurrent: two goroutines used one Layer at once.
	ErrConcurrent = errors.New("layer is in use by another goroutine")
	// ErrKVLayout: a key/value layout that does not describe the buffers.
	ErrKVLayout = errors.New("unusable key/value layout")
)
