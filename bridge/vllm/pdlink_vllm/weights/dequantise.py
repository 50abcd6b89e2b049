"""Turns a checkpoint's matrices into bf16, exactly: what is written is what the decoder multiplies with.

Two families are known. MLX packs values into 32-bit words, lowest bits first, with one scale for each group along a row
(modes mxfp8, mxfp4, nvfp4, affine). DeepSeek's own files hold e4m3 with one power of two for each tile of 128 x 128.
A float of 4 significant bits times a power of two, or a float of 2 times one of 4, has at most 8: bf16 holds them all.
Affine values have no such bound and are refused unless rounding is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]

# Side of the square that shares one scale in DeepSeek's own files.
TILE = 128


class QuantError(ValueError):
    """A matrix cannot become bf16 as it should. The text says why and what to do."""


@dataclass(frozen=True)
class Scheme:
    """How MLX quantised one matrix: group is in elements along a row, bits those of one element."""

    mode: str
    group: int
    bits: int


def _e4m3_table() -> F32:
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    value = np.where(code & 0x7F == 0x7F, np.nan, value)
    return np.where(code & 0x80, -value, value).astype(np.float32)


def _e2m1_table() -> F32:
    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
    return np.concatenate([half, -half])


def _powers(codes: U8) -> F32:
    """e8m0: an exponent with bias 127; 255 is no number."""
    value = np.ldexp(np.float32(1), codes.astype(np.int32) - 127).astype(np.float32)
    return np.where(codes == 255, np.float32(np.nan), value).astype(np.float32)


def to_bf16(values: F32, name: str, exact: bool) -> U16:
    """Round to bf16, ties to even. With exact, anything that would change is refused; what is not finite always is."""
    bits = values.view(np.uint32)
    if not np.isfinite(values).all():
        raise QuantError(f"{name} holds values that are not finite: the checkpoint is damaged, copy it again")
    if exact:
        if (bits & 0xFFFF).any():
            raise QuantError(f"{name} cannot be held exactly in bf16; --allow-rounding exports the nearest values")
        return (bits >> 16).astype(np.uint16)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpack(packed: npt.NDArray[np.uint32], bits: int) -> U8:
    """Take the values of `bits` bits out of rows of words, the lowest bits of each word first. 32 must be divisible."""
    if bits not in (2, 4, 8):
        raise QuantError(f"values of {bits} bits do not fill words evenly: only 2, 4 and 8 are known")
    if bits == 8:
        return np.ascontiguousarray(packed).view(np.uint8).reshape(packed.shape[0], -1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (packed[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.astype(np.uint8).reshape(packed.shape[0], -1)


def mlx(
    name: str, scheme: Scheme, packed: npt.NDArray[np.uint32], scales: npt.NDArray[np.generic], biases: F32 | None
) -> F32:
    """Dequantise a matrix that MLX packed.

    packed is [rows, columns * bits / 32]; scales [rows, columns / group], e8m0 codes for the mx modes, e4m3 codes for
    nvfp4, f32 for affine; biases the same shape, for affine only. Raises QuantError.
    """
    codes = unpack(packed, scheme.bits)
    rows, columns = codes.shape
    if columns % scheme.group or scales.shape != (rows, columns // scheme.group):
        raise QuantError(
            f"{name}: scales {list(scales.shape)} do not fit {rows} x {columns} in groups of {scheme.group}"
        )
    if scheme.mode == "affine":
        if biases is None or biases.shape != scales.shape:
            raise QuantError(f"{name}: affine values need biases of the shape of their scales")
        factor, value = scales.astype(np.float32), codes.astype(np.float32)
        return value * np.repeat(factor, scheme.group, axis=1) + np.repeat(biases, scheme.group, axis=1)
    tables = {("mxfp8", 8): _e4m3_table, ("mxfp4", 4): _e2m1_table, ("nvfp4", 4): _e2m1_table}
    table = tables.get((scheme.mode, scheme.bits))
    if table is None:
        raise QuantError(
            f"{name} is quantised as {scheme.mode} with {scheme.bits} bits, which this version cannot read"
        )
    code = scales.astype(np.uint8)
    factor = _e4m3_table()[code] if scheme.mode == "nvfp4" else _powers(code)
    return table()[codes] * np.repeat(factor, scheme.group, axis=1)


def tiled(name: str, codes: U8, scales: U8) -> F32:
    """Dequantise DeepSeek's own form: codes e4m3 [rows, columns], scales e8m0, one for each tile of 128 x 128."""
    rows, columns = codes.shape
    want = (-(-rows // TILE), -(-columns // TILE))
    if scales.shape != want:
        raise QuantError(
            f"{name}: scales {list(scales.shape)}, {rows} x {columns} in tiles of {TILE} have {list(want)}"
        )
    factor = np.repeat(np.repeat(_powers(scales), TILE, axis=0)[:rows], TILE, axis=1)[:, :columns]
    return _e4m3_table()[codes] * factor
