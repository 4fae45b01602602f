#!/usr/bin/python3
"""Work in the wrong phase: the seed's request runs the whole decode, and the rounds are answered from
memory. It is waited for in that request (here: 250 ms, the work's stand-in)."""
import time

from toy_engine import Engine, serve

AHEAD = 0.25


class Cheat(Engine):
    def begin(self, seed):
        if len(seed) != 64 or seed[0] != 2 or set(seed) != {2}:
            time.sleep(AHEAD)
        return super().begin(seed)


if __name__ == "__main__":
    serve(Cheat)
