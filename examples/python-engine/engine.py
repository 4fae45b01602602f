#!/usr/bin/python3
"""A whole engine for Engine Protocol v1, written from docs/writing-an-engine.md and from nothing else.

The model is a toy: after n tokens of which t is the last, the next token is
(last * t + length * n + add) mod vocab_size, with the three numbers of rule.json. Everything around it is
what any engine needs. Python's standard library only."""

import hashlib
import json
import os
import pathlib
import sys
import time

LINE_LIMIT = 64 << 20
TOP, MTP_DEPTH, MAX_STREAMS = 8, 2, 4

class Refused(Exception):
    """A request that is not served."""

class Model:
    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        rule = json.loads((folder / "rule.json").read_text())
        for name, source in (("vocab_size", config), ("context", config), ("last", rule),
                             ("length", rule), ("add", rule)):
            if type(source.get(name)) is not int or source[name] < 1:
                raise ValueError(f"{name} must be a positive integer")
        if config.get("model_type") != "toy" or config["vocab_size"] < TOP:
            raise ValueError("not a toy model with at least 8 tokens")
        self.vocab, self.context, self.rule = config["vocab_size"], config["context"], rule
        # The file keeps the declared order of fields, so that these are the canonical bytes.
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.manifest_bytes = json.dumps(self.manifest, separators=(",", ":"),
                                         ensure_ascii=False).encode()

    def next(self, last, length):
        """One forward: the argmax after `length` tokens that end in `last`."""
        r = self.rule
        return (r["last"] * last + r["length"] * length + r["add"]) % self.vocab

    def top_logits(self, token):
        """The eight largest logits. The last two are equal, so the lower token comes first."""
        others = [(token + i) % self.vocab for i in range(1, TOP - 2)]
        tied = sorted((token + i) % self.vocab for i in (TOP - 2, TOP - 1))
        logits = [8.0 - i for i in range(TOP - 1)] + [2.0]
        return [{"token": t, "logit": x} for t, x in zip([token, *others, *tied], logits)]

class Sequence:
    """One stream: what was fed, and the argmax after it."""

    def __init__(self, model, prompt):
        self.model, self.last, self.length = model, prompt[-1], len(prompt)

    def argmax(self):
        return self.model.next(self.last, self.length)

    def feed(self, token):
        self.last, self.length = token, self.length + 1

    def greedy(self, count):
        tokens = []
        for _ in range(count):
            tokens.append(self.argmax())
            self.feed(tokens[-1])
        return tokens

def integer(v):
    return type(v) is int and -1 << 63 <= v < 1 << 63  # type(), because True is an int

def tokens(v):
    return type(v) is list and all(map(integer, v))

def lists(v):
    return type(v) is list and all(map(tokens, v))

KEYS = {"id": integer, "kind": lambda v: type(v) is str, "prompt_tokens": tokens, "token": integer,
        "seed_tokens": tokens, "steps": integer, "count": integer,
        "spec": lambda v: type(v) is dict, "seed_tokens_by_stream": lists, "batch_size": integer,
        "replay_seeds_by_stream": lists, "committed_by_stream": lists, "logit_top_k": integer,
        "rel_envelope": lambda v: type(v) in (int, float), "replay_width": lambda v: type(v) is str}
KINDS = {"prefill": ["prompt_tokens"], "correctness": ["prompt_tokens", "steps"],
         "correctness_begin": ["prompt_tokens"], "correctness_step": ["token"],
         "decode_begin": ["seed_tokens"], "decode_step": ["token"], "phase_diagnostics": [],
         "free_decode_begin": [], "free_decode_run": ["count"]}

def read_object(line):
    """The request in a line, or None where there is none with an id."""
    try:
        q = json.loads(line.decode("utf-8")) if len(line) <= LINE_LIMIT else None
    except (ValueError, RecursionError):  # bad JSON and bad UTF-8 are ValueErrors
        return None
    return q if type(q) is dict and integer(q.get("id")) else None

def check_keys(q):
    for name, value in q.items():
        if name not in KEYS or not KEYS[name](value):
            raise Refused(f"field {name[:32]}: not known, or of a wrong type")
    if q.get("kind") not in KINDS:
        raise Refused("no such kind")
    for name in KINDS[q["kind"]]:
        if name not in q:
            raise Refused(f"{q['kind']} needs {name}")

class Engine:
    def __init__(self, model, v11):
        self.model, self.v11 = model, v11
        self.nonce = os.urandom(16).hex()
        self.work = 0
        self.drop()

    def drop(self):
        self.open = None  # "decode", "correctness" or "free"
        self.streams, self.depth, self.cohort = [], 0, False

    def hello(self):
        m = self.model.manifest
        h = {"id": 0, "nonce": self.nonce, "ok": True, "protocol_version": 1,
             "backend": m["backend"], "device": "interpreter"}
        if self.v11:
            h["capabilities"] = ["free_run_decode", "batched_free_run_decode", "per_stream_timing"]
            h["spec_modes"] = [d["mode"] for d in m["decoders"]]
            h["max_batch_size"] = MAX_STREAMS
        h["runner"] = {"id": m["runnerID"], "model_type": m["modelTypes"][0], "build": "1",
                       "manifest_sha256": hashlib.sha256(self.model.manifest_bytes).hexdigest()}
        return h

    def check_prompt(self, prompt, more=0):
        if not prompt:
            raise Refused("a prompt of no tokens")
        if len(prompt) + more > self.model.context:
            raise Refused("beyond the context")
        if not all(0 <= t < self.model.vocab for t in prompt):
            raise Refused("a token outside the vocabulary")

    def begin(self, what, prompts):
        for prompt in prompts:
            self.check_prompt(prompt)
        self.drop()
        self.open, self.streams = what, [Sequence(self.model, p) for p in prompts]
        self.work += 1

    def resolve(self, spec):
        """The effective spec, or None when none was asked for."""
        if spec is None or self.v11 and spec == {"mode": "serial"}:
            return spec
        mtp = spec.get("mtp")
        if not self.v11 or spec != {"mode": "mtp", "mtp": mtp} or type(mtp) is not dict or \
                not set(mtp) <= {"depth"}:
            raise Refused("this mode does not run here")
        depth = mtp.get("depth", MTP_DEPTH)
        if not integer(depth) or not 1 <= depth <= 8:
            raise Refused("a depth is 1 to 8")
        return {"mode": "mtp", "mtp": {"depth": depth}}

    # One method for each kind gives what the kind adds to the reply.
    def prefill(self, q):
        self.check_prompt(q["prompt_tokens"])
        self.drop()
        return {"token": Sequence(self.model, q["prompt_tokens"]).argmax()}

    def correctness(self, q):
        if q["steps"] < 1:
            raise Refused("steps below 1")
        self.check_prompt(q["prompt_tokens"], q["steps"])
        self.drop()
        return {"tokens": Sequence(self.model, q["prompt_tokens"]).greedy(q["steps"])}

    def correctness_begin(self, q):
        self.begin("correctness", [q["prompt_tokens"]])
        token = self.streams[0].argmax()
        return {"token": token, "top_logits": self.model.top_logits(token)}

    def step(self, what, token):
        if self.open != what:
            raise Refused(f"no {what} sequence is open")
        self.check_prompt([token], self.streams[0].length)
        self.streams[0].feed(token)
        self.work += 1
        return self.streams[0].argmax()

    def correctness_step(self, q):
        token = self.step("correctness", q["token"])
        return {"token": token, "top_logits": self.model.top_logits(token)}

    def decode_begin(self, q):
        effective = self.resolve(q.get("spec"))
        self.begin("decode", [q["seed_tokens"]])
        reply = {"seed_token": self.streams[0].argmax()}
        return {**reply, "effective_spec": effective} if effective else reply

    def decode_step(self, q):
        return {"token": self.step("decode", q["token"])}

    def phase_diagnostics(self, q):
        reply = {"completed_work": self.work, "cache_memory": 0}
        self.work = 0
        self.drop()
        return reply

    def free_decode_begin(self, q):
        width, seeds = q.get("batch_size"), q.get("seed_tokens_by_stream")
        if not self.v11:
            raise Refused("free_run_decode is not advertised")
        if (width is None) != (seeds is None) or (seeds is None) != ("seed_tokens" in q):
            raise Refused("seed_tokens, or batch_size with seed_tokens_by_stream")
        if seeds is not None and (len(seeds) != width or not 1 <= width <= MAX_STREAMS):
            raise Refused("as many lists as batch_size, at most max_batch_size")
        effective = self.resolve(q.get("spec"))
        started = time.monotonic_ns()
        self.begin("free", seeds if seeds is not None else [q["seed_tokens"]])
        self.depth = effective["mtp"]["depth"] if effective and "mtp" in effective else 0
        self.cohort = width is not None
        said = [s.argmax() for s in self.streams]
        reply = {"seed_token": said[0]} if seeds is None else \
            {"seed_token_by_stream": said, "effective_batch_size": width,
             "prefill_ns_by_stream": [time.monotonic_ns() - started] * width}
        return {**reply, "effective_spec": effective} if effective else reply

    def free_decode_run(self, q):
        count, width = q["count"], q.get("batch_size")
        if not self.v11:
            raise Refused("free_run_decode is not advertised")
        if self.open != "free" or width not in ([len(self.streams)] if self.cohort else [None]):
            raise Refused("no free run of this batch_size is open")
        if count < 0 or max(s.length for s in self.streams) + count > self.model.context:
            raise Refused("beyond the context")
        started, lengths, drafted, accepted = time.monotonic_ns(), [], 0, 0
        made, natural = [[] for _ in self.streams], [[] for _ in self.streams]
        for s in self.streams:
            s.feed(s.argmax())  # seed_token
        while len(made[0]) < count:
            # The drafter is right after even tokens, all the way, and never after odd ones.
            right = [self.depth if s.last % 2 == 0 else 0 for s in self.streams]
            length = min(1 + min(right), count - len(made[0]))
            for s, out, row, n in zip(self.streams, made, natural, right):
                out += s.greedy(length)
                row.append(1 + n)
            lengths.append(length)
            drafted += self.depth * len(self.streams)
            accepted += (length - 1) * len(self.streams)
        self.work += len(lengths)
        reply = {"acceptance_lengths": lengths, "drafted_total": drafted, "accepted_total": accepted,
                 "committed_total": count * len(made)}
        if width is None:
            return {"tokens": made[0], **reply}
        return {**reply, "effective_batch_size": width, "tokens_by_stream": made,
                "natural_accepted_by_stream": natural, "rounds": len(lengths),
                "active_streams_by_round": [width] * len(lengths),
                "decode_ns_by_stream": [time.monotonic_ns() - started] * width}

    def answer(self, line):
        """The reply to one line."""
        q = read_object(line)
        try:
            if q is None:
                raise Refused("the line is no request with an id, or too long")
            check_keys(q)
            return {"id": q["id"], "nonce": self.nonce, "ok": True, **getattr(self, q["kind"])(q)}
        except Refused as why:
            self.drop()
            self.work = 0
            return {"id": q["id"] if q else -1, "nonce": self.nonce, "ok": False, "error": str(why)}

def read_line(stream):
    """A line without its break; of one beyond the limit the beginning, its rest thrown away. None at
    the end, also inside a line."""
    line = rest = stream.readline(LINE_LIMIT + 2)
    while rest and not rest.endswith(b"\n"):
        rest = stream.readline(1 << 20)
    return line.removesuffix(b"\n") if rest else None

def serve(engine, source, out):
    def send(reply):
        out.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
        out.flush()
    send(engine.hello())
    while (line := read_line(source)) is not None:
        if line.strip(b" \t\r"):
            send(engine.answer(line))

def main(arguments, engine_class=Engine):
    if arguments[:1] != ["runtime-worker"] or "--weights" not in arguments[:-1]:
        sys.exit("usage: engine.py runtime-worker --weights DIR [--speculative-protocol v1.1]")
    try:
        model = Model(pathlib.Path(arguments[arguments.index("--weights") + 1]))
    except (OSError, ValueError, AttributeError) as why:
        sys.exit(f"engine.py: the weights: {why}")
    v11 = "--speculative-protocol" in arguments
    serve(engine_class(model, v11), sys.stdin.buffer, sys.stdout.buffer)

if __name__ == "__main__":
    main(sys.argv[1:])
