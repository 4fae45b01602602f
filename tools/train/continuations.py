"""The target's own greedy continuations of book text: what a drafter mostly learns from."""

import os
import time

import numpy as np
import torch

import data
import tokenizer

PREFILL = 64
LENGTH = 320  # columns of every training row

# (prompt tokens, total tokens, batches). Short prompts teach a drafter its first rounds, the long
# ones what a target writes far from its start; of each the last LENGTH columns are used.
GROUPS = ((4, 320, 1), (24, 320, 2), (64, 320, 4), (128, 320, 3), (512, 704, 2))


def random_prompts(ids, count, length, generator):
    """Windows of a stream; every second one begins with id 2, as a text given to the engine does."""
    starts = torch.randint(len(ids) - length, (count,), generator=generator)
    prompts = ids[(starts[:, None] + torch.arange(length)).to(ids.device)]
    prompts[::2, 0] = tokenizer.EOS
    return prompts


@torch.no_grad()
def greedy(target, prompts, total):
    """Prompts [batch, length] continued to `total` columns, through end tokens."""
    batch, length = prompts.shape
    device = prompts.device
    ids = torch.zeros(batch, total, dtype=torch.long, device=device)
    ids[:, :length] = prompts
    cache = target.new_cache(batch, total)
    for start in range(0, length, PREFILL):
        positions = torch.arange(start, min(start + PREFILL, length), device=device)
        normed, _, _ = target.forward(ids[:, positions], positions, cache)
    ids[:, length] = target.choose(normed[:, -1])
    position = torch.tensor([length], device=device)

    def step():
        normed, _, _ = target.forward(ids.index_select(1, position), position, cache)
        ids.index_copy_(1, position + 1, target.choose(normed))

    if device.type != "cuda":
        for _ in range(length, total - 1):
            step()
            position += 1
        return ids
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a step at the same position writes the same values again
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for at in range(length, total - 1):
        position.fill_(at)
        graph.replay()
    torch.cuda.synchronize()
    return ids


def make(target, train_ids, rows, seed, log):
    """[(first anchor, ids int16 [rows, total])], one entry of GROUPS each."""
    generator, groups = torch.Generator().manual_seed(seed), []
    for prompt, total, batches in GROUPS:
        parts = []
        for _ in range(batches):
            prompts = random_prompts(train_ids, rows, prompt, generator)
            parts.append(greedy(target, prompts, total).short().cpu())
        groups.append(torch.cat(parts))
        log(f"{len(groups[-1])} continuations of {prompt} tokens to {total}")
    return groups


def load_or_make(path, *args):
    """The groups from a file, or made and kept there when a path is given."""
    if path and os.path.exists(path):
        with np.load(path) as file:
            return [torch.from_numpy(file[f"group_{i}"]) for i in range(len(GROUPS))]
    groups = make(*args)
    if path:
        named = {f"group_{i}": group.numpy() for i, group in enumerate(groups)}
        temporary = f"{path}.{time.time_ns()}.npz"
        np.savez(temporary, **named)
        os.replace(temporary, path)
    return groups


@torch.no_grad()
def taps_of(target, ids, layers, rows=256):
    """(the last LENGTH columns of ids, their taps [rows, LENGTH, layers * hidden] in bfloat16)."""
    device = target.embedding.device
    total = ids.shape[1]
    positions = torch.arange(total, device=device)
    out = None
    for start in range(0, len(ids), rows):
        part = ids[start:start + rows].to(device).long()
        tapped = target.forward(part, positions, target.new_cache(len(part), total), layers)[1]
        if out is None:
            out = tapped.new_empty(len(ids), min(LENGTH, total), tapped.shape[-1])
        out[start:start + rows] = tapped[:, -LENGTH:]
    return ids[:, -LENGTH:].to(device).long(), out


class Pool:
    """Training rows with their taps, drawn by group: 85% continuations, the rest book text."""

    def __init__(self, target, groups, train_ids, layers, book_rows, seed):
        self.generator = torch.Generator().manual_seed(seed)
        book = random_prompts(train_ids, book_rows, LENGTH, self.generator)
        self.book = taps_of(target, book, layers)
        self.groups = [taps_of(target, ids, layers) for ids in groups]
        self.first = [max(prompt - (total - LENGTH), 1) for prompt, total, _ in GROUPS]
        self.share = torch.tensor([float(len(ids)) for ids in groups])

    def draw(self, rows, book_share, anchors, block):
        """(ids, taps, sorted anchors): every anchor's whole block is inside the row."""
        group = int(torch.multinomial(self.share, 1, generator=self.generator))
        from_book = round(rows * book_share)
        parts = []
        for (ids, taps), count in ((self.groups[group], rows - from_book), (self.book, from_book)):
            index = torch.randint(len(ids), (count,), generator=self.generator).to(ids.device)
            parts.append((ids[index], taps[index]))
        ids, taps = (torch.cat(pair) for pair in zip(*parts))
        span = LENGTH - block + 1 - self.first[group]
        at = torch.randperm(span, generator=self.generator)[:anchors].sort().values
        return ids, taps, (at + self.first[group]).to(ids.device)


def streams(tok, books, device):
    """(training ids, held-out ids) of the books."""
    train_texts, held_texts = data.split_books(books)
    return data.stream(tok, train_texts).to(device), data.stream(tok, held_texts).to(device)
