#!/usr/bin/python3
"""An engine for the judge's tests: honest by default, and made to misbehave at a chosen request.

Model: the recorder's mock. The next token after a context of n tokens that ends in t is
(t * 31 + n * 17 + 7) mod V. A script (JSON) is taken from --resource script=FILE:

  vocab            V (default 509)
  hello            keys that replace the hello's (null removes one)
  hello_raw        bytes (latin-1 text) written instead of the hello
  at               {"kind": K, "number": N}: the N-th request (from 1) of kind K
  do               what happens there: see ACTIONS
  with             argument of the action
  faults           further [{"at", "do", "with"}, ...]; the first that applies is taken
  spec             "mtp": rounds of speculation with depth 2, echoed
  cohort           widest cohort: its capabilities, and those of per-stream times and the replay
  deaf             true: says hello and never reads
  resident         "own": attached to a resident process, another one in each session
  slow             {"kind": seconds}: waits so long before each answer of that kind
  slower           factor of those seconds from one process to the next, counted beside the script
"""

import json
import os
import signal
import sys
import time

script = {}
script_path = None
argv = sys.argv[1:]
for flag, value in zip(argv, argv[1:]):
    if flag == "--resource" and value.startswith("script="):
        script_path = value[len("script="):]
        with open(script_path) as f:
            script = json.load(f)
    if flag == "--resource" and value.startswith("log="):
        log_path = value[len("log="):]
        with open(log_path, "w") as f:
            json.dump({"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid(),
                       "pgid": os.getpgid(0)}, f)
V = script.get("vocab", 509)
V11 = "--speculative-protocol" in argv
NONCE = "c0ffee"
out = sys.stdout.buffer


def next_token(last, length):
    return (last * 31 + length * 17 + 7) % V


def greedy(context, count):
    context = list(context)
    made = []
    for _ in range(count):
        made.append(next_token(context[-1], len(context)))
        context.append(made[-1])
    return made


def top_logits(token):
    return [{"token": (token + i) % V, "logit": 8.0 - i} for i in range(8)]


def send_raw(data):
    out.write(data)
    out.flush()


def send(reply):
    send_raw(json.dumps(reply, separators=(",", ":")).encode() + b"\n")


def dripping():
    while True:
        send_raw(b"x")
        time.sleep(0.01)


class State:
    context = []
    streams = []
    work = 0
    wrong = 0
    near = {"count": 0}
    speculate = False


def cohort_begin(q, r):
    State.streams = [list(s) for s in q["seed_tokens_by_stream"]]
    seeds = [greedy(s, 1)[0] for s in State.streams]
    for stream, token in zip(State.streams, seeds):
        stream.append(token)
    r["seed_token_by_stream"] = seeds
    r["effective_batch_size"] = len(seeds)
    r["prefill_ns_by_stream"] = [1000 + i for i in range(len(seeds))]
    State.work += 1


def cohort_run(q, r):
    n, width = q["count"], q["batch_size"]
    r["tokens_by_stream"] = [greedy(s, n) for s in State.streams]
    r["acceptance_lengths"] = [1] * n
    r["drafted_total"] = r["accepted_total"] = 0
    r["committed_total"] = n * width
    r["effective_batch_size"] = width
    r["natural_accepted_by_stream"] = [[1] * n for _ in range(width)]
    r["rounds"] = n
    r["active_streams_by_round"] = [width] * n
    r["depth_clamp_reasons"] = {"tail_depth": 1}
    r["decode_ns_by_stream"] = [1000 * n + i for i in range(width)]
    State.work += n


def replay(q, r):
    streams = []
    for slot, (seed, committed) in enumerate(zip(q["replay_seeds_by_stream"],
                                                 q["committed_by_stream"])):
        context, positions = list(seed), []
        for token in committed:
            positions.append({"committed_token": token,
                              "sequential_argmax": greedy(context, 1)[0],
                              "ranked_relative_gaps": [0.0, 0.5], "committed_relative_gap": 0.0})
            context.append(token)
        streams.append({"slot": slot, "positions": positions})
    r["cohort_reference_replay"] = {"rel_envelope": 0.05, "streams": streams}
    if "replay_width" in q:
        r["cohort_reference_replay"]["replay_width"] = q["replay_width"]


def answer(q):
    kind = q["kind"]
    r = {"id": q["id"], "nonce": NONCE, "ok": True}
    if "batch_size" in q and kind == "free_decode_begin":
        cohort_begin(q, r)
    elif "batch_size" in q and kind == "free_decode_run":
        cohort_run(q, r)
    elif kind == "cohort_reference_replay":
        replay(q, r)
    elif kind == "prefill":
        r["token"] = greedy(q["prompt_tokens"], 1)[0]
    elif kind in ("decode_begin", "free_decode_begin"):
        State.context = list(q["seed_tokens"])
        r["seed_token"] = greedy(State.context, 1)[0]
        State.context.append(r["seed_token"])
        State.work += 1
        if "spec" in q:
            echo = json.loads(json.dumps(q["spec"]))
            if echo["mode"] == "mtp":
                echo["mtp"].setdefault("depth", 2)
            r["effective_spec"] = echo
            State.speculate = echo["mode"] != "serial"
        else:
            State.speculate = False
    elif kind == "free_decode_run":
        n = q["count"]
        r["tokens"] = greedy(State.context, n)
        if State.speculate:
            lengths = [3] * (n // 3) + ([n % 3] if n % 3 else [])
            r["acceptance_lengths"] = lengths
            r["drafted_total"] = 2 * len(lengths)
            r["accepted_total"] = n - len(lengths)
        else:
            r["acceptance_lengths"] = [1] * n
            r["drafted_total"] = r["accepted_total"] = 0
        r["committed_total"] = n
        State.work += len(r["acceptance_lengths"])
    elif kind == "correctness":
        r["tokens"] = greedy(q["prompt_tokens"], q["steps"])
    elif kind in ("correctness_begin", "correctness_step", "decode_step"):
        if kind == "correctness_begin":
            State.context = list(q["prompt_tokens"])
        else:
            State.context.append(q["token"])
        r["token"] = greedy(State.context, 1)[0]
        if kind != "decode_step":
            r["top_logits"] = top_logits(r["token"])
        State.work += 1
    elif kind == "phase_diagnostics":
        r["completed_work"] = State.work
        r["cache_memory"] = 0
        State.work = 0
    else:
        r["ok"] = False
        r["error"] = "unknown kind"
    return r


def act(name, argument, q):
    """Misbehaves instead of, or besides, giving the honest answer."""
    honest = answer(q)
    if name == "die":
        os._exit(argument if isinstance(argument, int) else 3)
    if name == "kill":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hang":
        time.sleep(1000)
    if name == "stderr_and_hang":
        sys.stderr.write("now it hangs\n")
        sys.stderr.flush()
        time.sleep(1000)
    if name == "hang_with_grandchild":
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    if name == "drip":
        dripping()
    if name == "flood":
        while True:
            send_raw(b"loading weights, please wait\n" * 500)
    if name == "giant":
        while True:
            send_raw(b'{"error":"' + b"x" * (1 << 20))
    if name == "partial":
        send_raw(json.dumps(honest).encode()[: 20])
        os._exit(0)
    if name == "raw":  # one line, then the loop goes on
        send_raw(argument.encode("latin-1") + b"\n")
    if name == "set":  # the honest answer with other keys; null removes one
        for key, value in argument.items():
            if value is None:
                honest.pop(key, None)
            else:
                honest[key] = value
        send(honest)
    if name == "near_wrong":  # another token is first, the honest one `gap` logits below it
        token = honest["token"]
        State.near = {**argument, "count": argument.get("count", 1) - 1}
        honest["token"] = (token + 1) % V
        honest["top_logits"] = [{"token": honest["token"], "logit": 8.0},
                                {"token": token, "logit": 8.0 - argument["gap"]}] + \
            [{"token": (token + i) % V, "logit": -float(i)} for i in range(2, 8)]
        send(honest)
    if name == "say_and_fail":  # lines on stderr, then an error of its own words
        sys.stderr.write(argument["stderr"] + "\n")
        sys.stderr.flush()
        send({"id": q["id"], "nonce": NONCE, "ok": False, "error": argument["error"]})
    if name == "wrong_tokens_from_here":  # that many answers of this kind in a row are wrong
        State.wrong = argument - 1
        name, argument = "wrong_token", 0
    if name == "wrong_token":  # at index `argument` of the answer's tokens
        key = next(k for k in ("tokens", "token", "seed_token") if k in honest)
        if key == "tokens":
            honest["tokens"][argument or 0] = (honest["tokens"][argument or 0] + 1) % V
        else:
            honest[key] = (honest[key] + 1) % V
            if "top_logits" in honest:
                honest["top_logits"] = top_logits(honest[key])
        send(honest)
    if name == "top_logits":  # that many entries
        honest["top_logits"] = honest["top_logits"][:argument]
        send(honest)
    if name == "chatter":  # log lines on stdout, then the answer
        send_raw(b"\n  loading\r\n\t[info] ready\n" * (argument or 1))
        send(honest)
    if name == "twice":  # in one write, so that the second is there before it is asked for
        second = {**honest, "id": honest["id"] + 1}
        send_raw(json.dumps(honest).encode() + b"\n" + json.dumps(second).encode() + b"\n")
    if name == "stderr":
        sys.stderr.write(argument + "\n")
        sys.stderr.flush()
        send(honest)


def pace():
    """Seconds before an answer, by kind."""
    slow = script.get("slow", {})
    if "slower" not in script:
        return slow
    with open(f"{script_path}.starts", "a+") as f:
        f.write("x")
        f.flush()
        starts = f.tell()
    return {kind: seconds * script["slower"] ** starts for kind, seconds in slow.items()}


def main():
    slow = pace()
    hello = {"id": 0, "nonce": NONCE, "ok": True, "protocol_version": 1, "backend": "scripted",
             "device": "python"}
    if V11:
        hello["capabilities"] = ["free_run_decode"]
        hello["spec_modes"] = ["serial"] + ([script["spec"]] if "spec" in script else [])
    if "cohort" in script:
        hello["capabilities"] = ["free_run_decode", "batched_free_run_decode",
                                 "per_stream_timing", "cohort_reference_replay"]
        hello["max_batch_size"] = script["cohort"]
    if script.get("resident") == "own":
        hello["resident"] = {"pid": os.getpid(), "load_epoch": 1}
    for key, value in script.get("hello", {}).items():
        if value is None:
            hello.pop(key, None)
        else:
            hello[key] = value
    faults = [f for f in [script, *script.get("faults", [])] if "at" in f]
    for fault in faults:
        if fault["at"]["kind"] == "hello":
            act(fault["do"], fault.get("with"), {"id": 0, "kind": "phase_diagnostics"})
            return
    if "hello_raw" in script:
        send_raw(script["hello_raw"].encode("latin-1"))
    else:
        send(hello)
    if script.get("deaf"):
        time.sleep(1000)
    seen = {}
    running = None  # the kind in whose answers a fault goes on
    for line in sys.stdin:
        q = json.loads(line)
        kind = q["kind"]
        seen[kind] = seen.get(kind, 0) + 1
        time.sleep(slow.get(kind, 0))
        fault = next((f for f in faults if f["at"]["kind"] == kind and
                      f["at"].get("number", 1) == seen[kind]), None)
        if fault is not None:
            running = kind
            act(fault["do"], fault.get("with"), q)
        elif State.wrong > 0 and kind == running:
            State.wrong -= 1
            act("wrong_token", 0, q)
        elif State.near["count"] > 0 and kind == running:
            act("near_wrong", State.near, q)
        else:
            send(answer(q))


main()
