#!/usr/bin/python3
"""Gone before the end: after half of the tokens the process ends, as if it had finished."""
import os

from toy_engine import Engine, serve


class Cheat(Engine):
    def block(self, token, width):
        if len(self.context) > self.seed_count + 16 and set(self.context[:4]) != {2}:
            os._exit(0)
        return super().block(token, width)


serve(Cheat)
