"""bench-worker runtime-worker over its pipes: every request kind, and everything that can be wrong
with a request. Small checkpoints of tests/vectors/laguna; expected tokens come from the logits of
the independent emulation stored there."""

import json
import os
import re
import struct
import subprocess

import jsonschema
import pytest

from conftest import QUICK, ROOT, said

SCHEMA = json.loads((ROOT / "docs/schema/engine-protocol-v1.schema.json").read_text())
VALID = jsonschema.Draft202012Validator(SCHEMA)
VECTOR = ROOT / "tests/vectors/laguna/full-yarn"
TOKENS = json.loads((VECTOR / "tokens.json").read_text())
VOCAB = 128
STATS = {"expert_cache_hits": 0, "expert_cache_misses": 0, "expert_cache_evictions": 0,
         "expert_bytes_read": 0, "expert_read_seconds": 0.0, "expert_peak_cached_tensors": 0}


def oracle_rows():
    data = (VECTOR / "logits_bf16.bin").read_bytes()
    return [struct.unpack_from(f"<{VOCAB}f", data, 4 * VOCAB * p) for p in range(len(TOKENS))]


ROWS = oracle_rows()


def ranked(row):
    return sorted(range(VOCAB), key=lambda i: (-row[i], i))


class Worker:
    def __init__(self, build, *flags, weights=VECTOR, env=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BENCH_WORKER_")}
        environment.update(env or {})
        self.process = subprocess.Popen(
            [str(build / "bench-worker"), "runtime-worker", "--weights", str(weights), *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        self.hello = self.read()
        self.id = 0

    def write(self, data):
        self.process.stdin.write(data if isinstance(data, bytes) else data.encode())
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.process.stderr.read()
        reply = json.loads(line)
        VALID.validate(reply)
        # Canonical: keys in the schema's order, no spaces.
        order = list(SCHEMA["$defs"]["WorkerResponse"]["properties"])
        assert list(reply) == sorted(reply, key=order.index)
        return reply

    def ask(self, kind, **fields):
        self.id += 1
        self.write(json.dumps({"id": self.id, "kind": kind, **fields}) + "\n")
        reply = self.read()
        assert reply["id"] == self.id
        assert reply["nonce"] == self.hello["nonce"]
        return reply

    def ok(self, kind, **fields):
        VALID.validate({"id": 0, "kind": kind, **fields})
        reply = self.ask(kind, **fields)
        assert reply["ok"] is True, reply
        assert "error" not in reply
        return reply

    def refused(self, kind, **fields):
        reply = self.ask(kind, **fields)
        assert sorted(reply) == ["error", "id", "nonce", "ok"]
        assert reply["ok"] is False
        assert not re.search("expected|actual", reply["error"], re.I)
        return reply["error"]

    def raw_refused(self, line):
        self.write(line)
        reply = self.read()
        assert reply["id"] == -1 and reply["ok"] is False
        assert reply["nonce"] == self.hello["nonce"]
        assert not re.search("expected|actual", reply["error"], re.I)
        return reply["error"]

    def close(self):
        """Ends stdin; the exit code, stderr, and whatever was still on stdout."""
        self.process.stdin.close()
        rest = self.process.stdout.read()
        err = self.process.stderr.read().decode()
        code = self.process.wait(timeout=20)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, err, rest


@pytest.fixture
def start(build):
    workers = []

    def call(*flags, **kwargs):
        workers.append(Worker(build, *flags, **kwargs))
        return workers[-1]

    yield call
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


@pytest.fixture
def v11(start):
    return start("--speculative-protocol", "v1.1")


# --- hello ---------------------------------------------------------------------------------------


def test_hello_of_plain_v1(build, start, run):
    worker = start()
    hello = worker.hello
    assert list(hello) == ["id", "nonce", "ok", "expert_stats", "protocol_version", "backend",
                           "device", "runner"]
    assert hello["id"] == 0 and hello["ok"] is True and hello["protocol_version"] == 1
    assert re.fullmatch("[0-9a-f]{32}", hello["nonce"])
    assert hello["backend"] == "cpu"
    assert re.search(r", (portable|avx2|avx512|neon), \d+ threads$", hello["device"])
    assert hello["expert_stats"] == STATS
    manifest = run([build / "bench-worker", "manifest", "--weights", VECTOR, "--digest"])
    assert hello["runner"] == {"id": "mlxfast/laguna", "model_type": "laguna",
                               "manifest_sha256": manifest.stdout.strip(),
                               "build": hello["runner"]["build"]}
    assert hello["runner"]["build"].startswith("mlxfast ")
    code, err, rest = worker.close()
    assert (code, rest) == (0, b"")
    assert "yarn magnitude 1 (attention_factor)" in err


def test_hello_of_v11_and_trusted(start, v11):
    assert v11.hello["capabilities"] == ["free_run_decode"]
    assert v11.hello["spec_modes"] == ["serial"]
    assert "max_batch_size" not in v11.hello
    trusted = start("--speculative-protocol", "v1.1", "--trusted")
    assert trusted.hello["capabilities"] == ["free_run_decode", "cohort_reference_replay"]
    assert trusted.hello["nonce"] != v11.hello["nonce"]


def test_no_leading_token_is_runtime_worker(build):
    result = subprocess.run([str(build / "bench-worker"), "--weights", str(VECTOR)], input=b"",
                            capture_output=True, timeout=60)
    assert result.returncode == 0
    assert json.loads(result.stdout)["protocol_version"] == 1


# --- the verbs -----------------------------------------------------------------------------------


def test_prefill_and_teacher_forced_steps(start):
    worker = start()
    for length in (1, 7, 64, len(TOKENS)):
        reply = worker.ok("prefill", prompt_tokens=TOKENS[:length])
        assert sorted(reply) == ["id", "nonce", "ok", "token"]
        assert reply["token"] == ranked(ROWS[length - 1])[0]
    reply = worker.ok("decode_begin", seed_tokens=TOKENS[:20])
    assert sorted(reply) == ["id", "nonce", "ok", "seed_token"]
    assert reply["seed_token"] == ranked(ROWS[19])[0]
    for p in range(20, 40):
        assert worker.ok("decode_step", token=TOKENS[p])["token"] == ranked(ROWS[p])[0]
    closing = worker.ok("phase_diagnostics")
    assert closing["completed_work"] == 21
    assert closing["cache_memory"] == 0 and closing["mlx_cache_memory_bytes"] == 0
    assert closing["mlx_peak_memory_bytes"] >= closing["mlx_active_memory_bytes"] > 0
    assert closing["expert_stats"] == STATS and closing["peak_ram_gb"] > 0
    assert worker.ok("phase_diagnostics")["completed_work"] == 0


def test_correctness_reports_eight_logits(start):
    worker = start()
    replies = [worker.ok("correctness_begin", prompt_tokens=TOKENS[:30])]
    replies += [worker.ok("correctness_step", token=t) for t in TOKENS[30:50]]
    for p, reply in enumerate(replies, 29):
        order = ranked(ROWS[p])[:8]
        assert [t["token"] for t in reply["top_logits"]] == order
        assert [t["logit"] for t in reply["top_logits"]] == [ROWS[p][i] for i in order]
        assert reply["token"] == order[0]
        assert reply["top_logit_margin"] == ROWS[p][order[0]] - ROWS[p][order[1]]
        assert reply["expert_stats"] == STATS and reply["peak_ram_gb"] > 0
    assert worker.ok("phase_diagnostics")["completed_work"] == 21


def test_free_run_equals_greedy_run(v11):
    seed, count = TOKENS[:25], 40
    greedy = v11.ok("correctness", prompt_tokens=seed, steps=count + 1)
    assert sorted(greedy) == ["id", "nonce", "ok", "peak_ram_gb", "tokens"]
    assert len(greedy["tokens"]) == count + 1
    assert v11.ok("phase_diagnostics")["completed_work"] == 0

    begin = v11.ok("free_decode_begin", seed_tokens=seed, spec={"mode": "serial"})
    assert begin["seed_token"] == greedy["tokens"][0]
    assert begin["effective_spec"] == {"mode": "serial"}
    empty = v11.ok("free_decode_run", count=0)
    assert (empty["tokens"], empty["acceptance_lengths"], empty["committed_total"]) == ([], [], 0)
    first = v11.ok("free_decode_run", count=15)
    rest = v11.ok("free_decode_run", count=count - 15)
    assert first["tokens"] + rest["tokens"] == greedy["tokens"][1:]
    for reply, n in ((first, 15), (rest, count - 15)):
        assert reply["acceptance_lengths"] == [1] * n
        assert (reply["drafted_total"], reply["accepted_total"]) == (0, 0)
        assert reply["committed_total"] == n
    assert v11.ok("phase_diagnostics")["completed_work"] == count + 1

    # Without a spec there is no echo; teacher forcing gives the same tokens.
    assert "effective_spec" not in v11.ok("free_decode_begin", seed_tokens=seed)
    token = v11.ok("decode_begin", seed_tokens=seed)["seed_token"]
    for wanted in greedy["tokens"][1:]:
        token = v11.ok("decode_step", token=token)["token"]
        assert token == wanted


def test_stop_tokens_do_not_stop(v11):
    """The fixed benchmark build has no stop tokens: every count is met, whatever comes."""
    eos = json.loads((VECTOR / "config.json").read_text()).get("eos_token_id")
    assert eos is not None
    v11.ok("free_decode_begin", seed_tokens=TOKENS[:5])
    assert len(v11.ok("free_decode_run", count=1500)["tokens"]) == 1500


def test_trusted_replay(start):
    worker = start("--speculative-protocol", "v1.1", "--trusted")
    seeds, committed = [TOKENS[:10], TOKENS[:33]], [TOKENS[10:20], TOKENS[33:36]]
    reply = worker.ok("cohort_reference_replay", replay_seeds_by_stream=seeds,
                      committed_by_stream=committed, batch_size=2, replay_width="cohort")
    assert reply["effective_batch_size"] == 2
    report = reply["cohort_reference_replay"]
    assert report["replay_width"] == "cohort"
    for slot, stream in enumerate(report["streams"]):
        assert stream["slot"] == slot
        start_at = len(seeds[slot])
        assert stream["positions"] == [
            {"committed_token": token, "sequential_argmax": ranked(ROWS[start_at + i - 1])[0]}
            for i, token in enumerate(committed[slot])]
    assert "number of streams" in worker.refused(
        "cohort_reference_replay", replay_seeds_by_stream=seeds, committed_by_stream=committed[:1])


# --- refusals ------------------------------------------------------------------------------------


def test_what_is_not_advertised_is_refused(start, v11):
    plain = start()
    for kind, fields in (("free_decode_begin", {"seed_tokens": [1]}), ("free_decode_run", {"count": 1})):
        assert plain.refused(kind, **fields).startswith("CAPABILITY-NOT-ADVERTISED: ")
    assert plain.refused("decode_begin", seed_tokens=[1], spec={"mode": "serial"}) == \
        "spec requires --speculative-protocol v1.1"
    for kind, fields in (
            ("free_decode_begin", {"seed_tokens_by_stream": [[1], [2]], "batch_size": 2}),
            ("free_decode_run", {"count": 4, "batch_size": 2}),
            ("cohort_reference_replay", {"replay_seeds_by_stream": [[1]], "committed_by_stream": [[1]]})):
        assert v11.refused(kind, **fields).startswith("CAPABILITY-NOT-ADVERTISED: ")
    for mode, block in (("mtp", {"mtp": {"depth": 2}}), ("dflash", {"dflash": {"depth": 3}}),
                        ("dspark", {"dspark": {}})):
        error = v11.refused("free_decode_begin", seed_tokens=[1], spec={"mode": mode, **block})
        assert error.startswith("DECODER-NOT-LOADED: ") and mode in error
    assert "SPEC-INVALID" in v11.refused("free_decode_begin", seed_tokens=[1],
                                         spec={"mode": "serial", "mtp": {"depth": 2}})


def test_wrong_order(v11):
    for kind, fields in (("decode_step", {"token": 1}), ("correctness_step", {"token": 1}),
                         ("free_decode_run", {"count": 1})):
        assert v11.refused(kind, **fields).startswith("OUT-OF-ORDER: ")
    v11.ok("decode_begin", seed_tokens=[1, 2])
    assert v11.refused("correctness_step", token=1).startswith("OUT-OF-ORDER: ")
    # The refusal dropped the phase: the decode sequence is gone, its work is not counted.
    assert v11.refused("decode_step", token=1).startswith("OUT-OF-ORDER: ")
    assert v11.ok("phase_diagnostics")["completed_work"] == 0
    for begin, field, step, step_fields in (
            ("decode_begin", "seed_tokens", "decode_step", {"token": 1}),
            ("correctness_begin", "prompt_tokens", "correctness_step", {"token": 1}),
            ("free_decode_begin", "seed_tokens", "free_decode_run", {"count": 1})):
        v11.ok(begin, **{field: [1, 2]})
        v11.ok("phase_diagnostics")
        assert v11.refused(step, **step_fields).startswith("OUT-OF-ORDER: ")
        v11.ok(begin, **{field: [1, 2]})
        v11.ok("prefill", prompt_tokens=[1])
        assert v11.refused(step, **step_fields).startswith("OUT-OF-ORDER: ")


def test_fields_that_are_missing_or_do_not_belong(v11):
    for kind, fields, named in (
            ("prefill", {}, "prompt_tokens"), ("prefill", {"seed_tokens": [1]}, "prompt_tokens"),
            ("prefill", {"prompt_tokens": [1], "token": 2}, "token"),
            ("decode_begin", {"prompt_tokens": [1]}, "prompt_tokens"),
            ("correctness", {"prompt_tokens": [1]}, "steps"),
            ("decode_step", {}, "token"), ("free_decode_run", {}, "count"),
            ("phase_diagnostics", {"count": 1}, "count"),
            ("correctness_begin", {"prompt_tokens": [1], "spec": {"mode": "serial"}}, "spec")):
        error = v11.refused(kind, **fields)
        assert error.startswith("REQUEST-FIELDS: ") and named in error


def test_tokens_and_sizes_out_of_range(start):
    context = 512 if QUICK else 4096  # the model's own
    v11 = start("--speculative-protocol", "v1.1", *(["--context", str(context)] if QUICK else []))
    for bad in (VOCAB, -1, 2 ** 62):
        error = v11.refused("prefill", prompt_tokens=[1, 2, bad])
        assert error.startswith("TOKEN-OUT-OF-RANGE") and "tokens[2]" in error
        assert str(bad) not in error.replace(f"vocabulary of {VOCAB}", "")
        v11.ok("decode_begin", seed_tokens=[1])
        assert v11.refused("decode_step", token=bad).startswith("TOKEN-OUT-OF-RANGE")
    assert v11.refused("prefill", prompt_tokens=[]).startswith("EMPTY-PROMPT")
    for steps in (0, -5):
        assert v11.refused("correctness", prompt_tokens=[1], steps=steps).startswith("STEPS-INVALID")
    v11.ok("prefill", prompt_tokens=[3] * context)
    assert v11.refused("prefill", prompt_tokens=[3] * (context + 1)).startswith("CONTEXT-EXCEEDED")
    assert v11.refused("correctness", prompt_tokens=[3] * (context - 96),
                       steps=98).startswith("CONTEXT-EXCEEDED")
    assert v11.refused("correctness", prompt_tokens=[1], steps=2 ** 62).startswith("CONTEXT-EXCEEDED")
    v11.ok("free_decode_begin", seed_tokens=[3] * (context - 6))
    assert len(v11.ok("free_decode_run", count=6)["tokens"]) == 6
    assert v11.refused("free_decode_run", count=1).startswith("CONTEXT-EXCEEDED")
    v11.ok("free_decode_begin", seed_tokens=[3])
    assert v11.refused("free_decode_run", count=2 ** 32 - 1).startswith("CONTEXT-EXCEEDED")


MALFORMED = {
    "empty line": "\n",
    "not json": "hello\n",
    "array": "[1]\n",
    "cut": '{"id":1,"kind":"prefill"\n',
    "two objects": '{"id":1,"kind":"phase_diagnostics"}{"id":2,"kind":"phase_diagnostics"}\n',
    "unknown key": '{"id":1,"kind":"phase_diagnostics","expected_token":5}\n',
    "unknown kind": '{"id":1,"kind":"shutdown"}\n',
    "hello as request": '{"id":1,"kind":"hello"}\n',
    "no id": '{"kind":"phase_diagnostics"}\n',
    "no kind": '{"id":1}\n',
    "null id": '{"id":null,"kind":"phase_diagnostics"}\n',
    "id as text": '{"id":"1","kind":"phase_diagnostics"}\n',
    "real token": '{"id":1,"kind":"decode_step","token":1.0}\n',
    "token too large": '{"id":1,"kind":"decode_step","token":9223372036854775808}\n',
    "negative count": '{"id":1,"kind":"free_decode_run","count":-1}\n',
    "duplicate key": '{"id":1,"id":1,"kind":"phase_diagnostics"}\n',
    "nan": '{"id":NaN,"kind":"phase_diagnostics"}\n',
    "bad utf-8": b'{"id":1,"kind":"\xff"}\n',
    "zero byte": b'{"id":1,"kind":"phase_\x00diagnostics"}\n',
    "deep": '{"id":1,"kind":"prefill","prompt_tokens":' + "[" * 100000 + "\n",
    "spec of no mode": '{"id":1,"kind":"decode_begin","seed_tokens":[1],"spec":{}}\n',
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_lines_get_id_minus_one(v11, name):
    v11.ok("decode_begin", seed_tokens=[1, 2])
    error = v11.raw_refused(MALFORMED[name])
    assert error.startswith(("WIRE-", "JSON-"))
    # The phase is gone, the worker is not.
    assert v11.refused("decode_step", token=1).startswith("OUT-OF-ORDER: ")
    assert v11.ok("prefill", prompt_tokens=TOKENS[:9])["token"] == ranked(ROWS[8])[0]
    assert v11.close()[0] == 0


def test_oversize_line_is_refused_without_holding_it(v11):
    piece = b" " * (1 << 20)
    v11.write(b'{"id":1,"kind":"prefill",')
    for _ in range(65):
        v11.write(piece)
    assert v11.raw_refused(b'"prompt_tokens":[1]}\n').startswith("REQUEST-TOO-LONG")
    assert v11.ok("prefill", prompt_tokens=TOKENS[:9])["token"] == ranked(ROWS[8])[0]
    status = open(f"/proc/{v11.process.pid}/status").read() if os.path.exists("/proc/self") else ""
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert not peak or int(peak[1]) < 1 << 20


def test_two_requests_in_one_write(start):
    worker = start()
    worker.write(json.dumps({"id": 7, "kind": "prefill", "prompt_tokens": TOKENS[:4]}) + "\n"
                 + json.dumps({"kind": "phase_diagnostics", "id": 8}) + "\r\n")
    assert (worker.read()["id"], worker.read()["id"]) == (7, 8)


def test_end_of_input(start):
    code, _, rest = start().close()
    assert (code, rest) == (0, b"")
    worker = start()
    worker.write('{"id":1,"kind":"prefill"')
    code, err, rest = worker.close()
    assert code == 1 and "REQUEST-CUT" in err
    reply = json.loads(rest)
    assert reply["id"] == -1 and reply["error"].startswith("REQUEST-CUT")


def test_a_parent_that_went_away(start):
    """The reply has no reader: one line on stderr, exit 1, no signal."""
    worker = start()
    worker.process.stdout.close()
    worker.write(json.dumps({"id": 1, "kind": "prefill", "prompt_tokens": [1]}) + "\n")
    err = worker.process.stderr.read().decode()
    assert worker.process.wait(timeout=20) == 1
    assert "IO" in err


# --- models at the edge --------------------------------------------------------------------------


def changed_checkpoint(folder, change, **config_changes):
    """A copy of the vector whose tensors {name: [dtype, shape, bytes]} went through change."""
    folder.mkdir()
    names = sorted(p.name for p in VECTOR.glob("*.safetensors"))
    for name in names:
        data = (VECTOR / name).read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        tensors = {k: [t["dtype"], t["shape"], data[8 + length:][slice(*t["data_offsets"])]]
                   for k, t in header.items()}
        change(tensors)
        header, body = {}, b""
        for key, (dtype, shape, raw) in tensors.items():
            header[key] = {"dtype": dtype, "shape": shape,
                           "data_offsets": [len(body), len(body) + len(raw)]}
            body += raw
        text = json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + body)
    index = "model.safetensors.index.json"
    index_value = json.loads((VECTOR / index).read_text())
    index_value["metadata"] = {"total_size": sum(
        p.stat().st_size - 8 - struct.unpack("<Q", p.read_bytes()[:8])[0]
        for p in folder.glob("*.safetensors"))}
    (folder / index).write_text(json.dumps(index_value))
    config = json.loads((VECTOR / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **config_changes}))
    return folder


def head_rows(values):
    """Fills row i of lm_head with the bf16 bits values[i]; a None leaves the row."""
    def change(tensors):
        _, shape, raw = tensors["lm_head.weight"]
        width = 2 * shape[1]
        rows = [raw[width * i:width * (i + 1)] for i in range(shape[0])]
        for i, bits in values.items():
            rows[i] = struct.pack("<H", bits) * shape[1]
        tensors["lm_head.weight"][2] = b"".join(rows)
    return change


NAN, ZERO = 0x7fc0, 0


def test_nan_logits(start, build, run, tmp_path):
    few = changed_checkpoint(tmp_path / "few", head_rows(
        {i: NAN for i in range(VOCAB) if i not in (3, 99)} | {3: ZERO, 99: ZERO}))
    worker = start(weights=few)
    # NaN never wins, the lowest of equals does; but there are no eight logits to report.
    assert worker.ok("prefill", prompt_tokens=[1, 2])["token"] == 3
    assert worker.refused("correctness_begin", prompt_tokens=[1, 2]).startswith("LOGITS-NOT-FINITE")
    assert worker.refused("correctness_step", token=1).startswith("OUT-OF-ORDER")
    none = changed_checkpoint(tmp_path / "none", head_rows({i: NAN for i in range(VOCAB)}))
    result = run([build / "bench-worker", "--weights", none], stdin=subprocess.DEVNULL)
    assert result.returncode == 1 and result.stdout == "" and "LOGITS-NOT-FINITE" in result.stderr


def test_equal_logits_rank_by_id(start, tmp_path):
    worker = start(weights=changed_checkpoint(tmp_path / "w", head_rows(
        {i: ZERO for i in range(VOCAB)})))
    reply = worker.ok("correctness_begin", prompt_tokens=[5])
    assert reply["token"] == 0 and reply["top_logit_margin"] == 0
    assert reply["top_logits"] == [{"token": i, "logit": 0} for i in range(8)]


@pytest.mark.parametrize("vocab, accepted", [(8, True), (7, False)])
def test_smallest_vocabulary(build, run, tmp_path, vocab, accepted):
    def cut(tensors):
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            _, shape, raw = tensors[name]
            tensors[name] = ["BF16", [vocab, shape[1]], raw[:2 * shape[1] * vocab]]
    weights = changed_checkpoint(tmp_path / "w", cut, vocab_size=vocab, eos_token_id=2,
                                 bos_token_id=2, pad_token_id=None)
    result = run([build / "bench-worker", "--weights", weights], stdin=subprocess.DEVNULL)
    if accepted:
        assert result.returncode == 0, result.stderr
    else:
        assert result.returncode == 1 and result.stdout == ""
        assert "VOCABULARY-TOO-SMALL" in result.stderr


def test_a_missing_scale_is_a_load_error(build, run, tmp_path):
    """NVFP4 codes without their scales are refused by name, never read as 1.0."""
    gone = []

    def drop(tensors):
        for name in [n for n in tensors if n.endswith("switch_mlp.up_proj.scales")][:1]:
            gone.append(name)
            del tensors[name]
    weights = changed_checkpoint(tmp_path / "w", drop)
    index = json.loads((weights / "model.safetensors.index.json").read_text())
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if k not in gone}
    (weights / "model.safetensors.index.json").write_text(json.dumps(index))
    result = run([build / "bench-worker", "--weights", weights], stdin=subprocess.DEVNULL)
    assert gone and result.returncode == 1 and result.stdout == ""
    assert "INVENTORY-MISMATCH" in result.stderr and gone[0] in result.stderr


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, code, text", [
    ([], 2, "missingWeights"),
    (["runtime-worker"], 2, "missingWeights"),
    (["--weights"], 2, "missingValue(--weights)"),
    (["--weights", "/nonexistent", "--kv-bytes"], 2, "missingValue(--kv-bytes)"),
    (["--weights", "/nonexistent", "--kv-bytes", "0"], 2, "badValue(--kv-bytes)"),
    (["--weights", "/nonexistent", "--kv-bytes", "many"], 2, "badValue(--kv-bytes)"),
    (["--weights", "/nonexistent", "--threads", "-1"], 2, "badValue(--threads)"),
    (["--weights", "/nonexistent", "--speed", "1"], 2, "unknownArgument(--speed)"),
    (["--weights", "/nonexistent", "surplus"], 2, "unknownArgument(surplus)"),
    (["--weights", "/nonexistent", "--runner", ""], 2, "emptyRunnerID"),
    (["--weights", "/nonexistent", "--runner", "a/b"], 2, "unknownRunner(a/b)"),
    (["--weights", "/nonexistent", "--speculative-protocol", "v1"], 2, "badValue(--speculative-protocol)"),
    (["--weights", "/nonexistent", "--resource", "x"], 2, "badValue(--resource)"),
    (["--weights", "/nonexistent", "--resource", "x=1", "--resource", "x=2"], 2, "badValue(--resource)"),
    (["--weights", "/nonexistent", "--yarn-magnitude", "1.0"], 2, "badValue(--yarn-magnitude)"),
    (["--weights", "/nonexistent", "--drafter"], 2, "missingValue(--drafter)"),
    (["--weights", "/nonexistent", "--drafter", " "], 2, "badValue(--drafter)"),
    (["--weights", VECTOR, "--drafter", "/nonexistent"], 1, "/nonexistent"),
    (["--weights", VECTOR, "--drafter", ROOT / "models/laguna-nano-dflash"], 1, "CONFIG-INVALID"),
    (["--weights", "/nonexistent"], 1, "/nonexistent"),
    (["--weights", VECTOR, "--cpu", "z80"], 1, "CPU-UNSUPPORTED"),
    (["--weights", "/nonexistent", "--backend", "metal"], 2, "BACKEND-UNKNOWN"),
    (["--weights", "/nonexistent", "--arithmetic", "quick"], 2, "badValue(--arithmetic)"),
    (["generate", "--weights", "/nonexistent", "--prompt", "x", "--backend", "metal"], 2, "BACKEND-UNKNOWN"),
    (["logits", "--weights", "/nonexistent", "--tokens-file", "x", "--out", "y", "--backend", "metal"], 2,
     "BACKEND-UNKNOWN"),
    (["bench", "--weights", "/nonexistent", "--backend", "metal"], 2, "BACKEND-UNKNOWN"),
    (["manifest", "--runner", "mlxfast/laguna", "--backend", "metal"], 2, "BACKEND-UNKNOWN"),
    (["--weights", VECTOR, "--kv-bytes", "1000"], 1, "KV-BYTES-EXCEEDED"),
    (["--weights", VECTOR, "--context", "5000"], 1, "CONTEXT-EXCEEDED"),
    (["train", "--weights", VECTOR], 2, "unknownSubcommand(train)"),
    (["manifest"], 2, "manifestTargetMissing"),
    (["manifest", "--digest"], 2, "manifestTargetMissing"),
    (["manifest", "--runner", "mlxfast/laguna", "--weights", VECTOR], 2, "manifestTargetAmbiguous"),
    (["manifest", "--runner", "x"], 2, "unknownRunner(x)"),
    (["manifest", "--runner", " "], 2, "emptyRunnerID"),
    (["manifest", "--weights", "/nonexistent"], 1, "/nonexistent"),
])
def test_bad_arguments_get_one_line(build, run, arguments, code, text):
    result = run([build / "bench-worker", *arguments], stdin=subprocess.DEVNULL)
    assert result.returncode == code
    assert result.stdout == ""
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name, value, code, text", [
    ("BENCH_WORKER_YARN_MAGNITUDE", "squared", 2, "BENCH_WORKER_YARN_MAGNITUDE"),
    ("BENCH_WORKER_YARN_MAGNITUDE", "", 2, "BENCH_WORKER_YARN_MAGNITUDE"),
    ("BENCH_WORKER_THREADS", "two", 2, "BENCH_WORKER_THREADS"),
    ("BENCH_WORKER_DRAFTER", "/nonexistent", 1, "/nonexistent"),
    ("MLXFAST_CPU", "z80", 1, "CPU-UNSUPPORTED"),
    ("MLXFAST_BACKEND", "metal", 2, "field MLXFAST_BACKEND, value metal"),
    ("BENCH_WORKER_BACKEND", "metal", 2, "field BENCH_WORKER_BACKEND, value metal"),
    ("MLXFAST_ARITHMETIC", "quick", 2, "badValue(MLXFAST_ARITHMETIC)"),
    ("BENCH_WORKER_ARITHMETIC", "quick", 2, "badValue(BENCH_WORKER_ARITHMETIC)"),
])
def test_bad_environment_gets_one_line(build, run, name, value, code, text):
    result = run([build / "bench-worker", "--weights", VECTOR], stdin=subprocess.DEVNULL,
                 env={**os.environ, name: value})
    assert result.returncode == code and text in result.stderr
    assert len(said(result.stderr).strip().splitlines()) == 1


def test_yarn_magnitude_comes_from_flag_then_environment(start):
    def seen(*flags, env=None):
        worker = start(*flags, env=env)
        token = worker.ok("correctness_begin", prompt_tokens=TOKENS)["top_logits"][0]
        return token, worker.close()[1]

    data = (VECTOR / "logits_bf16_derived.bin").read_bytes()
    last = struct.unpack_from(f"<{VOCAB}f", data, 4 * VOCAB * (len(TOKENS) - 1))
    derived = {"token": ranked(last)[0], "logit": last[ranked(last)[0]]}
    plain = {"token": ranked(ROWS[-1])[0], "logit": ROWS[-1][ranked(ROWS[-1])[0]]}
    assert derived != plain
    env = {"BENCH_WORKER_YARN_MAGNITUDE": "derived"}
    assert seen()[0] == plain
    token, err = seen(env=env)
    assert token == derived and "(derived)" in err
    assert seen("--yarn-magnitude", "derived")[0] == derived
    assert seen("--yarn-magnitude", "attention_factor", env=env)[0] == plain


def test_backend_and_arithmetic_that_are_there(start, build, run):
    worker = start("--backend", "cpu", "--arithmetic", "fast",  # a permission, which cpu has no use for
                   env={"MLXFAST_BACKEND": "metal", "BENCH_WORKER_ARITHMETIC": "quick"})
    assert worker.hello["backend"] == "cpu"
    shown = run([build / "bench-worker", "manifest", "--runner", "mlxfast/laguna", "--backend", "cuda"])
    if shown.returncode == 2:
        assert "BACKEND-NOT-BUILT" in shown.stderr and shown.stdout == ""
    else:
        assert json.loads(shown.stdout)["backend"] == "cuda"


def test_manifest_bytes(build, run):
    import hashlib
    shown = run([build / "bench-worker", "manifest", "--runner", "mlxfast/laguna"])
    assert shown.returncode == 0 and shown.stderr == ""
    assert shown.stdout.endswith("}\n")
    digest = run([build / "bench-worker", "manifest", "--runner", "mlxfast/laguna", "--digest"])
    assert digest.stdout == hashlib.sha256(shown.stdout[:-1].encode()).hexdigest() + "\n"
    by_weights = run([build / "bench-worker", "manifest", "--weights", VECTOR])
    assert by_weights.stdout == shown.stdout
    manifest = json.loads(shown.stdout)
    assert manifest["backend"] == "cpu" and manifest["decoders"][0]["mode"] == "serial"


def test_manifest_reads_only_the_config(build, run, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "laguna"}')
    assert run([build / "bench-worker", "manifest", "--weights", tmp_path]).returncode == 0
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    result = run([build / "bench-worker", "manifest", "--weights", tmp_path])
    assert result.returncode == 1 and "UNKNOWN-MODEL-TYPE" in result.stderr and "llama" in result.stderr


@pytest.mark.parametrize("arguments", [
    ["--help"], ["runtime-worker", "--nonsense", "-h"], ["manifest", "--help", "--runner"],
    ["generate", "-n", "--help"], ["logits", "--help"]])
def test_help_wins(build, run, arguments):
    result = run([build / "bench-worker", *arguments])
    assert result.returncode == 0 and result.stderr == ""
    assert "usage: bench-worker" in result.stdout
