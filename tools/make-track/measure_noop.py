#!/usr/bin/python3
"""Measures the normaliser of each pool prompt of a DFlash track: how fast the unmodified engine is with
blocks, over itself without, on this machine.

usage: measure_noop.py TRACK [--build DIR] [--pairs N] [--block-size K] [--machine TEXT] [--out FILE]

Every pair is a dflash-probe and a dflash-benchmark of the contract's decode_tokens, one after the other,
the order alternating; the prompts take turns, so that a noisy minute does not fall on one of them alone.
noop_decode_speedup is the ratio of the fastest leg of either kind: the work is the same every time, and on
a machine that others use everything above the fastest measures them; the pairs' spread says how noisy it
was. Each leg is judged as ever: a leg that fails ends the measurement.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "laguna-nano"


def leg(options, command, golden, folder, *flags):
    out = folder / "report.json"
    result = subprocess.run([options.build / "benchd", command, "--engine", options.build / "bench-worker",
                             "--weights", MODEL, "--drafter", f"{MODEL}-dflash", "--contract",
                             options.track / "contract.json", "--golden", golden, "--tokens",
                             str(options.tokens), "--output", out, "--quiet", *flags],
                            capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{golden.name}: {result.stderr.strip()}")
    return json.loads(out.read_text())


def summary(pairs):
    seconds = lambda reports: [r["parent_measured_seconds_per_token"] for r in reports]
    serial, fast = seconds([p[0] for p in pairs]), seconds([p[1] for p in pairs])
    ratios = sorted(s / d for s, d in zip(serial, fast))
    last = pairs[-1][1]
    drafts = last["accepted_draft_total"] + last["rejected_draft_total"]
    return {"noop_decode_speedup": round(min(serial) / min(fast), 4),
            "pairs": len(pairs),
            "lowest_pair": round(ratios[0], 4), "median_pair": round(statistics.median(ratios), 4),
            "highest_pair": round(ratios[-1], 4),
            "serial_seconds_per_token": {"fastest": float(f"{min(serial):.4g}"),
                                         "median": float(f"{statistics.median(serial):.4g}")},
            "dflash_seconds_per_token": {"fastest": float(f"{min(fast):.4g}"),
                                         "median": float(f"{statistics.median(fast):.4g}")},
            "tokens_per_round": round(last["emitted_token_total"] / last["round_count"], 4),
            "accepted_of_drafts": round(last["accepted_draft_total"] / drafts, 4)}


def latencies(pairs):
    """What a stall guardrail sees: the longest round over the median one, of every leg."""
    both = sorted(r["max_over_median_round_latency"] for p in pairs for r in p)
    return {"legs": len(both), "median": round(statistics.median(both), 2), "highest": round(both[-1], 2)}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("track", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--machine", default="")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    blocks = json.loads((options.track / "contract.json").read_text())["block_decode"]
    options.tokens = blocks["decode_tokens"]
    width = options.block_size or blocks["block_size"]
    goldens = sorted((options.track / "pool").glob("*.golden.json"))
    pairs = {g: [] for g in goldens}
    load = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for number in range(options.pairs):
            for golden in goldens:
                serial = lambda: leg(options, "dflash-probe", golden, folder)
                fast = lambda: leg(options, "dflash-benchmark", golden, folder, "--block-size", str(width))
                if number % 2 == 0:
                    first = serial()
                    pairs[golden].append((first, fast()))
                else:
                    first = fast()
                    pairs[golden].append((serial(), first))
            load.append(os.getloadavg()[0])
            print(f"pair {number + 1} of {options.pairs}, load {load[-1]:.1f}", file=sys.stderr, flush=True)
    document = {
        "measured_with": "tools/make-track/measure_noop.py",
        "machine": options.machine,
        "decode_tokens": options.tokens,
        "block_size": width,
        "load_average": {"lowest": round(min(load), 1), "highest": round(max(load), 1)},
        "longest_over_median_round": latencies([p for each in pairs.values() for p in each]),
        "prompts": {g.name.removesuffix(".golden.json"): summary(pairs[g]) for g in goldens},
    }
    text = json.dumps(document, indent=2) + "\n"
    (options.out or options.track / "noop.json").write_text(text)
    for name, row in document["prompts"].items():
        print(f"{name}: {row['noop_decode_speedup']:.3f}, pairs {row['lowest_pair']:.3f} to "
              f"{row['highest_pair']:.3f}, {row['tokens_per_round']:.2f} tokens per round")


if __name__ == "__main__":
    main()
