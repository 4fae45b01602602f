#!/usr/bin/env python3
"""tests/vectors/rope.json: rotary tables of Laguna XS 2.1 (laguna.md section 5.3), as the engine
must have them: inv_freq in double, rounded to float32; angle = float32(position) * inv_freq rounded
to float32; cos and sin in double of that angle, rounded to float32.

For each kind of layer: inv_freq bits; samples [position, pair, cos bits, sin bits]; sha256 of the
little-endian float32 tables cos [positions, d/2] and sin [positions, d/2] for positions 0 .. 4095.
The tables are unscaled (attention_factor 1.0). derived is float32(0.1 ln(32) + 1). Needs numpy.
"""

import hashlib
import json
import math
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from laguna_bf16 import derived_magnitude, inverse_frequencies  # noqa: E402

F = np.float32
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "vectors", "rope.json")
FULL = {
    "rope_type": "yarn",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 64.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
    "partial_rotary_factor": 0.5,
}
SLIDING = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
SPEC = {0: 1.0, 7: 0.0566696214, 8: 0.0342941362, 12: 0.00408140612, 17: 0.000111976996, 18: 1.94616382e-05, 31: 9.41830673e-08}


def bits(x):
    return f"{int(np.asarray(x, F).view(np.uint32)):08x}"


def table(function, angles):
    return np.array([function(float(a)) for a in angles.ravel()], np.float64).astype("<f4").reshape(angles.shape)


def main():
    result = {"derived": bits(F(derived_magnitude(FULL)))}
    for name, rope, d in (("full_attention", FULL, 64), ("sliding_attention", SLIDING, 128)):
        exact = inverse_frequencies(rope, d)
        if rope is FULL:
            assert all(abs(exact[i] / v - 1) < 1e-8 for i, v in SPEC.items())
        inv_freq = exact.astype(F)
        angles = np.arange(4096, dtype=F)[:, None] * inv_freq[None, :]
        samples = []
        for position in (0, 1, 2, 511, 512, 4095, 8192, 100003, 262143):
            for i in (0, 1, 7, 8, 17, 18, d // 2 - 1):
                angle = float(F(position) * inv_freq[i])
                samples.append([position, i, bits(F(math.cos(angle))), bits(F(math.sin(angle)))])
        result[name] = {
            "rope": rope,
            "rotary_width": d,
            "inv_freq": [bits(v) for v in inv_freq],
            "samples": samples,
            "positions": 4096,
            "cos_sha256": hashlib.sha256(table(math.cos, angles).tobytes()).hexdigest(),
            "sin_sha256": hashlib.sha256(table(math.sin, angles).tobytes()).hexdigest(),
        }
    with open(OUT, "w", encoding="utf-8") as f:
        json.dump(result, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
