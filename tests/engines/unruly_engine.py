#!/usr/bin/python3
"""The example engine with one fault, for the conformance kit's tests.

`--resource fault=NAME` picks it from FAULTS below; without it the engine is honest. Each fault is a class
over the honest one, so that everything else stays right."""

import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/python-engine"))
sys.dont_write_bytecode = True
import engine  # noqa: E402

Honest = engine.Engine
FAULTS = {}
LONG = 33  # prompts of more tokens are the kit's long ones


def fault(cls):
    FAULTS[cls.__name__] = cls
    return cls


def hello_fault(name, v11_only=False, v1_only=False, **changes):
    """A hello with other keys; None removes one."""
    def hello(self):
        h = Honest.hello(self)
        if not (v11_only and not self.v11 or v1_only and self.v11):
            for key, value in changes.items():
                h.pop(key, None) if value is None else h.update({key: value})
        return h
    FAULTS[name] = type(name, (Honest,), {"hello": hello})


hello_fault("hello_id", id=1)
hello_fault("hello_version", protocol_version=2)
hello_fault("hello_nonce", nonce="")
hello_fault("hello_not_ok", ok=False)
hello_fault("hello_unknown_key", color="red")
hello_fault("v1_claims", v1_only=True, capabilities=[])
hello_fault("capability_unknown", v11_only=True,
            capabilities=["free_run_decode", "batched_free_run_decode", "per_stream_timing", "turbo"])
hello_fault("capability_twice", v11_only=True,
            capabilities=["free_run_decode", "batched_free_run_decode", "per_stream_timing",
                          "per_stream_timing"])
hello_fault("replay_claimed", v11_only=True,
            capabilities=["free_run_decode", "batched_free_run_decode", "per_stream_timing",
                          "cohort_reference_replay"])
hello_fault("width_missing", v11_only=True, max_batch_size=None)
hello_fault("no_runner", runner=None)
hello_fault("backend_other", backend="cuda")
hello_fault("mode_claimed", v11_only=True, spec_modes=["serial", "mtp", "dflash"])
hello_fault("timing_not_claimed", v11_only=True,
            capabilities=["free_run_decode", "batched_free_run_decode"])
hello_fault("width_smaller", v11_only=True, max_batch_size=3)
hello_fault("digest_other", runner={"id": "example/toy", "model_type": "toy", "build": "1",
                                    "manifest_sha256": "0" * 64})


def reply_fault(name, kind, change):
    """change(engine, request, reply) edits the honest reply to one kind."""
    def method(self, q):
        reply = getattr(Honest, kind)(self, q)
        change(self, q, reply)
        return reply
    FAULTS[name] = type(name, (Honest,), {kind: method})


def after(number):
    """An edit of correctness_begin's list."""
    return lambda edit: reply_fault(number, "correctness_begin", lambda e, q, r: edit(r["top_logits"]))


def swap(items, a, b, key):
    items[a][key], items[b][key] = items[b][key], items[a][key]


after("logits_seven")(lambda t: t.pop())
after("logits_rise")(lambda t: swap(t, 2, 3, "logit"))
after("logits_tie_order")(lambda t: swap(t, 6, 7, "token"))
after("logits_first_other")(lambda t: swap(t, 0, 1, "token"))
after("logits_twice")(lambda t: t[4].update(token=t[3]["token"]))
after("logits_out_of_range")(lambda t: t[7].update(token=100000))
reply_fault("token_is_vocab", "prefill",
            lambda e, q, r: len(q["prompt_tokens"]) > LONG and r.update(token=509))
reply_fault("correctness_short", "correctness", lambda e, q, r: q["steps"] == 17 and r["tokens"].pop())
reply_fault("correctness_one_more", "correctness",
            lambda e, q, r: q["steps"] == 1 and r["tokens"].append(1))
reply_fault("dirty_cache", "phase_diagnostics", lambda e, q, r: r.update(cache_memory=4096))
reply_fault("no_work_reported", "phase_diagnostics", lambda e, q, r: r.pop("completed_work"))
reply_fault("run_off_by_one", "free_decode_run",
            lambda e, q, r: "tokens" in r and r["tokens"].insert(0, 247) or "tokens" in r and r["tokens"].pop())
reply_fault("run_sum", "free_decode_run",
            lambda e, q, r: "tokens" in r and q["count"] and r["acceptance_lengths"].__setitem__(0, 9))
reply_fault("run_accepted", "free_decode_run", lambda e, q, r: "tokens" in r and r.update(accepted_total=99))
reply_fault("run_committed", "free_decode_run", lambda e, q, r: "tokens" in r and r.update(committed_total=1))
reply_fault("echo_missing", "decode_begin", lambda e, q, r: r.pop("effective_spec", None))
reply_fault("echo_depth", "decode_begin",
            lambda e, q, r: q.get("spec", {}).get("mtp", {}).get("depth") and
            r["effective_spec"]["mtp"].update(depth=7))
reply_fault("natural_below", "free_decode_run",
            lambda e, q, r: "rounds" in r and r["natural_accepted_by_stream"][1].__setitem__(0, 0))
reply_fault("rounds_disagree", "free_decode_run",
            lambda e, q, r: "rounds" in r and r.update(rounds=r["rounds"] + 1))
reply_fault("active_rise", "free_decode_run",
            lambda e, q, r: "rounds" in r and r["active_streams_by_round"].__setitem__(0, 1))
reply_fault("cohort_tokens", "free_decode_run",
            lambda e, q, r: "rounds" in r and r["tokens_by_stream"].reverse())
reply_fault("cohort_odd_stream", "free_decode_run",
            lambda e, q, r: "rounds" in r and r["tokens_by_stream"].__setitem__(1, [0] * q["count"]))
reply_fault("timing_missing", "free_decode_begin", lambda e, q, r: r.pop("prefill_ns_by_stream", None))
reply_fault("v1_differs", "correctness_step",
            lambda e, q, r: not e.v11 and (r.update(token=(r["token"] + 1) % 509)))
reply_fault("id_wrong_once", "correctness",
            lambda e, q, r: q["steps"] == 17 and r.update(id=q["id"] + 1000))


def work_fault(name, kind, amount):
    def method(self, q):
        reply = getattr(Honest, kind)(self, q)
        self.work += amount
        return reply
    FAULTS[name] = type(name, (Honest,), {kind: method})


work_fault("prefill_counted", "prefill", 1)
work_fault("step_counted_twice", "decode_step", 1)
work_fault("run_counted_more", "free_decode_run", 1)


@fault
class nonce_constant(Honest):
    def __init__(self, *a):
        super().__init__(*a)
        self.nonce = "c0ffee"


@fault
class decode_feeds_itself(Honest):
    def decode_begin(self, q):
        reply = super().decode_begin(q)
        self.streams[0].feed(reply["seed_token"])
        return reply


@fault
class barrier_keeps_sequence(Honest):
    def phase_diagnostics(self, q):
        reply, self.work = {"completed_work": self.work, "cache_memory": 0}, 0
        return reply


@fault
class work_never_reset(Honest):
    def phase_diagnostics(self, q):
        work = self.work
        reply = super().phase_diagnostics(q)
        self.work = work
        return reply


@fault
class remembers(Honest):
    """After a decode the greedy answers are others."""
    decoded = False

    def decode_step(self, q):
        self.decoded = True
        return super().decode_step(q)

    def correctness(self, q):
        reply = super().correctness(q)
        if self.decoded and q["steps"] == 17:
            reply["tokens"][9] = (reply["tokens"][9] + 1) % 509
        return reply


@fault
class processes_differ(Honest):
    """A process that never says hello in the first second of another: told apart by its nonce."""
    def correctness(self, q):
        reply = super().correctness(q)
        marker = pathlib.Path(os.environ["TMPDIR"]) / "starts"
        number = len(marker.read_text()) if marker.exists() else 0
        if q["steps"] == 17 and number > 0:
            reply["tokens"][3] = (reply["tokens"][3] + number) % 509
        if q["steps"] == 17:
            marker.write_text("x" * (number + 1))
        return reply


@fault
class count_0_refused(Honest):
    def free_decode_run(self, q):
        if q["count"] == 0:
            raise engine.Refused("a count of 0")
        return super().free_decode_run(q)


@fault
class oversize_run_dies(Honest):
    def free_decode_run(self, q):
        if q["count"] > 1 << 30:
            os._exit(9)
        return super().free_decode_run(q)


@fault
class v1_runs_free(Honest):
    def answer(self, line):
        v11, self.v11 = self.v11, True
        try:
            return super().answer(line)
        finally:
            self.v11 = v11


@fault
class any_mode(Honest):
    def resolve(self, spec):
        if spec and spec.get("mode") not in ("serial", "mtp"):
            return spec
        return super().resolve(spec)


@fault
class any_width(Honest):
    def free_decode_begin(self, q):
        if q.get("batch_size") == len(q.get("seed_tokens_by_stream", [])) == 5:
            q = {**q, "batch_size": 4, "seed_tokens_by_stream": q["seed_tokens_by_stream"][:4]}
            return {**super().free_decode_begin(q), "effective_batch_size": 5}
        return super().free_decode_begin(q)


# What is in the lines.


def line_fault(name, when, do):
    """do(engine, line) answers the lines for which when(line) holds."""
    def answer(self, line):
        return do(self, line) if when(line) else Honest.answer(self, line)
    FAULTS[name] = type(name, (Honest,), {"answer": answer})


def die(self, line):
    os._exit(9)


def unread(line):
    return engine.read_object(line) is None


line_fault("nesting_dies", lambda line: line.startswith(b"[[["), die)
line_fault("bad_json_dies", lambda line: line == b"{id:7}", die)
line_fault("bad_json_hangs", lambda line: line == b"{id:7}", lambda e, line: time.sleep(1000))
line_fault("bad_json_silent", lambda line: line == b"{id:7}", lambda e, line: None)
line_fault("cut_json_served", lambda line: line.endswith(b'"phase_diagnostics"'),
           lambda e, line: Honest.answer(e, line + b"}"))
line_fault("no_object_under_0", lambda line: line == b"null",
           lambda e, line: {**Honest.answer(e, line), "id": 0})
line_fault("utf8_lenient", lambda line: b"\xff" in line,
           lambda e, line: Honest.answer(e, line.decode(errors="replace").encode()))
line_fault("blank_dies", lambda line: not line.strip(b" \t\r"), die)
line_fault("cr_refused", lambda line: line.endswith(b"}\r"), lambda e, line: Honest.answer(e, b"oops"))
line_fault("order_matters", lambda line: not line.startswith((b'{"id"', b"{}", b'{"kind"')) and
           engine.read_object(line) is not None, lambda e, line: Honest.answer(e, b"oops"))
line_fault("short_lines_only", lambda line: len(line) > 1 << 20, lambda e, line: Honest.answer(e, b"oops"))
line_fault("long_lines_kill", lambda line: len(line) > 1 << 20, die)
line_fault("no_error_text", lambda line: b'"shutdown"' in line,
           lambda e, line: {**Honest.answer(e, line), "error": ""})
line_fault("kind_ignored", lambda line: b'"shutdown"' in line,
           lambda e, line: Honest.answer(e, line.replace(b"shutdown", b"phase_diagnostics")))
line_fault("key_ignored", lambda line: b'"verbose"' in line,
           lambda e, line: Honest.answer(e, line.replace(b',"verbose":true', b"")))
line_fault("true_is_one", lambda line: b"[true]" in line,
           lambda e, line: Honest.answer(e, line.replace(b"true", b"1")))
line_fault("field_defaults", lambda line: line.endswith(b'"prompt_tokens":[1]}') and b'"correctness"' in line,
           lambda e, line: Honest.answer(e, line[:-1] + b',"steps":1}'))
line_fault("ids_through_doubles", lambda line: b"9007199254740993" in line,
           lambda e, line: {**Honest.answer(e, line), "id": 9007199254740992})
line_fault("refusal_without_nonce", lambda line: b'"shutdown"' in line,
           lambda e, line: {k: v for k, v in Honest.answer(e, line).items() if k != "nonce"})


@fault
class answers_swapped(Honest):
    def answer(self, line):
        reply = super().answer(line)
        if reply["id"] in (1000501, 1000502):
            reply["id"] = 2001003 - reply["id"]
        return reply


@fault
class step_token_clamped(Honest):
    def step(self, what, token):
        return super().step(what, min(max(token, 0), 508))


@fault
class prompt_token_clamped(Honest):
    def check_prompt(self, prompt, more=0):
        if len(prompt) == 3:
            return
        super().check_prompt(prompt, more)


@fault
class empty_served(Honest):
    def prefill(self, q):
        return super().prefill({**q, "prompt_tokens": q["prompt_tokens"] or [0]})


@fault
class prompt_cut(Honest):
    def prefill(self, q):
        return super().prefill({**q, "prompt_tokens": q["prompt_tokens"][:4096]})


@fault
class prompt_dies(Honest):
    def prefill(self, q):
        if len(q["prompt_tokens"]) > 4096:
            os._exit(9)
        return super().prefill(q)


@fault
class steps_0_served(Honest):
    def correctness(self, q):
        return {"tokens": []} if q["steps"] == 0 else super().correctness(q)


@fault
class step_opens(Honest):
    def step(self, what, token):
        if self.open is None:
            self.begin(what, [[1]])
        return super().step(what, token)


@fault
class steps_shared(Honest):
    """One kind of sequence for both kinds of step."""
    def step(self, what, token):
        return super().step(self.open or what, token)


@fault
class prefill_keeps_sequence(Honest):
    def prefill(self, q):
        kept = self.open, self.streams
        reply = super().prefill(q)
        self.open, self.streams = kept
        return reply


@fault
class correctness_keeps_sequence(Honest):
    def correctness(self, q):
        kept = self.open, self.streams
        reply = super().correctness(q)
        self.open, self.streams = kept
        return reply


@fault
class any_form(Honest):
    """A run of one stream after a cohort's begin is taken for the cohort's."""
    def free_decode_run(self, q):
        if self.cohort:
            q = {**q, "batch_size": len(self.streams)}
        return super().free_decode_run(q)


class one_round(Honest):
    deep = False

    def free_decode_run(self, q):
        before = self.work
        reply = super().free_decode_run(q)
        if "tokens" in reply and q["count"] and bool(self.depth) == self.deep:
            reply["acceptance_lengths"] = [q["count"]]
            self.work = before + 1
        return reply


@fault
class serial_round_of_many(one_round):
    pass


@fault
class round_beyond_depth(one_round):
    deep = True


@fault
class serial_drafts(Honest):
    def free_decode_run(self, q):
        reply = super().free_decode_run(q)
        if "tokens" in reply and q["count"] and not self.depth:
            reply["drafted_total"] = 3
        return reply


@fault
class depth_ignored(Honest):
    def resolve(self, spec):
        effective = super().resolve(spec)
        if effective and "mtp" in effective:
            effective["mtp"]["depth"] = 2
        return effective


@fault
class refusal_keeps_sequence(Honest):
    def answer(self, line):
        kept = self.open, self.streams
        reply = super().answer(line)
        if not reply["ok"]:
            self.open, self.streams = kept
        return reply


@fault
class refusal_breaks(Honest):
    """After an unknown kind the tokens are wrong."""
    broken = False

    def answer(self, line):
        self.broken = self.broken or b'"shutdown"' in line
        return super().answer(line)

    def prefill(self, q):
        reply = super().prefill(q)
        return {"token": (reply["token"] + self.broken) % 509}


# What is around the lines.


def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@fault
class says_it_twice(Honest):
    def answer(self, line):
        reply = super().answer(line)
        if reply.get("tokens") and b'"steps":4' in line:
            text = json.dumps(reply).encode() + b"\n"
            write(text + text)
            return None
        return reply


@fault
class chatters(Honest):
    def decode_begin(self, q):
        write(b"[info] decoding\n")
        return super().decode_begin(q)


@fault
class exits_5(Honest):
    at_end = staticmethod(lambda cut: os._exit(5 if not cut else 0))


@fault
class lingers(Honest):
    at_end = staticmethod(lambda cut: time.sleep(1000))


@fault
class lingers_in_a_line(Honest):
    at_end = staticmethod(lambda cut: cut and time.sleep(1000))


@fault
class leaves_a_process(Honest):
    @staticmethod
    def at_end(cut):
        if not cut and os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(1000)


@fault
class leaves_a_daemon(Honest):
    """In a session of its own, so in another group."""
    @staticmethod
    def at_end(cut):
        if not cut and os.fork() == 0:
            os.setsid()
            os.closerange(0, 3)
            time.sleep(1000)


@fault
class never_says_hello(Honest):
    def hello(self):
        time.sleep(1000)


@fault
class dies_at_once(Honest):
    def hello(self):
        os._exit(3)


class Ending:
    """stdin, and how it ended."""

    def __init__(self, stream):
        self.stream, self.cut = stream, False

    def readline(self, limit):
        line = self.stream.readline(limit)
        self.cut = self.cut and not line or bool(line) and not line.endswith(b"\n")
        return line


def main():
    chosen = [a.removeprefix("fault=") for a in sys.argv if a.startswith("fault=")]

    def serve(made, source, out):
        """The honest loop, but for None, which is no reply, and for what comes at the end."""
        def send(reply):
            if reply is not None:
                out.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
                out.flush()
        ending = Ending(source)
        send(made.hello())
        while (line := engine.read_line(ending)) is not None:
            if line.strip(b" \t\r") or chosen == ["blank_dies"]:
                send(made.answer(line))
        if hasattr(made, "at_end"):
            made.at_end(ending.cut)

    engine.serve = serve
    engine.main(sys.argv[1:], FAULTS[chosen[0]] if chosen else Honest)


main()
