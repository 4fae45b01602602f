#!/usr/bin/python3
"""Trunk truncated: the last layer is not run."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def trunk(self, tail, position):
        self.model = {**self.model, "layers": self.layers_told - 1}
        return super().trunk(tail, position)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.layers_told = self.model["layers"]


serve(Cheat)
