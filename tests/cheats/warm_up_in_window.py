#!/usr/bin/python3
"""Warm-up skipped: what a first block must build is built inside the window, where it makes one block far
longer than the others (an engine that measures itself by its median would not count it)."""
import time

from toy_engine import Engine, serve


class Cheat(Engine):
    def warm(self):
        pass

    def block(self, token, width):
        if not hasattr(self, "built"):
            time.sleep(2.0)
            self.built = True
        return super().block(token, width)


serve(Cheat)
