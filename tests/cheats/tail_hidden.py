#!/usr/bin/python3
"""Rejected rows not told: only the rows of tokens given out are declared, so that every draft seems to have
been right."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        kept = len(reply["tokens"])
        self.rejected -= reply["rejected_draft_count"]
        self.rollbacks = 0
        reply.update(declared_rows=kept, draft_tokens=reply["draft_tokens"][:kept - 1],
                     rejected_draft_count=0)
        for key in reply:
            if key.startswith("per_row_"):
                reply[key] = reply[key][:kept]
        return reply


serve(Cheat)
