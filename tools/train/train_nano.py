#!/usr/bin/env python3
"""Train laguna-nano on a folder of books and write its checkpoint.

  train_nano.py CORPUS OUT            on a GPU, minutes
  train_nano.py CORPUS OUT --smoke    tiny sizes on a CPU, seconds: does the tool run end to end?
"""

import argparse
import copy
import json
import math
import os
import time

import torch
import torch.nn.functional as F

import checkpoint
import data
import evaluate
import tokenizer
from laguna import Laguna, make_config

NANO = dict(
    vocab_size=4096, hidden_size=256, num_hidden_layers=8, head_dim=32, num_key_value_heads=2,
    heads_full=6, heads_sliding=8, sliding_window=64, intermediate_size=512, num_experts=16,
    num_experts_per_tok=4, moe_intermediate_size=64, shared_expert_intermediate_size=64,
    max_position_embeddings=2048, yarn_factor=4.0, yarn_original_positions=512)

SMOKE = NANO | dict(
    vocab_size=512, hidden_size=64, num_hidden_layers=5, head_dim=16, heads_full=2, heads_sliding=4,
    sliding_window=16, intermediate_size=64, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=32, shared_expert_intermediate_size=32, max_position_embeddings=128,
    yarn_original_positions=32)


class Average:
    """Exponential moving average of a model's state: what is evaluated, and what ships."""

    def __init__(self, model):
        self.live = list(model.state_dict().values())
        self.names = list(model.state_dict())
        self.mean = [value.clone() for value in self.live]

    @torch.no_grad()
    def update(self, step, keep):
        keep = min(keep, (1 + step) / (10 + step))  # forget the first steps sooner
        torch._foreach_lerp_(self.mean, self.live, 1 - keep)

    def state(self):
        return dict(zip(self.names, self.mean))


def learning_rate_factor(step, steps, warm_up):
    """Linear warm-up, then a cosine down to nearly nothing."""
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(steps - warm_up, 1)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))


def make_optimizer(model, args):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay},
              {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=args.device == "cuda")


def make_batches(ids, args):
    """Three batches of short windows for each one of windows as long as the model's positions."""
    short = data.Windows(ids, args.context, args.tokens // args.context, args.seed)
    long = data.Windows(ids, args.long_context, args.tokens // args.long_context, args.seed + 1)
    step = 0
    while True:
        yield (long if step % 4 == 3 else short).next()
        step += 1


def train(model, train_ids, held_ids, args, log):
    """Train; return the averaged state with the best held-out loss after quantisation."""
    judge = copy.deepcopy(model).eval()
    if args.device == "cuda":
        torch._dynamo.config.recompile_limit = 64
        for layer in model.model.layers:
            layer.compile(dynamic=False)

    def loss_of(hidden, targets):
        return F.cross_entropy(model.lm_head(hidden).float().flatten(0, 1), targets.flatten())

    head_loss = torch.compile(loss_of, dynamic=False) if args.device == "cuda" else loss_of

    def measure(state):
        judge.load_state_dict(state)
        with torch.autocast(args.device, torch.bfloat16):
            return evaluate.held_out_loss(judge, held_ids, args.context, 128)

    optimizer, average = make_optimizer(model, args), Average(model)
    batches, best, best_loss = make_batches(train_ids, args), None, math.inf
    model.train()
    for step in range(args.steps):
        factor = learning_rate_factor(step, args.steps, args.warm_up)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * factor
        batch = next(batches)
        with torch.autocast(args.device, torch.bfloat16):
            loss = head_loss(model.hidden(batch[:, :-1])[0], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.balance_experts(args.balance_rate * factor)
        average.update(step, args.average)
        done = step + 1
        if done % args.evaluate_every == 0 or done == args.steps:
            held = measure(checkpoint.as_stored(average.state()))
            log(f"step {done} train {loss.item():.4f} held-out {held:.4f}")
            if held < best_loss:
                best_loss, best = held, {k: v.clone() for k, v in average.state().items()}
    log(f"best held-out {best_loss:.4f} quantised, {measure(best):.4f} before")
    return best


def expert_loads(model, ids, context, rows=32):
    """Share of the busiest expert of each sparse layer, 1.0 = even."""
    gates = [layer.mlp.gate for layer in model.model.layers[1:]]
    for gate in gates:
        gate.load.zero_()
        gate.training = True
    with torch.no_grad():
        model(ids[:rows * context].view(rows, context))
    for gate in gates:
        gate.training = False
    return [round((gate.load.max() / gate.load.mean()).item(), 2) for gate in gates]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", help="folder of *.txt")
    parser.add_argument("out", help="folder for the checkpoint")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, in seconds")
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--tokens", type=int, default=65536, help="tokens a step")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--average", type=float, default=0.99, help="kept of the average each step")
    parser.add_argument("--balance-rate", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--evaluate-every", type=int, default=150)
    parser.add_argument("--tokenizer", help="take tokenizer.json of this folder, do not train one")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.device = "cpu" if args.smoke else "cuda"
    args.sizes = SMOKE if args.smoke else NANO
    args.long_context = args.sizes["max_position_embeddings"]
    if args.smoke:
        args.steps, args.tokens, args.context, args.warm_up = 12, 512, 64, 4
        args.evaluate_every = 6
    return args


def prepare_tokenizer(args, texts):
    """tokenizer.json in the output folder: trained here or copied."""
    if args.tokenizer:
        with open(os.path.join(args.tokenizer, "tokenizer.json"), encoding="utf-8") as file:
            text = file.read()
    else:
        text = tokenizer.train(texts, args.sizes["vocab_size"])
    with open(os.path.join(args.out, "tokenizer.json"), "w", encoding="utf-8", newline="\n") as out:
        out.write(text)
    return tokenizer.load(args.out)


def main():
    args, start = parse_arguments(), time.monotonic()

    def log(message):
        print(f"[{time.monotonic() - start:6.1f}] {message}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    cfg = make_config(**args.sizes)
    books = data.read_books(args.corpus)
    if args.smoke:
        books = [(name, text[:30000]) for name, text in books[:3]]
    train_texts, held_texts = data.split_books(books)
    tok = prepare_tokenizer(args, train_texts)
    train_ids = data.stream(tok, train_texts).to(args.device)
    held_ids = data.stream(tok, held_texts).to(args.device)
    model = Laguna(cfg, args.dropout)
    model.initialise()
    model.to(args.device)
    log(f"{len(train_ids)} tokens to train on, {len(held_ids)} held out, "
        f"{sum(p.numel() for p in model.parameters())} parameters")

    best = train(model, train_ids, held_ids, args, log)

    checkpoint.write_checkpoint(args.out, cfg, best)
    checkpoint.write_json(os.path.join(args.out, "tokenizer_config.json"),
                          tokenizer.configuration(cfg))
    torch.set_float32_matmul_precision("highest")
    shipped = evaluate.load_model(args.out, args.device)
    stored = checkpoint.as_stored(best)
    if any(not torch.equal(stored[name], value) for name, value in shipped.state_dict().items()):
        raise SystemExit(f"{args.out}: the checkpoint read back differs from the one written")
    result = {"held_out_nats_per_token": evaluate.held_out_loss(shipped, held_ids, args.context)}
    shipped.load_state_dict(best)
    result["before_quantisation"] = evaluate.held_out_loss(shipped, held_ids, args.context)
    result["busiest_expert_load"] = expert_loads(shipped, held_ids, args.context,
                                                 min(32, len(held_ids) // args.context))
    log(json.dumps(result))


if __name__ == "__main__":
    main()
