#!/usr/bin/env python3
"""Measure a checkpoint on disk: held-out loss, sizes, tokenizer round trip, a second engine.

  evaluate.py MODEL CORPUS [--transformers] [--bf16-stream] [--sample TEXT]
"""

import argparse
import json
import math
import os

import torch
import torch.nn.functional as F

import checkpoint
import data
import tokenizer
from laguna import Laguna

CONTEXT = 512


def load_model(folder, device="cpu"):
    """The model exactly as the checkpoint says, in float32."""
    cfg, state = checkpoint.read_checkpoint(folder)
    model = Laguna(cfg)
    model.load_state_dict(state)
    return model.to(device).eval().requires_grad_(False)


@torch.no_grad()
def held_out_loss(model, ids, context, rows=32):
    """Mean nats per token over windows of `context` tokens that do not overlap."""
    total, count = 0.0, 0
    for batch in data.held_out_windows(ids, context, rows):
        logits = model(batch[:, :-1]).float()
        total += F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(),
                                 reduction="sum").item()
        count += batch[:, 1:].numel()
    return total / count


@torch.no_grad()
def greedy(model, ids, count):
    """Continue a list of ids; ties pick the lowest index. No cache: for a look, not for speed."""
    ids = list(ids)
    for _ in range(min(count, model.cfg["max_position_embeddings"] - len(ids))):
        logits = model(torch.tensor([ids], device=model.lm_head.weight.device))[0, -1]
        ids.append(int(torch.nonzero(logits == logits.max())[0]))
        if ids[-1] in model.cfg["eos_token_id"]:
            break
    return ids


def round_trip_failures(tok, books):
    """Names of the books that do not survive encode and decode."""
    return [name for name, text in books
            if tokenizer.decode(tok, tokenizer.encode(tok, text)) != text]


def transformers_state(state):
    """Our weights by the names of LagunaForCausalLM, where experts hold gate and up in one."""
    theirs = {}
    for name, weight in state.items():
        if ".switch_mlp.gate_proj." in name:
            up = state[name.replace("gate_proj", "up_proj")]
            theirs[name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")] = torch.cat(
                (weight, up), 1)
        elif ".switch_mlp.down_proj." in name:
            theirs[name.replace("switch_mlp.down_proj.weight", "experts.down_proj")] = weight
        elif ".switch_mlp." not in name:
            theirs[name.replace(".shared_expert.", ".shared_experts.")] = weight
    return theirs


@torch.no_grad()
def transformers_logits(folder, ids):
    """Float32 logits of transformers' LagunaForCausalLM with the weights of this checkpoint."""
    from transformers import LagunaConfig, LagunaForCausalLM

    cfg, state = checkpoint.read_checkpoint(folder)
    for key in ("quantization", "quantization_config", "auto_map", "torch_dtype", "architectures"):
        del cfg[key]
    config = LagunaConfig(**cfg, dtype="float32", attn_implementation="eager",
                          experts_implementation="eager")
    model = LagunaForCausalLM(config).eval()
    model.load_state_dict(transformers_state(state), strict=True)
    return model.float()(ids).logits


def relative_error(ours, theirs):
    """Largest difference over the largest magnitude."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("--transformers", action="store_true",
                        help="compare logits with transformers' LagunaForCausalLM in float32")
    parser.add_argument("--bf16-stream", action="store_true",
                        help="also measure with every weight, activation and the stream in bf16")
    parser.add_argument("--sample", metavar="TEXT", help="print a greedy continuation of TEXT")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.set_float32_matmul_precision("highest")
    model, tok = load_model(args.model, args.device), tokenizer.load(args.model)
    books = data.read_books(args.corpus)
    held_texts = data.split_books(books)[1]
    held = data.stream(tok, held_texts).to(args.device)
    context = min(CONTEXT, model.cfg["max_position_embeddings"])
    loss = held_out_loss(model, held, context)
    text_bytes = sum(len(text.encode()) for text in held_texts)
    report = {
        "held_out_nats_per_token": round(loss, 4),
        "held_out_bits_per_byte": round(loss * (len(held) - 1) / text_bytes / math.log(2), 4),
        "held_out_tokens": len(held) - 1,
        "round_trip_failures": round_trip_failures(tok, books),
        "files": {name: os.path.getsize(os.path.join(args.model, name))
                  for name in sorted(os.listdir(args.model))},
    }
    report["bytes"] = sum(report["files"].values())
    if args.transformers:
        ids = held[None, :context].cpu()
        ours = load_model(args.model)(ids)
        report["transformers_relative_error"] = relative_error(
            ours, transformers_logits(args.model, ids))
    if args.bf16_stream:
        rounded = load_model(args.model, args.device).bfloat16()
        for layer in rounded.model.layers[1:]:
            layer.mlp.gate.e_score_correction_bias = layer.mlp.gate.e_score_correction_bias.float()
        for name, exact in model.named_buffers():  # rotary tables stay float32
            if name.startswith(("cos_", "sin_")):
                setattr(rounded, name, exact)
        report["held_out_nats_per_token_bf16_stream"] = round(
            held_out_loss(rounded, held, context), 4)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    if args.sample:
        ids = [tokenizer.EOS] + tokenizer.encode(tok, args.sample)
        print(tokenizer.decode(tok, greedy(model, ids, 160)))
    failed = report["round_trip_failures"] or report.get("transformers_relative_error", 0) > 1e-4
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
