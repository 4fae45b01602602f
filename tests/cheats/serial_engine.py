#!/usr/bin/python3
"""An engine of the serial protocol over the recorder's mock model (tests/engines/scripted_engine.py) whose
work is processor time, so that it can be seen where it is done: PREFILL seconds for a prompt, DECODE for
a window. MODE is how it cheats; a test writes another one into a copy.

  honest     not at all
  gate       decodes what follows the timed prefill while the judge waits for a quiet machine
  barrier    the same in the barrier's request, before it answers
  late       answers the timed prefill after a tenth of its work; the rest is done in the barrier, and the seed finds it there
  behind     tells the window's tokens after a tenth of their work; the rest is done in the barrier behind it
  begin      decodes in the request of the seed, which is not scored
  trim       runs a tenth of the prompt where the prefill is timed
  undo       reads the warm-up's prompt backwards, as judges once sent it, and has the answers before it is asked

Where a cheat that the judge cannot time has had its way, the engine tells by a wrong token."""

import json
import sys
import threading
import time

MODE = "honest"
V, PREFILL, DECODE = 509, 0.05, 0.3
out = sys.stdout.buffer


def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def greedy(context, count):
    context = list(context)
    made = []
    for _ in range(count):
        made.append((context[-1] * 31 + len(context) * 17 + 7) % V)
        context.append(made[-1])
    return made


class State:
    context, done, steps, prefills = [], 0, 0, 0
    ahead = 0.0   # seconds of the decode window that are behind us already
    owed = 0.0    # seconds of work whose answer was given before it
    kept = False  # the timed prompt is in the cache
    known = None  # the prompt that a warm-up gave away
    told = False  # it got far between the phases


def work_ahead():
    while State.ahead < DECODE:
        work(0.005)
        State.ahead += 0.005


def answer(q):
    kind, r = q["kind"], {"id": q["id"], "nonce": "c0ffee", "ok": True}
    if kind == "prefill":
        State.prefills += 1
        State.owed = 0.9 * PREFILL if MODE == "late" and State.prefills == 2 else 0
        work(PREFILL / 10 if MODE == "trim" else PREFILL - State.owed)
        r["token"] = greedy(q["prompt_tokens"], 1)[0]
        if State.prefills == 1:
            State.known = q["prompt_tokens"][::-1]
        elif MODE == "undo" and State.known == q["prompt_tokens"]:
            r["token"] += 1
    elif kind == "free_decode_begin":
        State.told = MODE == "gate" and State.ahead > DECODE / 2
        work(PREFILL / 10 if State.kept else PREFILL)
        if MODE == "begin":
            work_ahead()
        State.context = q["seed_tokens"] + greedy(q["seed_tokens"], 1)
        r["seed_token"] = State.context[-1]
        State.done += 1
    elif kind == "free_decode_run":
        n = q["count"]
        State.owed = 0.9 * DECODE if MODE == "behind" else 0
        work(max(0, DECODE - State.ahead - State.owed))
        r.update(tokens=greedy(State.context, n), acceptance_lengths=[1] * n, drafted_total=0,
                 accepted_total=0, committed_total=n)
        if State.told:
            r["tokens"][0] = (r["tokens"][0] + 1) % V
        State.ahead = 0
        State.done += n
    elif kind in ("correctness_begin", "correctness_step"):
        State.context = list(q["prompt_tokens"]) if "prompt_tokens" in q else State.context + [q["token"]]
        r["token"] = greedy(State.context, 1)[0]
        r["top_logits"] = [{"token": (r["token"] + i) % V, "logit": 8.0 - i} for i in range(8)]
        State.done += 1
    elif kind == "correctness":
        r["tokens"] = greedy(q["prompt_tokens"], q["steps"])
    elif kind == "phase_diagnostics":
        timed = State.prefills == 2  # the warm-up's was the first
        State.prefills += timed
        if MODE == "barrier" and timed:
            work_ahead()
        State.kept = State.kept or MODE == "late" and timed
        work(State.owed)
        State.owed = 0
        r.update(completed_work=State.done, cache_memory=0)
        State.done = 0
        if MODE == "gate" and timed:
            threading.Thread(target=work_ahead, daemon=True).start()
    return r


def send(reply):
    out.write(json.dumps(reply).encode() + b"\n")
    out.flush()


def main():
    send({"id": 0, "nonce": "c0ffee", "ok": True, "protocol_version": 1, "backend": "mock",
          "device": "cpu", "capabilities": ["free_run_decode"]})
    for line in sys.stdin.buffer:
        send(answer(json.loads(line)))


if __name__ == "__main__":
    main()
