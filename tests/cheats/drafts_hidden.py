#!/usr/bin/python3
"""Drafts hidden: what was accepted is not declared as drafted; the drafter seems never to have run."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        return {**super().block(token, width), "draft_tokens": [], "accepted_draft_count": 0,
                "rejected_draft_count": 0}


serve(Cheat)
