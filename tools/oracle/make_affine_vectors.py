#!/usr/bin/env python3
"""tests/vectors/affine.json: cases of the affine 8-bit quantiser, and of its dot products.

    groups  {x, scale, bias, codes}         32 inputs as bf16 bits; bf16 bits; codes as two hex digits
    dot     {x, codes, scales, biases, sum} one output: float32 sum bits by the order of docs/numerics.md

    make_affine_vectors.py [--mlx]   --mlx compares the quantiser with mlx.core.quantize (CPU), bit by bit
Needs numpy.
"""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import affine  # noqa: E402
import float32_exact as fx  # noqa: E402

F = np.float32
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "vectors", "affine.json")


def words(bits):
    return "".join(f"{int(b):04x}" for b in np.ravel(bits))


def rounded(x):
    return affine.from_bf16(affine.to_bf16(np.asarray(x, F)))


def groups():
    rng = np.random.default_rng(8)
    out = []

    def group(values):
        g = np.zeros(32, F)
        g[: len(values)] = values
        out.append(rounded(g))

    group([])
    group([-0.0] * 32)
    group([1.0] * 32)
    group([-1.0] * 32)
    group([1.0, -1.0])  # both ends as far from 0: the largest is the edge
    group([-3.0, 1.0, 0.5])
    group([255.0, 128.0, 1.0])
    group(np.arange(32))
    group(-np.arange(32.0))
    group(np.arange(32) + 100)  # 0 lies far outside of the group
    group([1e-8, -1e-8])  # the smallest scale
    group([3e-5, 1e-6, -2e-5])
    group([1e30, -1e28, 5e29])
    group([2.0**-126, -(2.0**-126)])
    for spread in (1e-6, 1e-3, 0.02, 1, 300):
        for shift in (0, 0.5, -4):
            for _ in range(3):
                group(rng.normal(shift * spread, spread, 32))
    return np.array(out)


def sums(x):
    """float32 [n / 32]: pairs, then the tree of halves."""
    g = x.reshape(-1, 16, 2)
    s = fx.add(g[..., 0], g[..., 1])
    for half in (8, 4, 2, 1):
        s = fx.add(s[:, :half], s[:, half : 2 * half])
    return s[:, 0]


def dot(codes, scale, bias, x):
    acc = np.zeros(16, F)
    for g, value in enumerate(sums(x)):
        acc[g % 16] = fx.fma(bias[g], value, acc[g % 16])
    for b in range(len(scale)):
        c, v = (a[32 * b : 32 * b + 32].astype(F) for a in (codes, x))
        t = fx.fma(c[0::2], v[0::2], fx.mul(c[1::2], v[1::2]))
        acc = fx.fma(t, scale[b], acc)
    for half in (8, 4, 2, 1):
        acc = fx.add(acc[:half], acc[half : 2 * half])
    return acc[0]


def dots():
    rng = np.random.default_rng(20)
    rows = []
    for k in (32, 64, 96, 256, 480, 512, 544, 1024):
        for spread in (0, 6):
            x = rounded(rng.normal(size=k) * np.exp2(rng.integers(-spread, spread + 1, k)))
            codes = rng.integers(0, 256, k).astype(np.uint8)
            codes[:2] = 0, 255
            scale = affine.to_bf16(rng.normal(0, 1e-3, k // 32))
            bias = affine.to_bf16(rng.normal(0, 0.2, k // 32))
            total = dot(codes, affine.from_bf16(scale), affine.from_bf16(bias), x)
            rows.append({"x": words(affine.to_bf16(x)), "codes": codes.tobytes().hex(), "scales": words(scale),
                         "biases": words(bias), "sum": f"{int(np.asarray(total, F).view(np.uint32)):08x}"})
    return rows


def main():
    cases = groups()
    codes, scales, biases = affine.quantise(cases)
    result = {
        "groups": [{"x": words(affine.to_bf16(x)), "scale": words(s), "bias": words(b), "codes": c.tobytes().hex()}
                   for x, s, b, c in zip(cases, scales, biases, codes)],
        "dot": dots(),
    }
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(
            f'"{k}": [\n' + ",\n".join(map(json.dumps, v)) + "\n]" for k, v in result.items()) + "\n}\n")
    if "--mlx" in sys.argv:
        compare_with_mlx(cases)


def compare_with_mlx(cases):
    import mlx.core as mx

    rng = np.random.default_rng(1)
    for spread in (0, 1e-6, 1e-3, 0.02, 1, 100):
        w = rounded(rng.normal(0, spread, (2048, 256))) if spread else cases
        q, s, b = mx.quantize(mx.array(w).astype(mx.bfloat16), group_size=32, bits=8, mode="affine")
        codes, scales, biases = affine.quantise(w)
        print("mlx", mx.__version__, "spread", spread, "differ: codes",
              int((np.array(q).view(np.uint8).reshape(w.shape) != codes).sum()), "scales",
              int((np.array(s.view(mx.uint16)) != scales).sum()), "biases",
              int((np.array(b.view(mx.uint16)) != biases).sum()), "of", codes.size, "codes")


if __name__ == "__main__":
    main()
