"""Affine 8-bit weights in groups of 32, as mlx.core.quantize(w, group_size=32, bits=8) makes them,
in numpy: float32 throughout, scale and bias rounded to bf16 at the end.

Per group: the edge is the end of larger magnitude (the largest where both are as far from 0); the
scale runs from it towards the other end and is then bent so that 0 has a code of its own.
"""

import numpy as np

F = np.float32
GROUP = 32


def to_bf16(x):
    """float32 to bf16 bits, nearest even (finite values)."""
    u = np.asarray(x, F).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(b):
    return (np.asarray(b, np.uint16).astype(np.uint32) << 16).view(F)


def quantise(w):
    """w float32 [..., n], n a multiple of 32: codes uint8 [..., n], scales and biases (bf16 bits)
    [..., n / 32]."""
    g = np.asarray(w, F).reshape(*w.shape[:-1], -1, GROUP)
    high, low = g.max(-1), g.min(-1)
    scale = np.maximum((high - low) / F(255), F(1e-7))
    below = np.abs(low) > np.abs(high)
    scale = np.where(below, scale, -scale).astype(F)
    edge = np.where(below, low, high).astype(F)
    q0 = np.rint(edge / scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        bent = (edge / q0).astype(F)
    scale = np.where(q0 != 0, bent, scale).astype(F)
    bias = np.where(q0 != 0, edge, F(0)).astype(F)
    codes = np.rint((g - bias[..., None]) / scale[..., None])
    codes = np.clip(codes, 0, 255).astype(np.uint8).reshape(w.shape)
    return codes, to_bf16(scale), to_bf16(bias)


def dequantise(codes, scales, biases):
    """float32: scale * code + bias, each operation rounded (mlx rounds the result to its dtype)."""
    s, b = (np.repeat(from_bf16(v), GROUP, -1) for v in (scales, biases))
    return (s * codes.astype(F)).astype(F) + b
