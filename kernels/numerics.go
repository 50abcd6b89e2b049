package kernels

import "fmt"

// Numerics is a rounding profile: which of the decoder's backends the results
// must equal. Masks, orders, positions and carries are the same in all of them;
// only the leaf functions differ (linear, mean of squares, softmax, pooling sum,
// rotation). The zero value is MLXMetal.
type Numerics uint8

const (
	// MLXMetal has the rounding structure of MLX on a Mac's GPU: rotation in float32
	// with one rounding, pooling sums in bf16 (128 rows as 32 partial sums). The sums of
	// products are exact (float64), because their order on the GPU is not knowable.
	MLXMetal Numerics = iota
	// MLXCPU equals MLX on a CPU bit for bit: serial float32 sums, the polynomial
	// exponential, sine and cosine of its vector library, bf16 sine and cosine.
	MLXCPU
	// Ideal sums in float64 everywhere and rounds where MLXMetal does. It is a
	// yardstick, not a decoder.
	Ideal
)

// String returns the name that ParseNumerics accepts.
func (n Numerics) String() string {
	switch n {
	case MLXMetal:
		return "mlx-metal"
	case MLXCPU:
		return "mlx-cpu"
	case Ideal:
		return "ideal"
	}
	return fmt.Sprintf("Numerics(%d)", uint8(n))
}

// ParseNumerics returns the profile of that name: mlx-metal, mlx-cpu or ideal.
// Any other name is ErrNumerics.
func ParseNumerics(name string) (Numerics, error) {
	for _, n := range []Numerics{MLXMetal, MLXCPU, Ideal} {
		if n.String() == name {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w %q: use mlx-metal, mlx-cpu or ideal", ErrNumerics, name)
}
