"""What the judge's whole-program tests share: a small contract, goldens of the mock model, runs of
the scripted engine, and the look for what a run left behind."""

import json
import os
import pathlib
import subprocess

from conftest import BUILD, ROOT

ENGINE = ROOT / "tests" / "engines" / "scripted_engine.py"
VOCAB, SEED = 509, 32
DECODE, SUBMIT, STEPS = 128, 200, 64

CONTRACT = {
    "schema_version": 1,
    "track_id": "mock-0-cuda-v1",
    "track_name": "mock",
    "official_scoring_enabled": False,
    "allowed_modes": ["serial", "mtp"],
    "official_pairs": 2,
    "scores_against_live_control_leg": True,
    "paired_flow_retired": True,
    "decode_speedup_floor": 0.95,
    "prefill_speedup_floor": 0.95,
    "score_decode_weight": 0.75,
    "score_prefill_weight": 0.25,
    "correctness_steps": STEPS,
    "benchmark_decode_steps": DECODE,
    "local_submit_benchmark_decode_steps": SUBMIT,
    "official_prefill_warmup_runs": 1,
    "golden_model_type": "mock",
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "seed_tokens": SEED,
    "target": {"upstream_model_id": "mlxfast/mock", "upstream_revision": "0" * 40},
}

DEADLINES = {"MLXFAST_HELLO_TIMEOUT_S": "20", "MLXFAST_REPLY_TIMEOUT_S": "20",
             "MLXFAST_BARRIER_TIMEOUT_S": "20"}


def next_token(last, length):
    return (last * 31 + length * 17 + 7) % VOCAB


def prompt(number, length=SEED):
    return [(number * 37 + i * i * 3 + 5) % VOCAB for i in range(length)]


class Kit:
    """A folder with everything that one local run needs."""

    def __init__(self, folder, **contract):
        self.folder = pathlib.Path(folder)
        self.weights = self.folder / "weights"
        self.weights.mkdir()
        (self.weights / "config.json").write_text("{}")
        self.contract = self.folder / "contract.json"
        self.write_contract(**contract)
        for i in range(6):
            (self.folder / f"p{i}.json").write_text(json.dumps(prompt(i)))
        (self.folder / "short.txt").write_text(" ".join(map(str, prompt(9, 7))))
        self.golden = self.folder / "public.golden.json"
        self.score = self.folder / "score.json"
        self.integrity = self.folder / "benchmark-integrity.local-iterate.json"

    def write_contract(self, **changes):
        document = {**CONTRACT, **changes}
        document = {k: v for k, v in document.items() if v is not None}
        self.contract.write_text(json.dumps(document))

    def record(self, *extra, out=None, check=True):
        f = self.folder
        result = subprocess.run(
            [BUILD / "record-correctness-golden", "--backend", "mock", "--contract", self.contract,
             "--out", out or self.golden, "--prompt-tokens", f / "p0.json", "--case-name", "one",
             "--prompt-tokens", f / "p1.json", "--case-name", "two", "--steps", str(SUBMIT + 1),
             "--anchor", f"anchor-a={f / 'p2.json'}", "--anchor", f"anchor-b={f / 'short.txt'}",
             "--free-run", f"free-a={f / 'p3.json'}", "--free-run-steps", "24",
             "--behavior", f"says={f / 'short.txt'}", "--behavior-steps", "8",
             "--benchmark-free-run", "--benchmark-steps", str(SUBMIT), *map(str, extra)],
            capture_output=True, text=True, timeout=60)
        if check:
            assert result.returncode == 0, result.stderr
        return result

    def script(self, **keys):
        path = self.folder / "script.json"
        path.write_text(json.dumps({"vocab": VOCAB, **keys}))
        return path

    def iterate(self, *extra, script=None, env=None, engine=ENGINE, timeout=60, cwd=None,
                popen=False, sandbox=False):
        """Unsandboxed unless asked: the scripted engine writes its log where it may not otherwise."""
        arguments = [BUILD / "benchd", "iterate", "--engine", engine, "--weights", self.weights,
                     "--golden", self.golden, "--contract", self.contract, "--score-path",
                     self.score]
        if not sandbox:
            arguments += ["--no-sandbox", "--engine-resource", f"log={self.folder / 'log.json'}"]
        if script is not None:
            arguments += ["--engine-resource", f"script={self.script(**script)}"]
        arguments = [str(a) for a in [*arguments, *extra]]
        environment = {**os.environ, **DEADLINES, **(env or {})}
        for name in ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID", "MLXFAST_COMMIT_SHA"):
            if name not in (env or {}):
                environment.pop(name, None)
        if popen:
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, env=environment, cwd=cwd or self.folder)
        return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout,
                              env=environment, cwd=cwd or self.folder)

    def log(self):
        return json.loads((self.folder / "log.json").read_text())

    def metrics(self):
        return json.loads(self.score.read_text())["metrics"]

    def assert_nothing_left(self):
        """No process of the engine's group, no half-written file."""
        log = self.folder / "log.json"
        if log.exists() and log.read_text():
            group = self.log()["pgid"]
            assert group == self.log()["pid"], "the engine has its own process group"
            assert group_members(group) == []
        names = sorted(p.name for p in self.folder.iterdir())
        assert not [n for n in names if ".tmp" in n], names

    def assert_failed_score(self, error_class):
        """A valid failed score with its companions."""
        document = json.loads(self.score.read_text())
        assert document["passed"] is False and document["score"] is None
        error = document["metrics"]["error"]
        assert error.split(":")[0] == error_class, error
        assert_sealed(self)
        return document["metrics"]


def group_members(group):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        fields = stat.rsplit(")", 1)[1].split()
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def assert_sealed(kit):
    data = kit.score.read_bytes()
    result = subprocess.run(["sha256sum", "-c", kit.score.name + ".sha256"], cwd=kit.folder,
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    assert not data.endswith(b"\n")
    document = json.loads(data)
    assert json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).count("\n") == \
        data.decode().count("\n")
    assert set(document) == {"metrics", "passed", "score"}
