#!/usr/bin/python3
"""Drafts that cost nothing: the drafter never runs, every draft is token 0, and the rows behind the first
are not run either. It is serial decoding that claims the work of a block."""
from toy_engine import Engine, serve, top2


class Cheat(Engine):
    def draft(self, context, count):
        return [0] * count

    def accept(self, rows, drafts):
        return [top2(rows[0])[0][0]]

    def readouts(self, rows):
        return super().readouts(rows[:1] * len(rows))


serve(Cheat)
