#!/usr/bin/python3
"""The toy block engine (tests/cheats/toy_engine.py), made to misbehave at a chosen request.

A fault.json in the drafter's folder:

  role    "candidate" or "reference": whose worker misbehaves
  hello   keys that replace the hello's; null removes one
  bare    true: a hello of id, nonce and ok
  at      kind of the request, number its ordinal (from 1)
  do      set      the honest reply with other keys; null removes one
          add      numbers added to the reply's
          shorten  keys whose last element goes
          replace  key: [index, value]
          hang, die, refuse, twice
  with    its argument
  log     FILE.candidate and FILE.reference hold the process and its requests"""

import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cheats"))
import toy_engine  # noqa: E402

FOLDER = pathlib.Path(dict(zip(sys.argv, sys.argv[1:]))["--drafter"])
FAULT = json.loads((FOLDER / "fault.json").read_text()) if (FOLDER / "fault.json").exists() else {}
ROLE = "reference" if "--trusted" in sys.argv else "candidate"
LOG = FAULT.get("log")
if FAULT.get("role", "candidate") != ROLE:
    FAULT = {}
SEEN = []


class Faulty(toy_engine.Engine):
    def hello(self):
        hello = super().hello()
        if FAULT.get("bare"):
            return {key: hello[key] for key in ("id", "nonce", "ok")}
        hello.update(FAULT.get("hello", {}))
        return {key: value for key, value in hello.items() if value is not None}

    def answer(self, q):
        SEEN.append(q)
        if LOG:
            pathlib.Path(f"{LOG}.{ROLE}").write_text(json.dumps({"pid": os.getpid(), "seen": SEEN}))
        kind = q["kind"]
        self.counts = getattr(self, "counts", {})
        self.counts[kind] = self.counts.get(kind, 0) + 1
        reply = super().answer(q)
        if FAULT.get("at") == kind and FAULT.get("number", 1) == self.counts[kind]:
            return act(FAULT["do"], FAULT.get("with"), reply)
        return reply


def act(name, argument, reply):
    if name == "hang":
        signal.pause()
    if name == "die":
        os._exit(3)
    if name == "refuse":
        raise toy_engine.Refused(argument)
    if name == "set":
        reply = {key: value for key, value in {**reply, **argument}.items() if value is not None}
    if name == "add":
        reply = {**reply, **{key: reply[key] + n for key, n in argument.items()}}
    if name == "shorten":
        reply = {**reply, **{key: reply[key][:-1] for key in argument}}
    if name == "replace":
        for key, (index, value) in argument.items():
            reply[key] = [*reply[key][:index], value, *reply[key][index + 1:]]
    if name == "twice":
        toy_engine.send({"id": -2, "nonce": toy_engine.NONCE, "ok": True})
    return reply


if __name__ == "__main__":
    toy_engine.serve(Faulty)
