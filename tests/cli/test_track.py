"""The track that ships: its files fit together, it can be recorded again byte for byte, and the engine
that ships passes it."""

import hashlib
import json
import os
import pathlib
import subprocess

import pytest

from conftest import ROOT

TRACK = ROOT / "tracks" / "laguna-nano-serial-v1"
CONTRACT = json.loads((TRACK / "contract.json").read_text())
POOL = CONTRACT["timed_prompt_pool"]
LENGTH = 512


def prompt_ids(name):
    return [int(t) for t in (TRACK / "prompts" / f"{name}.txt").read_text().split()]


def test_pool_is_eight_distinct_prompts():
    assert len(POOL) == 8
    assert len({e["sha256"] for e in POOL}) == 8 and len({e["path"] for e in POOL}) == 8
    prompts = {tuple(prompt_ids(p.stem)) for p in (TRACK / "prompts").glob("*.txt")}
    assert len(prompts) == 8
    assert all(len(p) == LENGTH for p in prompts)
    assert all(len(set(p)) / LENGTH >= 0.40 for p in prompts)


@pytest.mark.parametrize("entry", POOL, ids=[pathlib.Path(e["path"]).name for e in POOL])
def test_pool_golden_is_pinned_and_valid(build, run, entry):
    path = TRACK / entry["path"]
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"] and len(data) == entry["bytes"]
    result = run([build / "benchd", "validate-golden", "--golden", path, "--contract",
                  TRACK / "contract.json", "--golden-sha256", entry["sha256"], "--golden-bytes",
                  entry["bytes"]])
    assert result.returncode == 0, result.stderr
    golden = json.loads(data)
    ids = prompt_ids(path.name.removesuffix(".golden.json"))
    assert golden["cases"][0]["prompt_tokens"] == ids
    assert golden["benchmark"]["decode_seed_tokens"] == ids


def test_public_golden_has_every_gate(build, run):
    path = TRACK / "public.golden.json"
    result = run([build / "benchd", "validate-golden", "--golden", path, "--contract",
                  TRACK / "contract.json"])
    assert result.returncode == 0, result.stderr
    golden = json.loads(path.read_text())
    gates = golden["correctness_gates"]
    assert len(golden["cases"]) >= 2 and len(gates["anchors"]) == 8
    assert len(gates["free_run"]) >= 2 and len(gates["behavior"]) >= 3
    assert len(golden["benchmark"]["expected_decode_tokens"]) >= 1024
    assert golden["model_provenance"]["revision"] == CONTRACT["target"]["upstream_revision"]


def test_the_pinned_model_is_the_one_that_ships(nano):
    h = hashlib.sha256()
    for name in ["config.json", *sorted(p.name for p in nano.glob("model-*.safetensors")),
                 "model.safetensors.index.json", "tokenizer.json"]:
        h.update((nano / name).read_bytes())
    assert h.hexdigest()[:40] == CONTRACT["target"]["upstream_revision"]


def test_a_pool_golden_is_recorded_again_byte_for_byte(build, run, nano, tmp_path):
    name = "novel-melville"
    out = tmp_path / "again.json"
    result = run([build / "record-correctness-golden", "--worker-bin", build / "bench-worker",
                  "--weights", nano, "--contract", TRACK / "contract.json", "--out", out,
                  "--prompt-tokens", TRACK / "prompts" / f"{name}.txt", "--case-name", name,
                  "--steps", "1024", "--benchmark-free-run", "--benchmark-steps",
                  str(CONTRACT["benchmark_decode_steps"]), "--benchmark-prefill-prompt",
                  TRACK / "prompts" / "novel-austen.txt", "--quiet"], timeout=500)
    assert result.returncode == 0, result.stderr
    assert out.read_bytes() == (TRACK / "pool" / f"{name}.golden.json").read_bytes()


def test_no_prefill_gives_the_decode_away():
    """An engine that has seen the seed in the timed prefill could decode ahead before it is asked to."""
    for entry in CONTRACT["timed_prompt_pool"]:
        oracle = json.loads((TRACK / entry["path"]).read_text())["benchmark"]
        assert oracle["prefill_prompt_tokens"][:16] != oracle["decode_seed_tokens"][:16], entry["path"]


@pytest.mark.parametrize("mode", ["local-iterate", "local-submit"])
def test_our_engine_passes(build, run, nano, tmp_path, mode):
    score = tmp_path / "score.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
    result = run([build / "benchd", "iterate", "--engine", build / "bench-worker", "--weights", nano,
                  "--golden", TRACK / "public.golden.json", "--contract", TRACK / "contract.json",
                  "--mode", mode, "--strict", "--score-path", score], timeout=500, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(score.read_text())
    m = document["metrics"]
    assert document["passed"] is True and m["error"] == ""
    golden = json.loads((TRACK / "public.golden.json").read_text())
    gates = golden["correctness_gates"]
    assert m["case_count"] == len(golden["cases"]) + sum(len(v) for v in gates.values())
    assert m["checked_steps"] == 64 * len(golden["cases"]) + len(gates["anchors"]) + \
        sum(len(f["expected_tokens"]) for f in gates["free_run"]) + \
        sum(len(b["accepted_token_sequences"][0]) for b in gates["behavior"])
    assert m["engine_backend"] == "cpu" and m["runner_id"]
    assert (tmp_path / "score.json.sha256").exists()


def test_every_pool_golden_serves_local_iterate(build, run, nano, tmp_path):
    """One of them, driven: they hold the 1,024 tokens that local-iterate asks of a case."""
    entry = POOL[0]
    result = run([build / "benchd", "iterate", "--engine", build / "bench-worker", "--weights", nano,
                  "--golden", TRACK / entry["path"], "--contract", TRACK / "contract.json",
                  "--golden-sha256", entry["sha256"], "--golden-bytes", entry["bytes"],
                  "--score-path", tmp_path / "score.json", "--quiet"], timeout=500)
    assert result.returncode == 0, result.stderr
    for other in POOL:
        golden = json.loads((TRACK / other["path"]).read_text())
        assert len(golden["cases"][0]["expected_tokens"]) == 1024
