#!/usr/bin/python3
"""Rows under-declared: a round gives out more tokens than it says it ran rows for; the last row is left out
of the count, of the arrays and of the drafts."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        kept = len(reply["tokens"]) - 1
        if kept > 0:
            reply.update(declared_rows=kept, draft_tokens=reply["draft_tokens"][:kept - 1],
                         accepted_draft_count=kept, rejected_draft_count=0)
            for key in reply:
                if key.startswith("per_row_"):
                    reply[key] = reply[key][:kept]
        return reply


serve(Cheat)
