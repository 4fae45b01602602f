#!/usr/bin/python3
"""Head pruned: two ids of the vocabulary are never computed. Where neither is among a row's two largest,
nothing differs."""
from toy_engine import Engine, serve


class Cheat(Engine):
    pruned = (11, 12)

    def logits(self, tail, position, width):
        row = super().logits(tail, position, width)
        return tuple(0.0 if at in self.pruned else v for at, v in enumerate(row))


serve(Cheat)
