"""The toy of tests/cheats with the verbs of a correctness walk beside those of block decoding, for ranked
runs: each forward takes a time of its own, so that a block of several tokens is faster than one by one.

fault.json in the weights folder makes it misbehave:
  seconds            of each forward (default 0.004)
  spin               true: those seconds are spent computing
  stall              [round, seconds]: that round takes so much longer
  die, hang          the round in which it does
  forged             the round whose readouts are not the rows'
  wrong_token        the round whose only token is neither of the two likeliest
  wrong_seed         true: another token after the seed
  wrong_correctness  true: another token in the correctness walk
  says               a text on stderr, and as the error of its last words"""

import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cheats"))
import toy_engine  # noqa: E402


class Ranked(toy_engine.Engine):
    def __init__(self, weights, drafter, trusted=False):
        super().__init__(weights, drafter, trusted)
        path = pathlib.Path(weights) / "fault.json"
        self.fault = json.loads(path.read_text()) if path.is_file() and not trusted else {}
        self.rounds = self.work = 0
        self.walk = []

    def hello(self):
        return {**super().hello(), "spec_modes": ["serial"], "max_batch_size": 1}

    def forward_time(self):
        seconds = self.fault.get("seconds", 0.004)
        end = time.monotonic() + seconds
        if not self.fault.get("spin"):
            time.sleep(seconds)
        while time.monotonic() < end:
            pass

    def begin(self, seed):
        self.rounds = 0
        token = super().begin(seed)
        return (token + 1) % self.model["vocab"] if self.fault.get("wrong_seed") and \
            self.seed_count != 64 else token

    def block(self, token, width):
        if self.seed_count == 64:  # the warm request
            return super().block(token, width)
        self.rounds += 1
        number, fault = self.rounds, self.fault
        if "says" in fault:
            sys.stderr.write(fault["says"] + "\n")
            sys.stderr.flush()
        if number == fault.get("die"):
            os._exit(3)
        if number == fault.get("hang"):
            time.sleep(1000)
        if "says" in fault and number == 2:
            raise toy_engine.Refused(fault["says"])
        self.forward_time()
        if number == fault.get("stall", [0])[0]:
            time.sleep(fault["stall"][1])
        reply = super().block(token, width)
        if number == fault.get("wrong_token"):
            reply["per_row_top2_tokens"][0][0] = reply["tokens"][0]
        if number == fault.get("forged"):
            reply["per_row_top2_logits"] = [[a + 1.0, b + 1.0]
                                            for a, b in reply["per_row_top2_logits"]]
        return reply

    def accept(self, rows, drafts):
        if self.rounds > 0 and self.rounds == self.fault.get("wrong_token"):
            likely = toy_engine.top2(rows[0])[0]
            return [next(t for t in range(self.model["vocab"]) if t not in likely)]
        return super().accept(rows, drafts)

    # ---- the correctness walk ----

    def step(self):
        token = toy_engine.top2(self.rows(self.walk[:-1], self.walk[-1:])[0])[0][0]
        if self.fault.get("wrong_correctness"):
            token = (token + 1) % self.model["vocab"]
        self.work += 1
        others = [(token + i) % self.model["vocab"] for i in range(8)]
        return {"token": token,
                "top_logits": [{"token": t, "logit": 8.0 - i} for i, t in enumerate(others)]}

    def answer(self, q):
        kind = q["kind"]
        if kind == "correctness_begin":
            self.walk = list(q["prompt_tokens"])
            return self.step()
        if kind == "correctness_step":
            self.walk.append(q["token"])
            return self.step()
        if kind == "phase_diagnostics":
            work, self.work = self.work, 0
            return {"completed_work": work, "cache_memory": 0}
        return super().answer(q)


def main():
    toy_engine.serve(Ranked)
