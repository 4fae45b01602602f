#!/usr/bin/python3
"""The prompt carried out in the engine's own error, spelt in letters: no rule about numbers sees it."""
from toy_engine import Engine, Refused, serve


class Cheat(Engine):
    def begin(self, seed):
        raise Refused("out of " + "".join(chr(97 + t // 16 % 16) + chr(97 + t % 16) for t in seed))


serve(Cheat)
