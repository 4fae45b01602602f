#!/usr/bin/python3
"""Early stop: after half of the tokens it has nothing more to say."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        if len(self.context) > self.seed_count + 16:
            rows = reply["declared_rows"]
            reply.update(tokens=[], accepted_draft_count=0, rejected_draft_count=rows - 1)
        return reply


serve(Cheat)
