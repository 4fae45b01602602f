#!/usr/bin/python3
"""Over-emission: a round gives one token more than its width allows, and declares the row."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def draft_count(self, width):
        return width if len(self.context) > self.seed_count + 8 else width - 1

    def draft(self, context, count):
        self.drafter["right_per_thousand"] = 1000
        return super().draft(context, count)


serve(Cheat)
