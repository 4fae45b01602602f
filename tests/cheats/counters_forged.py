#!/usr/bin/python3
"""Counters forged: at the end the engine tells a better acceptance than its rounds had."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def diagnostics(self):
        reply = super().diagnostics()
        return {**reply, "accepted_draft_count": reply["accepted_draft_count"] + 1,
                "rejected_draft_count": reply["rejected_draft_count"] - 1}


serve(Cheat)
