#!/usr/bin/env python3
"""tests/vectors/nvfp4.json: cases of the NVFP4 quantiser and its packing (laguna.md section 7).

    e2m1    [ratio bits, code]            ratio = x / scale, every threshold and its neighbours
    e4m3    [float32 bits, byte]          non-negative value to scale byte, every tie and neighbours
    decode  256 float32 bits, by byte     0x7f is 480, 0xff is -480
    codes   16 float32 bits, by code
    groups  {x, scale, codes, values}     16 inputs (bits), the scale byte, 16 codes, dequantised bits
    packing {codes, words, scales, values} one row: codes as hex digits, uint32 words as numbers

A group whose scale byte decodes to 0 has only code 0. A NaN anywhere in a group makes its scale
0x7E and its own code 7. A negative ratio that rounds to zero is code 8.
    make_nvfp4_vectors.py [--mlx]    --mlx compares with the mlx package (CPU) and prints how it differs
Needs numpy.
"""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nvfp4  # noqa: E402

F = np.float32
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "vectors", "nvfp4.json")


def bits(x):
    return f"{int(np.asarray(x, F).view(np.uint32)):08x}"


def around(v):
    v = F(v)
    return [np.nextafter(v, F(-np.inf)), v, np.nextafter(v, F(np.inf))]


def ratios():
    out = [F(v) for v in (0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e38, 0.1, -0.1)]
    for t in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.5, 1, 1.5, 2, 3, 4, 6):
        out += around(t) + around(-t)
    return out


def scale_values():
    table = nvfp4.E4M3[:0x7F].astype(np.float64)
    out = [F(v) for v in (0, 1e-45, 1e-30, 464, 465, 479, 480, 481, 1e6, 3e38, np.inf)]
    for v in table[1:]:
        out.append(F(v))
    for a, b in zip(table[:-1], table[1:]):
        out += around((a + b) / 2)
    return out


def groups():
    rng = np.random.default_rng(4)
    out = []

    def group(values):
        g = np.zeros(16, F)
        g[: len(values)] = values
        out.append(g)

    group([])  # all zero
    group([-0.0] * 16)
    tested = [F(t) for v in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0) for t in around(v)]
    for sign in (1, -1):  # the largest value 6 makes the scale exactly 1
        group([6 * sign] + [sign * t for t in tested[:15]])
        group([6 * sign] + [sign * t for t in tested[15:]])
    group([np.nan, 2, -3, 1000])
    group([1, np.nan])
    group([np.inf, 1, -1e30])
    group([-np.inf, 1])
    group([2688, -2688, 1344, 448])  # 6 * 448: the last scale without saturation
    group([2689, -5000, 100])
    group([3e38, -1, 1e5])  # saturates; the rest vanish
    group([6 * 2.0**-9, -3 * 2.0**-9, 2.0**-9, 2.0**-10, 2.0**-11])  # smallest subnormal scale
    group([3 * 2.0**-9])  # max/6 is half of the smallest scale: ties to even, zero
    group([float(np.nextafter(F(3 * 2.0**-9), F(1))), -(2.0**-9)])  # just above: the smallest scale
    for m in range(2, 9):  # subnormal scales and the first normal one
        group([6 * m * 2.0**-9, -m * 2.0**-9, 2.5 * m * 2.0**-9])
    group([1e-40, -1e-40])
    for spread in (1e-3, 0.02, 1, 30, 400):
        for _ in range(6):
            group(rng.normal(0, spread, 16))
    return out


def main():
    rows = {
        "e2m1": [[bits(r), int(nvfp4.e2m1_encode(r))] for r in ratios()],
        "e4m3": [[bits(v), int(nvfp4.e4m3_encode(v))] for v in scale_values()],
        "decode": [bits(v) for v in nvfp4.E4M3],
        "codes": [bits(v) for v in nvfp4.E2M1],
        "groups": [],
        "packing": [],
    }
    for g in groups():
        codes, scales = nvfp4.quantise(g)
        rows["groups"].append(
            {
                "x": [bits(v) for v in g],
                "scale": int(scales[0]),
                "codes": [int(c) for c in codes],
                "values": [bits(v) for v in nvfp4.dequantise(codes, scales)],
            }
        )
    rng = np.random.default_rng(9)
    order = np.tile(np.arange(16, dtype=np.uint8), 1)
    for codes in (order, order[::-1], rng.integers(0, 16, 48).astype(np.uint8)):
        scales = np.concatenate([[0x38], rng.integers(0, 256, len(codes) // 16 - 1)]).astype(np.uint8)
        rows["packing"].append(
            {
                "codes": "".join(f"{c:x}" for c in codes),
                "words": [int(w) for w in nvfp4.pack(codes)],
                "scales": [int(s) for s in scales],
                "values": [bits(v) for v in nvfp4.dequantise(codes, scales)],
            }
        )
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(
            f'"{k}": [\n' + ",\n".join(map(json.dumps, v)) + "\n]" for k, v in rows.items()
        ) + "\n}\n")
    if "--mlx" in sys.argv:
        compare_with_mlx()


def compare_with_mlx():
    import mlx.core as mx

    x = np.tile(np.array(groups()), (1, 2)).astype(F)
    x = np.concatenate([x, np.random.default_rng(1).normal(0, 0.05, (4096, 32)).astype(F)])
    words, scales = map(np.array, mx.quantize(mx.array(x), group_size=16, bits=4, mode="nvfp4"))
    codes, mine = nvfp4.quantise(x)
    theirs = nvfp4.unpack(words)
    print("mlx", mx.__version__, "scale bytes differ:", int((scales != mine).sum()), "of", scales.size)
    differ = theirs != codes
    signed_zero = differ & (codes == 8) & (theirs == 0)
    with np.errstate(all="ignore"):
        ratio = np.abs(x / np.repeat(nvfp4.E4M3[mine], 16, -1))
    tie = differ & np.isin(ratio, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    print("codes differ:", int(differ.sum()), "of which -0 for +0:", int(signed_zero.sum()), "exact ties:", int(tie.sum()),
          "other:", int((differ & ~signed_zero & ~tie).sum()))


if __name__ == "__main__":
    main()
