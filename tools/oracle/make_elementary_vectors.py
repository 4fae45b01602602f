#!/usr/bin/env python3
"""tests/vectors/elementary.json: input and output bits of the functions of ELEMENTARY.md.

Each function has a list of [input, output] as 8 hex digits of the float32; an output "nan" means
any NaN. bf16 lists round-to-nearest-even of a float32 to the upper 16 bits. dot and dot_nvfp4 pin
the order of the sums: operands are bf16 as 4 hex digits, codes one hex digit each.
Needs numpy.
"""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import float32_exact as fx  # noqa: E402
import nvfp4  # noqa: E402

F = np.float32
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "vectors", "elementary.json")


def bits(x):
    return f"{int(np.asarray(x, F).view(np.uint32)):08x}"


def around(*centres):
    out = []
    for c in centres:
        c = F(c)
        out += [np.nextafter(c, F(-np.inf)), c, np.nextafter(c, F(np.inf))]
    return out


def inputs(rng, low, high):
    tiny = F(2.0**-126)
    edges = [F(0), F(-0.0), tiny, -tiny, F(1e-40), F(-1e-40), F(np.inf), F(-np.inf), F(np.nan)]
    edges += around(-87.33654, 88.72283, 87.33654, -88.72283, 1, -1, 0.5, -0.5, -16.644, -0.216186568)
    edges += around(*(np.log(2.0) * (k + 0.5) for k in (-126, -20, -1, 0, 1, 24, 126)))
    edges += around(*(np.log(2.0) * k for k in (-126, -24, -1, 1, 24, 127)))
    edges += [F(v) for v in (-100, 100, 128, -128, 3e38, -3e38, 1e-8, -1e-8, 6e-8, -17.5, 17.5)]
    some = rng.uniform(low, high, 60).tolist() + rng.normal(0, 2, 60).tolist()
    some += (rng.choice([-1, 1], 20) * 2.0 ** rng.uniform(-30, 0, 20)).tolist()
    return edges + [F(v) for v in some]


def table(function, values):
    rows = []
    for x in values:
        y = function(np.array([x], F))[0]
        rows.append([bits(x), "nan" if np.isnan(y) else bits(y)])
    return rows


def dots(rng):
    rows, rows4 = [], []
    for k in (16, 32, 48, 64, 96, 160, 256):
        for spread in (0, 8):
            w, x = (
                fx.bf16((rng.normal(size=(1, k)) * np.exp2(rng.integers(-spread, spread + 1, (1, k)))).astype(F))
                for _ in range(2)
            )
            hexes = lambda a: "".join(f"{int(v) >> 16:04x}" for v in a[0].view(np.uint32))  # noqa: E731
            rows.append({"w": hexes(w), "x": hexes(x), "sum": bits(fx.dot(w, x)[0, 0])})
            codes = rng.integers(0, 16, (1, k)).astype(np.uint8)
            scales = rng.integers(1, 0x7F, (1, k // 16)).astype(np.uint8)
            scales[0, 0] |= 0x80
            total = fx.dot_nvfp4(nvfp4.E2M1[codes], nvfp4.E4M3[scales], x)[0, 0]
            rows4.append(
                {
                    "codes": "".join(f"{c:x}" for c in codes[0]),
                    "scales": "".join(f"{s:02x}" for s in scales[0]),
                    "x": hexes(x),
                    "sum": bits(total),
                }
            )
    return rows, rows4


def main():
    rng = np.random.default_rng(20)
    log1p = [F(0), F(2.0**-126), F(1)] + around(0.5, 2.0**-12, 2.0**-24, 0.977574408, 1e-19)
    log1p += [F(v) for v in np.exp(-rng.uniform(0, 87, 60)).tolist() + rng.uniform(0, 1, 60).tolist()]
    dot, dot_nvfp4 = dots(rng)
    rounds = [F(v) for v in rng.normal(0, 3, 30)] + [F(0), F(-0.0), F(np.inf), F(-np.inf)]
    for high in (0x3F80, 0x3F81, 0xBF80, 0xBF81, 0x7F7F, 0x4049):  # ties and their neighbours
        rounds += [np.uint32(high << 16 | low).view(F) for low in (0x7FFF, 0x8000, 0x8001)]
    result = {
        "about": "bits of float32 as hex: [input, output]; see tools/oracle/ELEMENTARY.md",
        "exp": table(fx.exp, inputs(rng, -87.3, 88.7)),
        "sigmoid": table(fx.sigmoid, inputs(rng, -90, 90)),
        "log1p": table(fx.log1p, log1p),
        "softplus": table(fx.softplus, inputs(rng, -90, 90)),
        "bf16": [[bits(x), f"{int(fx.bf16([x]).view(np.uint32)[0]) >> 16:04x}"] for x in rounds],
        "dot": dot,
        "dot_nvfp4": dot_nvfp4,
    }
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(
            f'"{k}": ' + (json.dumps(v) if isinstance(v, str) else "[\n" + ",\n".join(map(json.dumps, v)) + "\n]")
            for k, v in result.items()
        ) + "\n}\n")


if __name__ == "__main__":
    main()
