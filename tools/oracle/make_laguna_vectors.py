#!/usr/bin/env python3
"""Random small Laguna checkpoints with expected logits, under tests/vectors/laguna/<name>/.

    make_laguna_vectors.py [--only NAME ...] [--skip-bf16] [--check]

Each folder is a checkpoint in the real format (config.json, shards with an index) with
tokens.json, vector.json (what varies, what was measured) and

    logits_f32.bin            transformers' LagunaForCausalLM, float32, eager attention
    logits_bf16.bin           laguna_bf16.py, yarn magnitude mode attention_factor
    logits_bf16_derived.bin   the same in mode derived (some yarn configurations)

each little-endian float32 [positions, vocabulary]. --check makes nothing: it reads the committed
vectors and prints how the emulation, its unrounded form and transformers agree.
Needs torch, transformers 5.17, safetensors, numpy.
"""

import argparse
import json
import math
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LagunaConfig, LagunaForCausalLM

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nvfp4  # noqa: E402
from laguna_bf16 import ExactArithmetic, Laguna, read_checkpoint  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "vectors", "laguna")
FULL, SLIDE, DENSE, SPARSE = "full_attention", "sliding_attention", "dense", "sparse"


def yarn(theta, factor, original, fast, slow, partial, attention_factor=None):
    rope = {
        "beta_fast": fast,
        "beta_slow": slow,
        "factor": factor,
        "original_max_position_embeddings": original,
        "partial_rotary_factor": partial,
        "rope_theta": theta,
        "rope_type": "yarn",
    }
    if attention_factor is not None:
        rope["attention_factor"] = attention_factor
    return rope


def plain(theta, partial=1.0):
    return {"partial_rotary_factor": partial, "rope_theta": theta, "rope_type": "default"}


# hidden, layers, heads per layer, kv heads, head_dim, window, mlp types, experts, top, widths
# (moe, shared, dense), scaling, rope of full and of sliding layers, eps, vocabulary, tokens, shards
CASES = {
    "full-yarn": dict(
        about="all layers full, YaRN with attention_factor 1.0, half of the head rotates",
        hidden=64, heads=[4, 4, 4], kv=2, dim=32, window=64, layers=[FULL] * 3,
        mlps=[DENSE, SPARSE, SPARSE], experts=8, top=2, moe=32, shared=32, dense=96, scaling=2.5,
        full=yarn(500000.0, 32.0, 8192, 64.0, 1.0, 0.5, 1.0), slide=plain(10000.0),
        eps=1e-6, vocab=128, tokens=100, shards=1, derived=True,
    ),
    "all-sliding": dict(
        about="all layers sliding, window 8, head_dim 16, one KV head, odd head counts, top-1, no dense layer",
        hidden=32, heads=[3, 5], kv=1, dim=16, window=8, layers=[SLIDE] * 2,
        mlps=[SPARSE, SPARSE], experts=4, top=1, moe=16, shared=48, dense=64, scaling=1.0,
        full=yarn(500000.0, 8.0, 64, 32.0, 1.0, 0.5, 1.0), slide=plain(10000.0),
        eps=1e-5, vocab=64, tokens=70, shards=1,
    ),
    "pattern-four": dict(
        about="the real pattern of layers and heads (6 and 8), window 16, attention_factor absent, top-4 of 16",
        hidden=64, heads=[6, 8, 8, 8, 6], kv=2, dim=16, window=16,
        layers=[FULL, SLIDE, SLIDE, SLIDE, FULL], mlps=[DENSE] + [SPARSE] * 4, experts=16, top=4,
        moe=16, shared=16, dense=128, scaling=2.5,
        full=yarn(500000.0, 32.0, 128, 64.0, 1.0, 0.5), slide=plain(10000.0),
        eps=1e-6, vocab=160, tokens=120, shards=2, derived=True,
    ),
    "head-48": dict(
        about="head_dim 48, a quarter rotates, attention_factor 1.2, three KV heads, every expert selected, "
        "K = 48 and 96 (padding inside an NVFP4 block of 32)",
        hidden=96, heads=[6, 9, 3], kv=3, dim=48, window=24, layers=[SLIDE, FULL, SLIDE],
        mlps=[SPARSE, DENSE, SPARSE], experts=6, top=6, moe=48, shared=16, dense=80, scaling=1.5,
        full=yarn(10000.0, 8.0, 64, 16.0, 2.0, 0.25, 1.2), slide=plain(5000.0, 0.5),
        eps=1e-6, vocab=96, tokens=110, shards=3, derived=True,
    ),
    "plain-dense": dict(
        about="every MLP dense, default RoPE on full layers with the whole head, eps 1e-5",
        hidden=128, heads=[8, 4], kv=4, dim=32, window=32, layers=[FULL, SLIDE],
        mlps=[DENSE, DENSE], experts=4, top=2, moe=32, shared=32, dense=144, scaling=2.5,
        full=plain(500000.0, 1.0), slide=plain(10000.0),
        eps=1e-5, vocab=300, tokens=90, shards=2,
    ),
    "padded-48": dict(
        about="hidden 48, default RoPE on half of a 16-wide head, dense layer in the middle, 5 experts, scaling 1",
        hidden=48, heads=[2, 4, 6], kv=2, dim=16, window=16, layers=[FULL, SLIDE, FULL],
        mlps=[SPARSE, DENSE, SPARSE], experts=5, top=2, moe=16, shared=32, dense=56, scaling=1.0,
        full=plain(10000.0, 0.5), slide=plain(100.0, 1.0),
        eps=1e-3, vocab=77, tokens=80, shards=1,
    ),
    "yarn-whole-head": dict(
        about="YaRN over the whole head, correction range clamped at 0, full layer third, attention_factor 0.8",
        hidden=64, heads=[4, 2, 4, 6], kv=2, dim=32, window=16, layers=[SLIDE, SLIDE, FULL, SLIDE],
        mlps=[DENSE, DENSE, SPARSE, SPARSE], experts=8, top=4, moe=32, shared=16, dense=64, scaling=3.0,
        full=yarn(1000.0, 4.0, 32, 32.0, 1.0, 1.0, 0.8), slide=plain(10000.0, 0.5),
        eps=1e-6, vocab=128, tokens=100, shards=2,
    ),
    "equal-bias": dict(
        about="every selection bias is 0.125, so equal bf16 router logits are equal keys: stable ties; 24 experts",
        hidden=64, heads=[4, 4], kv=4, dim=16, window=8, layers=[SLIDE, FULL],
        mlps=[SPARSE, SPARSE], experts=24, top=4, moe=16, shared=16, dense=64, scaling=2.5, bias=0.125,
        full=yarn(500000.0, 16.0, 256, 32.0, 1.0, 0.5, 1.0), slide=plain(10000.0),
        eps=1e-6, vocab=128, tokens=200, shards=2,
    ),
    "odd-scales": dict(
        about="NVFP4 scales that are negative, subnormal, zero or at 448; head_dim 64, one KV head",
        hidden=64, heads=[2, 3], kv=1, dim=64, window=12, layers=[FULL, SLIDE],
        mlps=[SPARSE, SPARSE], experts=6, top=2, moe=32, shared=64, dense=64, scaling=2.0, odd_scales=True,
        full=yarn(500000.0, 32.0, 8192, 64.0, 1.0, 0.25, 1.0), slide=plain(10000.0),
        eps=1e-6, vocab=100, tokens=60, shards=1,
    ),
    "top-8": dict(
        about="32 experts, top-8, hidden 96, sliding first",
        hidden=96, heads=[8, 6], kv=2, dim=16, window=24, layers=[SLIDE, FULL],
        mlps=[DENSE, SPARSE], experts=32, top=8, moe=16, shared=32, dense=112, scaling=2.5,
        full=yarn(250000.0, 64.0, 4096, 64.0, 1.0, 0.5, 1.0), slide=plain(20000.0),
        eps=1e-6, vocab=128, tokens=100, shards=2,
    ),
    "no-norm": dict(
        about="norm_topk_prob false. transformers always normalises, so its one division was taken out for logits_f32",
        hidden=32, heads=[4, 4], kv=2, dim=16, window=16, layers=[FULL, SLIDE],
        mlps=[DENSE, SPARSE], experts=8, top=2, moe=32, shared=32, dense=64, scaling=0.75, norm=False,
        full=yarn(500000.0, 32.0, 8192, 64.0, 1.0, 1.0, 1.0), slide=plain(10000.0),
        eps=1e-6, vocab=64, tokens=60, shards=1,
    ),
    "long-chunks": dict(
        about="620 tokens: full attention over three 256-chunks, a window of 40 that crosses both boundaries",
        hidden=32, heads=[2, 4], kv=2, dim=16, window=40, layers=[FULL, SLIDE],
        mlps=[DENSE, SPARSE], experts=8, top=2, moe=16, shared=16, dense=64, scaling=2.5,
        full=yarn(500000.0, 32.0, 64, 64.0, 1.0, 0.5), slide=plain(10000.0),
        eps=1e-6, vocab=48, tokens=620, shards=1,
    ),
    "long-window": dict(
        about="560 tokens, window 300: wider than a chunk, touching three chunks at positions 512..554",
        hidden=32, heads=[2, 2], kv=1, dim=32, window=300, layers=[SLIDE, FULL],
        mlps=[SPARSE, DENSE], experts=4, top=2, moe=16, shared=16, dense=48, scaling=2.5,
        full=plain(500000.0, 0.5), slide=plain(10000.0),
        eps=1e-6, vocab=48, tokens=560, shards=1,
    ),
}


def config_of(c):
    n = len(c["layers"])
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
        "gating_types": ["per_head"] * n,
        "head_dim": c["dim"],
        "hidden_size": c["hidden"],
        "intermediate_size": c["dense"],
        "layer_types": c["layers"],
        "max_position_embeddings": 4096,
        "mlp_layer_types": c["mlps"],
        "mlp_only_layers": [i for i, kind in enumerate(c["mlps"]) if kind == DENSE],
        "model_type": "laguna",
        "moe_apply_router_weight_on_input": False,
        "moe_intermediate_size": c["moe"],
        "moe_routed_scaling_factor": c["scaling"],
        "norm_topk_prob": c.get("norm", True),
        "num_attention_heads": c["heads"][0],
        "num_attention_heads_per_layer": c["heads"],
        "num_experts": c["experts"],
        "num_experts_per_tok": c["top"],
        "num_hidden_layers": n,
        "num_key_value_heads": c["kv"],
        "pad_token_id": 9,
        "quantization": quantization,
        "quantization_config": quantization,
        "rms_norm_eps": c["eps"],
        "rope_parameters": {FULL: c["full"], SLIDE: c["slide"]},
        "router_aux_loss_coef": 0.0,
        "shared_expert_intermediate_size": c["shared"],
        "sliding_window": c["window"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": c["vocab"],
    }


def make_tensors(c, rng):
    """The checkpoint's tensors in the order of the file, as torch tensors."""
    out = {}

    def bf16(name, shape, std, mean=0.0):
        out[name] = torch.from_numpy(rng.normal(mean, std, shape).astype(np.float32)).bfloat16()

    def linear(name, rows, cols, gain=1.0):
        bf16(name + ".weight", (rows, cols), gain / math.sqrt(cols))

    def quantised(name, shape, gain):
        w = rng.normal(0, gain / math.sqrt(shape[-1]), shape)
        w *= np.exp(rng.normal(0, 0.4, (*shape[:-1], 1)))  # rows of unlike size: scales spread
        codes, scales = nvfp4.quantise(w.astype(np.float32))
        if c.get("odd_scales"):
            kind = rng.random(scales.shape)
            scales = np.where(kind < 0.2, scales | 0x80, scales)  # sign bit
            scales = np.where((kind > 0.2) & (kind < 0.3), rng.integers(1, 8, scales.shape), scales)
            scales = np.where((kind > 0.3) & (kind < 0.35), 0, scales).astype(np.uint8)
            one = tuple(0 for _ in scales.shape)
            scales[one] = 0x7E  # 448
            codes[one[:-1]][:16] = rng.choice([0, 1, 8, 9], 16, p=[0.7, 0.15, 0.1, 0.05])
        out[name + ".weight"] = torch.from_numpy(nvfp4.pack(codes))
        out[name + ".scales"] = torch.from_numpy(scales)

    h, d = c["hidden"], c["dim"]
    bf16("model.embed_tokens.weight", (c["vocab"], h), 1.0)
    for i, heads in enumerate(c["heads"]):
        p = f"model.layers.{i}."
        bf16(p + "input_layernorm.weight", (h,), 0.15, 1.0)
        bf16(p + "post_attention_layernorm.weight", (h,), 0.15, 1.0)
        a = p + "self_attn."
        linear(a + "q_proj", heads * d, h)
        linear(a + "k_proj", c["kv"] * d, h)
        linear(a + "v_proj", c["kv"] * d, h)
        linear(a + "o_proj", h, heads * d)
        linear(a + "g_proj", heads, h)
        bf16(a + "q_norm.weight", (d,), 0.2, 1.2)
        bf16(a + "k_norm.weight", (d,), 0.2, 1.2)
        m = p + "mlp."
        if c["mlps"][i] == DENSE:
            linear(m + "gate_proj", c["dense"], h, 1.3)
            linear(m + "up_proj", c["dense"], h, 1.3)
            linear(m + "down_proj", h, c["dense"], 1.3)
            continue
        linear(m + "gate", c["experts"], h, 1.5)
        bias = rng.normal(0, 0.08, c["experts"]).astype(np.float32)
        if "bias" in c:
            bias[:] = c["bias"]
        out[m + "gate.e_score_correction_bias"] = torch.from_numpy(bias)
        for where, lead, width in (("switch_mlp.", (c["experts"],), c["moe"]), ("shared_expert.", (), c["shared"])):
            quantised(m + where + "gate_proj", (*lead, width, h), 1.5)
            quantised(m + where + "up_proj", (*lead, width, h), 1.5)
            quantised(m + where + "down_proj", (*lead, h, width), 1.5)
    bf16("model.norm.weight", (h,), 0.15, 1.0)
    linear("lm_head", c["vocab"], h, 2.5)
    return out


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, sort_keys=True)
        f.write("\n")


def write_checkpoint(folder, config, tensors, shards):
    write_json(os.path.join(folder, "config.json"), config)
    names = list(tensors)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    parts, used = [[] for _ in range(shards)], 0
    for name in names:  # consecutive tensors, so that a layer may straddle two shards
        parts[min(used * shards // total, shards - 1)].append(name)
        used += tensors[name].numel() * tensors[name].element_size()
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({n: tensors[n].contiguous() for n in part}, os.path.join(folder, file), {"format": "mlx"})
        os.chmod(os.path.join(folder, file), 0o644)
        weight_map.update({n: file for n in part})
    logical = sum(t.numel() * (8 if t.dtype == torch.uint32 else 1) for n, t in tensors.items() if not n.endswith(".scales"))
    write_json(
        os.path.join(folder, "model.safetensors.index.json"),
        {"metadata": {"total_parameters": logical, "total_size": total}, "weight_map": weight_map},
    )


def hf_model(folder, dtype=torch.float32):
    """LagunaForCausalLM with the checkpoint's values (experts dequantised, which is exact)."""
    config, tensors = read_checkpoint(folder)
    plain_config = {k: v for k, v in config.items() if not k.startswith(("quantization", "auto_map", "torch_dtype"))}
    hf_config = LagunaConfig(**plain_config)
    hf_config._attn_implementation = "eager"
    hf_config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = LagunaForCausalLM(hf_config).eval()
    assert model.config._attn_implementation == "eager"

    def value(name):
        if name + ".scales" in tensors:
            return nvfp4.dequantise(nvfp4.unpack(tensors[name + ".weight"]), tensors[name + ".scales"])
        return tensors[name + ".weight"]

    state = {}
    for key in model.state_dict():
        if ".experts.gate_up_proj" in key:
            base = key.split("experts.")[0] + "switch_mlp."
            state[key] = np.concatenate([value(base + "gate_proj"), value(base + "up_proj")], 1)
        elif ".experts.down_proj" in key:
            state[key] = value(key.split("experts.")[0] + "switch_mlp.down_proj")
        elif key.endswith("e_score_correction_bias"):
            state[key] = tensors[key]
        else:
            state[key] = value(key.replace("shared_experts.", "shared_expert.").removesuffix(".weight"))
    model.load_state_dict({k: torch.from_numpy(np.array(v, np.float32)) for k, v in state.items()}, strict=True)
    if not config["norm_topk_prob"]:
        for layer in model.model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.forward = unnormalised(layer.mlp.gate)
    if dtype != torch.float32:
        biases = {k: v.clone() for k, v in model.state_dict().items() if k.endswith("e_score_correction_bias")}
        model = model.to(dtype)
        for name, bias in biases.items():
            model.get_submodule(name.rsplit(".", 1)[0]).e_score_correction_bias.data = bias
    return model


def unnormalised(gate):
    """The router of transformers without its division, for norm_topk_prob false."""

    def forward(hidden_states):
        hidden_states = hidden_states.reshape(-1, gate.hidden_dim)
        logits = torch.nn.functional.linear(hidden_states, gate.weight).float()
        scores = torch.sigmoid(logits)
        _, selected = torch.topk(scores + gate.e_score_correction_bias, gate.top_k, dim=-1)
        return logits, scores.gather(-1, selected).to(hidden_states.dtype), selected

    return forward


def hf_logits(folder, tokens, dtype=torch.float32):
    with torch.no_grad():
        out = hf_model(folder, dtype)(input_ids=torch.tensor([tokens]), use_cache=False)
    return out.logits[0].float().numpy()


def relative(a, b):
    """Largest difference over the largest magnitude of a row, worst row."""
    return float((np.abs(a - b).max(1) / np.abs(b).max(1)).max())


def noise(a, b):
    """Median over rows of the root mean square difference over that of the row."""
    return float(np.median(np.sqrt(((a - b) ** 2).mean(1) / (b**2).mean(1))))


def make(name, c, skip_bf16):
    folder = os.path.join(ROOT, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    seed = sum((i + 1) * b for i, b in enumerate(name.encode()))
    write_checkpoint(folder, config_of(c), make_tensors(c, np.random.default_rng(seed)), c["shards"])
    # A text whose every expert selection is clear in float32, so that float32 implementations agree.
    for attempt in range(200):
        tokens = np.random.default_rng(seed + 1000 + attempt).integers(0, c["vocab"], c["tokens"]).tolist()
        exact = Laguna(folder, arithmetic=ExactArithmetic)
        unrounded = exact.logits(tokens)
        margin = exact.stats["min_margin"]
        if margin > 2e-5:
            break
    else:
        raise SystemExit(f"{name}: no text with a clear selection")
    with open(os.path.join(folder, "tokens.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(tokens) + "\n")
    f32 = hf_logits(folder, tokens)
    f32.astype("<f4").tofile(os.path.join(folder, "logits_f32.bin"))
    measured = {
        "f32_against_unrounded": relative(f32, unrounded),
        "logits_rms": float(np.sqrt((f32**2).mean())),
        "selection_margin_f32": None if math.isinf(margin) else margin,
    }
    files = ["logits_f32.bin"]
    if not skip_bf16:
        model = Laguna(folder)
        bf16 = model.logits(tokens)
        bf16.astype("<f4").tofile(os.path.join(folder, "logits_bf16.bin"))
        files.append("logits_bf16.bin")
        measured.update(
            bf16_noise_against_f32=noise(bf16, f32),
            transformers_bf16_noise_against_f32=noise(hf_logits(folder, tokens, torch.bfloat16), f32),
            rows_with_equal_router_keys=model.stats["tied_rows"],
            rows_with_a_tie_at_the_last_selected=model.stats["boundary_ties"],
        )
        if c.get("derived"):
            derived = Laguna(folder, "derived").logits(tokens)
            assert (derived != bf16).any()
            derived.astype("<f4").tofile(os.path.join(folder, "logits_bf16_derived.bin"))
            files.append("logits_bf16_derived.bin")
    write_json(
        os.path.join(folder, "vector.json"),
        {"about": c["about"], "files": files, "measured": measured, "positions": len(tokens), "vocabulary": c["vocab"]},
    )
    print(name, len(tokens), json.dumps(measured), f"text {attempt}", flush=True)


def check(name):
    folder = os.path.join(ROOT, name)
    with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as f:
        tokens = json.load(f)
    vector = json.load(open(os.path.join(folder, "vector.json"), encoding="utf-8"))

    def stored(file):
        return np.fromfile(os.path.join(folder, file), "<f4").reshape(len(tokens), vector["vocabulary"])

    f32 = stored("logits_f32.bin")
    again = hf_logits(folder, tokens)
    line = [f"transformers {relative(again, f32):.1e}"]
    line.append(f"unrounded {relative(Laguna(folder, arithmetic=ExactArithmetic).logits(tokens), f32):.1e}")
    ok = relative(again, f32) < 1e-5
    for file, mode in (("logits_bf16.bin", "attention_factor"), ("logits_bf16_derived.bin", "derived")):
        if file in vector["files"]:
            same = np.array_equal(Laguna(folder, mode).logits(tokens), stored(file))
            ok = ok and same
            line.append(f"{file} {'equal' if same else 'DIFFERS'}")
    print(name, ", ".join(line), flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--skip-bf16", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        raise SystemExit(0 if all([check(name) for name in args.only]) else 1)
    for name in args.only:
        make(name, CASES[name], args.skip_bf16)


if __name__ == "__main__":
    main()
