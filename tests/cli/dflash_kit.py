"""What the tests of block decoding share: a contract of the toy language model, its golden, runs of the
three commands."""

import json
import os
import pathlib
import subprocess

from conftest import BUILD, ROOT
from judge_kit import CONTRACT, DEADLINES

TOY = ROOT / "tests" / "cheats" / "toy_engine.py"
FAULTY = ROOT / "tests" / "engines" / "faulty_block_engine.py"
VOCAB, SEED, TOKENS, MOST = 64, 24, 48, 96

BLOCK_DECODE = {
    "protocol": "trusted_dflash_block_v1", "block_size": 4, "maximum_block_size": 16,
    "decode_tokens": 64, "maximum_decode_tokens": MOST, "local_iterate_decode_tokens": 32,
    "local_submit_decode_tokens": TOKENS, "min_accepted_pairs": 3, "target_pairs": 4,
    "stall_factor": 4.0, "raw_speedup_min": 0.5, "raw_speedup_max": 5.0,
}
FIDELITY = {
    "near_tie_logits": 0.0625, "near_tie_per_thousand": 40, "residual_per_thousand": 5,
    "work_binding_absolute": 0.0625, "work_binding_relative": 0.25,
    "conditions": {"largest_honest_drift": 0.0, "nearest_cheat": 0.5, "nearest_cheat_name": "toy",
                   "decode_tokens": 64, "machine": "any", "measured_with": "by construction"},
}

# dflash-track.md section 9, and what the judge adds.
REPORT = """track_id official_score_produced all_tokens_matched parent_measured_seconds_per_token
decode_token_count block_size uses_trained_drafter max_block_request_seconds p50_block_request_seconds
decode_seconds accepted_draft_rate residual_divergence_count admissible_exact_count
admissible_declared_frame_count admissible_near_tie_count emitted_token_total declared_rows_total
reference_checked_row_total rejected_rows_reference_checked verify_block_replayed_round_count
rejected_tail_comparison_count max_rejected_tail_logit_delta accepted_draft_total rejected_draft_total
target_tail_total round_count seed_token_count target_cache_offset_final work_binding_comparison_count
max_top2_logit_delta mean_top2_logit_delta p50_top2_logit_delta p99_top2_logit_delta
max_top2_logit_relative_delta p99_top2_logit_relative_delta work_binding_tolerance_absolute
work_binding_tolerance_relative max_over_median_round_latency reference_engine golden_sha256
weights_sha256 drafter_sha256""".split()
WIDENED = ["work_binding_logit_deltas", "work_binding_comparison_widths"]


def seed_tokens(count=SEED):
    return [(i * i * 7 + 3) % VOCAB for i in range(count)]


class BlockKit:
    """A folder with everything that a run of block decoding needs. The golden is the toy's own."""

    def __init__(self, folder, *, right=700, model=None, **contract):
        self.folder = pathlib.Path(folder)
        self.weights, self.drafter = self.folder / "weights", self.folder / "drafter"
        for part in (self.weights, self.drafter):
            part.mkdir()
        (self.weights / "toy.json").write_text(json.dumps({"vocab": VOCAB, **(model or {})}))
        (self.drafter / "toy.json").write_text(json.dumps({"right_per_thousand": right}))
        self.contract = self.folder / "contract.json"
        self.write_contract(**contract)
        self.emitted = self.folder / "emitted.json"
        self.emitted.write_text(json.dumps({"seed_tokens": seed_tokens(40)}))
        self.golden, self.output = self.folder / "golden.json", self.folder / "report.json"

    def write_contract(self, **changes):
        document = {**CONTRACT, "track_id": "toy-dflash-v1", "vocab_size": VOCAB,
                    "seed_tokens": SEED, "block_decode": BLOCK_DECODE, "fidelity": FIDELITY,
                    **changes}
        self.contract.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))

    def fault(self, **keys):
        (self.drafter / "fault.json").write_text(json.dumps(keys))

    def run(self, command, *extra, engine=TOY, sandbox=False, env=None, popen=False, timeout=60):
        arguments = [BUILD / "benchd", command, "--engine", engine, "--weights", self.weights,
                     "--drafter", self.drafter, "--contract", self.contract, *extra]
        if sandbox:
            arguments += ["--engine-tree", ROOT / "tests"]
        else:
            arguments += ["--no-sandbox"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
        environment.update(DEADLINES, **(env or {}))
        arguments = [str(a) for a in arguments]
        if popen:
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, env=environment, cwd=self.folder)
        return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout,
                              env=environment, cwd=self.folder)

    def reference(self, *extra, generate=TOKENS, check=True, **kwargs):
        arguments = ["--emitted", self.emitted, "--output", self.golden, *extra]
        if generate:
            arguments += ["--generate", generate, "--seed-generate", SEED]
        result = self.run("dflash-reference", *arguments, **kwargs)
        if check:
            assert result.returncode == 0, result.stderr
        return result

    def benchmark(self, *extra, **kwargs):
        return self.run("dflash-benchmark", "--golden", self.golden, "--output", self.output,
                        *extra, **kwargs)

    def probe(self, *extra, **kwargs):
        return self.run("dflash-probe", "--golden", self.golden, "--output", self.output, *extra,
                        **kwargs)

    def report(self, result):
        """Of a leg that holds: what stdout and the file say."""
        assert result.returncode == 0, result.stderr
        assert result.stdout == self.output.read_text()
        return json.loads(result.stdout)

    def assert_failed(self, result, name):
        """Exit 1, one line with the name, a report without a time."""
        assert result.returncode == 1, result.stdout + result.stderr
        last = result.stderr.strip().splitlines()[-1]
        command = last.split(":")[0]
        assert last.startswith(f"{command}: {name}: "), last
        report = json.loads(result.stdout)
        assert result.stdout == self.output.read_text()
        assert list(report) == ["track_id", "official_score_produced", "error",
                                "decode_token_count", "block_size"]
        assert report["error"] == name and report["official_score_produced"] is False
        return last
