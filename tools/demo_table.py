"""Shows what ./demo found: the text, and serial and block decoding side by side.

usage: demo_table.py FOLDER BANDWIDTH_GB_S PROMPT      FOLDER: what ./demo wrote
Exit 1 with one line when a score is not a passed one, or when the two ways do not write the same text."""

import json
import pathlib
import statistics
import sys
import textwrap


def fail(text):
    print(f"demo: {text}", file=sys.stderr)
    sys.exit(1)


def read(path):
    with open(path) as f:
        return json.load(f)


def passed_metrics(path):
    score = read(path)
    m = score["metrics"]
    if score["passed"] is not True or m["passed_correctness"] is not True or m["error"]:
        fail(f"the run did not pass: {m['error'] or 'correctness failed'} ({path})")
    return m


def show_text(prompt, samples, drafted):
    tokens = {tuple(s["token_ids"]) for s in samples + drafted}
    if len(tokens) != 1:
        fail("the same prompt gave different tokens")
    if not samples[0]["text"].strip():
        fail("the engine produced no text")
    text = textwrap.wrap(prompt + " ..." + " ".join(samples[0]["text"].split()), 78)
    for line in text[:6]:
        print("  " + line)
    print(f"  ({len(samples[0]['token_ids'])} tokens, the same ones every time, with and without drafts)")


def table(rows, columns):
    """Rows of a name, a cell for each column, and perhaps a remark."""
    width = max(len(row[0]) for row in rows)
    print(f"  {'':<{width}}" + "".join(f"{c:>16}" for c in columns))
    for name, *cells, remark in rows:
        print(f"  {name:<{width}}" + "".join(f"{c:>16}" for c in cells) + (f"  {remark}" if remark else ""))


def main():
    folder, bandwidth, prompt = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    m = passed_metrics(folder / "score.json")
    d = passed_metrics(folder / "dflash" / "score.json")
    samples = [read(p) for p in sorted(folder.glob("sample-*.json"))]
    drafted = [read(p) for p in sorted(folder.glob("drafted-*.json"))]
    legs = [read(p) for p in sorted((folder / "dflash").glob("benchmark-[0-9]*.json"))]
    probes = [read(p) for p in sorted((folder / "dflash").glob("probe-[0-9]*.json"))]
    show_text(prompt, samples, drafted)

    rate = lambda seconds: f"{1 / seconds:,.0f} tok/s"
    alone = [[s["decode_tokens_per_second"] for s in each] for each in (samples, drafted)]
    gain = sorted(b / a for a, b in zip(*alone))
    pairs = sorted(p["parent_measured_seconds_per_token"] / b["parent_measured_seconds_per_token"]
                   for p, b in zip(probes, legs))
    total = lambda key: sum(leg[key] for leg in legs)
    best = [min(leg["parent_measured_seconds_per_token"] for leg in each) for each in (probes, legs)]
    drafts = total("accepted_draft_total") + total("rejected_draft_total")
    print("\n== Result: serial and DFlash, in pairs, one after the other")
    table([
        ("seed and 512 tokens, the judge's clock", rate(d["serial_seconds_per_token"]),
         rate(d["dflash_seconds_per_token"]), f"{d['dflash_decode_speedup']:.2f}x",
         f"pairs {pairs[0]:.2f} to {pairs[-1]:.2f}"),
        (f"  the fastest of {len(legs)} legs each", *map(rate, best), f"{best[0] / best[1]:.2f}x",
         "what others on the machine took is not in it"),
        ("decoding alone, the engine's clock", *(f"{statistics.median(a):,.0f} tok/s" for a in alone),
         f"{statistics.median(gain):.2f}x", f"pairs {gain[0]:.2f} to {gain[-1]:.2f}"),
        ("tokens per round", "1", f"{total('emitted_token_total') / total('round_count'):.2f}", "",
         "given out / forwards of the model"),
        ("acceptance", "", f"{total('accepted_draft_total') / drafts:.2f}", "",
         "drafts accepted / drafts verified"),
        ("rows of a round", "1", f"2 to {d['block_size']}", "", "the judge says how many"),
    ], ("serial", "DFlash", "speed-up"))

    decode = 1 / m["decode_seconds_per_token"]
    per_token = samples[0]["bytes_per_token"]
    used = per_token * decode / 1e9
    print("\n== The serial track")
    rows = [
        ("correctness", f"passed: {m['case_count']} cases, {m['checked_steps']} steps checked"),
        ("prefill", f"{1 / m['prefill_seconds_per_token']:,.0f} tokens per second"),
        ("decode", f"{decode:,.0f} tokens per second"),
        ("weight bytes read per token", f"{per_token / 1e6:.2f} MB"),
        ("read rate while decoding", f"{used:.2f} GB/s"),
        ("memory bandwidth, measured now", f"{bandwidth:.1f} GB/s"),
        ("share of the bandwidth", f"{100 * used / bandwidth:.1f} %"),
        ("engine", m.get("engine_device", "")),
        ("sealed in", f"{folder}/score.json, {folder}/dflash/score.json (+ .sha256, benchmark-integrity)"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


if __name__ == "__main__":
    main()
