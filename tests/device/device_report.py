"""The report of tests/device/run: what was asked of a card, and the figures as tables."""


def short(value):
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


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
    """What must hold on one H200. met is None where it was not measured."""
    b = benches(parts)
    strict, fast, int8 = b.get("shipped strict"), b.get("shipped fast"), b.get("int8 strict")
    shipped, smaller = at(strict, 512), at(int8, 512)
    judged = next((c["state"] == "passed" for p in parts if p["part"] == "judge" for c in p["checks"]
                   if c["name"].startswith("laguna-nano, judged")), None)
    ratio = (smaller["tokens_per_second"] / shipped["tokens_per_second"]) if shipped and smaller else None
    rows = [
        ("serial decode as shipped, strict, context 512: share of the measured bandwidth",
         shipped and shipped["share_of_roofline"], ">= 0.75", lambda v: v >= 0.75),
        ("the same, tokens a second", shipped and shipped["tokens_per_second"], "about 800", lambda v: v >= 800),
        ("verification of 2 rows, times one row", verify(strict, 2), "<= 1.15", lambda v: v <= 1.15),
        ("verification of 4 rows, times one row", verify(strict, 4), "<= 1.35", lambda v: v <= 1.35),
        ("DFlash, K = 4, simulated acceptance of each draft, times serial, drafter included", rounds(strict, 4),
         ">= 1.5", lambda v: v >= 1.5),
        ("prefill of 512 tokens, fast, tokens a second", fast and fast["prefill"]["tokens_per_second"], "> 15000",
         lambda v: v > 15000),
        ("INT8 attention, decode at 512, times shipped", ratio, ">= 1.25", lambda v: v >= 1.25),
        ("laguna-nano judged through benchd", judged, "passed", lambda v: v),
    ]
    return [{"what": what, "wanted": wanted, "measured": value, "met": bool(met(value)) if real and value is not None else None}
            for what, value, wanted, met in rows]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(short(c).replace("|", "\\|") for c in row) + " |" for row in rows] + [""]


def machine_lines(data):
    m, gpu = data["machine"], data["machine"]["gpu"] or {}
    rows = [("card", gpu.get("name")), ("driver", gpu.get("driver_version")), ("CUDA of the driver", m["driver_cuda"]),
            ("nvcc", m["nvcc"]), ("clocks, most (SM, memory)", f"{gpu.get('clocks.max.sm')}, {gpu.get('clocks.max.mem')}"),
            ("clocks at the start", f"{gpu.get('clocks.sm')}, {gpu.get('clocks.mem')}"),
            ("memory", gpu.get("memory.total")), ("power limit", gpu.get("power.limit")),
            ("ECC", gpu.get("ecc.mode.current")), ("processor", m["processor"]), ("cores", m["cores"]),
            ("compiler", m["compiler"]), ("kernel", m["kernel"]), ("commit", data["commit"])]
    return table(("", ""), [(k, v) for k, v in rows if v is not None and not str(v).startswith("None")])


def load_row(name, b):
    load, size = b["load"]["warm"], b["model"]["weight_bytes"]
    return (name, size / 1e9, load["open_seconds"], size / 1e9 / load["open_seconds"] if load["open_seconds"] else None,
            load["first_token_seconds"])


def decode_rows(name, b):
    for d in b["decode"]:
        yield (name, d["context"], d["tokens_per_second"], 1e3 * d["step_seconds_median"],
               (d["weight_bytes_per_token"] + d["kv_bytes_per_token"]) / 1e9, d["read_bytes_per_second"] / 1e9,
               100 * d["share_of_roofline"], d["kernels_per_step"])


def bench_lines(b):
    lines = ["## Speed", ""]
    device = next((v["machine"]["device"] for v in b.values() if v["machine"].get("device")), None)
    if device:
        best = max(v["machine"]["read"]["buffer_bytes_per_second"] for v in b.values())
        lines += [f"Device memory: read at {best / 1e9:,.0f} GB/s, copied at {device['copy_bytes_per_second'] / 1e9:,.0f} "
                  f"GB/s (as much read as written). {device['name']}, compute capability {device['compute_capability']}, "
                  f"{device['multiprocessors']} multiprocessors, driver {device['driver']}, runtime {device['runtime']}.", ""]
    lines += table(("loading", "GB", "s", "GB/s", "first token, s"), [load_row(n, v) for n, v in b.items()])
    lines += table(("decode", "context", "tokens/s", "step, ms", "GB a token", "read GB/s", "% of read", "kernels"),
                   [row for n, v in b.items() for row in decode_rows(n, v)])
    lines += table(("prefill", "tokens", "s", "tokens/s", "TFLOP/s"),
                   [(n, v["prefill"]["tokens"], v["prefill"]["seconds"], v["prefill"]["tokens_per_second"],
                     v["prefill"]["flops_per_second"] / 1e12) for n, v in b.items()])
    lines += table(("rows verified", "context", "ms", "times one row", "kernels"),
                   [(f"{n}, {w['rows']}", d["context"], 1e3 * w["seconds_median"], w["relative"], w["kernels"])
                    for n, v in b.items() for d in v["decode"] if len(d["verify"]) > 1 for w in d["verify"]])
    for n, v in b.items():
        if v.get("simulated"):
            s = v["simulated"]
            lines += [f"Drafting, {n}: **simulated** acceptance of {100 * s['acceptance']:.0f}% for each draft (timing only, "
                      f"nothing was judged), drafter of {s['drafter_bytes'] / 1e9:.2f} GB, from context {s['context']} on; "
                      f"serial {s['serial_tokens_per_second']:.1f} tokens/s.", ""]
            lines += table(("rows", "rounds/s", "tokens/round", "tokens/s", "times serial", "draft, ms", "verify, ms"),
                           [(r["rows"], r["rounds_per_second"], r["tokens_per_round"], r["tokens_per_second"],
                             r["times_serial"], 1e3 * r["draft_seconds"], 1e3 * r["verify_seconds"]) for r in s["rounds"]])
    for n, v in b.items():
        for d in v["decode"]:
            if d["context"] == v["decode"][0]["context"] and len(d["verify"]) > 1:
                lines += [f"Parts of a step, {n}, context {d['context']} (kernels kept apart by events: "
                          f"{1e3 * d['metered_step_seconds']:.3f} ms in place of {1e3 * d['step_seconds_median']:.3f}):", ""]
                lines += table(("part", "ms", "% of time", "MB", "GB/s"),
                               [(k, 1e3 * p["seconds"], 100 * p["share"], p["bytes"] / 1e6, p["bytes_per_second"] / 1e9)
                                for k, p in d["parts"].items() if p["seconds"] > 0])
            lines += [f"{n}: {d['sentence']}", ""]
    return lines


def check_lines(part):
    lines = [f"## {part['part']}: {part['state']} ({part['seconds']} s)", ""]
    rows = [(c["name"], c["state"], c["seconds"],
             "; ".join(f"{k} {short(v)}" for k, v in c["figures"].items() if k != "bench")
             or (c["detail"] or "").replace("\n", " ")[:300]) for c in part["checks"]]
    lines += table(("check", "", "s", ""), rows)
    commands = list(dict.fromkeys(c["command"] for c in part["checks"] if c["command"]))
    if commands:
        lines += ["<details><summary>commands</summary>", "", *[f"    {c}" for c in commands], "", "</details>", ""]
    return lines


def markdown(data):
    title = (data["machine"]["gpu"] or {}).get("name") or ("CUDA, emulated on a processor" if data["emulated"]
                                                           else data["backend"])
    lines = [f"# {title}, {data['date'][:10]}", "",
             f"Written by `tests/device/run --only {','.join(data['only'])}` in {data['seconds']} s. A part that could not "
             "run is missing, not passed. Weights are made up (`synth-checkpoint`), of the published shapes.", ""]
    if data["small"] or data["emulated"] or data["backend"] == "cpu":
        lines += ["**A trial of the script, not a measurement: small weights, an emulated device or the processor.**", ""]
    lines += machine_lines(data)
    lines += ["## What must hold", ""]
    lines += table(("", "wanted", "measured", ""),
                   [(t["what"], t["wanted"], t["measured"],
                     {True: "met", False: "**not met**", None: ""}[t["met"]]) for t in data["targets"]])
    found = benches(data["parts"])
    if found:
        lines += bench_lines(found)
    for part in data["parts"]:
        lines += check_lines(part)
    return "\n".join(lines).rstrip() + "\n"
