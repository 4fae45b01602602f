"""Free runs of mode dflash over Engine Protocol v1: serial tokens, counters that add up, and every spec that
cannot be honoured refused by name."""

import hashlib
import json
import os
import random
import subprocess

import pytest

from block_kit import BLOCK, DRAFTER, NANO, Worker, text_prompt
from conftest import ROOT

TRACK = ROOT / "tracks/laguna-nano-serial-v1"
DIGEST = hashlib.sha256((DRAFTER / "model.safetensors").read_bytes()).hexdigest()


def dflash(depth, **more):
    return {"mode": "dflash", "dflash": {"depth": depth, **more}}


@pytest.fixture(scope="module")
def shared(build):
    workers = [Worker("--speculative-protocol", "v1.1"),
               Worker("--speculative-protocol", "v1.1", drafter=None)]
    yield workers
    for worker in workers:
        worker.kill()


def begin(worker, seed, spec):
    r = worker.ok("free_decode_begin", seed_tokens=seed, **({"spec": spec} if spec else {}))
    assert r.get("effective_spec") == spec
    return r["seed_token"]


def run(worker, count, depth):
    """One run's tokens, held to the equations of engine-protocol.md section 7."""
    r = worker.ok("free_decode_run", count=count)
    lengths = r["acceptance_lengths"]
    assert len(r["tokens"]) == r["committed_total"] == sum(lengths) == count
    assert all(1 <= n <= depth + 1 for n in lengths)
    assert r["accepted_total"] == count - len(lengths)
    # Every round drafts depth tokens, but the last ones, which are cut to what is wanted.
    assert r["accepted_total"] <= r["drafted_total"] <= depth * len(lengths)
    if depth:
        assert r["spec_decoder"] == "dflash" and r["verification_mode"] in ("rectangular", "serial")
        assert r["rectangular_verification_rounds"] + r["serial_verification_rounds"] == len(lengths)
        assert (r["verification_mode"] == "rectangular") == (r["rectangular_verification_rounds"] > 0)
        assert r["drafted_total"] >= r["rectangular_verification_rounds"]
    else:
        assert r["drafted_total"] == 0 and "spec_decoder" not in r and "verification_mode" not in r
    return r["tokens"], len(lengths)


@pytest.mark.parametrize("depth", [1, 2, 3, 7, BLOCK - 1])
def test_tokens_are_serial_and_counters_add_up(shared, depth):
    worker, plain = shared
    seed = text_prompt(100, "travel-darwin")
    first = begin(plain, seed, None)
    wanted, _ = run(plain, 150, 0)
    assert begin(worker, seed, dflash(depth)) == first
    tokens, rounds = run(worker, 150, depth)
    assert tokens == wanted and rounds < 150
    assert worker.ok("phase_diagnostics")["completed_work"] == rounds + 1
    assert worker.ok("phase_diagnostics")["completed_work"] == 0


def test_counts_that_end_inside_a_block(shared):
    """Run after run continues where the last one ended; none gives out more, and none less."""
    worker, plain = shared
    seed, draw = text_prompt(120), random.Random(4)
    begin(plain, seed, None)
    wanted, _ = run(plain, 120, 0)
    begin(worker, seed, dflash(BLOCK - 1))
    tokens, rounds = [], 0
    while len(tokens) < 120:
        count = min(draw.randint(0, 9), 120 - len(tokens))
        more, n = run(worker, count, BLOCK - 1)
        tokens, rounds = tokens + more, rounds + n
    assert tokens == wanted
    assert worker.ok("phase_diagnostics")["completed_work"] == rounds + 1


def test_a_run_to_the_end_of_the_context(build):
    workers = [Worker("--speculative-protocol", "v1.1", "--context", 140),
               Worker("--speculative-protocol", "v1.1", "--context", 140, drafter=None)]
    seed = text_prompt(100)
    begin(workers[1], seed, None)
    wanted, _ = run(workers[1], 40, 0)
    begin(workers[0], seed, dflash(BLOCK - 1))
    assert run(workers[0], 40, BLOCK - 1)[0] == wanted
    assert workers[0].refused("free_decode_run", count=1).startswith("CONTEXT-EXCEEDED: ")
    begin(workers[0], seed, dflash(BLOCK - 1))  # a refusal of v1 drops its phase and no more
    assert workers[0].refused("free_decode_run", count=41).startswith("CONTEXT-EXCEEDED: ")
    for worker in workers:
        worker.kill()


def test_modes_change_from_run_to_run(shared):
    worker, plain = shared
    seed = text_prompt(64)
    begin(plain, seed, None)
    wanted, _ = run(plain, 30, 0)
    for spec, depth in ((dflash(3), 3), (None, 0), (dflash(1), 1), ({"mode": "serial"}, 0)):
        begin(worker, seed, spec)
        tokens, rounds = run(worker, 30, depth)
        assert tokens == wanted and (rounds == 30) == (depth == 0)


def test_teacher_forced_steps_stay_serial(shared):
    """decode_begin honours the spec; each decode_step is one row all the same, and one work."""
    worker, plain = shared
    seed = text_prompt(70)
    token = begin(plain, seed, None)
    wanted, _ = run(plain, 5, 0)
    worker.ok("phase_diagnostics")
    r = worker.ok("decode_begin", seed_tokens=seed, spec=dflash(3))
    assert (r["seed_token"], r["effective_spec"]) == (token, dflash(3))
    fed = [token] + wanted
    assert [worker.ok("decode_step", token=t)["token"] for t in fed[:5]] == wanted
    assert worker.ok("phase_diagnostics")["completed_work"] == 6


def test_the_hello_tells_the_drafters_digest_and_a_spec_may_ask_for_it(shared):
    worker = shared[0]
    size = (DRAFTER / "model.safetensors").stat().st_size
    assert worker.hello["head_provenance"] == {"sha256": DIGEST, "bytes": size, "file_count": 1}
    spec = dflash(2, draft={"artifact": "laguna-nano-dflash", "sha256": DIGEST})
    begin(worker, [3, 4, 5], spec)
    run(worker, 10, 2)


@pytest.mark.parametrize("spec, name", [
    ({"mode": "dflash"}, "DEPTH-MISSING"),
    ({"mode": "dflash", "dflash": {}}, "DEPTH-MISSING"),
    ({"mode": "dflash", "dflash": {"draft": {"sha256": DIGEST}}}, "DEPTH-MISSING"),
    (dflash(0), "DEPTH-INVALID"),
    (dflash(-1), "DEPTH-INVALID"),
    (dflash(BLOCK), "DEPTH-INVALID"),
    (dflash(1 << 40), "DEPTH-INVALID"),
    (dflash(2.0), "DEPTH-INVALID"),
    (dflash("2"), "DEPTH-INVALID"),
    (dflash(None), "DEPTH-INVALID"),
    (dflash(2, width=3), "SPEC-INVALID"),
    (dflash(2, draft="x"), "SPEC-INVALID"),
    (dflash(2, draft={}), "SPEC-INVALID"),
    (dflash(2, draft={"artifact": "x"}), "SPEC-INVALID"),
    (dflash(2, draft={"artifact": 1, "sha256": DIGEST}), "SPEC-INVALID"),
    (dflash(2, draft={"sha256": DIGEST, "bytes": 1}), "SPEC-INVALID"),
    (dflash(2, draft={"sha256": DIGEST.upper()}), "DRAFTER-MISMATCH"),
    (dflash(2, draft={"sha256": "0" * 64}), "DRAFTER-MISMATCH"),
    ({**dflash(2), "mtp": {"depth": 2}}, "SPEC-INVALID"),
    ({**dflash(2), "dspark": {}}, "SPEC-INVALID"),
    ({**dflash(2), "mode": "serial"}, "SPEC-INVALID"),
    ({"mode": "mtp", "mtp": {"depth": 2}}, "DECODER-NOT-LOADED"),
    ({"mode": "dspark", "dspark": {}}, "DECODER-NOT-LOADED"),
])
def test_a_spec_that_cannot_be_honoured_is_refused(shared, spec, name):
    for kind in ("free_decode_begin", "decode_begin"):
        assert shared[0].refused(kind, seed_tokens=[1], spec=spec).startswith(f"{name}: ")
        assert shared[0].refused("free_decode_run", count=1).startswith("OUT-OF-ORDER: ")


def test_without_a_drafter_the_mode_is_not_loaded(shared):
    error = shared[1].refused("free_decode_begin", seed_tokens=[1], spec=dflash(2))
    assert error.startswith("DECODER-NOT-LOADED: ") and "(serial)" in error


def iterate(build, folder, *extra, spec=None):
    contract = json.loads((TRACK / "contract.json").read_text())
    contract.update(allowed_modes=["serial", "dflash"], benchmark_decode_steps=128)
    (folder / "contract.json").write_text(json.dumps(contract))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLXFAST_", "BENCH_WORKER_"))}
    return subprocess.run(
        [build / "benchd", "iterate", "--engine", build / "bench-worker", "--weights", NANO, "--golden",
         TRACK / "public.golden.json", "--contract", folder / "contract.json", "--score-path",
         folder / "score.json", "--quiet", "--candidate-spec", json.dumps(spec), *map(str, extra)],
        capture_output=True, text=True, timeout=300, env=environment)


def test_iterate_runs_the_mode(build, tmp_path):
    """With the sandbox where there is one: the drafter's folder is shown in it."""
    result = iterate(build, tmp_path, "--drafter", DRAFTER, spec=dflash(3))
    assert result.returncode == 0, result.stderr
    m = json.loads((tmp_path / "score.json").read_text())["metrics"]
    assert m["error"] == "" and m["passed_correctness"] is True
    assert (m["effective_spec_mode"], m["effective_spec_depth"]) == ("dflash", 3)
    assert m["head_provenance_sha256"] == DIGEST
    assert sum(m["acceptance_lengths"]) == 128 and len(m["acceptance_lengths"]) == m["spec_rounds"] < 128
    assert m["spec_accepted_total"] == 128 - m["spec_rounds"]
    assert m["spec_rectangular_verification_rounds"] + m["spec_serial_verification_rounds"] == \
        m["spec_rounds"]


def test_iterate_needs_the_drafter(build, tmp_path):
    result = iterate(build, tmp_path, spec=dflash(3))
    assert result.returncode == 1 and "SpecModeNotRunnable" in result.stderr
    result = iterate(build, tmp_path, "--drafter", tmp_path / "nothing", spec=dflash(3))
    assert result.returncode == 1 and "DRAFTER-MISSING" in result.stderr
    result = iterate(build, tmp_path, "--drafter", DRAFTER, spec={"mode": "dflash", "dflash": {}})
    assert result.returncode == 1 and "DEPTH-MISSING" in result.stderr
