#!/usr/bin/env python3
"""Laguna in bf16 mode, bit for bit, in plain Python and numpy. Written from laguna.md and
numerics.md alone; it shares nothing with the engine.

    laguna_bf16.py CHECKPOINT_DIR TOKENS_JSON OUT [--yarn attention_factor|derived]
                   [--exact] [--stats]

OUT gets little-endian float32 [positions, vocabulary]; every value is a bf16 number. --exact
evaluates the same equations in float64 without any rounding, which compares tightly with another
implementation and so proves the equations apart from the rounding points. --stats prints how many
rows had equal router keys at or inside the selection, and the smallest selection margin.

What laguna.md and numerics.md leave open is fixed here as follows (the engine does the same):

* inv_freq: theta^(-2i/d) by pow in double, YaRN blend in double, then rounded to float32. Equal
  correction limits are parted by 0.001. angle = float32(position) * inv_freq, one float32
  rounding. cos and sin of that float32 angle in double, rounded to float32.
* YaRN magnitude. Mode attention_factor: cos and sin times float32(attention_factor), in float32;
  1.0 changes nothing; absent means 0.1 ln(factor) + 1 (1 when factor <= 1). Mode derived: the
  table is unscaled and the rotary dims of q and k are multiplied by float32(0.1 ln(factor) + 1) and
  rounded to bf16 before rotation; the config's attention_factor is ignored. Layers with rope_type
  "default" are never scaled.
* Rotation: out1 = fma(x1, cos, -(x2*sin)), out2 = fma(x2, cos, x1*sin); the product in parentheses
  is rounded to float32 first; then one rounding to bf16. The rotary width is
  int(head_dim * partial_rotary_factor); the other dims pass through.
* Attention: score = dot (16 lanes over head_dim, zero-padded to a multiple of 32) times
  float32(1/sqrt(head_dim)). Chunks of 256 keys aligned to absolute multiples of 256. In a chunk,
  over the visible keys: m = max; p = exp(s - m); l = sum of p in 16 lanes by absolute position
  mod 16, ascending, tree of halves; o = fma(p, v, o) ascending from +0. Merge ascending: the first
  chunk copies (m, l, o); then M' = max(M, m), a = exp(M - M'), b = exp(m - M'),
  L = fma(l, b, L*a), O = fma(o, b, O*a). Result bf16(O / L), then bf16(o * g) with
  g = bf16(softplus(bf16 gate logit)).
* RMSNorm: lane l takes x[16b+l], acc = fma(x, x, acc), tree; inv = 1 / sqrt(sum / n + eps), each
  one float32 operation; y = bf16(x * inv); out = bf16(y * w).
* Router: r = bf16 dot; s = sigmoid(r); key = s + bias in float32; the top k by descending key,
  ties to the lower index; sum of the selected s sequentially in selection order from +0;
  w = bf16(s / sum). norm_topk_prob false: w = bf16(s).
* Experts: acc = bf16(y_0 * w_0), then acc = bf16(acc + bf16(y_e * w_e)) in selection order;
  bf16(acc * scaling); bf16(that + shared); bf16(h + that). The scaling factor is float32.
* silu: sg = bf16(sigmoid(z)); t = bf16(z * sg); u = bf16(t * up), in dense and expert MLPs alike.
* Elementary functions: ELEMENTARY.md. Denormals are zero.
"""

import argparse
import json
import math
import os
import struct
import sys

import numpy as np

import float32_exact as fx
import nvfp4

F = np.float32


# --- checkpoint ----------------------------------------------------------------------------------


def read_safetensors(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    kinds = {"F32": np.float32, "U32": np.uint32, "U8": np.uint8, "BF16": np.uint16}
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        raw = np.frombuffer(data[begin:end], kinds[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(F)
        tensors[name] = raw
    return tensors


def read_checkpoint(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        weight_map = json.load(f)["weight_map"]
    tensors = {}
    for shard in sorted(set(weight_map.values())):
        part = read_safetensors(os.path.join(folder, shard))
        assert all(weight_map[name] == shard for name in part), shard
        tensors.update(part)
    assert set(tensors) == set(weight_map)
    return config, tensors


# --- rotary tables -------------------------------------------------------------------------------


def inverse_frequencies(rope, d):
    """float64 [d/2], not yet rounded."""
    theta = float(rope["rope_theta"])
    base = np.array([math.pow(theta, -2.0 * i / d) for i in range(d // 2)])
    if rope.get("rope_type", "default") == "default":
        return base

    def correction(rotations):
        length = float(rope["original_max_position_embeddings"])
        return d * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction(rope.get("beta_fast", 32.0))), 0)
    high = min(math.ceil(correction(rope.get("beta_slow", 1.0))), d - 1)
    span = high - low if high != low else 0.001
    ramp = np.clip((np.arange(d // 2) - low) / span, 0, 1)
    return (1 - ramp) * base + ramp * base / float(rope["factor"])


def derived_magnitude(rope):
    factor = float(rope["factor"])
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


# --- arithmetic ----------------------------------------------------------------------------------


class Bf16Arithmetic:
    """The law: float32 operations with one rounding each, bf16 where the spec rounds."""

    number = np.float32
    bf16 = staticmethod(fx.bf16)
    dot = staticmethod(fx.dot)
    dot_nvfp4 = staticmethod(fx.dot_nvfp4)
    add, sub, mul, div = map(staticmethod, (fx.add, fx.sub, fx.mul, fx.div))
    fma, exp, sigmoid, softplus = map(staticmethod, (fx.fma, fx.exp, fx.sigmoid, fx.softplus))
    sqrt, tree16 = staticmethod(fx.sqrt), staticmethod(fx.tree16)

    @staticmethod
    def sum_of_squares(x):
        acc = np.zeros((*x.shape[:-1], 16), F)
        for b in range(0, x.shape[-1], 16):
            acc = fx.fma(x[..., b : b + 16], x[..., b : b + 16], acc)
        return fx.tree16(acc)


class ExactArithmetic:
    """The same equations in float64 without rounding points."""

    number = np.float64
    bf16 = staticmethod(lambda x: x)
    add, sub, mul, div = map(staticmethod, (np.add, np.subtract, np.multiply, np.divide))
    sqrt, exp = staticmethod(np.sqrt), staticmethod(np.exp)
    fma = staticmethod(lambda a, b, c: a * b + c)
    sigmoid = staticmethod(lambda z: 1 / (1 + np.exp(-z)))
    softplus = staticmethod(lambda z: np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))
    tree16 = staticmethod(lambda lanes: lanes.sum(-1))
    sum_of_squares = staticmethod(lambda x: (x * x).sum(-1))

    @staticmethod
    def dot(w, x):
        return x @ np.asarray(w, np.float64).T

    @staticmethod
    def dot_nvfp4(codes, scales, x):
        return x @ (np.asarray(codes, np.float64) * np.repeat(scales, 16, -1)).T


# --- the model -----------------------------------------------------------------------------------


class Laguna:
    CHUNK = 256

    def __init__(self, folder, yarn="attention_factor", arithmetic=Bf16Arithmetic):
        assert yarn in ("attention_factor", "derived")
        self.config, self.tensors = read_checkpoint(folder)
        self.yarn, self.ar = yarn, arithmetic
        self.stats = {"rows": 0, "tied_rows": 0, "boundary_ties": 0, "min_margin": math.inf}

    def weight(self, name):
        return self.tensors[name + ".weight"]

    def linear(self, name, x):
        return self.ar.bf16(self.ar.dot(self.weight(name), x))

    def linear_nvfp4(self, name, x, expert=None):
        words, scales = self.tensors[name + ".weight"], self.tensors[name + ".scales"]
        if expert is not None:
            words, scales = words[expert], scales[expert]
        codes = nvfp4.E2M1[nvfp4.unpack(words)]
        return self.ar.bf16(self.ar.dot_nvfp4(codes, nvfp4.E4M3[scales], x))

    def rms_norm(self, x, name):
        ar, n = self.ar, self.ar.number
        mean = ar.div(ar.sum_of_squares(x), n(x.shape[-1]))
        inv = ar.div(n(1), ar.sqrt(ar.add(mean, n(F(self.config["rms_norm_eps"])))))
        y = ar.bf16(ar.mul(x, inv[..., None]))
        return ar.bf16(ar.mul(y, self.weight(name)))

    # attention

    def rope(self, x, rope):
        """x [rows, heads, head_dim], row index = absolute position."""
        ar, n = self.ar, self.ar.number
        d = int(x.shape[-1] * rope.get("partial_rotary_factor", 1.0))
        inv_freq = inverse_frequencies(rope, d).astype(n)
        angle = ar.mul(np.arange(x.shape[0]).astype(n)[:, None], inv_freq[None, :])
        cos = np.vectorize(math.cos)(angle.astype(np.float64)).astype(n)[:, None, :]
        sin = np.vectorize(math.sin)(angle.astype(np.float64)).astype(n)[:, None, :]
        rot = x[..., :d]
        if rope.get("rope_type", "default") == "yarn":
            if self.yarn == "derived":
                rot = ar.bf16(ar.mul(rot, n(F(derived_magnitude(rope)))))
            else:
                given = rope.get("attention_factor")
                factor = n(F(derived_magnitude(rope) if given is None else given))
                cos, sin = ar.mul(cos, factor), ar.mul(sin, factor)
        x1, x2 = rot[..., : d // 2], rot[..., d // 2 :]
        out1 = ar.bf16(ar.fma(x1, cos, -ar.mul(x2, sin)))
        out2 = ar.bf16(ar.fma(x2, cos, ar.mul(x1, sin)))
        return np.concatenate([out1, out2, x[..., d:]], -1)

    def attend(self, q, k, v, window):
        """One query head: q, k, v [rows, head_dim]; key j is visible to row i when
        i - window < j <= i (window None: all j <= i). Returns unrounded [rows, head_dim]."""
        ar, n = self.ar, self.ar.number
        rows, head_dim = q.shape
        factor = n(F(1.0 / math.sqrt(head_dim)))
        i = np.arange(rows)[:, None]
        has = np.zeros(rows, bool)
        m_all, l_all = np.zeros(rows, n), np.zeros(rows, n)
        o_all = np.zeros((rows, head_dim), n)
        for base in range(0, rows, self.CHUNK):
            top = min(base + self.CHUNK, rows)
            j = np.arange(base, top)[None, :]
            visible = (j <= i) & ((i < j + window) if window else True)
            who = visible.any(1)
            first, last = np.flatnonzero(who)[[0, -1]]
            part = slice(first, last + 1)  # rows that see any key of the chunk are contiguous
            assert who[part].all()
            vis = visible[part]
            s = ar.mul(ar.dot(k[base:top], q[part]), factor)
            m = np.where(vis, s, -np.inf).max(1).astype(n)
            p = ar.exp(np.where(vis, ar.sub(s, m[:, None]), n(0)))
            lanes, o = np.zeros((len(m), 16), n), np.zeros((len(m), head_dim), n)
            for c, pos in enumerate(range(base, top)):
                r = np.flatnonzero(vis[:, c])
                if len(r) == 0:
                    continue
                r = slice(r[0], r[-1] + 1)
                lanes[r, pos % 16] = ar.add(lanes[r, pos % 16], p[r, c])
                o[r] = ar.fma(p[r, c, None], v[pos][None, :], o[r])
            l = ar.tree16(lanes)
            old = has[part]
            M, L, O = m_all[part], l_all[part], o_all[part]
            M2 = np.where(old, np.maximum(M, m), m)
            a = ar.exp(np.where(old, ar.sub(M, M2), n(0)))
            b = ar.exp(ar.sub(m, M2))
            L2 = np.where(old, ar.fma(l, b, ar.mul(L, a)), l)
            O2 = np.where(old[:, None], ar.fma(o, b[:, None], ar.mul(O, a[:, None])), o)
            m_all[part], l_all[part], o_all[part], has[part] = M2, L2, O2, True
        return ar.div(o_all, l_all[:, None])

    def attention(self, x, layer):
        ar, c = self.ar, self.config
        name = f"model.layers.{layer}.self_attn."
        kind = c["layer_types"][layer]
        heads, kv, dim = c["num_attention_heads_per_layer"][layer], c["num_key_value_heads"], c["head_dim"]
        rope = c["rope_parameters"][kind]
        q = self.linear(name + "q_proj", x).reshape(-1, heads, dim)
        k = self.linear(name + "k_proj", x).reshape(-1, kv, dim)
        v = self.linear(name + "v_proj", x).reshape(-1, kv, dim)
        q = self.rope(self.rms_norm(q, name + "q_norm"), rope)
        k = self.rope(self.rms_norm(k, name + "k_norm"), rope)
        g = ar.bf16(ar.softplus(self.linear(name + "g_proj", x)))
        window = c["sliding_window"] if kind == "sliding_attention" else None
        out = []
        for h in range(heads):
            u = h // (heads // kv)
            o = ar.bf16(self.attend(q[:, h], k[:, u], v[:, u], window))
            out.append(ar.bf16(ar.mul(o, g[:, h, None])))
        return self.linear(name + "o_proj", np.concatenate(out, -1))

    # feed forward

    def silu_up(self, z, up):
        ar = self.ar
        return ar.bf16(ar.mul(ar.bf16(ar.mul(z, ar.bf16(ar.sigmoid(z)))), up))

    def dense(self, m, name):
        u = self.silu_up(self.linear(name + "gate_proj", m), self.linear(name + "up_proj", m))
        return self.linear(name + "down_proj", u)

    def mlp_nvfp4(self, m, name, expert=None):
        gate = self.linear_nvfp4(name + "gate_proj", m, expert)
        up = self.linear_nvfp4(name + "up_proj", m, expert)
        return self.linear_nvfp4(name + "down_proj", self.silu_up(gate, up), expert)

    def route(self, m, name):
        """Selected experts [rows, k] in selection order and their bf16 weights."""
        ar, c = self.ar, self.config
        top = c["num_experts_per_tok"]
        s = ar.sigmoid(self.linear(name + "gate", m))
        key = ar.add(s, self.tensors[name + "gate.e_score_correction_bias"])
        order = np.argsort(-key, axis=-1, kind="stable")
        ranked = np.take_along_axis(key, order, -1)
        gaps = ranked[:, :-1] - ranked[:, 1:]
        self.stats["rows"] += len(m)
        self.stats["tied_rows"] += int((gaps[:, :top] == 0).any(1).sum())
        if top < key.shape[1]:
            self.stats["boundary_ties"] += int((gaps[:, top - 1] == 0).sum())
            self.stats["min_margin"] = min(self.stats["min_margin"], float(gaps[:, top - 1].min()))
        sel = order[:, :top]
        w = np.take_along_axis(s, sel, -1)
        if c.get("norm_topk_prob", True):
            total = np.zeros(len(m), self.ar.number)
            for e in range(top):
                total = ar.add(total, w[:, e])
            w = ar.div(w, total[:, None])
        return sel, ar.bf16(w)

    def moe(self, m, name):
        ar, c, n = self.ar, self.config, self.ar.number
        sel, w = self.route(m, name)
        y = np.zeros((*sel.shape, m.shape[-1]), n)
        for e in np.unique(sel):
            rows, slot = np.nonzero(sel == e)
            y[rows, slot] = self.mlp_nvfp4(m[rows], name + "switch_mlp.", e)
        acc = None
        for slot in range(sel.shape[1]):
            part = ar.bf16(ar.mul(y[:, slot], w[:, slot, None]))
            acc = part if acc is None else ar.bf16(ar.add(acc, part))
        routed = ar.bf16(ar.mul(acc, n(F(c["moe_routed_scaling_factor"]))))
        return ar.bf16(ar.add(routed, self.mlp_nvfp4(m, name + "shared_expert.")))

    # whole

    def logits(self, tokens):
        """[len(tokens), vocabulary]; positions start at 0."""
        ar, c = self.ar, self.config
        x = self.weight("model.embed_tokens")[np.asarray(tokens)].astype(ar.number)
        for layer in range(c["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            h = ar.bf16(ar.add(x, self.attention(self.rms_norm(x, name + "input_layernorm"), layer)))
            m = self.rms_norm(h, name + "post_attention_layernorm")
            dense = c["mlp_layer_types"][layer] == "dense"
            f = self.dense(m, name + "mlp.") if dense else self.moe(m, name + "mlp.")
            x = ar.bf16(ar.add(h, f))
        return self.linear("lm_head", self.rms_norm(x, "model.norm"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--yarn", default="attention_factor", choices=["attention_factor", "derived"])
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--stats", action="store_true")
    args = parser.parse_args()
    with open(args.tokens, encoding="utf-8") as f:
        tokens = json.load(f)
    model = Laguna(args.checkpoint, args.yarn, ExactArithmetic if args.exact else Bf16Arithmetic)
    model.logits(tokens).astype("<f4").tofile(args.out)
    if args.stats:
        print(json.dumps(model.stats), file=sys.stderr)


if __name__ == "__main__":
    main()
