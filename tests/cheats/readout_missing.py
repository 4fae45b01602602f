#!/usr/bin/python3
"""Readouts left out: the tail's rows are declared without readouts."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def readouts(self, rows):
        return super().readouts(rows[:1])


serve(Cheat)
