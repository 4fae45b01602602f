#!/usr/bin/python3
"""Cheats on a real engine: starts it, passes requests on and alters what comes back.

BENCH_WORKER_PROXIED is the real engine's program, BENCH_WORKER_CHEAT one of CHEATS. It must run
without the sandbox, which lets no engine start another."""

import json
import os
import subprocess
import sys

ROW_KEYS = ("per_row_hidden_digest", "per_row_top2_tokens", "per_row_top2_logits")


class Proxy:
    """Honest: what comes back is passed on."""

    def __init__(self):
        self.worker = subprocess.Popen([os.environ["BENCH_WORKER_PROXIED"], *sys.argv[1:]],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello = self.read()

    def read(self):
        line = self.worker.stdout.readline()
        if not line:
            raise SystemExit("proxy: the engine is gone")
        return json.loads(line)

    def ask(self, request):
        self.worker.stdin.write(json.dumps(request) + "\n")
        self.worker.stdin.flush()
        return self.read()

    def answer(self, request):
        reply = self.ask(request)
        if request["kind"] == "dflash_decode_block" and reply["ok"]:
            self.block(reply)
        return reply

    def block(self, reply):
        pass

    def run(self):
        print(json.dumps(self.hello), flush=True)
        for line in sys.stdin:
            print(json.dumps(self.answer(json.loads(line))), flush=True)
        self.worker.stdin.close()
        self.worker.wait()


class OneHeadRow(Proxy):
    """The head's first row is every row's readout."""

    def block(self, reply):
        for key in ROW_KEYS:
            reply[key] = reply[key][:1] * len(reply[key])


class InventedTail(Proxy):
    """Rows behind the tokens have the last kept row's readout."""

    def block(self, reply):
        kept = len(reply["tokens"])
        for key in ROW_KEYS:
            reply[key] = reply[key][:kept] + reply[key][kept - 1:kept] * (len(reply[key]) - kept)


class BlindAcceptance(Proxy):
    """Every draft is given out. The engine is begun anew behind them, so that it goes on from there."""

    def answer(self, request):
        kind = request["kind"]
        if kind == "dflash_decode_begin":
            self.chain, self.accepted = list(request["seed_tokens"]), 0
        reply = self.ask(self.renumbered(request))
        reply["id"] = request["id"]
        if kind == "dflash_phase_diagnostics":
            reply.update(accepted_draft_count=self.accepted, rejected_draft_count=0,
                         rollback_round_count=0, target_cache_offset=len(self.chain))
        if kind == "dflash_decode_block" and reply["ok"]:
            self.chain.append(request["token"])
            self.accept(reply)
            begun = self.ask(self.renumbered({"id": 0, "kind": "dflash_decode_begin",
                                              "seed_tokens": self.chain}))
            if begun.get("seed_token") != reply["tokens"][-1]:
                raise SystemExit("proxy: the engine does not go on from its own token")
        return reply

    number = 0

    def renumbered(self, request):
        """The engine's ids count on: it gets more requests than the judge sends."""
        self.number += 1
        return {**request, "id": self.number}

    def accept(self, reply):
        drafts, rows = reply["draft_tokens"], reply["declared_rows"]
        last = reply["per_row_top2_tokens"][-1][0]
        reply["tokens"] = drafts + [last]
        reply["accepted_draft_count"], reply["rejected_draft_count"] = rows - 1, 0
        self.accepted += rows - 1
        self.chain += drafts
        reply["target_cache_offset"] = len(self.chain)
        self.readouts(reply)

    def readouts(self, reply):
        for pair, token in zip(reply["per_row_top2_tokens"], reply["tokens"]):
            if pair[0] != token:
                pair[:] = [token, pair[0]]


class HeadSkipped(BlindAcceptance):
    """As blind acceptance; the readouts are the drafter's view, here its token over the first row's logits."""

    def readouts(self, reply):
        super().readouts(reply)
        first = reply["per_row_top2_logits"][0]
        reply["per_row_top2_logits"] = [list(first) for _ in reply["tokens"]]


class PromptTrimmed(Proxy):
    """BENCH_WORKER_TRIMMED tokens behind the prompt's first are never run; offsets are told as if they had been."""

    def answer(self, request):
        trimmed = int(os.environ["BENCH_WORKER_TRIMMED"])
        if request["kind"] == "dflash_decode_begin":
            seed = request["seed_tokens"]
            request = {**request, "seed_tokens": seed[:1] + seed[1 + trimmed:]}
        reply = self.ask(request)
        if reply.get("target_cache_offset"):
            reply["target_cache_offset"] += trimmed
        return reply


class NearTiesChosen(BlindAcceptance):
    """A draft that is the second of a near tie is taken, as often as BENCH_WORKER_NEAR_TIES allows: the readout's two
    tokens change places, its logits stay. The engine is begun anew behind it."""

    def __init__(self):
        super().__init__()
        self.left = int(os.environ["BENCH_WORKER_NEAR_TIES"])
        self.gap = float(os.environ["BENCH_WORKER_NEAR_TIE_LOGITS"])
        self.counts = [0, 0, 0]

    def answer(self, request):
        kind = request["kind"]
        if kind == "dflash_decode_begin":
            self.chain, self.counts = list(request["seed_tokens"]), [0, 0, 0]
        reply = self.ask(self.renumbered(request))
        reply["id"] = request["id"]
        if kind == "dflash_phase_diagnostics":
            accepted, rejected, rollbacks = self.counts
            reply.update(accepted_draft_count=accepted, rejected_draft_count=rejected,
                         rollback_round_count=rollbacks, target_cache_offset=len(self.chain))
        if kind == "dflash_decode_block" and reply["ok"]:
            self.round(request["token"], reply)
        return reply

    def round(self, token, reply):
        honest, drafts, tokens = reply["tokens"], reply["draft_tokens"], []
        for row, draft in enumerate([*drafts, None]):
            pair, logits = reply["per_row_top2_tokens"][row], reply["per_row_top2_logits"][row]
            if draft == pair[1] and self.left > 0 and logits[0] - logits[1] <= self.gap:
                self.left -= 1
                pair.reverse()
            tokens.append(pair[0])
            if draft != pair[0]:
                break
        accepted, rejected = len(tokens) - 1, len(drafts) + 1 - len(tokens)
        self.counts = [a + b for a, b in zip(self.counts, (accepted, rejected, rejected > 0))]
        self.chain += [token, *tokens[:-1]]
        reply.update(tokens=tokens, accepted_draft_count=accepted, rejected_draft_count=rejected,
                     target_cache_offset=len(self.chain))
        if tokens != honest:
            begun = self.ask(self.renumbered({"id": 0, "kind": "dflash_decode_begin",
                                              "seed_tokens": self.chain}))
            if begun.get("seed_token") != tokens[-1]:
                raise SystemExit("proxy: the engine does not go on from its own token")


CHEATS = {c.__name__: c for c in (Proxy, OneHeadRow, InventedTail, BlindAcceptance, HeadSkipped, PromptTrimmed,
                                  NearTiesChosen)}

if __name__ == "__main__":
    CHEATS[os.environ.get("BENCH_WORKER_CHEAT", "Proxy")]().run()
