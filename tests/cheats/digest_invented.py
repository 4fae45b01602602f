#!/usr/bin/python3
"""Digests invented: the digest of a row's hidden taps is any 64 digits."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def readouts(self, rows):
        return {**super().readouts(rows), "per_row_hidden_digest": ["0" * 64] * len(rows)}


serve(Cheat)
