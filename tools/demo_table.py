"""Shows what ./demo found: the text, and a table of the judge's figures beside the roofline.

usage: demo_table.py SCORE SAMPLE BANDWIDTH_GB_S PROMPT
Exit 1 with one line when the score is not a passed one or the sample is empty."""

import json
import sys
import textwrap


def fail(text):
    print(f"demo: {text}", file=sys.stderr)
    sys.exit(1)


def main():
    score_path, sample_path, bandwidth, prompt = sys.argv[1:5]
    bandwidth = float(bandwidth)
    with open(score_path) as f:
        score = json.load(f)
    with open(sample_path) as f:
        sample = json.load(f)
    m = score["metrics"]
    if score["passed"] is not True or m["passed_correctness"] is not True or m["error"]:
        fail(f"the run did not pass: {m['error'] or 'correctness failed'} ({score_path})")
    if not sample["text"].strip():
        fail(f"the engine produced no text ({sample_path})")

    for line in textwrap.wrap(prompt + " ..." + " ".join(sample["text"].split()), 78):
        print("  " + line)

    prefill = 1 / m["prefill_seconds_per_token"]
    decode = 1 / m["decode_seconds_per_token"]
    per_token = sample["bytes_per_token"]
    used = per_token * decode / 1e9
    rows = [
        ("correctness", f"passed: {m['case_count']} cases, {m['checked_steps']} steps checked"),
        ("prefill", f"{prefill:,.0f} tokens per second"),
        ("decode", f"{decode:,.0f} tokens per second"),
        ("weight bytes read per token", f"{per_token / 1e6:.2f} MB"),
        ("read rate while decoding", f"{used:.2f} GB/s"),
        ("memory bandwidth, measured now", f"{bandwidth:.1f} GB/s"),
        ("share of the bandwidth", f"{100 * used / bandwidth:.1f} %"),
        ("engine", m.get("engine_device", "")),
        ("sealed in", f"{score_path} (+ .sha256, benchmark-integrity)"),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n== Result")
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


if __name__ == "__main__":
    main()
