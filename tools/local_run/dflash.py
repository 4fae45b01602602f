"""benchmark-dflash.sh: the DFlash track's local run, over benchd's dflash commands."""

import json
import os
import sys

import build
import drift
import run_common as common
import stop
from settings import DFLASH_TRACK
from stop import FAILED, INTERRUPTED, USAGE, Interrupted, Stop, say, step

SCRIPT = "benchmark-dflash.sh"
USAGE_LINE = "usage: ./benchmark-dflash.sh --local-iterate | --local-submit"
ABOUT = ["Checks the engine against the public golden, lets its own reference make a golden of the public "
         "prompt, times serial decoding (blocks of 1) and DFlash decoding of the same tokens, has every "
         "token checked by the judge, and seals score.json. A local score is an estimate for yourself and "
         "never rankable."]
INTEGRITY = "benchmark-integrity.json"


class Judge:
    """benchd with what all its dflash commands take."""

    def __init__(self, files):
        self.benchd = build.program("benchd")
        self.files = files

    def call(self, command, *flags, fine=(0,), log=None):
        """Its stdout. log: a file for its stderr, shown whole where it fails, else not at all."""
        if log is None:
            code, out = stop.run([self.benchd, command, *flags])
        else:
            with open(log, "w+", encoding="utf-8", errors="replace") as words:
                code, out = stop.run([self.benchd, command, *flags], stderr=words)
                words.seek(0)
                if code not in (*fine, INTERRUPTED):
                    sys.stderr.write(words.read())
        if code == INTERRUPTED:
            raise Interrupted("SIGINT")
        if code not in fine:
            raise Stop(USAGE if code == USAGE else FAILED, f"benchd {command} failed (its line is above); "
                                                           "no score was written")
        return out

    def model(self):
        f = self.files
        return ("--engine", f["engine"], "--weights", f["weights"], "--drafter", f["drafter"],
                "--contract", f["contract"])

    def leg(self, command, golden, tokens, out, *flags):
        """One timed leg: its report."""
        out.unlink(missing_ok=True)
        self.call(command, *self.model(), "--golden", golden, "--tokens", str(tokens), "--output", out,
                  "--quiet", *flags)
        return json.loads(out.read_text())

    def seal(self, *flags, score):
        """The score of the legs' reports; 1 is a sealed one that has not passed."""
        f = self.files
        self.call("dflash-score", "--contract", f["contract"], "--weights", f["weights"], "--engine",
                  f["engine"], "--score-path", score, *flags, fine=(0, FAILED))
        if not score.is_file():
            raise Stop(FAILED, "benchd dflash-score failed (its line is above); no score was written")


def own_golden(judge, golden, work, tokens):
    """The candidate's own golden: its reference decodes the public prompt greedily."""
    try:
        prompt = json.loads(golden.read_text())["cases"][0]["prompt_tokens"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Stop(USAGE, f"{golden} has no case with a prompt") from error
    emitted, out = work / "emitted.json", work / "golden.json"
    emitted.write_text(json.dumps({"seed_tokens": prompt}))
    out.unlink(missing_ok=True)
    # The first that loads the drafter: where that fails, the engine's own words say why.
    judge.call("dflash-reference", *judge.model(), "--emitted", emitted, "--output", out, "--generate",
               str(tokens), log=work / "reference.log")
    return out


def rate(report):
    seconds = report["parent_measured_seconds_per_token"]
    return f"{1 / seconds:,.0f} tokens/s, {1e3 * seconds:.3f} ms per token"


def time_pairs(judge, gate, golden, tokens, pairs, block, work):
    """[(serial report, DFlash report)], order alternating."""
    legs = {"serial": ("dflash-probe", "probe", ()),
            "DFlash": ("dflash-benchmark", "benchmark",
                       () if block is None else ("--block-size", str(block)))}
    done = []
    for number in range(1, pairs + 1):
        pair = {}
        for name in (("serial", "DFlash") if number % 2 else ("DFlash", "serial")):
            command, file, flags = legs[name]
            common.wait_for_cool(gate, name)
            pair[name] = judge.leg(command, golden, tokens, work / f"{file}-{number}.json", *flags)
            say(f"pair {number} of {pairs}, {name}: {rate(pair[name])}")
        done.append((pair["serial"], pair["DFlash"]))
    return done


def show(document, pairs, score, gate, correct, tripwire):
    metrics = document["metrics"]
    serial, fast = metrics["serial_seconds_per_token"], metrics["dflash_seconds_per_token"]
    total = lambda key: sum(report[key] for _, report in pairs)
    each = [s["parent_measured_seconds_per_token"] / d["parent_measured_seconds_per_token"]
            for s, d in pairs]
    drafted = total("accepted_draft_total") + total("rejected_draft_total")
    span = f", pairs {min(each):.2f} to {max(each):.2f}" if len(each) > 1 else ""
    verdict = f"passed: {tripwire['run_count']} cases; every timed token checked" if correct else \
        "NOT passed: drift from the public golden; every timed token checked against the engine itself"
    tail = pairs[-1][1]
    step("Result: a local estimate, never rankable")
    common.table([
        ("correctness", verdict),
        ("serial", f"{1 / serial:,.0f} tokens/s, {1e3 * serial:.3f} ms per token", "blocks of 1"),
        ("DFlash", f"{1 / fast:,.0f} tokens/s, {1e3 * fast:.3f} ms per token",
         f"blocks of {tail['block_size']}"),
        ("speed-up", f"{metrics['dflash_decode_speedup']:.3f}",
         f"serial / DFlash seconds per token, means of {len(pairs)} pair{'s' * (len(pairs) > 1)}{span}"),
        ("tokens per round", f"{total('emitted_token_total') / total('round_count'):.3f}",
         "tokens given out / rounds; a round is one forward of the target"),
        ("acceptance", f"{total('accepted_draft_total') / drafted:.3f}" if drafted else "no drafts",
         "drafts accepted / drafts verified"),
        ("tokens, window", f"{tail['decode_token_count']} after a seed of {tail['seed_token_count']}",
         "the seed's forward is inside both windows"),
        ("machine", gate.summary()),
        ("sealed in", f"{score} (+ .sha256, benchmark-integrity)"),
    ])
    if document["passed"] is not True and correct:
        say(f"  NOT passed: {metrics['error']}")
    if metrics.get("residual_divergence_count"):
        say(f"  {metrics['residual_divergence_count']} tokens were admitted as residuals")


def main():
    mode, settings = common.parse(SCRIPT, "dflash", USAGE_LINE, ABOUT)
    engine = settings.path("MLXFAST_ENGINE_PATH") or build.folder() / "bench-worker"
    contract = common.need(settings.path("MLXFAST_DFLASH_CONTRACT_PATH", f"{DFLASH_TRACK}/contract.json"),
                           "file", "MLXFAST_DFLASH_CONTRACT_PATH")
    files = {"engine": engine, "contract": contract,
             "weights": common.need(settings.path("MLXFAST_WEIGHTS_PATH", "models/laguna-nano"), "folder",
                                    "MLXFAST_WEIGHTS_PATH"),
             "drafter": common.need(settings.path("MLXFAST_DFLASH_DRAFTER_DIR", "models/laguna-nano-dflash"),
                                    "folder", "MLXFAST_DFLASH_DRAFTER_DIR")}
    golden = common.need(settings.path("MLXFAST_CORRECTNESS_GOLDEN_PATH") or
                         contract.parent / "public.golden.json", "file", "MLXFAST_CORRECTNESS_GOLDEN_PATH")
    fixture = settings.path("MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE")
    if fixture is not None:
        common.need(fixture, "file", "MLXFAST_DFLASH_LOCAL_GOLDEN_FIXTURE")
    short = mode == "local-iterate"
    try:
        declared = json.loads(contract.read_text())["block_decode"][
            "local_iterate_decode_tokens" if short else "local_submit_decode_tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(USAGE, f"{contract} declares no block_decode (MLXFAST_DFLASH_CONTRACT_PATH)") from error
    block = settings.count("MLXFAST_DFLASH_BLOCK_SIZE", 2, 16)
    counts = [settings.count(f"MLXFAST_DFLASH_LOCAL_{word}_TOKENS", 1, 512) for word in ("ITERATE", "SUBMIT")]
    tokens = counts[0 if short else 1] or declared
    pairs = settings.count("MLXFAST_DFLASH_LOCAL_PAIRS", 1, 32, 1 if short else 3)
    score = common.score_path(settings)
    allowed = settings.switch("MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT", False)
    gate = common.cool_gate(settings)
    work = common.work_folder(settings, "MLXFAST_DFLASH_LOCAL_WORK_DIR", ".mlxfast-local-dflash")
    held = common.enter(SCRIPT, settings, engine)
    common.remove_old(score, INTEGRITY)
    judge = Judge(files)

    step("Drift tripwire")
    report = work / "tripwire.json"
    found = drift.look(judge.benchd, engine, files["weights"], golden, contract, report)
    correct = drift.judge(found, allowed, f"{SCRIPT} --{mode}")

    step(f"Timing, {mode}: {tokens} tokens, {pairs} pair{'s' * (pairs > 1)}")
    timed = fixture or own_golden(judge, golden, work, tokens)
    reports = time_pairs(judge, gate, timed, tokens, pairs, block, work)
    flags = []
    for number in range(1, pairs + 1):
        flags += ["--probe", work / f"probe-{number}.json", "--benchmark",
                  work / f"benchmark-{number}.json"]
    judge.seal("--golden", timed, *flags, "--mode", f"dflash-{mode}", "--tokens", str(tokens),
               "--tripwire", "passed" if correct else "drifted", "--tripwire-report", report,
               score=score)
    document = json.loads(score.read_text())
    show(document, reports, score, gate, correct, found)
    if held is not None:
        os.close(held)
    return 0 if document["passed"] is True or not correct else FAILED


if __name__ == "__main__":
    raise SystemExit(stop.guarded(SCRIPT, main))
