#!/usr/bin/python3
"""Golden fished from error text: in its tenth round the engine gives a wrong token on purpose, hoping that
the refusal names the right one, and writes the prompt it was given to its log."""
import sys

from toy_engine import Engine, serve


class Cheat(Engine):
    def begin(self, seed):
        print("expected", *seed[-8:], file=sys.stderr, flush=True)
        self.rounds = 0
        return super().begin(seed)

    def accept(self, rows, drafts):
        tokens = super().accept(rows, drafts)
        self.rounds += 1
        if self.rounds == 4:
            tokens[-1] = (tokens[-1] + self.model["vocab"] // 2) % self.model["vocab"]
        return tokens


serve(Cheat)
