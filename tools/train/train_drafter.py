#!/usr/bin/env python3
"""Train a DFlash drafter for a trained target and write its checkpoint.

  train_drafter.py TARGET CORPUS OUT --size 2x128            on a GPU, minutes
  train_drafter.py TARGET CORPUS OUT --size 2x256 --smoke    a few steps on a CPU, seconds
"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F

import continuations
import data
import drafter as drafting
import evaluate
import evaluate_drafter
import rounded
import tokenizer
from train_nano import Average, learning_rate_factor

# Layers x width of the MLP; eight query heads of 32 in all of them.
SIZES = {
    "1x512": dict(layers=1, intermediate=512),
    "1x768": dict(layers=1, intermediate=768),
    "2x128": dict(layers=2, intermediate=128),
    "2x256": dict(layers=2, intermediate=256),
    "3x256": dict(layers=3, intermediate=256),
    "3x768": dict(layers=3, intermediate=768),
}
SHAPE = dict(taps=(1, 4, 7), window=128, heads=8, rope_theta=10000.0)


class Loss(torch.nn.Module):
    """Weighted cross-entropy of the rows after the bonus; the weight falls with the position."""

    def __init__(self, model, embedding, head, args):
        super().__init__()
        self.drafter = model
        self.embedding, self.head = embedding, head
        self.unreached = args.unreached
        at = torch.arange(drafting.BLOCK - 1, device=head.device)
        self.falling = torch.exp(-at / args.decay)

    def forward(self, ids, taps, anchors):
        block = drafting.BLOCK
        rows = self.embedding[drafting.block_ids(ids, anchors, block)]
        hidden = self.drafter(taps, rows, anchors, block)
        hidden = hidden.unflatten(1, (len(anchors), block))[:, :, 1:]
        ahead = torch.arange(1, block, device=ids.device)
        labels = ids[:, anchors[:, None] + ahead]
        logits = F.linear(hidden, self.head).float()
        each = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
        right = (logits.detach().argmax(-1) == labels).float()
        reached = F.pad(right.cumprod(-1)[..., :-1], (1, 0), value=1.0)
        weight = self.falling * (self.unreached + (1 - self.unreached) * reached)
        return (each.view(labels.shape) * weight).sum() / weight.sum(), right.cumprod(-1).sum(-1).mean()


def optimizer_of(model, args):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": args.weight_decay},
              {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=args.device == "cuda")


def train(model, target, pool, args, log):
    """The averaged state after the last step."""
    head = target.weights("lm_head")
    loss_of = Loss(model, target.embedding, head, args)
    if args.device == "cuda":
        loss_of.compile(dynamic=False)
    optimizer, average = optimizer_of(model, args), Average(model)
    started = time.monotonic()
    for step in range(args.steps):
        if args.seconds and time.monotonic() - started > args.seconds:
            log(f"stopped for time after {step} of {args.steps} steps")
            break
        for group in optimizer.param_groups:
            group["lr"] = args.lr * learning_rate_factor(step, args.steps, args.warm_up)
        ids, taps, anchors = pool.draw(args.rows, args.book_share, args.anchors, drafting.BLOCK)
        with torch.autocast(args.device, torch.bfloat16):
            loss, accepted = loss_of(ids, taps, anchors)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(step, args.average)
        if (step + 1) % args.report_every == 0 or step + 1 == args.steps:
            log(f"step {step + 1} loss {loss.item():.4f} accepted of 15 {accepted.item():.3f}")
    return average.state()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", help="folder of the target's checkpoint")
    parser.add_argument("corpus", help="folder of *.txt")
    parser.add_argument("out", help="folder for the drafter")
    parser.add_argument("--size", choices=SIZES, default="2x128")
    parser.add_argument("--window", type=int, default=SHAPE["window"])
    parser.add_argument("--continuations", metavar="FILE.npz",
                        help="read them there, or make them and keep them there")
    parser.add_argument("--only-continuations", action="store_true", help="make them and stop")
    parser.add_argument("--smoke", action="store_true", help="a few steps on the CPU")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--rows", type=int, default=96, help="rows of 320 tokens a step")
    parser.add_argument("--anchors", type=int, default=32, help="blocks of each row")
    parser.add_argument("--book-share", type=float, default=0.15)
    parser.add_argument("--batch", type=int, default=3584, help="continuations generated at once")
    parser.add_argument("--book-rows", type=int, default=6144)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--decay", type=float, default=7.0, help="weight exp(-i/decay) of draft i")
    parser.add_argument("--unreached", type=float, default=0.15,
                        help="further factor for drafts behind a wrong one")
    parser.add_argument("--average", type=float, default=0.998, help="kept of the average each step")
    parser.add_argument("--report-every", type=int, default=500)
    parser.add_argument("--seconds", type=float, help="stop there, whatever the step")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.device = "cpu" if args.smoke else "cuda"
    if args.smoke:
        args.steps, args.rows, args.anchors, args.batch, args.book_rows = 3, 3, 4, 1, 4
        args.warm_up, args.report_every = 1, 1
    return args


def main():
    args, start = parse_arguments(), time.monotonic()

    def log(message):
        print(f"[{time.monotonic() - start:6.1f}] {args.size}: {message}", flush=True)

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    plain = evaluate.load_model(args.target, args.device)
    books = data.read_books(args.corpus)
    if args.smoke:
        books = [(name, text[:60000]) for name, text in books[:2]]
    train_ids, held_ids = continuations.streams(tokenizer.load(args.target), books, args.device)
    log(f"{len(train_ids)} tokens to train on, {len(held_ids)} held out")
    target = rounded.Target(plain, exact=False)
    groups = continuations.load_or_make(args.continuations, target, train_ids, args.batch,
                                        args.seed, log)
    if args.only_continuations:
        return
    cfg = drafting.make_config(plain.cfg, **(SHAPE | SIZES[args.size] | {"window": args.window}))
    pool = continuations.Pool(target, groups, train_ids, cfg["dflash_config"]["target_layer_ids"],
                              args.book_rows, args.seed)
    log("taps are ready")
    model = drafting.Drafter(cfg).to(args.device)
    model.initialise()
    best = train(model, target, pool, args, log)
    if not all(math.isfinite(value.abs().max().item()) for value in best.values()):
        raise SystemExit("the training diverged")
    drafting.write(args.out, cfg, best)
    del pool
    read_cfg, state = drafting.read(args.out)
    stored = drafting.as_stored(best)
    if read_cfg != cfg or any(not torch.equal(stored[n].cpu(), v) for n, v in state.items()):
        raise SystemExit(f"{args.out}: the drafter read back differs from the one written")
    torch.set_float32_matmul_precision("highest")
    prompts = 2 if args.smoke else 128
    report = evaluate_drafter.measure(plain, args.target, args.out, held_ids, prompts, 128, 128)
    log("acceptance\n" + json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
