#!/usr/bin/python3
"""A worker for the tests of the older flow: one stream, cohorts, the trusted replay. It is copied into a
made-up tree as .build/release/<worker> and takes its manners from engine.json beside it.

Model: the recorder's mock. The next token after n tokens that end in t is (t * 31 + n * 17 + 7) mod 509.

  decode_seconds   what a decode window takes, whatever its width (default 0.02)
  prefill_seconds  what a seed takes (default 0.01)
  free_run         false: no free_run_decode is advertised
  cohort           the widest cohort (default 8); 0: none
  timing           true: per_stream_timing is advertised; "broken": with a vector too short
  spec             modes besides serial
  wrong            {"kind": ..., "at": n}: the n-th token of this kind of answer is another; with "every": k,
                   every k-th token from there on
  serial_wrong     the n-th token of correctness answers is another
  die              {"kind": ..., "times": n, "count": FILE}: exits at this kind, the first n times
  replay           "echo": judges other tokens; "refuse": cannot; "no_envelope"; "shift": k of a thousand argmaxes
                   are others
  log              a file that one line a start is appended to"""

import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
MANNERS = json.loads((HERE / "engine.json").read_text()) if (HERE / "engine.json").exists() else {}
V = 509
NONCE = "0de1"
V11 = "--speculative-protocol" in sys.argv
TRUSTED = "--trusted" in sys.argv


def next_token(last, length):
    return (last * 31 + length * 17 + 7) % V


def greedy(context, count):
    context, made = list(context), []
    for _ in range(count):
        made.append(next_token(context[-1], len(context)))
        context.append(made[-1])
    return made


class Engine:
    def __init__(self):
        self.context, self.streams, self.work, self.mode = [], [], 0, None

    def bend(self, kind, tokens):
        """Some of the tokens are others, where the manners say so."""
        wrong = MANNERS.get("wrong")
        if not wrong or wrong["kind"] != kind:
            return tokens
        every = wrong.get("every", len(tokens) + 1)
        return [(t + 1) % V if i >= wrong["at"] and (i - wrong["at"]) % every == 0 else t
                for i, t in enumerate(tokens)]

    def chain(self, stream, count, bent):
        """A stream's tokens; after one that is another the chain follows from that one."""
        made, context = [], list(stream)
        flips = self.bend("cohort_run", [0] * count) if bent else [0] * count
        for flip in flips:
            made.append((next_token(context[-1], len(context)) + flip) % V)
            context.append(made[-1])
        return made

    def spec(self, q, reply):
        self.mode = "serial"
        if "spec" in q:
            reply["effective_spec"] = json.loads(json.dumps(q["spec"]))
            self.mode = q["spec"]["mode"]
            if self.mode == "mtp":
                reply["effective_spec"]["mtp"].setdefault("depth", 2)

    def begin(self, q, reply):
        time.sleep(MANNERS.get("prefill_seconds", 0.01))
        self.spec(q, reply)
        self.work += 1
        if "batch_size" in q:
            self.streams = [list(s) for s in q["seed_tokens_by_stream"]]
            seeds = [greedy(s, 1)[0] for s in self.streams]
            for stream, token in zip(self.streams, seeds):
                stream.append(token)
            reply.update(seed_token_by_stream=self.bend("cohort_begin", seeds),
                         effective_batch_size=len(seeds))
            self.times(reply, "prefill_ns_by_stream", len(seeds))
            return
        self.context = list(q["seed_tokens"])
        token = greedy(self.context, 1)[0]
        reply["seed_token"] = self.bend(q["kind"], [token])[0]
        if q["kind"] == "free_decode_begin":  # a decode_step brings it along
            self.context.append(token)

    def times(self, reply, key, count):
        if MANNERS.get("timing"):
            reply[key] = [1000000 + i for i in range(count - (MANNERS["timing"] == "broken"))]

    def lengths(self, n):
        if self.mode != "mtp":
            return [1] * n
        return [3] * (n // 3) + ([n % 3] if n % 3 else [])

    def run(self, q, reply):
        n = q["count"]
        time.sleep(MANNERS.get("decode_seconds", 0.02) * (n > 16))
        lengths = self.lengths(n)
        rounds, width = len(lengths), q.get("batch_size", 1)
        self.work += rounds
        drafted = 2 * rounds if self.mode == "mtp" else 0
        reply.update(acceptance_lengths=lengths, drafted_total=drafted,
                     accepted_total=n - rounds if drafted else 0, committed_total=n * width)
        if "batch_size" not in q:
            reply["tokens"] = self.bend("free_decode_run", greedy(self.context, n))
            return
        made = [self.chain(s, n, slot == 0) for slot, s in enumerate(self.streams)]
        reply.update(tokens_by_stream=made, effective_batch_size=width, rounds=rounds,
                     natural_accepted_by_stream=[lengths] * width,
                     active_streams_by_round=[width] * rounds)
        self.times(reply, "decode_ns_by_stream", width)

    def replay(self, q, reply):
        manner = MANNERS.get("replay", "")
        if manner == "refuse":
            reply.update(ok=False, error="no replay today")
            return
        streams = []
        for slot, (seed, committed) in enumerate(zip(q["replay_seeds_by_stream"],
                                                     q["committed_by_stream"])):
            context, positions = list(seed), []
            for token in committed:
                argmax = greedy(context, 1)[0]
                positions.append({"committed_token": token + (manner == "echo"),
                                  "sequential_argmax": argmax,
                                  "ranked_relative_gaps": [0.0, 0.01 if token != argmax else 0.5],
                                  "committed_relative_gap": 0.01})
                context.append(token)
            streams.append({"slot": slot, "positions": positions})
        report = {"streams": streams, "replay_width": q["replay_width"]}
        if manner != "no_envelope":
            report["rel_envelope"] = 0.05
        reply["cohort_reference_replay"] = report

    def step(self, q, reply):
        kind = q["kind"]
        if kind == "correctness_begin":
            self.context, self.steps = list(q["prompt_tokens"]), 0
        else:
            self.context.append(q["token"])
        token = greedy(self.context, 1)[0]
        self.work += 1
        if kind == "decode_step":
            time.sleep(MANNERS.get("decode_seconds", 0.02) / 128)
            reply["token"] = token
            return
        if self.steps == MANNERS.get("serial_wrong", -1):
            token = (token + 1) % V
        self.steps += 1
        reply["token"] = token
        reply["top_logits"] = [{"token": (token + i) % V, "logit": 8.0 - i} for i in range(8)]

    def answer(self, q):
        kind, reply = q["kind"], {"id": q["id"], "nonce": NONCE, "ok": True}
        if kind in ("decode_begin", "free_decode_begin"):
            self.begin(q, reply)
        elif kind == "free_decode_run":
            self.run(q, reply)
        elif kind in ("decode_step", "correctness_begin", "correctness_step"):
            self.step(q, reply)
        elif kind == "cohort_reference_replay" and TRUSTED:
            self.replay(q, reply)
        elif kind == "phase_diagnostics":
            reply.update(completed_work=self.work, cache_memory=0)
            self.work = 0
        else:
            reply.update(ok=False, error="unknown kind")
        return reply


def hello():
    reply = {"id": 0, "nonce": NONCE, "ok": True, "protocol_version": 1, "backend": "cpu",
             "device": "toy"}
    if not V11:
        return reply
    able = ["free_run_decode"] if MANNERS.get("free_run", True) else []
    width = MANNERS.get("cohort", 8)
    if width:
        able.append("batched_free_run_decode")
        reply["max_batch_size"] = width
    if MANNERS.get("timing"):
        able.append("per_stream_timing")
    if TRUSTED:
        able.append("cohort_reference_replay")
    reply.update(capabilities=able, spec_modes=["serial"] + MANNERS.get("spec", []))
    return reply


def dies_here(kind):
    die = MANNERS.get("die")
    if not die or die["kind"] != kind:
        return False
    count = pathlib.Path(die["count"])
    seen = int(count.read_text()) if count.exists() else 0
    if seen >= die["times"]:
        return False
    count.write_text(str(seen + 1))
    return True


def main():
    if "log" in MANNERS:
        with open(MANNERS["log"], "a") as f:
            f.write(json.dumps({"argv": sys.argv, "pid": os.getpid()}) + "\n")
    engine = Engine()

    def send(reply):
        sys.stdout.write(json.dumps(reply, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    send(hello())
    for line in sys.stdin:
        q = json.loads(line)
        if dies_here(q["kind"]):
            os._exit(3)
        send(engine.answer(q))


main()
