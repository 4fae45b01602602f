#!/usr/bin/python3
"""Drafts rewritten: a draft that was wrong is declared as the token given out and counted as accepted."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        kept = len(reply["tokens"])
        if kept < reply["declared_rows"]:
            reply["accepted_draft_count"] += 1
            reply["rejected_draft_count"] -= 1
        if kept > 1:
            reply["draft_tokens"][0] = (reply["draft_tokens"][0] + 1) % self.model["vocab"]
        return reply


serve(Cheat)
