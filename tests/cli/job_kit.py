"""What the tests of the older flow share: two made-up trees with a toy worker each, tapes of the mock
model, a contract whose pool pins them, and runs of measure-job and overlay-timing."""

import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT
from judge_kit import CONTRACT, DEADLINES, SEED, VOCAB, next_token, prompt

WORKER = ROOT / "tests" / "engines" / "job_engine.py"
COMMIT = "0123456789abcdef" * 2 + "01234567"
BOX = "box-1"
ANY_MACHINE = {"load_max": 1e6, "gpu_use_max": 1.0, "celsius_max": 120.0,
               "temperature_required": False, "wait_seconds": 5, "clock_floor_mhz": 0,
               "others_cpu_max": 1e6, "window_seconds": 0.2}
TRUSTED = ["Package.swift", "Package.resolved", "Sources/MLXFastTrustedHarness/h.swift",
           "Sources/MLXFastCLI/c.swift", "Sources/MLXFastCore/k.swift", ".github/w.yml",
           "tools/t.sh"]
NAMES = ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID", "MLXFAST_COMMIT_SHA",
         "MLXFAST_CANDIDATE_SHA_FILE", "BASELINE_CALIBRATION", "BASELINE_BAND_ENFORCE", "RUNNER_NAME",
         "QMTP_TARGET_DIR", "QMTP_HEAD_DIR", "QMTP_CANDIDATE_HEAD_DIR", "QMTP_DFLASH_HEAD_DIR",
         "QMTP_CANDIDATE_DFLASH_HEAD_DIR", "GPU_LOADED_UTIL", "MLXFAST_MEASURE_WORKER_BIN",
         "MLXFAST_RUNTIME_WORKER_EXECUTABLE", "MLXFAST_MAX_DRAFT_DEPTH", "MLXFAST_QWEN_MTP_POOL_SIZE",
         "MLXFAST_QWEN_MTP_MIN_PAIRS_PER_PROMPT", "MLXFAST_QWEN_MTP_TIMED_SERIES")
# The candidate takes half of the baseline's time: a ratio of about 2, far from every gate.
SLOW, FAST = {"decode_seconds": 0.4}, {"decode_seconds": 0.2}


@functools.lru_cache(maxsize=None)
def has_sandbox():
    """A scored job must have one; a build with sanitizers has none."""
    return (BUILD / "benchd").exists() and \
        subprocess.run([BUILD / "benchd", "probe-sandbox"], capture_output=True).returncode == 0


def needs_sandbox():
    return pytest.mark.skipif(not has_sandbox(), reason="no sandbox, which a scored job must have")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tape(number, rows=130, seed=None):
    tokens = list(seed or prompt(number))
    context, made = list(tokens), []
    for _ in range(rows + 1):
        made.append(next_token(context[-1], len(context)))
        context.append(made[-1])
    return {"seed_tokens": tokens, "reference_seed_token": made[0],
            "rows": [{"sequential_argmax": t} for t in made[1:]]}


class JobKit:
    def __init__(self, folder, prompts=1, rows=130, baseline=SLOW, candidate=FAST, **contract):
        self.folder = pathlib.Path(folder)
        self.baseline, self.candidate = self.tree("baseline", baseline), \
            self.tree("candidate", candidate)
        self.weights = self.folder / "weights"
        self.weights.mkdir()
        (self.weights / "config.json").write_text("{}")
        self.goldens = []
        for i in range(prompts):
            path = self.folder / f"p{i}.json"
            path.write_text(json.dumps(tape(i, rows)))
            self.goldens.append(path)
        self.commit_file = self.folder / "dispatch"
        self.commit_file.write_text(COMMIT + "\n")
        self.contract = self.folder / "contract.json"
        self.write_contract(**contract)
        self.calibration = self.folder / "calibration.json"
        self.write_calibration()
        self.out = self.folder / "out"
        self.results = self.out / "results.json"

    def tree(self, name, manners):
        root = self.folder / name
        for path in TRUSTED:
            self.put(root / path, path)
        self.put(root / "Sources/Model/a.swift", "model")
        self.put(root / "benchmark.json", json.dumps({"editablePaths": ["Sources/Model"]}))
        self.put(root / ".build/release/engine.json", json.dumps(manners))
        shutil.copy(WORKER, root / ".build/release/mlxfast-runtime-worker")
        os.chmod(root / ".build/release/mlxfast-runtime-worker", 0o755)
        return root

    @staticmethod
    def put(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def manners(self, tree, **keys):
        path = tree / ".build/release/engine.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    def pool(self):
        return [{"sha256": sha256(p.read_bytes()), "bytes": p.stat().st_size,
                 "noop_decode_speedup": 0.994} for p in self.goldens]

    def write_contract(self, **changes):
        document = {**CONTRACT, "official_scoring_enabled": True, "paired_flow_retired": False,
                    "scores_against_live_control_leg": False, "scored_batch_size": 1,
                    "prefill_gain_exponent": 0.25, "decode_gain_exponent": 0.75,
                    "timed_prompt_pool": self.pool(), "quiet": ANY_MACHINE, **changes}
        self.contract.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))

    def write_calibration(self, mean=1.0, box=BOX):
        axis = {"prefill_seconds_per_token_mean": 1.0, "decode_seconds_per_token_mean": mean,
                "prefill_cv": 0.001, "decode_cv": 0.001, "prefill_band_low": 0.95,
                "prefill_band_high": 1.05, "decode_band_low": 0.98, "decode_band_high": 1.02}
        self.calibration.write_text(json.dumps({
            "version": 3, "track_id": CONTRACT["track_id"], "box": box,
            "captured_at": "2026-01-01T00:00:00Z", "reference_commit": "a" * 40,
            "benchd_source_commit": "b" * 40,
            "prompts": [{"prompt": p.name.removesuffix(".json"), "passes": 4, **axis}
                        for p in self.goldens]}))

    def environment(self, changes):
        env = {**os.environ, **DEADLINES}
        for name in NAMES:
            env.pop(name, None)
        env.update({"MLXFAST_CANDIDATE_SHA_FILE": str(self.commit_file), "RUNNER_NAME": BOX,
                    "BASELINE_CALIBRATION": str(self.calibration)})
        for name, value in (changes or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = str(value)
        return env

    def measure(self, *extra, env=None, goldens=None, pairs=2, minimum=None, timeout=90, drop=(),
                popen=False):
        arguments = {"--candidate": self.candidate, "--baseline": self.baseline,
                     "--contract": self.contract, "--min-pairs": minimum or pairs,
                     "--target-pairs": pairs, "--tag": "t", "--out": self.out,
                     "--weights": self.weights}
        line = [BUILD / "benchd", "measure-job"]
        for flag, value in arguments.items():
            if flag not in drop:
                line += [flag, value]
        for path in self.goldens if goldens is None else goldens:
            line += ["--golden", path]
        line = [str(a) for a in [*line, *extra]]
        if popen:
            return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=self.environment(env), cwd=self.folder)
        return subprocess.run(line, capture_output=True, text=True, timeout=timeout,
                              env=self.environment(env), cwd=self.folder)

    def local(self, *extra, **kwargs):
        """A developer's run, without the sandbox: the toy may write."""
        return self.measure("--local-dev", "--no-sandbox", *extra, **kwargs)

    def document(self):
        return json.loads(self.results.read_text())

    def assert_refused(self, result, name, code=8):
        """One line, which begins with the name; nothing was written, no engine was started."""
        assert result.returncode == code, (result.returncode, result.stderr)
        assert error_name(result) == name, result.stderr
        assert not self.results.exists()

    def assert_sealed(self):
        result = subprocess.run(["sha256sum", "-c", "results.json.sha256"], cwd=self.out,
                                capture_output=True, text=True, timeout=30)
        assert result.returncode == 0, result.stderr
        record = json.loads((self.out / "benchmark-integrity.results.json").read_text())
        assert list(record) == [
            "results_path", "results_sha256", "candidate_workspace", "baseline_workspace",
            "candidate_executable", "baseline_executable", "candidate_workspace_sha256",
            "baseline_workspace_sha256", "golden_sha256", "contract_sha256", "weights_dir",
            "weights_sha256", "weights_file_count", "weights_byte_count", "gates_producer"]
        assert record["results_sha256"] == sha256(self.results.read_bytes())
        assert not [v for v in record.values() if str(self.folder) in str(v)]
        assert str(self.folder) not in self.results.read_text()
        return record


def error_name(result):
    """The name in "benchd <tool>: NAME: message"."""
    return result.stderr.strip().splitlines()[-1].split(": ")[1]
