"""The parts of tests/device/run: what is run, and what must come of it."""

import array
import contextlib
import fcntl
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO, NANO_DRAFTER = ROOT / "models/laguna-nano", ROOT / "models/laguna-nano-dflash"
XS, XS_DRAFTER = (ROOT / f"tracks/laguna-xs-2.1-dflash-v1/{n}config.json" for n in ("", "drafter-"))
TRACK = ROOT / "tracks/laguna-nano-serial-v1"
MEMORY_SLACK = 64  # MiB that a device's use may differ by, with nothing of ours on it
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


# ---- compute-sanitizer ----

SANITIZERS, FOUND = ("memcheck", "initcheck", "racecheck"), 86
WHERE = {"--graph": "in a graph", "": "in a plain launch"}


def sanitized(run, tool, what, command, **environment):
    """A program below compute-sanitizer: (whole command, exit code, faults or None, its summary, stdout, what was said, seconds)."""
    log = run.scratch / f"{tool}-{what}.log"
    whole = ["compute-sanitizer", "--tool", tool, "--error-exitcode", FOUND, "--print-limit", 3, "--log-file", log,
             *command]
    code, out, errors, seconds = run.run([shutil.which(whole[0], path=run.environment["PATH"]), *whole[1:]], 150,
                                         **environment)
    said = log.read_text(errors="replace") if log.exists() else ""
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+).*", said)
    return ([*[f"{k}={v}" for k, v in environment.items()], *whole], code, int(summary.group(1)) if summary else None,
            summary and summary.group(0), out, said + errors, seconds)


def check_control(run, program, tool, mode, seen):
    """A fault on purpose: a tool that misses it proves nothing by finding none."""
    flags = ["--fault", tool, *([mode] if mode else [])]
    command, code, faults, summary, out, said, seconds = sanitized(run, tool, f"control{mode}", [program, *flags])
    seen[tool, mode] = code == FOUND and bool(faults)
    run.note(f"{tool} finds the fault made {WHERE[mode]}", "passed" if seen[tool, mode] else "failed", command,
             summary if seen[tool, mode] else f"{tool} does not see what runs {WHERE[mode]}: exit code {code}, "
             f"{summary or 'no summary'}: {(out + said)[-400:]}", seconds)


def check_sanitized(run, tool, arithmetic, command, usual, plain):
    environment = {"MLXFAST_CUDA_PLAIN": "graphs,overlap"} if plain else {}
    name = f"{tool}, {arithmetic}{', launched plainly' if plain else ''}, on laguna-nano with its drafter"
    whole, code, faults, summary, out, said, seconds = sanitized(
        run, tool, f"{arithmetic}{'-plain' if plain else ''}", command, **environment)
    clean = code == 0 and faults == 0
    run.note(name, "passed" if clean else "failed", whole, summary if clean else said[-900:], seconds,
             **({"faults": faults, "tokens_per_second": tokens_per_second(out), "without_the_tool": usual}
                if clean else {}))


def tokens_per_second(out):
    try:
        return json.loads(out)["decode_tokens_per_second"]
    except (ValueError, KeyError):
        return None


def sanitizer(run):
    """First that each tool finds a fault made for it, in a graph as the engine launches, and in a plain launch."""
    if not shutil.which("compute-sanitizer", path=run.environment["PATH"]):
        run.note("compute-sanitizer", "missing", detail="it is not in PATH nor in /usr/local/cuda/bin")
        return
    program = run.program("tests/device/test_cuda_sanitizer")
    if not program or not run.program("bench-worker"):
        return
    seen = {}
    run.together([(check_control, program, tool, mode, seen) for tool in SANITIZERS for mode in WHERE])
    tokens, jobs = tokens_file(run, "few", nano_tokens()[:24]), []
    for arithmetic in ("strict", "fast"):
        command = worker(run, "generate", "--weights", NANO, "--drafter", NANO_DRAFTER, "--block", 4, "--tokens-file",
                         tokens, "-n", 6, "--context", 128, "--json",
                         arithmetic=arithmetic if run.o.backend != "cpu" else None)
        usual = tokens_per_second(run.run(command)[1])
        for tool in SANITIZERS:
            jobs.append((check_sanitized, tool, arithmetic, command, usual, False))
            if not seen.get((tool, "--graph")):
                jobs.append((check_sanitized, tool, arithmetic, command, usual, True))
    jobs.sort(key=lambda job: SANITIZERS.index(job[1]), reverse=True)  # the slowest begin first
    run.together(jobs)


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


# ---- the resident process ----

def session(run, prompt, count, socket=None):
    """One session of a worker, in process or attached: (hello, [its answers' tokens], what went wrong, seconds)."""
    lines = [{"id": 1, "kind": "free_decode_begin", "seed_tokens": prompt},
             {"id": 2, "kind": "free_decode_run", "count": count}]
    attached = {"BENCH_WORKER_RESIDENT_SOCKET": str(socket), "BENCH_WORKER_RESIDENT_HELLO": "1"} if socket else {}
    code, out, errors, seconds = run.run([run.build / "bench-worker", "--weights", NANO, "--speculative-protocol", "v1.1"],
                                         60, "".join(json.dumps(l) + "\n" for l in lines),
                                         BENCH_WORKER_BACKEND=run.o.backend, **attached)
    answers = [json.loads(l) for l in out.splitlines() if l.startswith("{")]
    if code != 0 or len(answers) != 3 or not all(a["ok"] for a in answers):
        return None, None, tell(errors) if code != 0 else out[-400:], seconds
    return answers[0], [answers[1]["seed_token"], *answers[2]["tokens"]], None, seconds


def memory_used(run):
    """Of the device by all processes, in MiB; None: there is none to ask."""
    code, out, _, _ = run.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"], 20)
    return int(out.split()[0]) if code == 0 and out.split() and out.split()[0].isdigit() else None


UNCONFINED = {"BENCH_WORKER_RESIDENT_UNCONFINED": "1"}


def confinement(run):
    """Whether tools/serve-up.sh can confine what it starts here: ({} or the variable that says not to, words)."""
    code, _, errors, _ = run.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
                                  "true"], 20)
    why = "there is no bubblewrap" if not shutil.which("bwrap") else f"bubblewrap cannot: {errors.strip()[:120]}"
    return ({}, "yes") if code == 0 else (UNCONFINED, f"no, {why}")


def alive(process):
    """One that has ended has no command any more, whether or not its parent has heard of it."""
    try:
        return bool(pathlib.Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


def resident(run):
    """tools/serve-up.sh: one load, sessions that attach to it, and an end that leaves nothing."""
    if not run.program("bench-worker"):
        return
    prompt, count = cases()[0]["prompt"], 8 if run.o.emulated else 96
    room = pathlib.Path(tempfile.mkdtemp(prefix="mlxfast-", dir="/tmp"))  # a socket's path is short
    try:
        with open(room / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as whoever measures on the box does
            check_resident(run, room, prompt, count)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def check_resident(run, room, prompt, count):
    script, told = ROOT / "tools/serve-up.sh", room / "told"
    boot = [script, "--boot", "--spec", "serial", "--draft-len", 0, "--socket-out", told]
    _, wanted, wrong, alone = session(run, prompt, count)
    if wanted is None:
        run.note("a worker without a resident", "failed", detail=wrong, seconds=alone)
        return
    before, (unconfined, words) = memory_used(run), confinement(run)
    for chosen in [unconfined] if unconfined else [{}, UNCONFINED]:
        settings = {"TMPDIR": str(room), "BENCH_WORKER_BOX_LOCK": str(room / "lock"),
                    "BENCH_WORKER_BACKEND": run.o.backend, "BENCH_WORKER_RESIDENT_ENGINE": str(run.build / "bench-worker"),
                    "BENCH_WORKER_RESIDENT_WEIGHTS": str(NANO), **chosen}
        text = [f"{k}={v}" for k, v in settings.items()]
        code, _, errors, seconds = run.run(boot, 60, **settings)
        socket = pathlib.Path(told.read_text().strip()) if told.exists() else None
        if run.note("serve-up.sh --boot: the resident answers", "passed" if code == 0 and socket else "failed",
                    [*text, *boot], None if code == 0 else (errors.strip() or "no message")[-600:], seconds,
                    **({"confined": words if chosen == unconfined else "no, since that failed"} if code == 0 else {})):
            break
    else:
        return
    stop = [script, "--stop", "--socket", socket]
    process, loaded = (socket.parent / "socket.pid").read_text().strip(), memory_used(run)
    try:
        first, second = session(run, prompt, count, socket), session(run, prompt, count, socket)
        for name, (hello, tokens, wrong, took) in (("the first", first), ("the second", second)):
            run.note(f"{name} session that attaches: the tokens of a run without the resident",
                     "passed" if tokens == wanted else "failed", ["BENCH_WORKER_RESIDENT_SOCKET=" + str(socket),
                     run.build / "bench-worker", "--weights", NANO, "--speculative-protocol", "v1.1"],
                     None if tokens == wanted else wrong or "other tokens", took,
                     **({"tokens": len(tokens), "seconds_without": round(alone, 3)} if tokens == wanted else {}))
        who = [s[0].get("resident") if s[0] else None for s in (first, second)]
        same = who[0] is not None and who[0] == who[1]
        run.note("both hellos name the same process and load", "passed" if same else "failed", None,
                 f"{who[0]}" if same else f"{who[0]} and {who[1]}")
        backend = first[0] and first[0]["backend"]
        run.note("the hello names the backend", "passed" if backend == run.o.backend else "failed", None,
                 f"{backend}: {first[0]['device']}" if first[0] else "no hello")
    finally:
        code, _, errors, seconds = run.run(stop, 60, **settings)
    gone = not alive(process) and not socket.parent.exists()
    run.note("serve-up.sh --stop: process, socket and folder are gone", "passed" if code == 0 and gone else "failed",
             [*text, *stop], None if code == 0 and gone else errors.strip()[-400:] or "something is left", seconds)
    if before is not None:
        for _ in range(20):  # a driver takes a moment longer than the process
            after = memory_used(run)
            if after is not None and after <= before + MEMORY_SLACK:
                break
        freed = after is not None and loaded is not None and after <= before + MEMORY_SLACK < loaded
        run.note("the device's memory is free again", "passed" if freed else "failed", None, None if freed else
                 "MiB before, with the resident, after its end: " + f"{before}, {loaded}, {after}",
                 mib_before=before, mib_with_it=loaded, mib_after=after)


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
        run.note(name, "missing", detail=f"there are no weights in {run.weights / folder}: ask for the part weights "
                 "too, or give --weights-dir")
        return
    command = worker(run, "bench", "--weights", run.weights / folder, "--no-cold", "--quiet", "--json", *flags,
                     arithmetic=arithmetic if run.o.backend != "cpu" else None)
    code, out, errors, seconds = run.run(command, 200)
    if code != 0:
        run.note(name, "missing" if code is None else "failed", command, tell(errors), seconds)
        return
    run.note(name, "measured", command, None, seconds, bench=json.loads(out))


class Watch:
    """Clocks and power while something is measured, every other second; nothing where nobody can say."""

    def __init__(self, run):
        self.run, self.text = run, run.scratch / "watch"
        self.process = None

    def __enter__(self):
        query = "utilization.gpu,clocks.sm,power.draw"
        with open(self.text, "w") as out, contextlib.suppress(OSError):
            self.process = subprocess.Popen(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i",
                                             "0", "-l", "2"], stdout=out, stderr=subprocess.DEVNULL)

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.terminate()
        self.process.wait()
        self.run.under_load = under_load(self.text.read_text())


def under_load(text):
    """Of nvidia-smi's lines those at which the card worked: least, median and most."""
    samples = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            samples.append([float(v) for v in line.split(",")])
    busy = [s for s in samples if len(s) == 3 and s[0] >= 50]
    clocks, watts = sorted(int(s[1]) for s in busy), sorted(s[2] for s in busy)
    return {"samples": len(busy), "sm_mhz": [clocks[0], clocks[len(clocks) // 2], clocks[-1]],
            "watts": watts[len(watts) // 2]} if busy else None


def bench(run):
    """The most important first: what there is no time for is the least."""
    if not run.program("bench-worker"):
        return
    drafting = ["--drafter", run.weights / "drafter", "--simulate-acceptance", run.o.acceptance]
    decode = ["--decode-tokens", run.o.decode_tokens]
    full, near, far = [*decode, "--block", 16], ["--context", 512], ["--context", 8192]
    prefill = [*near, "--decode-tokens", 16, "--block", 1]
    gpu = run.o.backend != "cpu"
    with Watch(run):
        measure(run, "shipped strict", "xs", "strict", *near, *full, *drafting)
        if gpu:
            measure(run, "shipped fast", "xs", "fast", *prefill)
        measure(run, "int8 strict", "xs-int8", "strict", *near, *full, *drafting)
        measure(run, "shipped strict, 8192", "xs", "strict", *far, *full)
        if gpu:
            measure(run, "int8 fast", "xs-int8", "fast", *prefill)
        measure(run, "int8 strict, 8192", "xs-int8", "strict", *far, *decode, "--block", 1)


PARTS = {"bits": bits, "poison": poison, "judge": judge, "resident": resident, "drift": drift, "weights": weights, "bench": bench,
         "sanitizer": sanitizer}
