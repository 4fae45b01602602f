"""The report of tests/device/run: what was asked of a card, what came of it, and the figures as tables."""

# The parts of a step, as `bench` calls them (engine/compute/meter.h), in words.
STAGES = {"embed": "embedding", "attention_projections": "q, k, v and gate projections",
          "attention_proper": "attention proper: norms, rotary, keys and values", "attention_output": "output projection",
          "router": "router and top-k", "experts": "routed experts", "shared": "shared expert", "dense": "dense MLP",
          "head": "head and picks", "rest": "between the parts"}


def short(value):
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def shown(value, unit):
    """A target's value as people read it."""
    if value is None:
        return "not measured"
    return {"share": lambda: f"{100 * value:.1f} %", "tokens a second": lambda: f"{value:,.0f}",
            "times": lambda: f"{value:.2f}", "passed": lambda: "passed" if value else "not passed"}[unit]()


def benches(parts):
    return {c["name"]: c["figures"]["bench"] for p in parts if p["part"] == "bench" for c in p["checks"]
            if c["state"] == "measured"}


def at(bench, context):
    return next((d for d in bench["decode"] if d["context"] == context), None) if bench else None


def verify(bench, rows):
    d = at(bench, 512)
    return next((v["relative"] for v in d["verify"] if v["rows"] == rows), None) if d else None


def rounds(bench, rows):
    s = bench.get("simulated") if bench else None
    return next((r["times_serial"] for r in s["rounds"] if r["rows"] == rows), None) if s else None


def targets(parts, real=True):
    """What must hold on one H200. met is None where it was not measured, or by no card."""
    b = benches(parts)
    strict, fast, int8 = b.get("shipped strict"), b.get("shipped fast"), b.get("int8 strict")
    shipped, smaller = at(strict, 512), at(int8, 512)
    judged = next((c["state"] == "passed" for p in parts if p["part"] == "judge" for c in p["checks"]
                   if c["name"].startswith("laguna-nano, judged")), None)
    ratio = (smaller["tokens_per_second"] / shipped["tokens_per_second"]) if shipped and smaller else None
    rows = [
        ("serial decode as shipped, strict, context 512: share of what the measured read bandwidth allows",
         shipped and shipped["share_of_roofline"], ">= 75 %", "share", lambda v: v >= 0.75),
        ("the same, tokens a second", shipped and shipped["tokens_per_second"], "about 800", "tokens a second",
         lambda v: v >= 800),
        ("verification of 2 rows, times one row", verify(strict, 2), "<= 1.15", "times", lambda v: v <= 1.15),
        ("verification of 4 rows, times one row", verify(strict, 4), "<= 1.35", "times", lambda v: v <= 1.35),
        ("DFlash, K = 4, simulated acceptance of each draft, drafter included, times serial", rounds(strict, 4),
         ">= 1.5", "times", lambda v: v >= 1.5),
        ("prefill of 512 tokens, fast, tokens a second", fast and fast["prefill"]["tokens_per_second"], "> 15000",
         "tokens a second", lambda v: v > 15000),
        ("INT8 attention, decode at 512, times as shipped", ratio, ">= 1.25", "times", lambda v: v >= 1.25),
        ("laguna-nano judged through benchd", judged, "passed", "passed", lambda v: v),
    ]
    return [{"what": what, "wanted": wanted, "measured": value, "unit": unit,
             "met": bool(met(value)) if real and value is not None else None}
            for what, value, wanted, unit, met in rows]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(short(c).replace("|", "\\|").replace("\n", " ") for c in row) + " |"
                    for row in rows] + [""]


# ---- What it ran on, and how it went ----

def machine_lines(data):
    m, gpu = data["machine"], data["machine"]["gpu"] or {}
    load = data.get("under_load")
    rows = [("card", gpu.get("name")), ("its memory", gpu.get("memory.total")), ("driver", gpu.get("driver_version")),
            ("CUDA of the driver", m["driver_cuda"]), ("nvcc", m["nvcc"]),
            ("clocks, most (multiprocessors, memory)", f"{gpu.get('clocks.max.sm')}, {gpu.get('clocks.max.mem')}"),
            ("clocks at the start", f"{gpu.get('clocks.sm')}, {gpu.get('clocks.mem')}"),
            ("while `bench` worked: clock of the multiprocessors, least, median, most",
             load and "{}, {}, {} MHz".format(*load["sm_mhz"])),
            ("power then, median and limit", load and f"{load['watts']:.0f} W, {gpu.get('power.limit')}"),
            ("power limit", None if load else gpu.get("power.limit")),
            ("ECC", gpu.get("ecc.mode.current")), ("processor", m["processor"]), ("cores", m["cores"]),
            ("host's compiler", m["compiler"]), ("kernel", m["kernel"]), ("commit", data["commit"])]
    return table(("", ""), [(k, v) for k, v in rows if v is not None and not str(v).startswith("None")])


def count(part, state):
    return sum(c["state"] == state for c in part["checks"]) or None


def part_lines(parts):
    lines = ["## How it went", ""]
    lines += table(("part", "", "passed", "measured", "failed", "missing", "s"),
                   [(p["part"], p["state"] if p["state"] == "passed" else f"**{p['state']}**",
                     *(count(p, s) for s in ("passed", "measured", "failed", "missing")), p["seconds"]) for p in parts])
    bad = [f"- {p['part']}: {c['name']}: **{c['state']}**" for p in parts for c in p["checks"]
           if c["state"] in ("failed", "missing")]
    return lines + (bad + [""] if bad else [])


# ---- Speed ----

def model_line(name, b):
    layers, size = b["model"]["layers"], b["model"]["weight_bytes"]
    kind = ("INT8 attention" if name.startswith("int8") else "as shipped (NVFP4 experts, bf16 elsewhere)")
    return f"- **{name}**: {layers} layers, {size / 1e9:.2f} GB of weights, {kind}; {b['machine']['engine']}."


def memory_lines(b):
    device = next((v["machine"]["device"] for v in b.values() if v["machine"].get("device")), None)
    if not device:
        return []
    best = max(v["machine"]["read"]["buffer_bytes_per_second"] for v in b.values())
    return [f"Memory of {device['name']} (compute capability {device['compute_capability']}, "
            f"{device['multiprocessors']} multiprocessors, driver {device['driver']}, runtime {device['runtime']}): read "
            f"at **{best / 1e9:,.0f} GB/s** (the best of several passes); copied at "
            f"**{device['copy_bytes_per_second'] / 1e9:,.0f} GB/s** (bytes that were copied: as many are read as "
            "written). The bound of each decode below is by a reading of its own, taken between its steps.", ""]


def decode_lines(b):
    lines = ["### Decode, one row", "",
             "The bound: a step reads its bytes once, at the rate that memory was read with between the steps. Kernels: "
             "launches of one step.", ""]
    lines += table(("run", "context", "tokens/s", "step, ms", "bytes a token: weights", "keys, values", "read, GB/s",
                    "the bound, tokens/s", "share of it", "kernels a step"),
                   [(n, d["context"], d["tokens_per_second"], 1e3 * d["step_seconds_median"],
                     f"{d['weight_bytes_per_token'] / 1e6:,.1f} MB", f"{d['kv_bytes_per_token'] / 1e6:,.1f} MB",
                     d["read_bytes_per_second"] / 1e9, d["roofline_tokens_per_second"],
                     f"{100 * d['share_of_roofline']:.1f} %", d["kernels_per_step"])
                    for n, v in b.items() for d in v["decode"]])
    return lines + ["What bounds it:", "",
                    *[f"- {n}: {d['sentence']}" for n, v in b.items() for d in v["decode"]], ""]


def stage_lines(b):
    lines = ["### Time of each stage of a step", "",
             "By events between the stages. They keep kernels apart that otherwise overlap, and no graph is replayed: the "
             "sum may be more than a step; it shows where its time goes.", ""]
    for n, v in b.items():
        for d in v["decode"]:
            if not any(p["seconds"] > 0 for p in d["parts"].values()):
                continue
            lines += [f"{n}, context {d['context']}: {1e3 * d['metered_step_seconds']:.3f} ms in stages, "
                      f"{1e3 * d['step_seconds_median']:.3f} ms as a whole.", ""]
            lines += table(("stage", "ms", "% of them", "MB read", "GB/s"),
                           [(STAGES.get(k, k), 1e3 * p["seconds"], 100 * p["share"], p["bytes"] / 1e6,
                             p["bytes_per_second"] / 1e9) for k, p in d["parts"].items() if p["seconds"] > 0])
    return lines


def verify_lines(b):
    rows = [(n, d["context"], w["rows"], 1e3 * w["seconds_median"], w["relative"], w["kernels"])
            for n, v in b.items() for d in v["decode"] if len(d["verify"]) > 1 for w in d["verify"]]
    return ["### Verification: several rows in one forward", "",
            *table(("run", "context", "rows", "ms", "times one row", "kernels"), rows)] if rows else []


def drafting_lines(b):
    lines = []
    for n, v in b.items():
        if v.get("simulated"):
            s = v["simulated"]
            lines += [f"{n}: **simulated** acceptance of {100 * s['acceptance']:.0f}% for each draft (timing only, "
                      f"nothing was judged), drafter of {s['drafter_bytes'] / 1e9:.2f} GB, from context {s['context']} on; "
                      f"serial {s['serial_tokens_per_second']:.1f} tokens/s.", ""]
            lines += table(("rows of a round (K)", "rounds/s", "tokens a round", "tokens/s", "times serial", "draft, ms",
                            "verify, ms"),
                           [(r["rows"], r["rounds_per_second"], r["tokens_per_round"], r["tokens_per_second"],
                             r["times_serial"], 1e3 * r["draft_seconds"], 1e3 * r["verify_seconds"]) for r in s["rounds"]])
    return ["### Drafting (DFlash)", "", *lines] if lines else []


def prefill_lines(b):
    lines = ["### Prefill", "", *table(("run", "tokens", "s", "tokens/s", "TFLOP/s"),
             [(n, v["prefill"]["tokens"], v["prefill"]["seconds"], v["prefill"]["tokens_per_second"],
               v["prefill"]["flops_per_second"] / 1e12) for n, v in b.items()])]
    for n, v in b.items():
        parts = {k: p for k, p in v["prefill"]["parts"].items() if p["seconds"] > 0}
        if n in ("shipped strict", "shipped fast") and parts:
            whole = sum(p["seconds"] for p in parts.values())
            lines += [f"Stages of it, {n}:", ""]
            lines += table(("stage", "ms", "% of them", "TFLOP/s"),
                           [(STAGES.get(k, k), 1e3 * p["seconds"], 100 * p["seconds"] / whole,
                             p["flops"] / p["seconds"] / 1e12) for k, p in parts.items()])
    return lines


def loading_lines(b):
    rows = []
    for n, v in b.items():
        load, size = v["load"]["warm"], v["model"]["weight_bytes"]
        rows.append((n, size / 1e9, load["open_seconds"],
                     size / 1e9 / load["open_seconds"] if load["open_seconds"] else None, load["first_token_seconds"]))
    return ["### Loading, from memory", "", *table(("run", "GB", "s", "GB/s", "then the first token, s"), rows)]


def bench_lines(b):
    lines = ["## Speed", "", "`bench-worker bench` of weights that `synth-checkpoint` made up, of the published shapes. The "
             "commands are below, under bench.", "", *[model_line(n, v) for n, v in b.items()], ""]
    for of in (memory_lines, decode_lines, stage_lines, verify_lines, drafting_lines, prefill_lines, loading_lines):
        lines += of(b)
    return lines


# ---- Every check ----

JUDGED = ("candidate_leg_decode_seconds_per_token", "candidate_leg_prefill_seconds_per_token", "serial_seconds_per_token",
          "dflash_seconds_per_token", "decode_speedup", "accepted_draft_rate")


def figures_of(part, c):
    figures = {k: v for k, v in c["figures"].items() if k != "bench" and (part["part"] != "judge" or k in JUDGED and v)}
    text = "; ".join(f"{k.replace('_', ' ')} {short(v)}" for k, v in figures.items())
    detail = (c["detail"] or "").strip()
    detail = detail if len(detail) <= 300 else "… " + detail[-300:]
    return "; ".join(t for t in (detail, text) if t)


def check_lines(part):
    lines = [f"## {part['part']}: {part['state']} ({part['seconds']} s)", ""]
    rows = [(c["name"], c["state"] if c["state"] in ("passed", "measured") else f"**{c['state']}**", c["seconds"],
             figures_of(part, c)) for c in part["checks"]]
    commands = list(dict.fromkeys(c["command"] for c in part["checks"] if c["command"]))
    many = len(rows) > 12 and part["state"] == "passed"
    body = table(("check", "result", "s", ""), rows)
    lines += ["<details><summary>the checks</summary>", "", *body, "</details>", ""] if many else body
    if commands:
        lines += ["<details><summary>commands</summary>", "", *[f"    {c}" for c in commands], "", "</details>", ""]
    return lines


def title_of(data):
    return (data["machine"]["gpu"] or {}).get("name") or ("CUDA, emulated on a processor" if data["emulated"]
                                                          else data["backend"])


def markdown(data):
    whole = len(data["only"]) == len(data["all_parts"])
    lines = [f"# {title_of(data)}, {data['date'][:10]}", "",
             f"Written by `tests/device/run{'' if whole else ' --only ' + ','.join(data['only'])}` in {data['seconds']:.0f} s "
             "([what its parts do](../cuda.md#trying-it-on-a-gpu)); everything in full is in the `.json` beside this page. What "
             "could not run is missing, not passed. In commands, `$BUILD` is the folder of the build, `$WEIGHTS` that of "
             "the made-up weights, `$SCRATCH` one of small files that the script makes and removes.", ""]
    if data["small"] or data["emulated"] or data["backend"] == "cpu":
        lines += ["**A trial of the script, not a measurement: small weights, an emulated device or the processor.**", ""]
    lines += machine_lines(data)
    lines += ["## What must hold", ""]
    lines += table(("", "wanted", "measured", ""),
                   [(t["what"], t["wanted"], shown(t["measured"], t["unit"]),
                     {True: "met", False: "**not met**", None: ""}[t["met"]]) for t in data["targets"]])
    lines += part_lines(data["parts"])
    found = benches(data["parts"])
    if found:
        lines += bench_lines(found)
    for part in data["parts"]:
        lines += check_lines(part)
    return "\n".join(lines).rstrip() + "\n"
