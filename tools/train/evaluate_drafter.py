#!/usr/bin/env python3
"""Measure a drafter on greedy continuations of held-out text, in the engine's arithmetic.

  evaluate_drafter.py TARGET DRAFTER CORPUS                     the acceptance table and costs
  evaluate_drafter.py TARGET DRAFTER CORPUS --check-rounds      real rounds against the short cut
  evaluate_drafter.py TARGET DRAFTER CORPUS --vectors FILE --engine build/bench-worker
                                             accepted drafts of each round on fixed prompts, as JSON

A round drafts K - 1 tokens, verifies K rows, accepts the longest right prefix (a tokens) and emits
a + 1. The first token comes from the prompt's own forward pass and belongs to no round; a round that
would pass the token limit emits what fits and counts one less as accepted.
"""

import argparse
import json
import os
import subprocess
import tempfile

import torch

import checkpoint
import continuations
import data
import drafter as drafting
import evaluate
import rounded
import tokenizer

WIDTHS = (2, 3, 4, 6, 8, 16)


def rounds_of(right, width, count):
    """Accepted drafts of each round; right[i] = drafts in a row that are right after token i."""
    accepted, at = [], 0
    while at < count - 1:
        accepted.append(min(right[at], width - 1, count - 2 - at))
        at += accepted[-1] + 1
    return accepted


def bytes_read(target_folder):
    """Bytes of weights that one row reads: (all but routed experts, one expert of every layer)."""
    cfg, state = checkpoint.read_checkpoint(target_folder)
    fixed = routed = 0
    for name, (_, array) in checkpoint.encode(state).items():
        if name == "model.embed_tokens.weight":
            fixed += array[0].nbytes
        elif ".switch_mlp." in name:
            routed += array.nbytes // cfg["num_experts"]
        else:
            fixed += array.nbytes
    return fixed, routed


def distinct_experts(choices, first, width):
    """Mean number of different experts of a layer over `width` rows in a row, from row `first`."""
    counts = []
    for chosen in choices:
        hit = torch.zeros(*chosen.shape[:2], int(chosen.max()) + 1, device=chosen.device)
        hit = hit.scatter(-1, chosen, 1.0)[:, first:]
        union = hit.unfold(1, width, 1).amax(-1)
        counts.append(union.sum(-1).mean())
    return torch.stack(counts).mean().item()


@torch.no_grad()
def right_drafts(drafter, ids, length):
    """Drafts at every position after a prompt of `length` tokens, with the tokens known.

    ([batch, position] drafts in a row that are right, choices of experts). A block's rows see no
    later row, so the first K - 1 drafts of a block of 16 are those of a block of K; and a round's
    context is the target's taps of committed tokens alone. So one forward pass of the target and
    one of the drafter hold the rounds of every width.
    """
    target, block, end = drafter.target, drafter.cfg["block_size"], ids.shape[1]
    positions = torch.arange(end, device=ids.device)
    anchors = torch.arange(length, end - 1, device=ids.device)
    seen = drafting.visible(anchors, end, block, drafter.cfg["sliding_window"])
    _, taps, chosen = target.forward(ids, positions, target.new_cache(len(ids), end),
                                     tuple(drafter.taps))
    drafts = drafter.draft(drafting.block_ids(ids, anchors, block),
                           drafting.row_positions(anchors, block),
                           drafter.context(taps, positions), seen, block)
    ahead = anchors[:, None] + torch.arange(1, block, device=ids.device)
    right = (drafts == ids[:, ahead.clamp(max=end - 1)]) & (ahead < end)
    return right.int().cumprod(-1).sum(-1), chosen


@torch.no_grad()
def measure(plain, target_folder, folder, held_ids, prompts, length, count, exact=True, rows=4):
    """The acceptance table: all positions are drafted at once, then each width walks its rounds."""
    target = rounded.Target(plain, exact)
    cfg, state = drafting.read(folder)
    device = held_ids.device
    drafter = rounded.Drafter(cfg, {n: v.to(device) for n, v in state.items()}, target)
    generator = torch.Generator().manual_seed(7)
    asked = continuations.random_prompts(held_ids, prompts, length, generator)
    block = cfg["block_size"]
    table = {width: [0, 0] for width in WIDTHS}
    reached, passed, choices, skipped = [0] * (block - 1), [0] * (block - 1), [], 0
    ends = torch.tensor(plain.cfg["eos_token_id"], device=device)
    for ids in continuations.greedy(target, asked, length + count).split(rows):
        right, chosen = right_drafts(drafter, ids, length)
        choices.append(chosen)
        for row in range(len(ids)):
            if torch.isin(ids[row, length:], ends).any():
                skipped += 1
                continue
            run = right[row].tolist()
            for width in WIDTHS:
                accepted = rounds_of(run, width, count)
                table[width][0] += count - 1
                table[width][1] += len(accepted)
            at = 0
            for a in rounds_of(run, block, count):
                for i in range(min(block - 1, count - 2 - at)):
                    reached[i] += a >= i
                    passed[i] += a > i
                at += a + 1
    fixed, routed = bytes_read(target_folder)
    whole = [torch.cat([c[i] for c in choices]) for i in range(len(choices[0]))]
    top = plain.cfg["num_experts_per_tok"]
    serial = fixed + top * routed
    own = sum(weight.numel() * 2 for weight in state.values())
    head = plain.lm_head.weight.numel() * 2
    report = {"parameters": own // 2, "file_bytes": os.path.getsize(os.path.join(
        folder, "model.safetensors")), "serial_bytes": serial, "draft_bytes": own + head,
        "prompts": prompts, "ended_early": skipped, "widths": {}}
    for width, (tokens, number) in table.items():
        experts = distinct_experts(whole, length, width)
        verify = fixed + experts * routed
        per_round = tokens / max(number, 1)
        report["widths"][width] = {
            "tokens_per_round": round(per_round, 4), "distinct_experts": round(experts, 2),
            "verify_bytes": round(verify),
            "speed_up_by_bytes": round(per_round * serial / (verify + own + head), 3)}
    report["accepted_if_reached"] = [round(p / max(r, 1), 3) for p, r in zip(passed, reached)]
    return report


class Session:
    """One prompt through real rounds: draft, verify K rows, accept, roll back by position."""

    def __init__(self, target, drafter, prompt, capacity):
        self.target, self.drafter = target, drafter
        self.cache = target.new_cache(1, capacity)
        self.window = drafter.cfg["sliding_window"]
        tokens, self.taps, _ = self.verify(prompt, 0)
        self.bonus, self.offset, self.context = tokens[-1], len(prompt), None
        self.context_end = 0

    def verify(self, ids, start):
        device = self.target.embedding.device
        positions = torch.arange(start, start + len(ids), device=device)
        normed, taps, chosen = self.target.forward(torch.tensor([ids], device=device), positions,
                                                   self.cache, tuple(self.drafter.taps))
        return self.target.choose(normed)[0].tolist(), taps, chosen

    def take_context(self):
        """Give the drafter the rows that the target has advanced; keep window - 1 of them."""
        device = self.target.embedding.device
        assert self.context_end + self.taps.shape[1] == self.offset
        positions = torch.arange(self.context_end, self.offset, device=device)
        new = self.drafter.context(self.taps, positions)
        if self.context is not None:
            new = [tuple(torch.cat(pair, 2) for pair in zip(old, rows))
                   for old, rows in zip(self.context, new)]
        keep = self.window - 1
        self.context = [(k[:, :, -keep:], v[:, :, -keep:]) for k, v in new]
        self.context_end = self.offset

    def draft(self, width):
        self.take_context()
        device = self.target.embedding.device
        held = self.context[0][0].shape[2]
        row = torch.arange(held, held + width, device=device)[:, None]
        column = torch.arange(held + width, device=device)
        seen = (column <= row) & (row < column + self.window)
        ids = torch.tensor([[self.bonus] + [tokenizer.MASK] * (width - 1)], device=device)
        positions = torch.arange(self.offset, self.offset + width, device=device)
        return self.drafter.draft(ids, positions, self.context, seen, width)[0, 0].tolist()

    def round(self, width):
        """(emitted tokens, distinct experts a layer)."""
        drafts = self.draft(width)
        tokens, taps, chosen = self.verify([self.bonus] + drafts, self.offset)
        accepted = 0
        while accepted < width - 1 and drafts[accepted] == tokens[accepted]:
            accepted += 1
        self.taps, self.bonus = taps[:, :accepted + 1], tokens[accepted]
        self.offset += accepted + 1
        distinct = sum(len(torch.unique(c)) for c in chosen) / len(chosen)
        return tokens[:accepted + 1], distinct


def fixed_prompts(held_ids, count, length):
    generator = torch.Generator().manual_seed(11)
    return continuations.random_prompts(held_ids, count, length, generator).tolist()


def check_rounds(plain, folder, held_ids, prompts, length, count):
    """Real rounds on the model's own continuations; they must be those that `right_drafts` gives."""
    target = rounded.Target(plain, exact=True)
    drafter = rounded.Drafter(*drafting.read(folder), target)
    experts = {width: [0.0, 0] for width in WIDTHS}
    for number, prompt in enumerate(fixed_prompts(held_ids, prompts, length)):
        ids = continuations.greedy(target, torch.tensor([prompt]), length + count)
        right = right_drafts(drafter, ids, length)[0][0].tolist()
        for width in WIDTHS:
            session = Session(target, drafter, prompt, length + count + max(WIDTHS))
            emitted, accepted = [session.bonus], []
            while len(emitted) < count:
                tokens, distinct = session.round(width)
                tokens = tokens[:count - len(emitted)]
                emitted += tokens
                accepted.append(len(tokens) - 1)
                experts[width][0] += distinct
                experts[width][1] += 1
            if emitted != ids[0, length:].tolist() or accepted != rounds_of(right, width, count):
                raise SystemExit(f"prompt {number}, K {width}: the real rounds differ")
    return {width: round(total / rounds, 2) for width, (total, rounds) in experts.items()}


def engine_continuation(engine, target_folder, prompt, count):
    """The engine's own greedy tokens, which are the same bits on every machine."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompt, file)
        file.flush()
        done = subprocess.run(
            [engine, "generate", "--weights", target_folder, "--tokens-file", file.name, "-n",
             str(count), "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["token_ids"]


def vectors(plain, target_folder, folder, held_ids, engine, prompts, length, count):
    """Accepted drafts on the engine's continuations of held-out prompts, those that do not end."""
    cfg, state = drafting.read(folder)
    drafters = [rounded.Drafter(cfg, state, rounded.Target(plain, exact)) for exact in (True, False)]
    cases, totals = [], [{str(width): 0 for width in WIDTHS} for _ in drafters]
    for prompt in fixed_prompts(held_ids, 2 * prompts, length):
        chain = engine_continuation(engine, target_folder, prompt, count)
        if len(chain) < count or set(chain) & set(plain.cfg["eos_token_id"]):
            continue
        ids, accepted = torch.tensor([prompt + chain]), {}
        for drafter, total in zip(drafters, totals):
            right = right_drafts(drafter, ids, length)[0][0].tolist()
            for width in WIDTHS:
                rounds = rounds_of(right, width, count)
                accepted.setdefault(str(width), rounds)  # the first is the exact arithmetic
                total[str(width)] += len(rounds)
        cases.append({"prompt": prompt, "continuation": chain, "accepted": accepted})
        if len(cases) == prompts:
            break
    tokens = len(cases) * (count - 1)
    return {
        "about": "accepted drafts of each round on the engine's greedy continuations, computed in "
                 "the arithmetic of tools/train/rounded.py; float32_sums is the same with sums in "
                 "float32 in PyTorch's order, to show what the order of sums moves",
        "drafter": "models/laguna-nano-dflash", "tokens": count, "block": cfg["block_size"],
        "totals": {width: {"rounds": number, "tokens_per_round": round(tokens / number, 4),
                           "tokens_per_round_float32_sums": round(tokens / totals[1][width], 4)}
                   for width, number in totals[0].items()},
        "cases": cases}


def write_vectors(path, document):
    """JSON with one list of ids a line."""
    cases = document.pop("cases")
    text = json.dumps(document, indent=1)[:-2] + ',\n "cases": [\n'
    lines = []
    for case in cases:
        fields = [f'"{key}": {json.dumps(case[key])}' for key in ("prompt", "continuation")]
        widths = [f'   "{width}": {json.dumps(a)}' for width, a in case["accepted"].items()]
        fields.append('"accepted": {\n' + ",\n".join(widths) + "}")
        lines.append("  {" + ",\n   ".join(fields) + "}")
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        out.write(text + ",\n".join(lines) + "\n ]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("drafter")
    parser.add_argument("corpus")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate")
    parser.add_argument("--length", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--check-rounds", action="store_true", help="on 4 prompts, on the CPU")
    parser.add_argument("--vectors", metavar="FILE", help="write the rounds on 16 prompts")
    parser.add_argument("--engine", help="program whose `generate` continues the prompts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.vectors and not args.engine:
        parser.error("--vectors needs --engine")
    torch.set_float32_matmul_precision("highest")
    device = "cpu" if args.vectors or args.check_rounds else args.device
    plain = evaluate.load_model(args.target, device)
    books = data.read_books(args.corpus)
    held = data.stream(tokenizer.load(args.target), data.split_books(books)[1]).to(device)
    if args.check_rounds:
        distinct = check_rounds(plain, args.drafter, held, 4, 64, args.tokens)
        print("equal; distinct experts of a layer in the rows of a round:", distinct)
        return
    if args.vectors:
        document = vectors(plain, args.target, args.drafter, held, args.engine, 16, 64, args.tokens)
        print(json.dumps(document["totals"], indent=1))
        write_vectors(args.vectors, document)
        return
    print(json.dumps(measure(plain, args.target, args.drafter, held, args.prompts, args.length,
                             args.tokens), indent=1))


if __name__ == "__main__":
    main()
