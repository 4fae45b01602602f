#!/usr/bin/python3
"""Rows under-declared: the last row is left out of the count and of the arrays, with its token given out."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        kept = max(1, len(reply["tokens"]) - 1)
        reply["declared_rows"] = kept
        for key in reply:
            if key.startswith("per_row_"):
                reply[key] = reply[key][:kept]
        reply["draft_tokens"] = reply["draft_tokens"][:kept - 1]
        return reply


serve(Cheat)
