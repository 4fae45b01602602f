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
  spec             "mtp": rounds of speculation with depth 2, echoed
"""

import json
import os
import signal
import sys
import time

script = {}
argv = sys.argv[1:]
for flag, value in zip(argv, argv[1:]):
    if flag == "--resource" and value.startswith("script="):
        with open(value[len("script="):]) as f:
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
    work = 0
    wrong = 0
    speculate = False


def answer(q):
    kind = q["kind"]
    r = {"id": q["id"], "nonce": NONCE, "ok": True}
    if kind == "prefill":
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


def main():
    hello = {"id": 0, "nonce": NONCE, "ok": True, "protocol_version": 1, "backend": "scripted",
             "device": "python"}
    if V11:
        hello["capabilities"] = ["free_run_decode"]
        hello["spec_modes"] = ["serial"] + ([script["spec"]] if "spec" in script else [])
    for key, value in script.get("hello", {}).items():
        if value is None:
            hello.pop(key, None)
        else:
            hello[key] = value
    at = script.get("at", {})
    if at.get("kind") == "hello":
        q = {"id": 0, "kind": "phase_diagnostics"}
        act(script["do"], script.get("with"), q)
        return
    if "hello_raw" in script:
        send_raw(script["hello_raw"].encode("latin-1"))
    else:
        send(hello)
    seen = {}
    for line in sys.stdin:
        q = json.loads(line)
        kind = q["kind"]
        seen[kind] = seen.get(kind, 0) + 1
        if kind == at.get("kind") and seen[kind] == at.get("number", 1):
            act(script["do"], script.get("with"), q)
        elif State.wrong > 0 and kind == at.get("kind"):
            State.wrong -= 1
            act("wrong_token", 0, q)
        else:
            send(answer(q))


main()
