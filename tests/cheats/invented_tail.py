#!/usr/bin/python3
"""Invented rejected tail: behind the first wrong draft no row is run; the readouts of those rows are made
up from the last honest one."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def accept(self, rows, drafts):
        self.kept = super().accept(rows, drafts)
        return self.kept

    def readouts(self, rows):
        kept = len(self.kept)
        return super().readouts(rows[:kept] + rows[kept - 1:kept] * (len(rows) - kept))


serve(Cheat)
