"""NVFP4 as laguna.md section 7 states it: E2M1 codes, one E4M3 scale per 16 inputs.

Everything here is plain numpy on float32, so that it can be read beside the spec.
"""

import numpy as np

GROUP = 16
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3_decode_byte(byte):
    """Low 7 bits placed at bit 7 of a half, times 256; bit 7 is the sign. 0x7F gives 480."""
    half = np.array([(byte & 0x7F) << 7], np.uint16).view(np.float16)[0]
    value = np.float32(half) * np.float32(256)
    return np.float32(-value) if byte & 0x80 else value


E4M3 = np.array([e4m3_decode_byte(b) for b in range(256)], np.float32)


def e4m3_encode(value):
    """Non-negative float32 to the nearest E4M3 byte, ties to even, saturating at 448 (0x7E)."""
    value = np.asarray(value, np.float32)
    table = E4M3[:0x7F].astype(np.float64)
    v = np.minimum(value.astype(np.float64), 448.0)
    high = np.clip(np.searchsorted(table, v, side="left"), 0, 0x7E)
    low = np.maximum(high - 1, 0)
    to_low, to_high = v - table[low], table[high] - v
    take_low = (to_low < to_high) | ((to_low == to_high) & (low % 2 == 0))
    return np.where(take_low, low, high).astype(np.uint8)


def e2m1_encode(ratio):
    """float32 (x divided by the group's scale) to the 4-bit code; NaN gives 7."""
    ratio = np.asarray(ratio, np.float32)
    a = np.abs(ratio)
    code = np.zeros(a.shape, np.uint8)
    for code_value, test in enumerate(
        (a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5), start=1
    ):
        code[test] = code_value
    code |= np.where(np.signbit(ratio), 8, 0).astype(np.uint8)
    code[np.isnan(ratio)] = 7
    return code


def quantise(w):
    """[..., in] float32 -> (codes uint8 [..., in], scales uint8 [..., in/16]). in % 16 == 0.

    A group whose scale rounds to zero has only zero codes (a ratio of +0)."""
    w = np.asarray(w, np.float32)
    assert w.shape[-1] % GROUP == 0
    groups = w.reshape(*w.shape[:-1], -1, GROUP)
    with np.errstate(all="ignore"):
        scales = e4m3_encode(np.abs(groups).max(-1) / np.float32(6))
        s = E4M3[scales][..., None]
        ratio = np.where(s == 0, np.float32(0), groups / np.where(s == 0, np.float32(1), s))
    return e2m1_encode(ratio).reshape(w.shape), scales


def dequantise(codes, scales):
    return E2M1[codes] * np.repeat(E4M3[scales], GROUP, axis=-1)


def pack(codes):
    """8 codes per little-endian uint32, element 8j+t in bits [4t, 4t+3] of word j."""
    c = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    words = np.zeros(c.shape[:-1], np.uint32)
    for t in range(8):
        words |= c[..., t] << np.uint32(4 * t)
    return words


def unpack(words):
    c = np.stack([(words >> np.uint32(4 * t)) & np.uint32(15) for t in range(8)], -1)
    return c.reshape(*words.shape[:-1], -1).astype(np.uint8)
