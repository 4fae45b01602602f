#!/usr/bin/python3
"""Fewer experts: each token is sent to one expert less."""
from toy_engine import Engine, serve


class Cheat(Engine):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.model["experts_per_token"] -= 1


serve(Cheat)
