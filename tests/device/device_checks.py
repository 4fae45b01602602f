"""The parts of tests/device/run: what is run, and what must come of it."""

import array
import hashlib
import json
import pathlib
import re
import shutil
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO, NANO_DRAFTER = ROOT / "models/laguna-nano", ROOT / "models/laguna-nano-dflash"
XS, XS_DRAFTER = (ROOT / f"tracks/laguna-xs-2.1-dflash-v1/{n}config.json" for n in ("", "drafter-"))
TRACK = ROOT / "tracks/laguna-nano-serial-v1"
ROWS = [1, 2, 4, 7, 8, 16, 17, 64, 512]
# Odd sizes on purpose: no whole groups of any format, several kinds of heads, few and many experts.
SHAPES = {
    "narrow": {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32,
               "num_experts": 16, "num_experts_per_tok": 4, "heads": (4, 8), "num_key_value_heads": 2},
    "wide": {"hidden_size": 224, "head_dim": 32, "intermediate_size": 416, "moe_intermediate_size": 48,
             "num_experts": 40, "num_experts_per_tok": 6, "heads": (6, 8), "num_key_value_heads": 2},
    "many": {"hidden_size": 128, "head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 64,
             "num_experts": 256, "num_experts_per_tok": 8, "heads": (6, 8), "num_key_value_heads": 1},
}


def sha(data):
    return hashlib.sha256(data).hexdigest()


def worker(run, command, *flags, backend=None, arithmetic=None):
    b = backend or run.o.backend
    chosen = ["--backend", b] if b != "cpu" else ["--threads", 2]
    return [run.build / "bench-worker", command, *chosen, *(["--arithmetic", arithmetic] if arithmetic else []), *flags]


def tell(errors):
    lines = [l for l in errors.strip().splitlines() if not l.startswith(("writing", "prefill"))]
    return lines[-1][:400] if lines else "no message"


def shape_config(name):
    """config.json of a small model with every kind of layer."""
    given = dict(SHAPES[name])
    config, (full, sliding), layers = json.loads(XS.read_text()), given.pop("heads"), 4
    config.update(given, num_hidden_layers=layers, vocab_size=1000, sliding_window=48, max_position_embeddings=2048,
                  shared_expert_intermediate_size=given["moe_intermediate_size"], num_attention_heads=full)
    config["num_attention_heads_per_layer"] = [full if i % 4 == 0 else sliding for i in range(layers)]
    for key in ("layer_types", "mlp_layer_types", "gating_types"):
        config[key] = config[key][:layers]
    return config


def nano_tokens():
    """The sequence whose logits are pinned, as tests/cli/test_nano_logits.py has it."""
    text = (ROOT / "tests/cli/test_nano_logits.py").read_text()
    line = re.search(r"^TOKENS = (.+)$", text, re.M).group(1)
    return eval(line, {"VOCAB": int(re.search(r"^VOCAB = (\d+)", text, re.M).group(1)), "range": range})  # ours


def tokens_file(run, name, tokens):
    path = run.scratch / f"{name}.json"
    path.write_text(json.dumps(tokens))
    return path


def logits(run, weights, tokens, name, *flags, **options):
    """Bytes of the logits, or None, which is noted."""
    out = run.scratch / f"logits-{threading.get_ident()}"
    environment = options.pop("environment", {})
    command = worker(run, "logits", "--weights", weights, "--tokens-file", tokens, "--out", out, *flags, **options)
    code, _, errors, seconds = run.run(command, **environment)
    if code != 0:
        run.note(name, "failed", command, tell(errors), seconds)
        return None, command, seconds
    data = out.read_bytes()
    out.unlink()
    return data, command, seconds


def check_nano_hashes(run, rows, prefix, **environment):
    table = dict(reversed(line.split("  ")) for line in
                 (ROOT / "tests/vectors/nano_logits.sha256").read_text().splitlines())
    tokens = tokens_file(run, "nano", nano_tokens())
    run.together([(check_nano_hash, tokens, mode, r, wanted, prefix, environment) for mode, wanted in table.items()
                  for r in (rows if mode == "attention_factor" else rows[-1:])])


def check_nano_hash(run, tokens, mode, rows, wanted, prefix, environment):
    name = f"{prefix}logits of laguna-nano, {mode}, {rows} rows, are the committed ones"
    data, command, seconds = logits(run, NANO, tokens, name, "--rows", rows, "--yarn-magnitude", mode,
                                    environment=environment)
    if data is not None:
        found = sha(data)
        run.note(name, "passed" if found == wanted else "failed", command,
                 None if found == wanted else f"{found}, not {wanted}", seconds)


def check_same_logits(run, name, weights, rows, tokens):
    """The device's bytes against the processor's, for any rows."""
    wanted, _, _ = logits(run, weights, tokens, f"{name}, on the processor", "--rows", 64, backend="cpu")
    if wanted is None:
        return
    for r in rows:
        what = f"logits of {name}, {r} rows, are the processor's"
        data, command, seconds = logits(run, weights, tokens, what, "--rows", r)
        if data is not None:
            run.note(what, "passed" if data == wanted else "failed", command,
                     None if data == wanted else difference(data, wanted), seconds)


def difference(data, wanted):
    if len(data) != len(wanted):
        return f"{len(data)} bytes, not {len(wanted)}"
    first = next(i for i in range(0, len(data), 4) if data[i:i + 4] != wanted[i:i + 4])
    return f"the first difference is at value {first // 4} of {len(data) // 4}"


def check_configurations(run, rows, length):
    synth = run.program("synth-checkpoint")
    if not synth:
        return
    tokens = tokens_file(run, "shapes", [(7 * i * i + 31 * i) % 1000 for i in range(length)])
    for shape in SHAPES:
        (run.scratch / f"{shape}.config.json").write_text(json.dumps(shape_config(shape)))
    run.together([(check_configuration, synth, shape, 11 + i, kind, rows, tokens) for i, shape in enumerate(SHAPES)
                  for kind in ([], ["--int8-attention"])])


def check_configuration(run, synth, shape, seed, kind, rows, tokens):
    out = run.scratch / f"{shape}{'-int8' if kind else ''}"
    command = [synth, "--config", run.scratch / f"{shape}.config.json", "--out", out, "--seed", seed, "--quiet", *kind]
    code, _, errors, _ = run.run(command)
    if code != 0:
        run.note(f"made-up weights {out.name}", "failed", command, tell(errors))
        return
    check_same_logits(run, f"made-up weights '{out.name}'", out, rows, tokens)
    shutil.rmtree(out, ignore_errors=True)


def generated(run, tokens, *flags, environment=None, **options):
    command = worker(run, "generate", "--weights", NANO, "--tokens-file", tokens, "--json", *flags, **options)
    code, out, errors, seconds = run.run(command, **(environment or {}))
    return (json.loads(out) if code == 0 else None), command, seconds, errors


def cases():
    return json.loads((ROOT / "tests/vectors/dflash/nano_acceptance.json").read_text())["cases"]


def check_generated(run, prefix, prompts, blocks, count=96, **environment):
    """Serial decoding is the processor's, and blocks of any width are serial decoding."""
    run.together([(check_prompt, prefix, i, blocks, count, environment) for i in range(prompts)])


def check_prompt(run, prefix, i, blocks, count, environment):
    tokens = tokens_file(run, f"prompt{i}", cases()[i]["prompt"])
    wanted, command, _, errors = generated(run, tokens, "-n", count, backend="cpu")
    if wanted is None:
        run.note(f"prompt {i} on the processor", "failed", command, tell(errors))
        return
    for block in [None, *blocks]:
        flags = ["-n", count]
        if block is not None:
            flags += ["--drafter", NANO_DRAFTER, *(["--block", block] if block else [])]
        name = f"{prefix}prompt {i}: " + ("serial decoding is the processor's" if block is None else
                                          f"blocks of {block or 'any'} rows are serial decoding")
        found, command, seconds, errors = generated(run, tokens, *flags, environment=environment)
        same = found is not None and found["token_ids"] == wanted["token_ids"]
        run.note(name, "passed" if same else "failed", command,
                 None if same else "other tokens" if found else tell(errors), seconds)
        if same and block == 8:
            check_acceptance(run, prefix, i, tokens, flags, found)


def check_acceptance(run, prefix, i, tokens, flags, found):
    other, command, _, errors = generated(run, tokens, *flags, backend="cpu")
    keys = ("rounds", "drafted", "accepted")
    same = other is not None and all(other.get(k) == found.get(k) for k in keys)
    run.note(f"{prefix}prompt {i}: the drafts are the processor's", "passed" if same else "failed", command,
             None if same else tell(errors) if other is None else
             f"{[found.get(k) for k in keys]}, not {[other.get(k) for k in keys]}")


def device_tests(run):
    """Programs that only a build with CUDA has."""
    return [] if run.o.backend == "cpu" else sorted(f"tests/device/{p.stem}" for p in
                                                    (ROOT / "tests/device").glob("test_*.cu"))


def run_tests(run, prefix="", **environment):
    """Unit tests that a build with CUDA runs on the device too, and whatever lies beside this file."""
    run.together([(run_test, name, prefix, environment) for name in ["tests/test_blocks", *device_tests(run)]])


def run_test(run, name, prefix, environment):
    program = run.program(name)
    if program:
        code, out, errors, seconds = run.run([program], 180, **environment)
        run.note(f"{prefix}{pathlib.Path(name).name}", "passed" if code == 0 else "failed", [program],
                 None if code == 0 else (out + errors)[-600:], seconds)


def bits(run):
    if not run.program("bench-worker"):
        return
    if run.o.emulated:  # a second for what a device does in a microsecond
        check_configurations(run, [1, 17], 40)
        check_generated(run, "", 1, [4], 12)
        check_fast_repeats(run, 24)
        return
    check_nano_hashes(run, ROWS, "")
    run_tests(run)
    check_configurations(run, [1, 16, 64], 150)
    check_generated(run, "", 4, [2, 4, 8, 0])
    check_kept_rows(run)
    check_fast_repeats(run)


def check_kept_rows(run):
    """K rows give what one row gives, at every round: `bench` fails with ROWS-DIFFER otherwise."""
    command = worker(run, "bench", "--weights", NANO, "--drafter", NANO_DRAFTER, "--simulate-acceptance", 0.9,
                     "--block", 16, "--context", 300, "--decode-tokens", 64, "--no-cold", "--quiet", "--json")
    code, out, errors, seconds = run.run(command)
    run.note("K rows give what one row gives (rounds of 2 to 16 rows)", "passed" if code == 0 else "failed", command,
             None if code == 0 else tell(errors), seconds)


def check_fast_repeats(run, length=None):
    if run.o.backend == "cpu":
        return
    name = "fast arithmetic gives the same bytes twice"
    tokens = tokens_file(run, "nano", nano_tokens()[:length])
    twice = [logits(run, NANO, tokens, name, "--rows", 512, arithmetic="fast") for _ in range(2)]
    if all(t[0] is not None for t in twice):
        run.note(name, "passed" if twice[0][0] == twice[1][0] else "failed", twice[0][1], None, twice[0][2])


def poison(run):
    """Every buffer begins as numbers that are none: what is read before it was written shows."""
    if not run.program("bench-worker"):
        return
    on = {"MLXFAST_CUDA_POISON": "1"}
    if run.o.emulated:
        check_generated(run, "poisoned: ", 1, [4], 6, **on)
        return
    check_nano_hashes(run, [1, 16, 512], "poisoned: ", **on)
    check_generated(run, "poisoned: ", 1, [4], **on)
    run_tests(run, "poisoned: ", **on)


def sanitizer(run):
    program = shutil.which("compute-sanitizer", path=run.environment["PATH"])
    if not program:
        run.note("compute-sanitizer", "missing", detail="it is not in PATH nor in /usr/local/cuda/bin")
        return
    tokens = tokens_file(run, "few", nano_tokens()[:24])
    for tool in ("memcheck", "initcheck", "racecheck"):
        for arithmetic in ("strict", "fast"):
            command = [program, "--tool", tool, "--error-exitcode", 86, "--print-limit", 3,
                       *worker(run, "generate", "--weights", NANO, "--drafter", NANO_DRAFTER, "--block", 4,
                               "--tokens-file", tokens, "-n", 6, "--context", 128, arithmetic=arithmetic)]
            code, out, errors, seconds = run.run(command, 150)
            summary = re.search(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*", out + errors)
            clean = code == 0 and summary is not None
            run.note(f"{tool}, {arithmetic}, on laguna-nano with its drafter", "passed" if clean else "failed", command,
                     summary.group(0).strip("= ") if clean else (out + errors)[-900:], seconds)


# ---- the judge ----

def judge(run):
    """laguna-nano from end to end: the judge drives the worker, which works on the device."""
    benchd = run.program("benchd")
    if not benchd or not run.program("bench-worker"):
        return
    score = run.out / "judged-score.json"
    for old in run.out.glob("judged-score.json*"):
        old.unlink()
    command = [benchd, "iterate", "--engine", run.build / "bench-worker", "--weights", NANO, "--golden",
               TRACK / "public.golden.json", "--contract", TRACK / "contract.json", "--mode", "local-iterate", "--strict",
               "--no-sandbox", "--score-path", score]
    code, out, errors, seconds = run.run(command, 120, BENCH_WORKER_BACKEND=run.o.backend)
    data = json.loads(score.read_text()) if score.exists() else {}
    passed = code == 0 and data.get("passed") is True
    used = device_of(run)
    run.note("laguna-nano, judged by benchd", "passed" if passed else "failed", ["BENCH_WORKER_BACKEND=" + run.o.backend,
             *command], None if passed else tell(errors) if code != 0 else "the score has not passed", seconds,
             **{k: v for k, v in data.get("metrics", {}).items() if isinstance(v, float)})
    if run.o.backend != "cpu":
        run.note("the worker says that it works on the device", "passed" if used else "failed", command, used)
    judge_drafted(run)


def judge_drafted(run):
    """The drafted track's local run: the public golden, then serial and drafted legs, every row checked."""
    folder = run.scratch / "drafted"
    folder.mkdir(exist_ok=True)
    score = folder / "score.json"
    settings = {"BUILD": run.build, "BENCH_WORKER_BACKEND": run.o.backend, "MLXFAST_NO_SANDBOX": 1,
                "MLXFAST_ENGINE_PATH": run.build / "bench-worker", "MLXFAST_WEIGHTS_PATH": NANO,
                "MLXFAST_DFLASH_DRAFTER_DIR": NANO_DRAFTER, "MLXFAST_SCORE_PATH": score,
                "MLXFAST_DFLASH_LOCAL_WORK_DIR": folder, "MLXFAST_LOCAL_RUN_GUARD": 0, "MLXFAST_LOCAL_BUILD": 0,
                "MLXFAST_LOCAL_COOL_GATE": 0}
    command = [ROOT / "benchmark-dflash.sh", "--local-submit"]
    code, out, errors, seconds = run.run(command, 120, **{k: str(v) for k, v in settings.items()})
    data = json.loads(score.read_text()) if score.exists() else {}
    figures = data.get("metrics", {})
    passed = code == 0 and data.get("passed") is True and figures.get("all_tokens_matched") is True
    run.note("laguna-nano with its drafter, judged", "passed" if passed else "failed",
             [*[f"{k}={v}" for k, v in settings.items()], *command], None if passed else tell(errors or out), seconds,
             **{k: figures[k] for k in ("decode_speedup", "accepted_draft_rate", "serial_seconds_per_token",
                                        "dflash_seconds_per_token") if k in figures})


def device_of(run):
    """A worker of the same environment names its device in the hello."""
    command = [run.build / "bench-worker", "runtime-worker", "--weights", NANO]
    code, out, errors, _ = run.run(["sh", "-c", 'exec "$0" "$@" </dev/null', *command], 60,
                                   BENCH_WORKER_BACKEND=run.o.backend)
    hello = out.splitlines()[0] if code == 0 and out else ""
    return hello[:400] if run.o.backend in hello or "cuda" in hello else None


# ---- drift ----

def compare(strict, fast, vocab):
    """(largest difference, positions, positions with the same first choice, mean difference)"""
    a, b = (array.array("f", d) for d in (strict, fast))
    try:
        import numpy as np
        x, y = (np.frombuffer(v, np.float32).reshape(-1, vocab) for v in (a, b))
        d = np.abs(x.astype(np.float64) - y)
        return float(d.max()), len(x), int((x.argmax(1) == y.argmax(1)).sum()), float(d.mean())
    except ImportError:
        pass
    worst, same, total, rows = 0.0, 0, 0.0, len(a) // vocab
    for r in range(rows):
        x, y = a[r * vocab:(r + 1) * vocab], b[r * vocab:(r + 1) * vocab]
        d = [abs(p - q) for p, q in zip(x, y)]
        worst, total = max(worst, max(d)), total + sum(d)
        same += x.index(max(x)) == y.index(max(y))
    return worst, rows, same, total / max(rows * vocab, 1)


def drift(run):
    """Fast against strict over held-out text (the track's prompts, 512 tokens each)."""
    if run.o.backend == "cpu":
        run.note("drift", "missing", detail="the processor has no fast arithmetic")
        return
    if not run.program("bench-worker"):
        return
    worst, positions, same, mean, seconds, command = 0.0, 0, 0, 0.0, 0.0, None
    vocab = json.loads((NANO / "config.json").read_text())["vocab_size"]
    prompts = sorted((TRACK / "prompts").glob("*.txt"))
    if run.o.emulated:
        prompts = [tokens_file(run, "text", [int(t) for t in prompts[0].read_text().split()[:32]])]
    for prompt in prompts[:4] if run.o.small else prompts:
        both = []
        for arithmetic in ("strict", "fast"):
            data, command, took = logits(run, NANO, prompt, f"drift on {prompt.stem}", "--rows", 512,
                                         arithmetic=arithmetic)
            seconds += took
            if data is None:
                return
            both.append(data)
        w, n, s, m = compare(*both, vocab)
        worst, positions, same, mean = max(worst, w), positions + n, same + s, mean + m * n
    run.note("fast against strict, laguna-nano", "measured", command, None, seconds, positions=positions,
             largest_difference=worst, mean_difference=mean / positions, same_first_choice=same / positions)


# ---- speed ----

def room_needed(small):
    return (64 << 20) if small else (43 << 30) + (2 << 30)


def small_config(run, path, drafter):
    """XS's kinds of layers at sizes that any machine has, to try the script with."""
    config = json.loads(path.read_text())
    sizes = {"hidden_size": 128, "head_dim": 32, "num_key_value_heads": 2, "vocab_size": 2048, "sliding_window": 128}
    config.update(sizes, intermediate_size=256, max_position_embeddings=16384, num_attention_heads=4)
    if not drafter:
        layers = 8
        config.update(num_hidden_layers=layers, moe_intermediate_size=32, shared_expert_intermediate_size=32,
                      num_experts=32, num_attention_heads_per_layer=[4 if i % 4 == 0 else 8 for i in range(layers)])
        for key in ("layer_types", "mlp_layer_types", "gating_types"):
            config[key] = config[key][:layers]
    out = run.scratch / f"small-{path.name}"
    out.write_text(json.dumps(config))
    return out


def synthesise(run, what, out, *flags):
    synth = run.program("synth-checkpoint")
    if out.exists() or not synth:
        if out.exists():
            run.note(f"made-up weights: {what}", "passed", detail="they were there")
        return out.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [synth, *flags, "--out", out, "--quiet"]
    code, _, errors, seconds = run.run(command, 240)
    size = sum(p.stat().st_size for p in out.glob("*.safetensors")) if code == 0 else 0
    return run.note(f"made-up weights: {what}", "passed" if code == 0 else "failed", command,
                    None if code == 0 else tell(errors), seconds, bytes=size)


def weights(run):
    target, drafter = (small_config(run, p, p == XS_DRAFTER) if run.o.small else p for p in (XS, XS_DRAFTER))
    layers = ["--target-layers", 8] if run.o.small else []
    synthesise(run, "XS 2.1 as shipped", run.weights / "xs", "--config", target)
    synthesise(run, "its drafter", run.weights / "drafter", "--config", drafter, *layers)
    synthesise(run, "XS 2.1 with INT8 attention", run.weights / "xs-int8", "--config", target, "--int8-attention")


def measure(run, name, folder, arithmetic, *flags):
    if not (run.weights / folder).exists():
        run.note(name, "missing", detail=f"there are no weights in {run.weights / folder}")
        return
    command = worker(run, "bench", "--weights", run.weights / folder, "--no-cold", "--quiet", "--json", *flags,
                     arithmetic=arithmetic if run.o.backend != "cpu" else None)
    code, out, errors, seconds = run.run(command, 200)
    if code != 0:
        run.note(name, "failed", command, tell(errors), seconds)
        return
    run.note(name, "measured", command, None, seconds, bench=json.loads(out))


def bench(run):
    if not run.program("bench-worker"):
        return
    drafting = ["--drafter", run.weights / "drafter", "--simulate-acceptance", run.o.acceptance]
    full = ["--decode-tokens", run.o.decode_tokens, "--block", 16]
    prefill = ["--context", 512, "--decode-tokens", 16, "--block", 1]
    measure(run, "shipped strict", "xs", "strict", *full, *drafting)
    if run.o.backend != "cpu":
        measure(run, "shipped fast", "xs", "fast", *prefill)
    measure(run, "int8 strict", "xs-int8", "strict", *full, *drafting)
    if run.o.backend != "cpu":
        measure(run, "int8 fast", "xs-int8", "fast", *prefill)


PARTS = {"bits": bits, "poison": poison, "judge": judge, "drift": drift, "weights": weights, "bench": bench,
         "sanitizer": sanitizer}
