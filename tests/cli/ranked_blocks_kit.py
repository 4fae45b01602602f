"""What the tests of ranked block decoding share: two trees with the toy engine, a pool of eight prompts, a
correctness golden, a contract that allows a busy machine; official runs, and the look for what they left."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

from conftest import BUILD, ROOT
from dflash_kit import BLOCK_DECODE, BlockKit, SEED, VOCAB
from judge_kit import DEADLINES

sys.path.insert(0, str(ROOT / "tests" / "cheats"))
import toy_engine  # noqa: E402

TOKENS, STEPS, BOX = 24, 64, "toy-box"
MODEL = {"layers": 1, "experts": 2, "experts_per_token": 1, "near_ties_per_thousand": 0}
STUB = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, "{ROOT / 'tests' / 'engines'}")
import ranked_toy
ranked_toy.main()
"""
# Any serial time between 0.2 ms and 40 ms a token holds it: no test depends on how fast this machine is.
CALIBRATION = {"serial_seconds_per_token": 0.02, "band": 0.99, "decode_tokens": TOKENS, "machine": BOX}
BLOCKS = {**BLOCK_DECODE, "decode_tokens": TOKENS, "local_iterate_decode_tokens": 8,
          "local_submit_decode_tokens": 16, "min_accepted_pairs": 2, "target_pairs": 2,
          "stall_factor": 100000.0, "raw_speedup_min": 0.01, "raw_speedup_max": 100.0,
          "calibration": CALIBRATION}
QUIET = {"load_max": 100000, "gpu_use_max": 1, "celsius_max": 60, "temperature_required": True,
         "wait_seconds": 2, "clock_floor_mhz": 0, "others_cpu_max": 100000,
         "window_seconds": 0.2}
STATISTICS = {"null_pairs": 1, "max_pairs": 2, "half_width": 0, "confidence": 0.95}


def prompt(number):
    return [(number * 11 + i * i * 7 + 3) % VOCAB for i in range(SEED)]


def greedy(engine, tokens, count):
    context = list(tokens)
    for _ in range(count):
        context.append(toy_engine.top2(engine.rows(context[:-1], context[-1:])[0])[0][0])
    return context[len(tokens):]


class RankedKit:
    """folder/base and folder/sub are the two trees; runs are started in sub."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.base, self.sub = self.folder / "base", self.folder / "sub"
        self.pool, self.private = self.folder / "pool", self.folder / "private"
        self.drafter = self.folder / "drafter"
        for tree in (self.base, self.sub):
            (tree / "weights").mkdir(parents=True)
            (tree / "weights" / "toy.json").write_text(json.dumps({"vocab": VOCAB, **MODEL}))
            engine = tree / "engine"
            engine.write_text(STUB)
            engine.chmod(0o755)
        for part in (self.pool, self.private, self.drafter, self.sub / "src" / "judge"):
            part.mkdir(parents=True)
        (self.sub / "src" / "judge" / "judge.c").write_text("/* the harness of this tree */\n")
        (self.drafter / "toy.json").write_text(json.dumps({"right_per_thousand": 900}))
        self.contract = self.folder / "contract.json"
        self.golden = self.folder / "public.golden.json"
        self.score = self.folder / "out" / "score.json"
        self.score.parent.mkdir()
        self.draw = self.private / "prompt-draw.json"

    def make(self):
        """The slow part, once: the pool's goldens are the toy reference's, the other is made here."""
        self.write_contract()
        reference = BlockKit.__new__(BlockKit)
        reference.folder, reference.weights = self.folder, self.base / "weights"
        reference.drafter, reference.contract = self.drafter, self.contract
        reference.emitted = self.folder / "emitted.json"
        for i in range(8):
            reference.golden = self.pool / f"hidden-prose-{i}.golden.json"
            reference.emitted.write_text(json.dumps({"seed_tokens": prompt(i)}))
            reference.reference(generate=TOKENS)
        reference.emitted.unlink()
        engine = toy_engine.Engine(self.base / "weights", self.drafter)
        cases = [{"name": f"case {i}", "prompt_tokens": prompt(100 + i),
                  "expected_tokens": greedy(engine, prompt(100 + i), STEPS + 1)} for i in range(2)]
        self.golden.write_text(json.dumps({
            "version": 1, "model_type": "mock",
            "model_provenance": {"repository": "mlxfast/mock", "revision": "0" * 40},
            "cases": cases}))
        self.write_contract()
        return self

    def copy(self, folder):
        """Another kit of the same files."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        kit = RankedKit.__new__(RankedKit)
        for name, value in vars(self).items():
            setattr(kit, name, folder / value.relative_to(self.folder) if value != self.folder
                    else folder)
        kit.write_contract()
        return kit

    def entries(self, noop=0.1):
        return [{"path": f"pool/{path.name}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                 "bytes": path.stat().st_size, "noop_decode_speedup": noop + i / 1000}
                for i, path in enumerate(sorted(self.pool.iterdir()))]

    def write_contract(self, blocks=None, quiet=None, **changes):
        document = {"official_scoring_enabled": True, "timed_prompt_pool": self.entries(),
                    "quiet": {**QUIET, **(quiet or {})}, "statistics": STATISTICS,
                    "correctness_steps": STEPS, **changes}
        kit = BlockKit.__new__(BlockKit)
        kit.contract = self.contract
        block_decode = {k: v for k, v in {**BLOCKS, **(blocks or {})}.items() if v is not None}
        kit.write_contract(**{"block_decode": block_decode, **document})

    def fault(self, tree="sub", **keys):
        (self.folder / tree / "weights" / "fault.json").write_text(json.dumps(keys))

    def run(self, *extra, env=None, popen=False, without=(), timeout=120, temperature="echo 41.5"):
        flags = {"--mode": "official", "--engine": "engine", "--weights": "weights",
                 "--baseline-workspace": self.base, "--drafter": self.drafter,
                 "--contract": self.contract, "--golden": self.golden, "--pool": self.pool,
                 "--draw-file": self.draw, "--box": BOX, "--score-path": self.score,
                 "--engine-tree": ROOT / "tests"}
        arguments = [BUILD / "benchd", "iterate"]
        for flag, value in flags.items():
            if flag not in without and flag not in extra:
                arguments += [flag, value]
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("MLXFAST_") and k != "RUNNER_NAME"}
        environment.update(DEADLINES, MLXFAST_GPU_TEMP_CMD=temperature, **(env or {}))
        arguments = [str(a) for a in [*arguments, *extra]]
        if popen:
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, env=environment, cwd=self.sub)
        return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout,
                              env=environment, cwd=self.sub)

    # ---- what came of it ----

    def document(self):
        text = self.score.read_bytes()
        sidecar = (self.score.parent / "score.json.sha256").read_text()
        assert sidecar == f"{hashlib.sha256(text).hexdigest()}  score.json\n"
        integrity = json.loads((self.score.parent / "benchmark-integrity.json").read_text())
        assert integrity["score_sha256"] == hashlib.sha256(text).hexdigest()
        return json.loads(text)

    def passed(self, result):
        assert result.returncode == 0, result.stdout + result.stderr
        document = self.document()
        assert document["passed"] is True and document["metrics"]["error"] == ""
        return document

    def failed(self, result, category, code=1, name=None):
        """A failed score whose error is the category; the organiser's line has the name."""
        assert result.returncode == code, result.stdout + result.stderr
        document = self.document()
        assert document["passed"] is False and document["score"] is None
        assert document["metrics"]["error"] == category, document["metrics"]["error"]
        assert document["metrics"]["rankable"] is False
        if name:
            last = result.stderr.strip().splitlines()[-1]
            assert last.startswith(f"benchd iterate: {name}: "), last
        return document["metrics"]

    def refused(self, result, name, code=2, field=None):
        """One line, and nothing written."""
        assert result.returncode == code, result.stdout + result.stderr
        lines = [line for line in result.stderr.splitlines() if line.startswith("benchd iterate: ")]
        assert len(lines) == 1 and lines[0].startswith(f"benchd iterate: {name}: "), result.stderr
        assert field is None or field in lines[0], lines[0]
        self.assert_nothing_sealed()
        assert not self.draw.exists()

    def assert_nothing_sealed(self):
        assert sorted(p.name for p in self.score.parent.iterdir()) == []

    def processes(self):
        """Every process with this kit's folder on its command line."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.folder).encode() in line:
                    found.append((int(entry.name), line))
        return found
