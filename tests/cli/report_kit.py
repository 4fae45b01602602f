"""Score files for the tests of `benchd report`, made by hand from the shapes of docs/sealing.md,
docs/statistics.md and docs/quiet.md: numbers of a fixed seed, no engine."""

import json
import math
import os
import pathlib
import random
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()
TRACK = ROOT / "tracks" / "laguna-nano-serial-v1" / "contract.json"
HEX = "0123456789abcdef" * 4
T_975 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}

BASE = {
    "passed_correctness": True, "case_count": 15, "checked_steps": 464, "correctness_seconds": 1.3,
    "first_failing_case": None, "first_failing_layer": None, "first_failing_step": None,
    "expected_token": None, "actual_token": None, "max_abs_diff": 0.0, "num_layers": 8,
    "prefill_seconds_per_token": 0.0, "decode_seconds_per_token": 0.0,
    "baseline_prefill_seconds_per_token": 0.0, "baseline_decode_seconds_per_token": 0.0,
    "prefill_speedup": 0.0, "decode_speedup": 0.0, "prefill_speedup_floor": 0.95,
    "decode_speedup_floor": 0.95, "passed_prefill_speedup_floor": False,
    "passed_decode_speedup_floor": False, "benchmark_wall_seconds": 61.0,
    "timed_benchmark_seconds": 58.0, "preflight_seconds": 0.2, "peak_ram_gb": 0.023,
    "process_resident_memory_gb": 0.021, "bandwidth_gb_per_token": 0.0068,
    "bandwidth_source": "ram_resident_model", "expert_bytes_read": 0, "expert_read_seconds": 0.0,
    "expert_cache_hits": 0, "expert_cache_misses": 0, "expert_cache_evictions": 0,
    "expert_hit_rate": 0.0, "expert_peak_cached_tensors": 0, "gpqa_ttft_case_count": 0,
    "gpqa_ttft_pass_count": 0, "gpqa_ttft_passed": False, "gpqa_ttft_seconds": 0.0,
    "gpqa_ttft_p50_seconds": 0.0, "gpqa_ttft_max_seconds": 0.0, "gpqa_ttft_source": "",
    "semantic_gpqa_case_count": 0, "semantic_gpqa_pass_count": 0, "semantic_gpqa_passed": False,
    "semantic_gpqa_model": "", "commit": "a645b2b68f505c222ef337b811c0535a2423497f",
    "runtime": "official", "timestamp": "2026-11-30T01:34:14Z", "golden_hash": HEX,
    "harness_hash": HEX, "weights_hash": HEX, "weights_byte_count": 11102735,
    "weights_file_count": 7, "error": "", "partial_result": False,
}
BLOCKS = {
    "mode": "dflash-local-submit", "oracle": "candidate-local-dflash-reference-golden",
    "official_score": False, "rankable": False, "not_rankable_reason": "a local run",
    "ranked_decode_speedup_floor": 0.95, "public_drift_tripwire_passed": True,
    "decode_tokens": 128, "block_size": 4, "all_tokens_matched": True, "uses_trained_drafter": True,
    "serial_seconds_per_token": 0.00124, "dflash_seconds_per_token": 0.00113,
    "dflash_decode_speedup": 1.1, "accepted_draft_rate": 0.68, "residual_divergence_count": 0,
    "scoring_normalized": False, "accepted_pair_count": 2, "target_pair_count": 4,
    "dflash_decode_speedup_ratio_of_means": 1.1, "dflash_decode_speedup_median": 1.27,
    "dflash_decode_speedup_min": 0.74, "public_drift_divergences": [],
    "effective_spec_mode": "dflash", "effective_spec_depth": 3, "spec_rounds": 116,
    "spec_drafted_total": 212, "spec_accepted_total": 144, "spec_acceptance_rate": 144 / 212,
    "acceptance_lengths": [1] * 40 + [2] * 45 + [3] * 21 + [4] * 10,
}


def document(passed=True, score=None, **metrics):
    return {"metrics": {**BASE, **metrics}, "passed": passed, "score": score}


def legs(dice, count, gain):
    """Pairs of one machine that drifts: seconds per token of control and candidate."""
    out = []
    for pair in range(1, count + 1):
        drift = 1 + 0.004 * math.sin(pair)
        noise = [1 + dice.gauss(0, 0.002) for _ in range(4)]
        out.append({
            "pair": pair, "prompt_sha256": HEX,
            "control_prefill_seconds_per_token": 1.97e-4 * drift * noise[0],
            "control_decode_seconds_per_token": 3.3e-4 * drift * noise[1],
            "candidate_prefill_seconds_per_token": 1.97e-4 * drift * noise[2] / (1 + gain / 2),
            "candidate_decode_seconds_per_token": 3.3e-4 * drift * noise[3] / (1 + gain)})
    return out


def estimate(pairs):
    """Mean, sd and 95% interval of the log ratios of decode, as ratios but for sd."""
    logs = [math.log(p["control_decode_seconds_per_token"] / p["candidate_decode_seconds_per_token"])
            for p in pairs]
    mean, sd = statistics.mean(logs), statistics.stdev(logs)
    half = T_975[len(logs) - 1] * sd / math.sqrt(len(logs))
    return mean, sd, [math.exp(mean - half), math.exp(mean + half)]


def sealed_statistics(pairs, nulls):
    mean, sd, interval = estimate(pairs)
    null_mean, _, null_interval = estimate(nulls)
    return {
        "method": "paired log ratio", "quoted": "paired-t", "confidence": 0.95,
        "computed_confidence": 0.97, "pairs": len(pairs), "axis": "decode",
        "ratio": math.exp(mean), "mean_log_ratio": mean, "sd": sd, "interval": interval,
        "bootstrap_interval": [interval[0] + 0.0004, interval[1] - 0.0004], "smallest_effect": 0.0031,
        "null": {"pairs": len(nulls), "ratio": math.exp(null_mean), "interval": null_interval,
                 "contains_one": null_interval[0] <= 1 <= null_interval[1]},
        "sequential": {"min_pairs": 4, "max_pairs": 12, "half_width": 0.005,
                       "stopped": "narrow-enough"}}


def gate(dice, pair, leg, phase, warmth):
    seconds = [0.1 * i for i in range(31)]
    celsius = [warmth + 4 * (1 - math.exp(-s)) + dice.gauss(0, 0.1) for s in seconds]
    clock = [3400 + 150 * math.exp(-s) + dice.gauss(0, 8) for s in seconds]
    return {
        "pair": pair, "leg": leg, "phase": phase,
        "quiescence": {"state": "quiet", "waited_seconds": 0.0, "load": 0.4, "own_load": 0.1,
                       "others_cpu": 0.02, "own_cpu": 0.0, "window_seconds": 0.5, "gpu_use": None},
        "temperature": {"state": "waited", "waited_seconds": 2.5, "celsius": warmth, "limit": 60.0,
                        "reader": "hwmon k10temp"},
        "telemetry": {
            "seconds": 3.1, "samples": 31, "steady_samples": 24, "clock_reader": "cpufreq",
            "clock_mhz_min": min(clock), "clock_mhz_median": statistics.median(clock),
            "clock_steady_mhz_min": min(clock[7:]), "celsius_max": max(celsius),
            "gpu_use_median": None, "load_max": 1.1, "others_cpu": 0.02, "sampler_share": 0.001,
            "throttled": False, "throttle_reasons": [],
            "series": {"seconds": seconds, "celsius": celsius, "clock_mhz": clock}}}


def official(seed=6, gain=0.02, contract=None):
    """A ranked run's score with everything in it."""
    dice = random.Random(seed)
    pairs, nulls = legs(dice, 8, gain), legs(dice, 3, 0.0)
    gates = [gate(dice, p, leg, phase, 41.5 + 0.3 * p)
             for p in range(1, 9) for leg in ("control", "candidate") for phase in ("prefill", "decode")]
    steps = [3.2e-4 + 2e-8 * i + abs(dice.gauss(0, 9e-6)) + (2.4e-4 if i % 97 == 96 else 0)
             for i in range(512)]
    sealed = sealed_statistics(pairs, nulls)
    return document(
        score=sealed["ratio"], paired_legs=pairs, null_pairs=nulls, statistics=sealed, gates=gates,
        step_seconds=steps, official_pair_combine="lower_median",
        prefill_seconds_per_token=pairs[0]["candidate_prefill_seconds_per_token"],
        decode_seconds_per_token=pairs[0]["candidate_decode_seconds_per_token"],
        decode_speedup=sealed["ratio"], prefill_speedup=1.01, effective_spec_mode="serial",
        effective_spec_depth=0, engine_device="AMD EPYC, avx512, 2 threads", engine_backend="cpu",
        runner_id="mlxfast/laguna", passed_decode_speedup_floor=True,
        passed_prefill_speedup_floor=True,
        baseline_source="serial-control-leg",
        **({"contract_sha256": contract} if contract else {}))


def block_legs(dice, pair, gain, rejection=None, attempt=1):
    serial = 1.24e-3 * (1 + dice.gauss(0, 0.003))
    drafted = 1.24e-3 * (1 + dice.gauss(0, 0.003)) / (1 + gain)
    return {"pair": pair, "attempt": attempt, "order": "control-first" if pair % 2 else "candidate-first",
            "control_seconds_per_token": serial, "control_p50_request_seconds": serial,
            "control_max_request_seconds": 1.4 * serial, "candidate_seconds_per_token": drafted,
            "candidate_p50_request_seconds": 2.2 * drafted, "candidate_max_request_seconds": 4.4 * drafted,
            "accepted": rejection is None, "rejection": rejection}


def official_blocks():
    """A ranked score of block decoding: four pairs, one of them measured twice, and two null pairs."""
    dice = random.Random(7)
    pairs = [block_legs(dice, p, 0.3) for p in (1, 2)] + [block_legs(dice, 3, 0.3, "telemetry")] + \
        [block_legs(dice, 3, 0.3, attempt=2), block_legs(dice, 4, 0.3)]
    nulls = [block_legs(dice, p, 0.0) for p in (1, 2, 3)]
    counted = [[{f"{leg}_decode_seconds_per_token": p[f"{leg}_seconds_per_token"]
                 for leg in ("control", "candidate")} for p in some if p["accepted"]] for some in (pairs, nulls)]
    sealed = sealed_statistics(*counted)
    return document(
        score=1.28, mode="dflash-paired-decode-only", oracle="organiser-reference", official_score=True,
        rankable=True, aggregation="ratio_of_means", scoring_normalized=True, decode_tokens=512,
        block_size=4, accepted_pair_count=4, target_pair_count=4, parity_all_ok=True,
        dflash_decode_speedup_normalized=1.28, noop_reference_decode_speedup=1.01,
        dflash_decode_speedup_ratio_of_means=1.3, dflash_decode_speedup_median=1.3,
        dflash_decode_speedup_min=1.29, baseline_serial_seconds_per_token_mean=1.24e-3,
        candidate_dflash_seconds_per_token_mean=0.95e-3, dflash_weights_hash=HEX, block_pairs=pairs,
        block_null_pairs=nulls, statistics=sealed,
        gates=[gate(dice, 1, "control", "block-decode", 42.0)], spec_rounds=116, spec_drafted_total=212,
        spec_accepted_total=144, spec_acceptance_rate=144 / 212, effective_spec_mode="dflash",
        effective_spec_depth=3)


def bench():
    """What `bench-worker bench --json` prints, the members that a report reads."""
    parts = {"attention_projections": (1.66e-5, 1538048), "attention_proper": (2.47e-5, 375552),
             "experts": (4.04e-5, 774144), "head": (2.22e-5, 2097152), "rest": (3.8e-6, 0)}
    whole = sum(s for s, _ in parts.values())
    return {"bench": 1, "machine": {"engine": "cpu avx512, 2 threads"}, "decode": [{
        "context": 512, "tokens_per_second": 6374.8, "step_seconds_median": 1.457e-4,
        "best_read_bytes_per_second": 2.9e10, "roofline_tokens_per_second": 7420.0,
        "share_of_roofline": 0.859, "sentence": "experts takes the most time, 38%.",
        "parts": {name: {"seconds": s, "share": s / whole, "bytes": float(b),
                         "bytes_per_second": b / s} for name, (s, b) in parts.items()}}]}


def write(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True))
    return path
