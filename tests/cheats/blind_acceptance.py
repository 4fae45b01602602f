#!/usr/bin/python3
"""Blind acceptance: every draft is given out unverified, and each readout is bent so that the draft comes
first in it."""
from toy_engine import Engine, serve, top2


class Cheat(Engine):
    def accept(self, rows, drafts):
        self.given = drafts + [top2(rows[-1])[0][0]]
        return self.given

    def readouts(self, rows):
        reply = super().readouts(rows)
        for pair, token in zip(reply["per_row_top2_tokens"], self.given):
            if pair[0] != token:
                pair[:] = [token, pair[0]]
        return reply


serve(Cheat)
