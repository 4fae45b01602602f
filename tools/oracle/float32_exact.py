"""float32 arithmetic with exactly one rounding per operation, on numpy arrays.

numpy's float32 +, -, *, / and sqrt round once already; what is missing is the fused multiply-add.
The product of two float32 is exact in float64 (48 bits). Adding the third operand in float64 may
round; TwoSum recovers the error of that addition exactly, and with it the float64 sum is forced to
"round to odd" (inexact results get an odd last bit). 53 bits >= 24 + 2, so the final cast to
float32 then rounds as if from the infinitely precise value, also at ties and in the denormal range.

Denormals count as zero on input and output (numerics.md).
"""

from fractions import Fraction

import numpy as np

F = np.float32
TINY = F(2.0**-126)


def flush(x):
    """Denormals to zero of the same sign."""
    x = np.asarray(x, F)
    small = np.abs(x) < TINY
    return np.where(small, np.copysign(F(0), x), x) if small.any() else x


def fma(a, b, c):
    a, b, c = flush(a), flush(b), flush(c)
    with np.errstate(all="ignore"):
        p = a.astype(np.float64) * b.astype(np.float64)
        c64 = c.astype(np.float64)
        s = p + c64
        t = s - p
        err = (p - (s - t)) + (c64 - t)
        bits = np.asarray(s).view(np.int64)
        # even and inexact: step one unit towards the true value
        fix = (err != 0) & ((bits & 1) == 0) & np.isfinite(s)
        step = np.where((err > 0) == (s > 0), 1, -1)
        s = (bits + np.where(fix, step, 0)).view(np.float64)
        return flush(s.astype(F))


def add(a, b):
    return flush(flush(a) + flush(b))


def sub(a, b):
    return flush(flush(a) - flush(b))


def mul(a, b):
    return flush(flush(a) * flush(b))


def div(a, b):
    with np.errstate(all="ignore"):
        return flush(flush(a) / flush(b))


def sqrt(a):
    return np.sqrt(flush(a))


def bf16(x):
    """float32 rounded to the nearest bfloat16 (ties to even), kept in a float32."""
    u = np.ascontiguousarray(x, F).view(np.uint32)
    return ((u + np.uint32(0x7FFF) + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(F)


# --- elementary functions, exactly as ELEMENTARY.md lists the operations -------------------------


def exp(x):
    x = flush(x)
    low, high = F(-87.33654), F(88.72283)
    v = np.clip(np.where(np.isnan(x), F(0), x), low, high).astype(F)
    n = np.rint(mul(v, F(1.44269504)))
    r = fma(n, F(-0.693359375), v)
    r = fma(n, F(2.12194440e-4), r)
    p = np.full_like(v, F(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, F(c))
    y = add(fma(p, mul(r, r), r), F(1))
    k = n.astype(np.int32)
    a = k >> 1
    y = (y * np.ldexp(F(1), a).astype(F)) * np.ldexp(F(1), k - a).astype(F)
    y = np.where(x < low, F(0), np.where(x > high, F(np.inf), y))
    return np.where(np.isnan(x), x, y).astype(F)


def sigmoid(z):
    z = flush(z)
    e = exp(-np.abs(z))
    s = div(F(1), add(F(1), e))
    return np.where(z < 0, fma(-e, mul(e, s), e), s).astype(F)


LOG1P = (
    -0.0033065376337617636,
    0.020150331780314445,
    -0.05756152793765068,
    0.10670012980699539,
    -0.15349097549915314,
    0.19693192839622498,
    -0.24958156049251556,
    0.3333047032356262,
    -0.4999993145465851,
)


def log1p(x):
    x = flush(x)
    p = np.full_like(x, F(LOG1P[0]))
    for c in LOG1P[1:]:
        p = fma(p, x, F(c))
    return fma(mul(x, x), p, x)


def softplus(z):
    z = flush(z)
    return add(np.where(z > 0, z, F(0)).astype(F), log1p(exp(-np.abs(z))))


# --- sums ---------------------------------------------------------------------------------------


def tree16(lanes):
    """[..., 16] -> [...]: l with l+8, then +4, +2, +1."""
    for half in (8, 4, 2, 1):
        lanes = add(lanes[..., :half], lanes[..., half : 2 * half])
    return lanes[..., 0]


def pad_last(x, multiple):
    short = -x.shape[-1] % multiple
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)]) if short else x


def dot(w, x):
    """w [O, K], x [R, K] -> float32 [R, O], K padded with zeros to a multiple of 32."""
    w, x = pad_last(w, 32)[None, :, :], pad_last(x, 32)[:, None, :]
    acc = np.zeros((x.shape[0], w.shape[1], 16), F)
    for b in range(0, w.shape[-1], 32):
        wb, xb = w[..., b : b + 32], x[..., b : b + 32]
        acc = fma(wb[..., 0::2], xb[..., 0::2], fma(wb[..., 1::2], xb[..., 1::2], acc))
    return tree16(acc)


def dot_nvfp4(codes, scales, x):
    """codes [O, K] as E2M1 values, scales [O, K/16] as float32, x [R, K] -> [R, O]."""
    codes, x = pad_last(codes, 32)[None, :, :], pad_last(x, 32)[:, None, :]
    scales = pad_last(scales, 2)
    acc = np.zeros((x.shape[0], codes.shape[1], 16), F)
    for b in range(0, codes.shape[-1], 32):
        cb, xb = codes[..., b : b + 32], x[..., b : b + 32]
        t = fma(cb[..., 0::2], xb[..., 0::2], mul(cb[..., 1::2], xb[..., 1::2]))
        lane_scale = np.repeat(scales[:, b // 16 : b // 16 + 2], 8, axis=-1)[None]
        acc = fma(t, lane_scale, acc)
    return tree16(acc)


# --- proof of fma against exact rational arithmetic ---------------------------------------------


def _round_exact(value):
    """Fraction -> float32, nearest, ties to even, denormals flushed; the slow and certain way."""
    if value == 0:
        return F(0)
    sign, v = (-1, -value) if value < 0 else (1, value)
    e = v.numerator.bit_length() - v.denominator.bit_length()
    if Fraction(2) ** e > v:
        e -= 1
    unit = Fraction(2) ** (max(e, -126) - 23)
    q, rem = divmod(v, unit)
    q = int(q)
    if rem * 2 > unit or (rem * 2 == unit and q % 2):
        q += 1
    if q * unit >= Fraction(2) ** 128:
        return F(sign * np.inf)
    return flush(F(sign * float(q * unit)))[()]


def prove_fma(seed=1, count=20000):
    """Random triples plus triples built so that rounding first to float64 and then to float32 is
    wrong. Returns (cases, cases where the naive double rounding would have been wrong)."""
    rng = np.random.default_rng(seed)
    a, b, c = (
        (rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)).view(F) for _ in range(3)
    )
    n = count
    # near-cancelling and near-tie cases: c close to -a*b, or far below half an ulp of a*b
    m = rng.integers(1 << 23, 1 << 24, n).astype(F)
    k = rng.integers(1 << 23, 1 << 24, n).astype(F)
    near = -(m.astype(np.float64) * k).astype(F) * (1 + rng.integers(-3, 4, n) * 2.0**-23).astype(F)
    # trap: a*b is exactly a float32 tie in the high part and c adds a speck far below 2^-53
    odd = (rng.integers(1 << 22, 1 << 23, n) * 2 + 1).astype(F)  # 24 bits, odd
    tie = odd * F(1)
    two25 = np.full(n, F(2.0**-24) + F(1))  # odd * (1 + 2^-24)... rounds to 24 bits below
    speck = (rng.choice([-1, 1], n) * 2.0 ** rng.integers(-80, -30, n)).astype(F)
    half = F(1.5)  # odd * 1.5 has 25 bits or more: ties occur
    a = np.concatenate([a, m, tie, tie, rng.normal(size=n).astype(F)])
    b = np.concatenate([b, k, two25, np.full(n, half), rng.normal(size=n).astype(F)])
    c = np.concatenate([c, near, speck, speck, rng.normal(size=n).astype(F)])
    ok = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = flush(a[ok]), flush(b[ok]), flush(c[ok])
    got = fma(a, b, c)
    with np.errstate(all="ignore"):
        naive = flush((a.astype(np.float64) * b + c.astype(np.float64)).astype(F))
    traps = 0
    for x, y, z, g, s in zip(a, b, c, got, naive):
        want = _round_exact(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        if not (g == want):
            raise AssertionError(f"fma({x!r}, {y!r}, {z!r}) = {g!r}, exact {want!r}")
        traps += s != want
    return len(a), int(traps)


if __name__ == "__main__":
    cases, traps = prove_fma()
    assert traps > 100, traps
    print(f"fma: {cases} cases equal to exact rational arithmetic; naive wrong in {traps}")
