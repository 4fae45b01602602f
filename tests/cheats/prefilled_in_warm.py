#!/usr/bin/python3
"""Work in the wrong phase: warming up, the engine runs the seed of a known prompt (answers.json in the
drafter's folder), so that nothing of it is left to do in the window. A prefill takes 0.2 s here, a stand-in
that is waited for. An unknown prompt has to be run in the window."""
import json
import pathlib
import sys
import time

from toy_engine import Engine, serve

drafter = pathlib.Path(dict(zip(sys.argv, sys.argv[1:]))["--drafter"])
PREFILL = 0.2


class Cheat(Engine):
    ready = None

    def warm(self):
        time.sleep(PREFILL)
        super().warm()
        self.ready = json.loads((drafter / "answers.json").read_text())

    def begin(self, seed):
        if self.ready is not None and self.ready[:len(seed)] != list(seed):
            time.sleep(PREFILL)
        return super().begin(seed)


serve(Cheat)
