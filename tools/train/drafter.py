"""The Laguna DFlash drafter in PyTorch: config, module, file. Module names are tensor names.

It has no embedding and no head: the rows that enter are the target's embeddings, and the rows that
leave go through the target's head.
"""

import json
import os

import torch
import torch.nn.functional as F
from torch import nn

import checkpoint
import tokenizer
from laguna import MLP, RMSNorm, rotary_tables, rotate

BLOCK = 16  # one bonus token and fifteen masks


def make_config(target, *, layers, intermediate, taps, window, heads, rope_theta):
    """config.json of a drafter for the target with this config, keys in the published order."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "laguna",
        "decoder_layer_type": "laguna_xs",
        "gating": "per-head",
        "hidden_size": target["hidden_size"],
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": target["num_key_value_heads"],
        "head_dim": target["head_dim"],
        "vocab_size": target["vocab_size"],
        "rms_norm_eps": target["rms_norm_eps"],
        "rope_theta": float(rope_theta),
        "max_position_embeddings": target["max_position_embeddings"],
        "sliding_window": window,
        "layer_types": ["sliding_attention"] * layers,
        "tie_word_embeddings": False,
        "block_size": BLOCK,
        "num_target_layers": target["num_hidden_layers"],
        "dflash_config": {"target_layer_ids": list(taps), "mask_token_id": tokenizer.MASK},
    }


def rope_tables(cfg, positions):
    rope = {"rope_theta": cfg["rope_theta"], "rope_type": "default", "partial_rotary_factor": 1.0}
    return rotary_tables(rope, cfg["head_dim"], positions)


def row_positions(anchors, block):
    """Positions of the rows of all blocks, flat: a block begins at its anchor, the bonus token."""
    return (anchors[:, None] + torch.arange(block, device=anchors.device)).flatten()


def visible(anchors, length, block, window):
    """Bool [blocks * block, length + blocks * block]: what each row sees.

    Context rows stand at positions 0 to length - 1; a block sees those before its bonus token, and
    of its own rows those not later than itself; all of it within the window.
    """
    rows = row_positions(anchors, block)
    first = anchors.repeat_interleave(block)
    context = torch.arange(length, device=anchors.device)
    own = torch.arange(len(anchors), device=anchors.device).repeat_interleave(block)
    old = (context < first[:, None]) & (rows[:, None] - context < window)
    new = (own[:, None] == own) & (rows[:, None] >= rows) & (rows[:, None] - rows < window)
    return torch.cat((old, new), 1)


def block_ids(ids, anchors, block):
    """[bonus, mask, mask, ...] for each anchor: [batch, blocks * block]."""
    rows = ids.new_full((ids.shape[0], len(anchors), block), tokenizer.MASK)
    rows[:, :, 0] = ids[:, anchors]
    return rows.flatten(1)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.kv_heads = cfg["num_attention_heads"], cfg["num_key_value_heads"]
        self.head_dim = cfg["head_dim"]
        hidden, q, kv = cfg["hidden_size"], self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, q, bias=False)
        self.k_proj = nn.Linear(hidden, kv, bias=False)
        self.v_proj = nn.Linear(hidden, kv, bias=False)
        self.o_proj = nn.Linear(q, hidden, bias=False)
        self.g_proj = nn.Linear(hidden, self.heads, bias=False)
        self.q_norm = RMSNorm(self.head_dim, cfg["rms_norm_eps"])
        self.k_norm = RMSNorm(self.head_dim, cfg["rms_norm_eps"])

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def forward(self, n, c, row_rope, context_rope, mask):
        """n: normed block rows; c: context rows under the same norm; mask: additive."""
        v = torch.cat((self.v_proj(c), self.v_proj(n)), 1)
        v = self.split(v, self.kv_heads)
        q = rotate(self.q_norm(self.split(self.q_proj(n), self.heads)), *row_rope)
        old = rotate(self.k_norm(self.split(self.k_proj(c), self.kv_heads)), *context_rope)
        new = rotate(self.k_norm(self.split(self.k_proj(n), self.kv_heads)), *row_rope)
        k = torch.cat((old, new), 2)
        # The query heads of one KV head stand as further rows, so that K and V are not repeated.
        group = self.heads // self.kv_heads
        q = q.unflatten(1, (self.kv_heads, group)).flatten(2, 3)
        o = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v,
                                           attn_mask=mask.repeat(group, 1))
        o = o.unflatten(2, (group, n.shape[1])).flatten(1, 2).transpose(1, 2)
        o = o * F.softplus(self.g_proj(n).float()).to(o.dtype)[..., None]
        return self.o_proj(o.flatten(2))


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.input_layernorm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])
        self.mlp = MLP(cfg["hidden_size"], cfg["intermediate_size"])

    def forward(self, h, context, row_rope, context_rope, mask):
        n, c = self.input_layernorm(h), self.input_layernorm(context)
        h = h + self.self_attn(n, c, row_rope, context_rope, mask)
        return h + self.mlp(self.post_attention_layernorm(h))


class Drafter(nn.Module):
    """Taps and embedded blocks to rows that the target's head reads."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        hidden, eps = cfg["hidden_size"], cfg["rms_norm_eps"]
        taps = len(cfg["dflash_config"]["target_layer_ids"])
        self.aux_hidden_norms = nn.ModuleList(RMSNorm(hidden, eps) for _ in range(taps))
        self.fc = nn.Linear(taps * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg["num_hidden_layers"]))
        self.norm = RMSNorm(hidden, eps)
        cos, sin = rope_tables(cfg, cfg["max_position_embeddings"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def initialise(self, std=0.02):
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=std)

    def forward(self, taps, rows, anchors, block):
        """taps [batch, length, taps * hidden], rows [batch, blocks * block, hidden]."""
        length, hidden = taps.shape[1], self.cfg["hidden_size"]
        normed = [norm(t) for norm, t in zip(self.aux_hidden_norms, taps.split(hidden, -1))]
        context = self.hidden_norm(self.fc(torch.cat(normed, -1)))
        seen = visible(anchors, length, block, self.cfg["sliding_window"])
        mask = torch.zeros(seen.shape, dtype=torch.bfloat16, device=seen.device)
        mask = mask.masked_fill(~seen, float("-inf"))
        positions = row_positions(anchors, block)
        row_rope = self.cos[positions], self.sin[positions]
        context_rope = self.cos[:length], self.sin[:length]
        h = rows
        for layer in self.layers:
            h = layer(h, context, row_rope, context_rope, mask)
        return self.norm(h)


def as_stored(state):
    """What a reader of the file gets back."""
    return {name: weight.bfloat16().float() for name, weight in state.items()}


def write(folder, cfg, state):
    os.makedirs(folder, exist_ok=True)
    tensors = {name: ("BF16", checkpoint.bf16_words(weight)) for name, weight in state.items()}
    checkpoint.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    checkpoint.write_json(os.path.join(folder, "config.json"), cfg)


def read(folder):
    """(config, float32 state dict) of a drafter on disk."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        cfg = json.load(file)
    stored = checkpoint.read_safetensors(os.path.join(folder, "model.safetensors"))
    return cfg, checkpoint.decode(stored)
