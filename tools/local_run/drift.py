"""The public drift tripwire: the engine must give the public golden's tokens, every one, before its
speed is worth anything."""

import json

from stop import FAILED, INTERRUPTED, Interrupted, Stop, run, say

SHOWN = 5


def look(benchd, engine, weights, golden, contract, report):
    """What `benchd correctness` found. Fewer mismatches than its gate forgives are a drift too: the
    arithmetic is the same on every machine."""
    report.unlink(missing_ok=True)
    code, out = run([benchd, "correctness", "--engine", engine, "--weights", weights, "--golden",
                     golden, "--contract", contract, "--report", report, "--quiet"])
    if code == INTERRUPTED:
        raise Interrupted("SIGINT")
    if code not in (0, 1) or not report.is_file():
        detail = ""
        try:
            detail = ": " + json.loads(out)["error"]
        except (ValueError, KeyError, TypeError):
            pass
        raise Stop(FAILED if code == 1 else code, f"the tripwire could not be run{detail}")
    return json.loads(report.read_text())


def judge(found, allowed, script):
    """True: no drift. With a drift: goes on only where that is allowed."""
    if found["passed"] and not found["diverged"]:
        say(f"tripwire: passed, {found['run_count']} cases of the public golden, every token")
        return True
    rows = [f"  {d['case']}, step {d['step']}: expected {d['expected_token']}, got "
            f"{d['actual_token']} ({d['mismatches']} differ)" for d in found["diverged"][:SHOWN]]
    if len(found["diverged"]) > SHOWN:
        rows.append(f"  and {len(found['diverged']) - SHOWN} cases more")
    say("tripwire: DRIFT from the public golden\n" + "\n".join(rows or [f"  {found['error']}"]))
    if not allowed:
        raise Stop(FAILED, "the engine does not give the public golden's tokens; nothing was timed. "
                           f"For a timing in spite of it: MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT=1 ./{script} "
                           "(the score will say passed_correctness false)")
    say("tripwire: going on (MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT=1); the score says that it drifted")
    return False
