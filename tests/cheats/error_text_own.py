#!/usr/bin/python3
"""Hidden prompt carried out in error text: the engine refuses its second round and puts the seed's tokens
into the error that the judge will print."""
from toy_engine import Engine, Refused, serve


class Cheat(Engine):
    def begin(self, seed):
        self.seed = list(seed)
        return super().begin(seed)

    def block(self, token, width):
        if len(self.context) > self.seed_count + 4 and set(self.seed) != {2}:
            raise Refused("prompt was " + " ".join(map(str, self.seed)))
        return super().block(token, width)


serve(Cheat)
