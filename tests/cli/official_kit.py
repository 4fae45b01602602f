"""What the tests of the ranked run share: two trees with the scripted engine, a contract that is armed and
allows a busy machine, a calibration that any speed fulfils; official runs, and the arithmetic of their scores
done again from what was sealed."""

import json
import os
import subprocess

from conftest import BUILD, ROOT
from judge_kit import DEADLINES, ENGINE, Kit

QUIET = {"load_max": 100000, "gpu_use_max": 1, "celsius_max": 60, "temperature_required": True,
         "wait_seconds": 2, "clock_floor_mhz": 0, "others_cpu_max": 100000,
         "window_seconds": 0.2}
STATISTICS = {"null_pairs": 1, "max_pairs": 2, "half_width": 0, "confidence": 0.95}
# Python engines are slow and not even: a floor that any run clears, so that no test is about speed.
ARMED = {"official_scoring_enabled": True, "decode_speedup_floor": 1e-6, "prefill_speedup_floor": 1e-6,
         "quiet": QUIET, "statistics": STATISTICS, "scored_batch_size": 1, "prefill_gain_exponent": 0.25,
         "decode_gain_exponent": 0.75, "seed_window_tolerance": 1e6}
BOX = "test-box"


def engine_text(script):
    """The scripted engine with its script inside: a sandboxed one reads no other file."""
    text = ENGINE.read_text()
    assert "\nscript = {}\n" in text
    return text.replace("\nscript = {}\n", f"\nscript = json.loads({json.dumps(json.dumps(script))})\n", 1)


class OfficialKit(Kit):
    """folder/base is the organiser's tree; the submission's is folder/sub, where runs are started."""

    def __init__(self, folder, **contract):
        super().__init__(folder, **{**ARMED, **contract})
        self.base, self.sub = self.folder / "base", self.folder / "sub"
        self.engines()
        for tree in (self.base, self.sub):
            (tree / "weights").mkdir()
            (tree / "weights" / "config.json").write_text("{}")
        (self.sub / "src" / "judge").mkdir(parents=True)
        (self.sub / "src" / "judge" / "harness.txt").write_text("a harness")
        self.record()
        self.golden.chmod(0o644)
        self.calibration = self.folder / "calibration.json"
        self.calibrate()
        self.score = self.folder / "out" / "score.json"
        self.score.parent.mkdir(exist_ok=True)
        self.integrity = self.score.parent / "benchmark-integrity.json"

    def engines(self, base=None, sub=None):
        for tree, script in ((self.base, base), (self.sub, sub)):
            tree.mkdir(exist_ok=True)
            engine = tree / "engine"
            engine.write_text(engine_text({"vocab": 509, **(script or {})}))
            engine.chmod(0o755)

    def calibrate(self, prefill=1000.0, decode=1000.0, **changes):
        prompt = {"prompt": "public", "passes": 4, "prefill_seconds_per_token_mean": prefill,
                  "decode_seconds_per_token_mean": decode, "prefill_cv": 0.004, "decode_cv": 0.003,
                  "prefill_band_low": 0.95, "prefill_band_high": 1.05, "decode_band_low": 0.98,
                  "decode_band_high": 1.02}
        self.calibration.write_text(json.dumps({
            "version": 3, "track_id": "mock-0-cuda-v1", "box": BOX, "captured_at": "2026-11-30T00:00:00Z",
            "reference_commit": "1" * 40, "benchd_source_commit": "2" * 40, "prompts": [prompt], **changes}))

    def official(self, *extra, golden=True, env=None, popen=False, timeout=120, baseline=True, box=BOX):
        arguments = [BUILD / "benchd", "official", "--engine", "engine", "--weights", "weights",
                     "--contract", self.contract, "--score-path", self.score]
        if golden:
            arguments += ["--golden", self.golden]
        if baseline:
            arguments += ["--baseline-workspace", self.base, "--baseline-calibration", self.calibration]
        if box:
            arguments += ["--box", box]
        environment = {**os.environ, **DEADLINES, "MLXFAST_GPU_TEMP_CMD": "echo 30", **(env or {})}
        for name in ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID", "MLXFAST_COMMIT_SHA", "RUNNER_NAME"):
            if name not in (env or {}):
                environment.pop(name, None)
        options = dict(text=True, env=environment, cwd=self.sub)
        arguments = [str(a) for a in [*arguments, *extra]]
        if popen:
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        return subprocess.run(arguments, capture_output=True, timeout=timeout, **options)


def composite(pair, weights=(0.25, 0.75)):
    prefill = pair["control_prefill_seconds_per_token"] / pair["candidate_prefill_seconds_per_token"]
    decode = pair["control_decode_seconds_per_token"] / pair["candidate_decode_seconds_per_token"]
    return prefill, decode, decode ** weights[1] * prefill ** weights[0]


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def status_of(name):
    """Whose failure it is: the organiser's tree or calibration, the machine, the submission."""
    if name.startswith(("BASELINE-", "CALIBRATION-", "SERIAL-CONTROL-LEG-", "CONTROL-GOLDEN-", "TIMED-REPLAY-")):
        return 6
    if name.startswith(("QUIESCENCE-", "COOL-GATE-", "TEMPERATURE-READER-", "TELEMETRY-", "QUIET-GATES-")):
        return 7
    return 1


__all__ = ["ARMED", "BOX", "OfficialKit", "QUIET", "ROOT", "STATISTICS", "composite", "lower_median",
           "status_of"]
