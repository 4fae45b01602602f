"""Target and drafter as the engine computes them: bfloat16 where laguna.md section 8 rounds.

Every linear rounds once; norms round twice; sigmoid, its product and the product with `up` round
each; the attention of a row rounds once at its end; experts are added one by one in the order of
their choice, rounded each time. With exact=True everything between two roundings is float64, so
that a row's result does not depend on how many rows are computed with it, as in the engine. What
differs then is that the engine sums in float32 (in its own order), which moves a bfloat16 result
now and then. With exact=False sums are float32, in bfloat16 matrix products on the GPU, for speed.
"""

import torch
import torch.nn.functional as F

import drafter as drafting
from laguna import rotate


def linear(x, weight):
    if weight.dtype == torch.float64:
        return F.linear(x.double(), weight).bfloat16()
    return F.linear(x, weight)


def rms_norm(x, weight, eps):
    wide = x.double() if weight.dtype == torch.float64 else x.float()
    wide = wide * (1 / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + eps))
    return wide.bfloat16() * weight.bfloat16()


def swiglu(gate, up, exact):
    wide = gate.double() if exact else gate.float()
    return gate * torch.sigmoid(wide).bfloat16() * up


def gated(o, gate, exact):
    wide = gate.double() if exact else gate.float()
    return o * F.softplus(wide, threshold=40).bfloat16()[..., None]


def attention(q, k, v, seen, exact):
    """q [batch, heads, rows, dim], k and v [batch, KV heads, keys, dim], seen [rows, keys]."""
    rows, group = q.shape[2], q.shape[1] // k.shape[1]
    q = q.unflatten(1, (k.shape[1], group)).flatten(2, 3)
    seen = seen.repeat(group, 1)
    if exact:
        scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        o = (weights @ v.double()).bfloat16()
    else:
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return o.unflatten(2, (group, rows)).flatten(1, 2).transpose(1, 2)


class Weights:
    """A state dict by name: float64 when exact, else bfloat16; the router bias float32."""

    def __init__(self, state, exact, prefix=""):
        self.table, self.prefix, self.exact = {}, prefix, exact
        for name, weight in state.items():
            if name.endswith("e_score_correction_bias"):
                self.table[name] = weight.float()
            else:
                self.table[name] = weight.double() if exact else weight.bfloat16()

    def under(self, prefix):
        part = object.__new__(Weights)
        part.table, part.exact, part.prefix = self.table, self.exact, self.prefix + prefix
        return part

    def __call__(self, name):
        return self.table[f"{self.prefix}{name}.weight"]

    def bias(self, name):
        return self.table[f"{self.prefix}{name}.e_score_correction_bias"]


def heads_of(x, dim):
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


class Target:
    """A Laguna with a cache of keys and values. Positions are a tensor, so a step can be replayed."""

    def __init__(self, model, exact):
        self.cfg, self.exact = model.cfg, exact
        self.weights = Weights(model.state_dict(), exact)
        self.embedding = self.weights("model.embed_tokens").bfloat16()
        self.tables = {kind: (getattr(model, f"cos_{kind}"), getattr(model, f"sin_{kind}"))
                       for kind in set(self.cfg["layer_types"])}

    def new_cache(self, batch, capacity):
        shape = (batch, self.cfg["num_key_value_heads"], capacity, self.cfg["head_dim"])
        return [tuple(torch.zeros(shape, dtype=torch.bfloat16, device=self.embedding.device)
                      for _ in range(2)) for _ in self.cfg["layer_types"]]

    def attend(self, n, layer, positions, cache):
        w, dim = self.weights.under(f"model.layers.{layer}.self_attn."), self.cfg["head_dim"]
        kind, eps = self.cfg["layer_types"][layer], self.cfg["rms_norm_eps"]
        cos, sin = (table[positions] for table in self.tables[kind])
        keys, values = cache[layer]
        q = heads_of(linear(n, w("q_proj")), dim)
        k = heads_of(linear(n, w("k_proj")), dim)
        q = rotate(rms_norm(q, w("q_norm"), eps), cos, sin)
        k = rotate(rms_norm(k, w("k_norm"), eps), cos, sin)
        keys.index_copy_(2, positions, k)
        values.index_copy_(2, positions, heads_of(linear(n, w("v_proj")), dim))
        at = torch.arange(keys.shape[2], device=n.device)
        seen = at <= positions[:, None]
        if kind == "sliding_attention":
            seen = seen & (positions[:, None] < at + self.cfg["sliding_window"])
        o = attention(q, keys, values, seen, self.exact)
        o = gated(o, linear(n, w("g_proj")), self.exact)
        return linear(o.flatten(2), w("o_proj"))

    def mlp(self, m, w):
        u = swiglu(linear(m, w("gate_proj")), linear(m, w("up_proj")), self.exact)
        return linear(u, w("down_proj"))

    def mixture(self, m, w):
        """(sum of the shared and the chosen experts, the choice [..., k] in order)."""
        top = self.cfg["num_experts_per_tok"]
        logits = linear(m, w("gate"))
        scores = torch.sigmoid(logits.double()).float() if self.exact else logits.float().sigmoid()
        keys = scores + w.bias("gate")
        chosen = torch.sort(keys, dim=-1, descending=True, stable=True).indices[..., :top]
        weights = scores.gather(-1, chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()
        experts = w.under("switch_mlp.")
        u = swiglu(linear(m, experts("gate_proj").flatten(0, 1)),
                   linear(m, experts("up_proj").flatten(0, 1)), self.exact)
        down = experts("down_proj")  # [experts, hidden, width]
        u = u.flatten(0, -2).unflatten(-1, (down.shape[0], -1)).transpose(0, 1)
        y = torch.bmm(u.to(down.dtype), down.mT).bfloat16().transpose(0, 1)
        picked = chosen.flatten(0, -2)
        y = y.gather(1, picked[..., None].expand(-1, -1, y.shape[-1]))
        y = (y * weights.flatten(0, -2)[..., None]).unflatten(0, m.shape[:-1])
        total = y[..., 0, :]
        for slot in range(1, top):
            total = total + y[..., slot, :]
        shared = self.mlp(m, w.under("shared_expert."))
        return total * self.cfg["moe_routed_scaling_factor"] + shared, chosen

    @torch.no_grad()
    def forward(self, ids, positions, cache, taps=()):
        """ids [batch, rows] at positions [rows]: (normed rows, taps side by side, choices)."""
        x, tapped, choices = self.embedding[ids], [], []
        eps = self.cfg["rms_norm_eps"]
        for i, kind in enumerate(self.cfg["mlp_layer_types"]):
            w = self.weights.under(f"model.layers.{i}.")
            h = x + self.attend(rms_norm(x, w("input_layernorm"), eps), i, positions, cache)
            m = rms_norm(h, w("post_attention_layernorm"), eps)
            if kind == "dense":
                x = h + self.mlp(m, w.under("mlp."))
            else:
                f, chosen = self.mixture(m, w.under("mlp."))
                choices.append(chosen)
                x = h + f
            if i in taps:
                tapped.append(x)
        normed = rms_norm(x, self.weights("model.norm"), eps)
        return normed, torch.cat(tapped, -1) if tapped else None, choices

    def choose(self, normed):
        """The greedy token of each row; a tie goes to the lowest id."""
        return first_largest(linear(normed, self.weights("lm_head")))


def first_largest(logits):
    at = torch.arange(logits.shape[-1], device=logits.device)
    best = logits.amax(-1, keepdim=True)
    return torch.where(logits == best, at, logits.shape[-1]).amin(-1)


class Drafter:
    """A drafter on disk or in training, with the target's embedding and head."""

    def __init__(self, cfg, state, target):
        self.cfg, self.target = cfg, target
        self.weights = Weights(state, target.exact)
        device = target.embedding.device
        self.tables = [t.to(device) for t in
                       drafting.rope_tables(cfg, cfg["max_position_embeddings"])]
        self.taps = cfg["dflash_config"]["target_layer_ids"]

    def rope(self, x, positions):
        cos, sin = (table[positions] for table in self.tables)
        return rotate(x, cos, sin)

    def keys_values(self, n, w, positions):
        dim, eps = self.cfg["head_dim"], self.cfg["rms_norm_eps"]
        k = rms_norm(heads_of(linear(n, w("k_proj")), dim), w("k_norm"), eps)
        return self.rope(k, positions), heads_of(linear(n, w("v_proj")), dim)

    @torch.no_grad()
    def context(self, taps, positions):
        """Taps to each layer's context keys and values."""
        eps, hidden = self.cfg["rms_norm_eps"], self.cfg["hidden_size"]
        normed = [rms_norm(t, self.weights(f"aux_hidden_norms.{j}"), eps)
                  for j, t in enumerate(taps.split(hidden, -1))]
        c = rms_norm(linear(torch.cat(normed, -1), self.weights("fc")),
                     self.weights("hidden_norm"), eps)
        rows = []
        for i in range(self.cfg["num_hidden_layers"]):
            w = self.weights.under(f"layers.{i}.")
            rows.append(self.keys_values(rms_norm(c, w("input_layernorm"), eps),
                                         w.under("self_attn."), positions))
        return rows

    @torch.no_grad()
    def draft(self, ids, positions, context, seen, block):
        """ids [batch, blocks * block]: the tokens drafted, [batch, blocks, block - 1]."""
        eps, dim = self.cfg["rms_norm_eps"], self.cfg["head_dim"]
        h = self.target.embedding[ids]
        for i, (old_keys, old_values) in enumerate(context):
            w = self.weights.under(f"layers.{i}.")
            a = w.under("self_attn.")
            n = rms_norm(h, w("input_layernorm"), eps)
            k, v = self.keys_values(n, a, positions)
            q = rms_norm(heads_of(linear(n, a("q_proj")), dim), a("q_norm"), eps)
            o = attention(self.rope(q, positions), torch.cat((old_keys, k), 2),
                          torch.cat((old_values, v), 2), seen, self.target.exact)
            o = gated(o, linear(n, a("g_proj")), self.target.exact)
            h = h + linear(o.flatten(2), a("o_proj"))
            h = h + self.target.mlp(rms_norm(h, w("post_attention_layernorm"), eps), w.under("mlp."))
        normed = rms_norm(h, self.weights("norm"), eps).unflatten(1, (-1, block))[:, :, 1:]
        return self.target.choose(normed)
