#!/usr/bin/python3
"""Warm-up refused: the engine will not be warmed by the judge's request, and has its own way."""
from toy_engine import Engine, Refused, serve


class Cheat(Engine):
    def warm(self):
        raise Refused("warm already")


serve(Cheat)
