#!/usr/bin/python3
"""Fabricated rejection: drafts that were right are called wrong, so that a round costs one row of head and
cache and still shows a block's work. The readouts are honest."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def accept(self, rows, drafts):
        return super().accept(rows[:1], [])


serve(Cheat)
