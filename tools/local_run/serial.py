"""benchmark.sh: the serial track's local run, over `benchd iterate`."""

import json
import os
import tempfile

import build
import drift
import run_common as common
import stop
from stop import FAILED, INTERRUPTED, USAGE, Interrupted, Stop, say, step

SCRIPT = "benchmark.sh"
USAGE_LINE = "usage: ./benchmark.sh --local-iterate | --local-submit"
ABOUT = ["Checks the engine against the track's public golden, times serial prefill and decode, and seals "
         "score.json. A local score is an estimate for yourself and never rankable."]
DRIFT_FREE_RUN = 64


def record_own_oracle(settings, files, public, folder):
    """The timed tokens as the drifted engine itself gives them, so that it can be timed at all; the
    cases stay the public golden's, so that the judge itself says that they fail."""
    own = public["benchmark"]
    prompts = {}
    for key in ("prefill_prompt_tokens", "decode_seed_tokens"):
        prompts[key] = folder / f"{key}.json"
        prompts[key].write_text(json.dumps(own[key]))
    out = folder / "own.golden.json"
    code, _ = stop.run(
        [build.program("record-correctness-golden"), "--worker-bin", files["engine"], "--weights",
         files["weights"], "--contract", files["contract"], "--out", out, "--prompt-tokens",
         prompts["decode_seed_tokens"], "--case-name", "own", "--steps", "64",
         "--benchmark-free-run", "--benchmark-steps", str(len(own["expected_decode_tokens"])),
         "--benchmark-prefill-prompt", prompts["prefill_prompt_tokens"],
         "--benchmark-decode-prompt", prompts["decode_seed_tokens"], "--quiet"])
    if code == INTERRUPTED:
        raise Interrupted("SIGINT")
    if code != 0:
        raise Stop(FAILED, "the drifted engine's own tokens could not be recorded")
    drifted = dict(public)
    drifted["benchmark"] = json.loads(out.read_text())["benchmark"]
    # A base case forgives one token in ten; a free run of its beginning forgives none.
    gates = {k: list(v) for k, v in public.get("correctness_gates", {}).items()}
    gates.setdefault("free_run", []).extend(
        {"name": f"tripwire-{case['name']}", "prompt_tokens": case["prompt_tokens"],
         "expected_tokens": case["expected_tokens"][:DRIFT_FREE_RUN]} for case in public["cases"])
    drifted["correctness_gates"] = gates
    path = folder / "drifted.golden.json"
    path.write_text(json.dumps(drifted))
    return path


def show(metrics, score, gate, correct):
    step("Result: a local estimate, never rankable")
    rate = lambda key: f"{1 / metrics[key]:,.0f} tokens/s ({1e3 * metrics[key]:.3f} ms each)" \
        if metrics.get(key) else "not measured"
    if correct:
        verdict = f"passed: {metrics['case_count']} cases, {metrics['checked_steps']} steps"
    else:
        verdict = f"FAILED: {metrics['error'] or 'drift from the public golden'}"
    common.table([("correctness", verdict),
                  ("prefill", rate("prefill_seconds_per_token")),
                  ("decode", rate("decode_seconds_per_token")),
                  ("machine", gate.summary()),
                  ("sealed in", f"{score} (+ .sha256, benchmark-integrity)")])


def main():
    mode, settings = common.parse(SCRIPT, "serial", USAGE_LINE, ABOUT)
    engine = settings.path("MLXFAST_ENGINE_PATH") or build.folder() / "bench-worker"
    contract = common.need(settings.path("MLXFAST_CONTRACT_PATH", "tracks/laguna-nano-serial-v1/contract.json"),
                           "file", "MLXFAST_CONTRACT_PATH")
    files = {"engine": engine, "contract": contract,
             "weights": common.need(settings.path("MLXFAST_WEIGHTS_PATH", "models/laguna-nano"), "folder",
                                    "MLXFAST_WEIGHTS_PATH")}
    golden = common.need(settings.path("MLXFAST_CORRECTNESS_GOLDEN_PATH") or
                         contract.parent / "public.golden.json", "file", "MLXFAST_CORRECTNESS_GOLDEN_PATH")
    score = common.score_path(settings)
    allowed = settings.switch("MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT", False)
    gate = common.cool_gate(settings)
    work = common.work_folder(settings, "MLXFAST_LOCAL_WORK_DIR", ".mlxfast-local-serial")
    held = common.enter(SCRIPT, settings, engine)
    common.remove_old(score, "benchmark-integrity.local-iterate.json" if mode == "local-iterate"
                      else "benchmark-integrity.json")
    benchd = build.program("benchd")

    step("Drift tripwire")
    found = drift.look(benchd, engine, files["weights"], golden, contract, work / "tripwire.json")
    correct = drift.judge(found, allowed, f"{SCRIPT} --{mode}")
    with tempfile.TemporaryDirectory(dir=work) as folder:
        if not correct:
            try:
                public = json.loads(golden.read_text())
                golden = record_own_oracle(settings, files, public, work.__class__(folder))
            except KeyError as missing:
                raise Stop(USAGE, f"{golden} has no {missing}: it cannot be timed") from missing
        step(f"Timing, {mode}")
        common.wait_for_cool(gate, "serial")
        code, _ = stop.run([benchd, "iterate", "--engine", engine, "--weights", files["weights"],
                            "--golden", golden, "--contract", contract, "--mode", mode, "--strict",
                            "--score-path", score, "--quiet"])
    if code == INTERRUPTED:
        raise Interrupted("SIGINT")
    if code not in (0, 1) or not score.is_file():
        raise Stop(code if code == USAGE else FAILED, "benchd iterate gave no score")
    document = json.loads(score.read_text())
    passed = document["passed"] is True and document["metrics"]["passed_correctness"] is True
    show(document["metrics"], score, gate, passed)
    os.close(held) if held is not None else None
    timed = bool(document["metrics"].get("decode_seconds_per_token"))
    if passed and not correct:
        raise Stop(FAILED, "the tripwire saw a drift that the judge's run did not: the engine does not "
                           "answer the same every time")
    return 0 if passed or (not correct and timed) else FAILED


if __name__ == "__main__":
    raise SystemExit(stop.guarded(SCRIPT, main))
