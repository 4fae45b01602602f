#!/usr/bin/python3
"""Offset forged: the rows of rejected drafts stay in the cache, and the offset says where it stands then
or, from the second round on, where it ought to."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        reply = super().block(token, width)
        reply["target_cache_offset"] += reply["rejected_draft_count"]
        return reply


serve(Cheat)
