"""The Laguna model in PyTorch, for training.

Module names are the checkpoint's tensor names, so a state dict is a checkpoint apart from the
number formats. The experts are computed for every token and masked: exact, and the quickest way at
sixteen experts of width 64.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def make_config(*, vocab_size, hidden_size, num_hidden_layers, head_dim, num_key_value_heads,
                heads_full, heads_sliding, sliding_window, intermediate_size, num_experts,
                num_experts_per_tok, moe_intermediate_size, shared_expert_intermediate_size,
                max_position_embeddings, yarn_factor, yarn_original_positions):
    """config.json of a Laguna of these sizes, every field of the real one."""
    full = [i % 4 == 0 for i in range(num_hidden_layers)]
    quantization = {"bits": 4, "group_size": 16, "mode": "nvfp4"}
    return {
        "architectures": ["LagunaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_laguna.LagunaConfig",
            "AutoModelForCausalLM": "modeling_laguna.LagunaForCausalLM",
        },
        "bos_token_id": 2,
        "decoder_sparse_step": 1,
        "eos_token_id": [2, 24],
        "gating": "per-head",
        "gating_types": ["per_head"] * num_hidden_layers,
        "head_dim": head_dim,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "layer_types": ["full_attention" if f else "sliding_attention" for f in full],
        "max_position_embeddings": max_position_embeddings,
        "mlp_layer_types": ["dense"] + ["sparse"] * (num_hidden_layers - 1),
        "mlp_only_layers": [0],
        "model_type": "laguna",
        "moe_apply_router_weight_on_input": False,
        "moe_intermediate_size": moe_intermediate_size,
        "moe_routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "num_attention_heads": heads_full,
        "num_attention_heads_per_layer": [heads_full if f else heads_sliding for f in full],
        "num_experts": num_experts,
        "num_experts_per_tok": num_experts_per_tok,
        "num_hidden_layers": num_hidden_layers,
        "num_key_value_heads": num_key_value_heads,
        "pad_token_id": 9,
        "quantization": dict(quantization),
        "quantization_config": dict(quantization),
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {
                "attention_factor": 1.0,
                "beta_fast": 64.0,
                "beta_slow": 1.0,
                "factor": float(yarn_factor),
                "original_max_position_embeddings": yarn_original_positions,
                "partial_rotary_factor": 0.5,
                "rope_theta": 500000.0,
                "rope_type": "yarn",
            },
            "sliding_attention": {
                "partial_rotary_factor": 1.0,
                "rope_theta": 10000.0,
                "rope_type": "default",
            },
        },
        "router_aux_loss_coef": 0.0,
        "shared_expert_intermediate_size": shared_expert_intermediate_size,
        "sliding_window": sliding_window,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def rotary_frequencies(rope, head_dim):
    """Inverse frequencies, float64 [rotary width / 2], of one entry of rope_parameters."""
    width = int(head_dim * rope["partial_rotary_factor"])
    plain = rope["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if rope["rope_type"] == "default":
        return plain

    def turning_dim(turns):  # the pair that makes so many turns over the original context
        reach = rope["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return width * math.log(reach) / (2 * math.log(rope["rope_theta"]))

    low = max(math.floor(turning_dim(rope["beta_fast"])), 0)
    high = min(math.ceil(turning_dim(rope["beta_slow"])), width - 1)
    pair = torch.arange(width // 2, dtype=torch.float64)
    ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    return (1 - ramp) * plain + ramp * plain / rope["factor"]


def rotary_tables(rope, head_dim, positions):
    """cos and sin, float32 [positions, rotary width / 2], times the configured magnitude."""
    angle = torch.arange(positions).float()[:, None] * rotary_frequencies(rope, head_dim).float()
    magnitude = rope.get("attention_factor", 1.0)
    return angle.cos() * magnitude, angle.sin() * magnitude


def rotate(x, cos, sin):
    """Rotate-half pairing: dimension i turns with i + width/2; the rest passes through."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half:2 * half].float(), x[..., 2 * half:]
    turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def window_attention(q, k, v, window):
    """Each query sees the last `window` keys, itself included.

    Cut into blocks of one window: a block's queries see only their own block and the one before,
    so the cost grows with the length and not with its square.
    """
    batch, heads, length, width = q.shape
    blocks = -(-length // window)
    tail = blocks * window - length
    q, k, v = (F.pad(t, (0, 0, 0, tail)) for t in (q, k, v))

    def own(t):
        return t.view(batch, heads, blocks, window, width).transpose(1, 2).flatten(0, 1)

    def own_and_before(t):
        before = F.pad(t, (0, 0, window, 0))[:, :, :-window]
        return torch.cat((own(before), own(t)), 2)

    row = torch.arange(window, device=q.device)[:, None] + window
    column = torch.arange(2 * window, device=q.device)[None]
    band = (column <= row) & (row < column + window)
    first = torch.arange(blocks, device=q.device)[:, None, None] == 0
    mask = band & ~(first & (column < window))  # nothing stands before the first block
    mask = mask[None].expand(batch, -1, -1, -1).reshape(batch * blocks, 1, window, 2 * window)
    out = F.scaled_dot_product_attention(own(q), own_and_before(k), own_and_before(v),
                                         attn_mask=mask)
    out = out.view(batch, blocks, heads, window, width).transpose(1, 2)
    return out.reshape(batch, heads, blocks * window, width)[:, :, :length]


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, cfg, layer):
        super().__init__()
        self.heads = cfg["num_attention_heads_per_layer"][layer]
        self.kv_heads, self.head_dim = cfg["num_key_value_heads"], cfg["head_dim"]
        sliding = cfg["layer_types"][layer] == "sliding_attention"
        self.window = cfg["sliding_window"] if sliding else None
        hidden, q = cfg["hidden_size"], self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, q, bias=False)
        self.k_proj = nn.Linear(hidden, kv, bias=False)
        self.v_proj = nn.Linear(hidden, kv, bias=False)
        self.o_proj = nn.Linear(q, hidden, bias=False)
        self.g_proj = nn.Linear(hidden, self.heads, bias=False)
        self.q_norm = RMSNorm(self.head_dim, cfg["rms_norm_eps"])
        self.k_norm = RMSNorm(self.head_dim, cfg["rms_norm_eps"])

    def forward(self, n, cos, sin):
        batch, length, _ = n.shape
        q = self.q_proj(n).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(n).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(n).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin).to(v.dtype)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin).to(v.dtype)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        o = causal_attention(q, k, v) if self.window is None else window_attention(q, k, v,
                                                                                  self.window)
        gate = F.softplus(self.g_proj(n).float()).to(o.dtype)
        o = o.transpose(1, 2) * gate[..., None]
        return self.o_proj(o.reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, m):
        return self.down_proj(F.silu(self.gate_proj(m)) * self.up_proj(m))


class Router(nn.Module):
    """Sigmoid scores; the bias only helps to choose, and the load moves it, not a gradient."""

    def __init__(self, cfg):
        super().__init__()
        self.top_k = cfg["num_experts_per_tok"]
        self.weight = nn.Parameter(torch.empty(cfg["num_experts"], cfg["hidden_size"]))
        self.register_buffer("e_score_correction_bias", torch.zeros(cfg["num_experts"]))
        self.register_buffer("load", torch.zeros(cfg["num_experts"]), persistent=False)

    def forward(self, m):
        scores = torch.sigmoid(F.linear(m, self.weight).float())
        chosen = torch.topk(scores + self.e_score_correction_bias, self.top_k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        mixture = torch.zeros_like(scores).scatter(-1, chosen, weights)
        if self.training:
            self.load.add_((mixture.detach() > 0).float().flatten(0, -2).sum(0))
        return mixture

    @torch.no_grad()
    def balance(self, rate):
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class StackedLinear(nn.Module):
    """One weight per expert, stacked on the leading axis: [experts, out, in]."""

    def __init__(self, experts, width_in, width_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width_out, width_in))


class SwitchMLP(nn.Module):
    def __init__(self, experts, hidden, width):
        super().__init__()
        self.gate_proj = StackedLinear(experts, hidden, width)
        self.up_proj = StackedLinear(experts, hidden, width)
        self.down_proj = StackedLinear(experts, width, hidden)

    def forward(self, m, mixture):
        gate = F.linear(m, self.gate_proj.weight.flatten(0, 1))
        inner = F.silu(gate) * F.linear(m, self.up_proj.weight.flatten(0, 1))
        inner = inner.unflatten(-1, (mixture.shape[-1], -1)) * mixture.to(inner.dtype)[..., None]
        return F.linear(inner.flatten(-2), self.down_proj.weight.transpose(0, 1).flatten(1))


class SparseMLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        hidden = cfg["hidden_size"]
        self.scale = cfg["moe_routed_scaling_factor"]
        self.gate = Router(cfg)
        self.switch_mlp = SwitchMLP(cfg["num_experts"], hidden, cfg["moe_intermediate_size"])
        self.shared_expert = MLP(hidden, cfg["shared_expert_intermediate_size"])

    def forward(self, m):
        return self.switch_mlp(m, self.gate(m)) * self.scale + self.shared_expert(m)


class Layer(nn.Module):
    def __init__(self, cfg, layer, dropout):
        super().__init__()
        hidden, eps = cfg["hidden_size"], cfg["rms_norm_eps"]
        self.dropout = dropout
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(cfg, layer)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        dense = cfg["mlp_layer_types"][layer] == "dense"
        self.mlp = MLP(hidden, cfg["intermediate_size"]) if dense else SparseMLP(cfg)

    def forward(self, x, cos, sin):
        a = self.self_attn(self.input_layernorm(x), cos, sin)
        h = x + F.dropout(a, self.dropout, self.training)
        f = self.mlp(self.post_attention_layernorm(h))
        return h + F.dropout(f, self.dropout, self.training)


class Body(nn.Module):
    def __init__(self, cfg, dropout):
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg["vocab_size"], cfg["hidden_size"])
        count = cfg["num_hidden_layers"]
        self.layers = nn.ModuleList(Layer(cfg, i, dropout) for i in range(count))
        self.norm = RMSNorm(cfg["hidden_size"], cfg["rms_norm_eps"])


class Laguna(nn.Module):
    """ids [batch, length] to logits [batch, length, vocabulary].

    `taps` names layers whose output (the residual stream after the layer) a drafter is fed with.
    """

    def __init__(self, cfg, dropout=0.0):
        super().__init__()
        self.cfg, self.dropout = cfg, dropout
        self.model = Body(cfg, dropout)
        self.lm_head = nn.Linear(cfg["hidden_size"], cfg["vocab_size"], bias=False)
        for kind, rope in cfg["rope_parameters"].items():
            cos, sin = rotary_tables(rope, cfg["head_dim"], cfg["max_position_embeddings"])
            self.register_buffer(f"cos_{kind}", cos, persistent=False)
            self.register_buffer(f"sin_{kind}", sin, persistent=False)

    @torch.no_grad()
    def initialise(self, std=0.02):
        into_stream = std / math.sqrt(2 * self.cfg["num_hidden_layers"])
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=into_stream if narrow else std)

    def hidden(self, ids, taps=()):
        length = ids.shape[1]
        x = F.dropout(self.model.embed_tokens(ids), self.dropout, self.training)
        tapped = []
        for i, layer in enumerate(self.model.layers):
            kind = self.cfg["layer_types"][i]
            cos, sin = getattr(self, f"cos_{kind}"), getattr(self, f"sin_{kind}")
            x = layer(x, cos[:length], sin[:length])
            if i in taps:
                tapped.append(x)
        return self.model.norm(x), tapped

    def forward(self, ids):
        return self.lm_head(self.hidden(ids)[0])

    def balance_experts(self, rate):
        for layer in self.model.layers:
            if isinstance(layer.mlp, SparseMLP):
                layer.mlp.gate.balance(rate)
