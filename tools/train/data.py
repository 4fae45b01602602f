"""Books to token streams, and streams to batches."""

import glob
import os

import torch

import tokenizer

HELD_OUT = 0.05  # the end of each book


def read_books(folder):
    """[(file name, text)] in name order."""
    books = []
    for path in sorted(glob.glob(os.path.join(folder, "*.txt"))):
        with open(path, encoding="utf-8", newline="") as file:
            books.append((os.path.basename(path), file.read()))
    if not books:
        raise FileNotFoundError(f"no *.txt in {folder}")
    return books


def split_book(text):
    """(training part, held-out part): cut at the first line end after 95%."""
    cut = int(len(text) * (1 - HELD_OUT))
    cut = text.find("\n", cut) + 1 or cut
    return text[:cut], text[cut:]


def split_books(books):
    parts = [split_book(text) for _, text in books]
    return [train for train, _ in parts], [held for _, held in parts]


def stream(tok, texts):
    """One int64 stream; each document begins with id 2, which also ends the one before."""
    documents = tok.encode_batch(texts, add_special_tokens=False)
    return torch.tensor([i for document in documents for i in [tokenizer.EOS] + document.ids])


class Windows:
    """Batches [rows, length + 1] that cover a stream once an epoch, cut anew each time."""

    def __init__(self, ids, length, rows, seed):
        self.ids, self.length, self.rows = ids, length, rows
        self.random = torch.Generator().manual_seed(seed)
        self.starts = torch.empty(0, dtype=torch.long)

    def epoch(self):
        first = int(torch.randint(self.length, (1,), generator=self.random))
        starts = torch.arange(first, len(self.ids) - self.length, self.length)
        return starts[torch.randperm(len(starts), generator=self.random)]

    def next(self):
        while len(self.starts) < self.rows:
            self.starts = torch.cat((self.starts, self.epoch()))
        taken, self.starts = self.starts[:self.rows], self.starts[self.rows:]
        index = taken[:, None] + torch.arange(self.length + 1)
        return self.ids[index.to(self.ids.device)]


def held_out_windows(ids, length, rows):
    """Batches that predict every token of the stream but the first exactly once."""
    whole = (len(ids) - 1) // length
    index = torch.arange(whole, device=ids.device)[:, None] * length
    index = index + torch.arange(length + 1, device=ids.device)
    yield from ids[index].split(rows)
    rest = ids[whole * length:]
    if len(rest) > 1:
        yield rest[None]
