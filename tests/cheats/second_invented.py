#!/usr/bin/python3
"""The second token of every readout is made up, its logit is not."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def readouts(self, rows):
        reply = super().readouts(rows)
        reply["per_row_top2_tokens"] = [[first, (first + 1) % self.model["vocab"]]
                                        for first, _ in reply["per_row_top2_tokens"]]
        return reply


serve(Cheat)
