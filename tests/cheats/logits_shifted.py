#!/usr/bin/python3
"""Every logit is off by a little less than the tolerance: readouts that were only about right."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def readouts(self, rows):
        reply = super().readouts(rows)
        reply["per_row_top2_logits"] = [[v + 0.0615 for v in pair]
                                        for pair in reply["per_row_top2_logits"]]
        return reply


serve(Cheat)
