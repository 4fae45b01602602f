"""NVFP4: 4-bit E2M1 codes with one E4M3 scale per 16 inputs and no global scale.

The format, the thresholds and the packing are those of Laguna's checkpoints. Everything here works
on the last axis, the input axis of a linear layer.
"""

import numpy as np
import torch

GROUP = 16
E4M3_MAX = 448.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def encode_scales(weight):
    """E4M3(max|x|/6) of each group, nearest even, saturating; float8_e4m3fn [..., in/16]."""
    peak = weight.reshape(*weight.shape[:-1], -1, GROUP).abs().amax(-1)
    return (peak / 6.0).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)


def encode_codes(weight, scales):
    """E2M1 codes, one uint8 per element. The ties (.25, .75, 1.25, ...) go to the even code."""
    step = scales.float().repeat_interleave(GROUP, dim=-1)
    # A group whose scale underflowed holds only values that round to zero.
    ratio = torch.where(step == 0, torch.zeros_like(weight), weight / step).abs()
    code = (ratio > 0.25).to(torch.uint8)
    for tie, upwards in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True),
                         (5.0, False)):
        code += (ratio >= tie) if upwards else (ratio > tie)
    return code | (torch.signbit(weight).to(torch.uint8) << 3)


def quantise(weight):
    """Float [..., in] to (codes uint8 [..., in], scales float8_e4m3fn [..., in/16])."""
    weight = weight.float()
    if weight.shape[-1] % 32 != 0:
        raise ValueError(f"NVFP4 needs an input width divisible by 32, got {weight.shape[-1]}")
    scales = encode_scales(weight)
    return encode_codes(weight, scales), scales


def dequantise(codes, scales):
    """The exact float32 values that the codes and scales stand for."""
    table = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), device=codes.device)
    return table[codes.long()] * scales.float().repeat_interleave(GROUP, dim=-1)


def round_trip(weight):
    """The weight as a reader of the checkpoint will see it."""
    return dequantise(*quantise(weight))


def pack(codes):
    """Codes [..., in] to uint32 words [..., in/8]: element 8j+t in bits [4t, 4t+3] of word j."""
    nibbles = codes.cpu().numpy().astype(np.uint32)
    nibbles = nibbles.reshape(*nibbles.shape[:-1], -1, 8)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(nibbles << shifts, axis=-1).astype("<u4")


def unpack(words):
    """The inverse of pack: uint32 [..., n] to uint8 codes [..., 8n]."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    nibbles = (words[..., None].astype(np.uint32) >> shifts) & np.uint32(15)
    return torch.from_numpy(nibbles.reshape(*words.shape[:-1], -1).astype(np.uint8))
