"""The wire against an independent JSON Schema validator: for a corpus of lines that holds every
kind and every field, the C decoder (tools/wire-check.c) and the committed schema give the same
verdict, but for the differences that docs/engine-protocol.md lists; and what the decoder accepts
comes back canonical."""

import json
import os
import re
import subprocess

import jsonschema
import pytest

from conftest import BUILD, ROOT

SCHEMA = json.loads((ROOT / "docs/schema/engine-protocol-v1.schema.json").read_text())
HASH = "0123456789abcdef" * 4
SPECS = [
    {"mode": "serial"},
    {"mode": "mtp", "mtp": {"depth": 3}},
    {"mode": "mtp", "mtp": {}},
    {"mode": "dflash", "dflash": {"depth": 4, "draft": {"artifact": "head", "sha256": HASH}}},
    {"mode": "dspark", "dspark": {"z": [1, 2.5, None, True, "é\n"], "a": {"b": {}}}},
]
STATS = {"expert_cache_hits": 1, "expert_cache_misses": 2, "expert_cache_evictions": 3,
         "expert_bytes_read": 9223372036854775807, "expert_read_seconds": 0.25,
         "expert_peak_cached_tensors": 0}
TOP = [{"token": 10 - k, "logit": 7.5 - k} for k in range(8)]
REPORT = {"logit_provenance": "f32", "logit_topk": 2, "rel_envelope": 0.05,
          "replay_width": "cohort",
          "streams": [{"slot": 0, "note": "open", "positions": [
              {"committed_token": 5, "sequential_argmax": 5, "ranked_tokens": [5, 6],
               "ranked_logits": [3.5, 1.25], "ranked_relative_gaps": [0.0, 0.5],
               "committed_token_logit": 3.5, "committed_relative_gap": 0.0,
               "within_envelope_depth": 1}]},
              {"slot": 1, "positions": []}], "extra": {"kept": None}}

# Keys are in wire order, so that each line is canonical.
REQUESTS = [
    {"id": 1, "kind": "prefill", "prompt_tokens": [1, 2, 3]},
    {"id": 2, "kind": "prefill", "prompt_tokens": []},
    {"id": 3, "kind": "decode_begin", "seed_tokens": [0, -1, 9223372036854775807]},
    {"id": 4, "kind": "decode_step", "token": -9223372036854775808},
    {"id": 5, "kind": "correctness", "prompt_tokens": [7], "steps": 32},
    {"id": 6, "kind": "correctness_begin", "prompt_tokens": [7, 8]},
    {"id": 7, "kind": "correctness_step", "token": 9},
    {"id": 8, "kind": "phase_diagnostics"},
    {"id": 9, "kind": "free_decode_begin", "seed_tokens": [4, 5], "spec": {"mode": "serial"}},
    {"id": 10, "kind": "free_decode_run", "count": 4294967295},
    {"id": 11, "kind": "free_decode_begin", "spec": {"mode": "mtp", "mtp": {"depth": 2}},
     "seed_tokens_by_stream": [[1, 2], [], [3]], "batch_size": 3},
    {"id": 12, "kind": "free_decode_run", "count": 0, "batch_size": 3},
    {"id": 13, "kind": "cohort_reference_replay", "replay_seeds_by_stream": [[1], [2]],
     "committed_by_stream": [[3, 4], [5, 6]], "logit_top_k": 16, "rel_envelope": 0.05,
     "replay_width": "cohort"},
    {"id": 14, "kind": "cohort_reference_replay", "replay_width": "canonical"},
] + [{"id": 20 + i, "kind": "decode_begin", "seed_tokens": [1], "spec": s}
     for i, s in enumerate(SPECS)]

RESPONSES = [
    {"id": 0, "nonce": "n-\"q\"\\ é😀\u0001", "ok": True, "expert_stats": STATS,
     "protocol_version": 1,
     "backend": "cpu", "device": "x86-64", "capabilities": ["free_run_decode", ""],
     "spec_modes": ["mtp"], "head_provenance": {"sha256": "x", "bytes": 12, "file_count": 1},
     "max_batch_size": 8,
     "runner": {"id": "r", "model_type": "laguna", "manifest_sha256": HASH, "build": "b"},
     "resident": {"pid": 4294967295, "load_epoch": 1}, "arithmetic": "strict"},
    {"id": -1, "ok": False, "error": "the line could not be parsed"},
    {"id": 1, "nonce": "n", "ok": True, "token": 5},
    {"id": 2, "nonce": "n", "ok": True, "token": 10, "top_logits": TOP, "peak_ram_gb": 1.5,
     "top_logit_margin": 1.0, "expected_token_logit": -2e-7, "expected_token_rank": 3},
    {"id": 3, "nonce": "n", "ok": True, "seed_token": 6},
    {"id": 4, "nonce": "n", "ok": True, "tokens": [1, 2, 3], "acceptance_lengths": [1, 2],
     "drafted_total": 2, "accepted_total": 1, "committed_total": 3, "spec_decoder": "mtp",
     "verify_replay_disagreements": 0, "verification_mode": "rectangular",
     "rectangular_verification_rounds": 2, "serial_verification_rounds": 0},
    {"id": 5, "nonce": "n", "ok": True, "completed_work": 3, "cache_memory": 0,
     "mlx_active_memory_bytes": 1, "mlx_cache_memory_bytes": 2, "mlx_peak_memory_bytes": 3},
    {"id": 6, "nonce": "n", "ok": True, "effective_spec": {"mode": "mtp", "mtp": {"depth": 2}},
     "seed_token_by_stream": [1, 2], "effective_batch_size": 2, "prefill_ns_by_stream": [10, 20]},
    {"id": 7, "nonce": "n", "ok": True, "acceptance_lengths": [2, 1], "drafted_total": 6,
     "accepted_total": 4, "committed_total": 6, "effective_batch_size": 2,
     "tokens_by_stream": [[1, 2, 3], [4, 5, 6]], "natural_accepted_by_stream": [[2, 1], [2, 2]],
     "rounds": 2, "active_streams_by_round": [2, 2],
     "depth_clamp_reasons": {"batch_gate": 1, "tail_depth": 2}, "decode_ns_by_stream": [5, 6],
     "verification_mode": "serial"},
    {"id": 8, "nonce": "n", "ok": True, "cohort_reference_replay": REPORT},
    {"id": 9, "nonce": "n", "ok": True, "cohort_reference_replay": {"streams": []}},
    {"id": 10, "ok": True, "tokens": [], "tokens_by_stream": [], "depth_clamp_reasons": {}},
] + [{"id": 20 + i, "nonce": "n", "ok": True, "effective_spec": s} for i, s in enumerate(SPECS)]

# (envelope, line, name, field): refused by both.
P = {"id": 1, "kind": "prefill"}
R = {"id": 1, "ok": True}
BAD = [
    ("request", {"id": 1}, "WIRE-MISSING-KEY", "kind"),
    ("request", {"kind": "prefill"}, "WIRE-MISSING-KEY", "id"),
    ("request", {"id": 1, "kind": "hello"}, "WIRE-UNKNOWN-KIND", "kind"),
    ("request", {"id": 1, "kind": "shutdown"}, "WIRE-UNKNOWN-KIND", "kind"),
    ("request", {"id": 1, "kind": None}, "WIRE-INVALID", "kind"),
    ("request", {"id": "1", "kind": "prefill"}, "WIRE-INVALID", "id"),
    ("request", P | {"ok": True}, "WIRE-UNKNOWN-KEY", "ok"),
    ("request", P | {"prompt_tokens": [1, "2"]}, "WIRE-INVALID", "prompt_tokens[1]"),
    ("request", P | {"prompt_tokens": [1.5]}, "WIRE-INVALID", "prompt_tokens[0]"),
    ("request", P | {"prompt_tokens": [True]}, "WIRE-INVALID", "prompt_tokens[0]"),
    ("request", P | {"prompt_tokens": [None]}, "WIRE-INVALID", "prompt_tokens[0]"),
    ("request", P | {"prompt_tokens": {}}, "WIRE-INVALID", "prompt_tokens"),
    ("request", P | {"count": -1}, "WIRE-INVALID", "count"),
    ("request", P | {"count": 4294967296}, "WIRE-INVALID", "count"),
    ("request", P | {"steps": 9223372036854775808}, "WIRE-INVALID", ""),
    ("request", P | {"rel_envelope": "0.05"}, "WIRE-INVALID", "rel_envelope"),
    ("request", P | {"replay_width": "wide"}, "WIRE-INVALID", "replay_width"),
    ("request", P | {"committed_by_stream": [[1], 2]}, "WIRE-INVALID", "committed_by_stream[1]"),
    ("request", P | {"committed_by_stream": [[1], [2, []]]}, "WIRE-INVALID",
     "committed_by_stream[1][1]"),
    ("request", P | {"spec": {}}, "WIRE-MISSING-KEY", "spec.mode"),
    ("request", P | {"spec": "serial"}, "WIRE-INVALID", "spec"),
    ("request", P | {"spec": {"mode": "fast"}}, "WIRE-INVALID", "spec.mode"),
    ("request", P | {"spec": {"mode": "serial", "depth": 1}}, "WIRE-UNKNOWN-KEY", "spec.depth"),
    ("request", P | {"spec": {"mode": "mtp", "mtp": {"width": 1}}}, "WIRE-UNKNOWN-KEY",
     "spec.mtp.width"),
    ("request", P | {"spec": {"mode": "mtp", "mtp": {"depth": -1}}}, "WIRE-INVALID",
     "spec.mtp.depth"),
    ("request", P | {"spec": {"mode": "mtp", "mtp": 3}}, "WIRE-INVALID", "spec.mtp"),
    ("request", P | {"spec": {"mode": "dflash", "dflash": 4}}, "WIRE-INVALID", "spec.dflash"),
    ("request", P | {"spec": {"mode": "dspark", "dspark": []}}, "WIRE-INVALID", "spec.dspark"),
    ("request", [], "WIRE-INVALID", ""),
    ("request", "prefill", "WIRE-INVALID", ""),
    ("response", {"id": 1}, "WIRE-MISSING-KEY", "ok"),
    ("response", {"ok": True}, "WIRE-MISSING-KEY", "id"),
    ("response", {"id": 1, "ok": 1}, "WIRE-INVALID", "ok"),
    ("response", R | {"kind": "prefill"}, "WIRE-UNKNOWN-KEY", "kind"),
    ("response", R | {"seconds": 0.5}, "WIRE-UNKNOWN-KEY", "seconds"),
    ("response", R | {"nonce": 5}, "WIRE-INVALID", "nonce"),
    ("response", R | {"error": ["x"]}, "WIRE-INVALID", "error"),
    ("response", R | {"token": 1.25}, "WIRE-INVALID", "token"),
    ("response", R | {"capabilities": ["a", 1]}, "WIRE-INVALID", "capabilities[1]"),
    ("response", R | {"top_logits": [{"token": 1}] * 8}, "WIRE-MISSING-KEY", "top_logits[0].logit"),
    ("response", R | {"top_logits": TOP[:7] + [TOP[7] | {"p": 1}]}, "WIRE-UNKNOWN-KEY",
     "top_logits[7].p"),
    ("response", R | {"top_logits": [TOP[0] | {"logit": None}] * 8}, "WIRE-INVALID",
     "top_logits[0].logit"),
    ("response", R | {"expert_stats": {k: v for k, v in STATS.items() if k != "expert_bytes_read"}},
     "WIRE-MISSING-KEY", "expert_stats.expert_bytes_read"),
    ("response", R | {"expert_stats": STATS | {"more": 1}}, "WIRE-UNKNOWN-KEY",
     "expert_stats.more"),
    ("response", R | {"expert_stats": STATS | {"expert_cache_hits": -1}}, "WIRE-INVALID",
     "expert_stats.expert_cache_hits"),
    ("response", R | {"head_provenance": {"sha256": "x", "bytes": 1}}, "WIRE-MISSING-KEY",
     "head_provenance.file_count"),
    ("response", R | {"runner": {"id": "r", "model_type": "m", "manifest_sha256": HASH[:63] + "G",
                                 "build": "b"}}, "WIRE-INVALID", "runner.manifest_sha256"),
    ("response", R | {"resident": {"pid": 4294967296, "load_epoch": 1}}, "WIRE-INVALID",
     "resident.pid"),
    ("response", R | {"verification_mode": "square"}, "WIRE-INVALID", "verification_mode"),
    ("response", R | {"arithmetic": "exact"}, "WIRE-INVALID", "arithmetic"),
    ("response", R | {"depth_clamp_reasons": {"tail_depth": 0.5}}, "WIRE-INVALID",
     "depth_clamp_reasons.tail_depth"),
    ("response", R | {"natural_accepted_by_stream": [[1], [-1]]}, "WIRE-INVALID",
     "natural_accepted_by_stream[1][0]"),
    ("response", R | {"drafted_total": -1}, "WIRE-INVALID", "drafted_total"),
    ("response", R | {"cohort_reference_replay": {}}, "WIRE-MISSING-KEY",
     "cohort_reference_replay.streams"),
    ("response", R | {"cohort_reference_replay": {"streams": [{"slot": 0}]}}, "WIRE-MISSING-KEY",
     "cohort_reference_replay.streams[0].positions"),
    ("response", R | {"cohort_reference_replay": {"streams": [
        {"slot": 0, "positions": [{"committed_token": 1, "sequential_argmax": "1"}]}]}},
     "WIRE-INVALID", "cohort_reference_replay.streams[0].positions[0].sequential_argmax"),
    ("response", R | {"cohort_reference_replay": {"streams": [], "replay_width": 1}},
     "WIRE-INVALID", "cohort_reference_replay.replay_width"),
]

# Text that the decoder refuses and the schema cannot see, or takes otherwise.
STRICTER = [
    ("request", '{"id":1,"kind":"prefill","id":1}', "WIRE-INVALID"),
    ("request", '{"id":1.0,"kind":"prefill"}', "WIRE-INVALID"),
    ("request", '{"id":1e0,"kind":"prefill"}', "WIRE-INVALID"),
    ("response", '{"id":1,"ok":true,"nonce":"a\\u0000b"}', "WIRE-INVALID"),
    ("response", '{"id":1,"ok":true,"nonce":"\\ud800"}', "WIRE-INVALID"),
    ("response", '{"id":1,"ok":true,"drafted_total":9223372036854775808}', "WIRE-INVALID"),
    ("response", '{"id":1,"ok":true,"peak_ram_gb":1e400}', "WIRE-INVALID"),
    ("response", '{"id":1,"ok":true,"peak_ram_gb":NaN}', "WIRE-INVALID"),
    ("response", '{"id":1,"ok":true} {}', "WIRE-INVALID"),
    ("request", '{"id":1,"kind":"decode_begin","spec":{"mode":"dflash","dflash":{"a":%s1%s}}}'
     % ("[" * 70, "]" * 70), "WIRE-INVALID"),
]

# Values that the schema refuses and the decoder passes on, for a check with a name of its own.
LOOSER = [
    ("request", '{"id":1,"kind":"prefill","token":null}', '{"id":1,"kind":"prefill"}'),
    ("request", '{"id":1,"kind":"free_decode_begin","batch_size":0}', None),
    ("request", '{"id":1,"kind":"decode_begin","spec":{"mode":"mtp","mtp":{"depth":null}}}',
     '{"id":1,"kind":"decode_begin","spec":{"mode":"mtp","mtp":{}}}'),
    ("response", '{"id":1,"ok":true,"top_logits":[{"token":1,"logit":2.5}]}', None),
    ("response", '{"id":1,"ok":true,"cache_memory":-1}', None),
    ("response", '{"id":1,"ok":true,"completed_work":-1}', None),
    ("response", '{"id":1,"ok":true,"max_batch_size":0}', None),
]


def text(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def canonical_text(value):
    """A line as the writer has it: Python writes small exponents otherwise."""
    return text(value).replace("e-07", "e-7")


@pytest.fixture(scope="session")
def wire_check(tmp_path_factory):
    """The decoder as a program; built here where the build has no tools yet."""
    program = BUILD / "tools" / "wire-check"
    if not program.exists():
        subprocess.run(["make", "-C", ROOT, f"BUILD={BUILD}", str(program)], check=True,
                       capture_output=True, timeout=600)

    def call(envelope, lines):
        data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
        out = subprocess.run([program, envelope], input=data, capture_output=True, timeout=120,
                             env={**os.environ, "LC_ALL": "C"})
        assert out.returncode == 0, out.stderr
        verdicts = out.stdout.decode().split("\n")[:-1]
        assert len(verdicts) == len(lines)
        return verdicts

    return call


def validator(envelope):
    name = {"request": "WorkerRequest", "response": "WorkerResponse"}[envelope]
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == "https://mlxfast-bench/schema/engine-protocol-v1.schema.json"
    assert SCHEMA["title"] == "Engine Protocol v1"
    refs = [list(part.values()) for part in SCHEMA["oneOf"]]
    assert refs == [["#/$defs/WorkerRequest"], ["#/$defs/WorkerResponse"]]
    assert "depth" not in SCHEMA["$defs"]["MtpSpec"].get("required", [])


def test_corpus_is_complete():
    """Every kind and every field of both envelopes stands in at least one good line."""
    for name, lines in (("WorkerRequest", REQUESTS), ("WorkerResponse", RESPONSES)):
        properties = SCHEMA["$defs"][name]["properties"]
        assert set().union(*lines) == set(properties)
        for line in lines:
            order = [k for k in properties if k in line]
            assert list(line) == order, "the corpus is in wire order"
    kinds = SCHEMA["$defs"]["WorkerRequest"]["properties"]["kind"]["enum"]
    assert {r["kind"] for r in REQUESTS} == set(kinds)


def test_documented_fields():
    """The tables of docs/engine-protocol.md name every field, in wire order."""
    page = (ROOT / "docs/engine-protocol.md").read_text()
    for heading, name in (("Request fields", "WorkerRequest"), ("Reply fields", "WorkerResponse")):
        part = page.split(f"## {heading}")[1].split("\n## ")[0]
        rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", part, flags=re.M)
        assert [n for _, n in rows] == list(SCHEMA["$defs"][name]["properties"])
        assert [int(i) for i, _ in rows] == list(range(1, len(rows) + 1))
    kinds = page.split("## Kinds")[1].split("\n## ")[0]
    for kind in SCHEMA["$defs"]["WorkerRequest"]["properties"]["kind"]["enum"]:
        assert f"| `{kind}` |" in kinds


@pytest.mark.parametrize("envelope", ["request", "response"])
def test_good_lines(wire_check, envelope):
    values = REQUESTS if envelope == "request" else RESPONSES
    whole = jsonschema.Draft202012Validator(SCHEMA)
    for value in values:
        validator(envelope).validate(value)
        whole.validate(value)  # exactly one of the two envelopes
    lines = [canonical_text(v) for v in values]
    assert wire_check(envelope, lines) == ["ok " + line for line in lines]


@pytest.mark.parametrize("envelope", ["request", "response"])
def test_order_and_spaces_do_not_matter(wire_check, envelope):
    values = REQUESTS if envelope == "request" else RESPONSES
    shuffled = [json.dumps(dict(sorted(v.items(), reverse=True))) for v in values]
    assert wire_check(envelope, shuffled) == ["ok " + canonical_text(v) for v in values]


@pytest.mark.parametrize("envelope", ["request", "response"])
def test_bad_lines(wire_check, envelope):
    rows = [row for row in BAD if row[0] == envelope]
    for _, value, _, _ in rows:
        assert not validator(envelope).is_valid(value), value
    verdicts = wire_check(envelope, [text(value) for _, value, _, _ in rows])
    assert verdicts == [f"ERR {name} {field}" for _, _, name, field in rows]


def test_every_field_is_typed(wire_check):
    """A value of a wrong type in each field in turn: both refuse, the decoder by its name."""
    rows = (("request", "WorkerRequest", P), ("response", "WorkerResponse", R))
    for envelope, name, base in rows:
        for wrong in ("x", 1.5, True, [[["x"]]], {"x": {"y": 1.5}}):
            names, lines = [], []
            for field in SCHEMA["$defs"][name]["properties"]:
                value = base | {field: wrong}
                if not validator(envelope).is_valid(value):
                    names.append(field)
                    lines.append(text(value))
            assert len(lines) >= 10
            for field, verdict in zip(names, wire_check(envelope, lines)):
                assert verdict.startswith("ERR WIRE-"), (field, wrong)
                place = verdict.split(" ", 2)[2]
                assert place == field or place.startswith((field + ".", field + "["))
            rest = [text(base | {f: wrong}) for f in SCHEMA["$defs"][name]["properties"]
                    if f not in names]
            assert all(v.startswith("ok ") for v in wire_check(envelope, rest))


def test_stricter_than_the_schema(wire_check):
    for envelope, line, name in STRICTER:
        assert wire_check(envelope, [line])[0].startswith(f"ERR {name} "), line


def test_looser_than_the_schema(wire_check):
    for envelope, line, canonical in LOOSER:
        assert not validator(envelope).is_valid(json.loads(line)), line
        assert wire_check(envelope, [line]) == ["ok " + (canonical or line)]


def test_fuzz_corpus_round_trips(wire_check):
    """What the fuzzer kept: any line that decodes is canonical after one round."""
    for path in sorted((ROOT / "tests/fuzz/corpus/wire").iterdir()):
        data = path.read_bytes()
        if b"\n" in data or not data.isascii():
            continue
        for envelope in ("request", "response"):
            verdict = wire_check(envelope, [data.decode()])[0]
            if verdict.startswith("ok "):
                assert wire_check(envelope, [verdict[3:]]) == [verdict]
