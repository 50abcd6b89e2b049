"""Has MLX quantise and dequantise one small matrix in every mode: make_mlx.py OUT.safetensors (see README.md)."""

import sys

import mlx.core as mx

# (mode, group, bits)
SCHEMES = [
    ("mxfp8", 32, 8),
    ("mxfp4", 32, 4),
    ("nvfp4", 16, 4),
    ("affine", 64, 8),
    ("affine", 32, 4),
    ("affine", 32, 2),
]


def main() -> None:
    """See the module."""
    rows, columns = 6, 128
    mx.random.seed(3)
    w = mx.random.normal((rows, columns)) * mx.array([1e-3, 0.02, 0.3, 1, 30, 1000])[:, None]
    w = w.astype(mx.bfloat16)
    out = {}
    for mode, group, bits in SCHEMES:
        packed, scales, *biases = mx.quantize(w, group_size=group, bits=bits, mode=mode)
        name = f"{mode}-{group}-{bits}"
        out[f"{name}.weight"], out[f"{name}.scales"] = packed, scales
        if biases:
            out[f"{name}.biases"] = biases[0]
        out[f"{name}.want"] = mx.dequantize(
            packed, scales, *biases, group_size=group, bits=bits, mode=mode, dtype=mx.float32
        )
    mx.save_safetensors(sys.argv[1], out)


if __name__ == "__main__":
    main()
