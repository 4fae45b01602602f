"""What both scripts do around their legs."""

import os
import sys

import build
import guard
from cool import STALLED, TARGET_C, Gate
from settings import Settings, help_text
from stop import NOT_RUN, USAGE, Stop, say, step

MODES = {"--local-iterate": "local-iterate", "--local-submit": "local-submit"}

ENDS = ["Exit codes: 0 measured (and correct, unless a drift was allowed); 1 drift, a violation, a "
        "failed build or leg; 2 usage; 3 not run: another run, leftover engines, a machine that does "
        "not cool; 130 interrupted. A score is written by benchd at the very end or not at all."]


def parse(script, kind, usage, about):
    """The mode and the settings; --help and wrong arguments end here."""
    arguments = sys.argv[1:]
    if "-h" in arguments or "--help" in arguments:
        print(help_text(kind, usage, about, ENDS))
        raise SystemExit(0)
    if not arguments:
        print(usage, file=sys.stderr)
        raise Stop(USAGE, "say --local-iterate or --local-submit")
    if "--official" in arguments:
        raise Stop(USAGE, "--official runs on the organiser's machine, not here")
    if len(arguments) != 1 or arguments[0] not in MODES:
        wrong = next((a for a in arguments if a not in MODES), arguments[-1])
        raise Stop(USAGE, f"unknown argument '{wrong}'" if wrong not in MODES
                   else "one of --local-iterate and --local-submit, not both")
    settings = Settings(kind, os.environ)
    os.environ.pop("MLXFAST_OFFICIAL_BENCHMARK_RUN", None)  # benchd would take it at its word
    return MODES[arguments[0]], settings


def need(path, kind, name):
    """A file or folder that must be there before anything else happens."""
    there = path.is_dir() if kind == "folder" else path.is_file()
    if not there:
        raise Stop(USAGE, f"no such {kind}: {path} ({name})")
    return path


def score_path(settings):
    path = settings.path("MLXFAST_SCORE_PATH", "score.json")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise Stop(USAGE, f"the score cannot be written to {path} (MLXFAST_SCORE_PATH)")
    return path


def remove_old(score, integrity):
    """An old result must not pass for a new one."""
    for path in (score, score.with_name(score.name + ".sha256"), score.with_name(integrity)):
        path.unlink(missing_ok=True)


def work_folder(settings, name, default):
    folder = settings.path(name, default)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(USAGE, f"the work folder {folder} cannot be made: {error.strerror} ({name})") from error
    return folder


def enter(script, settings, engine):
    """Lock, leftovers, build. Returns the lock, to be held until the end."""
    for line in settings.notes():
        say(f"note: {line}")
    held = None
    if settings.switch("MLXFAST_LOCAL_RUN_GUARD", True):
        held = guard.take_lock(settings.path("MLXFAST_LOCAL_RUN_LOCK_DIR"), script)
        for line in guard.look_for_engines({"bench-worker", engine.name}):
            say(f"note: {line}")
    else:
        say("note: no lock and no look for leftover engines (MLXFAST_LOCAL_RUN_GUARD=0)")
    step("Build")
    build.refresh(engine, settings.switch("MLXFAST_LOCAL_BUILD", True))
    return held


def cool_gate(settings):
    return Gate(settings.switch("MLXFAST_LOCAL_COOL_GATE", True), settings.text("MLXFAST_GPU_TEMP_CMD"),
                settings.number("MLXFAST_LOCAL_COOL_TARGET_C", TARGET_C), say)


def wait_for_cool(gate, leg):
    if gate.before(leg):
        return
    _, verdict, value, waited = gate.found[-1]
    why = "does not get cooler" if verdict == STALLED else "did not get cool"
    raise Stop(NOT_RUN, f"the machine {why}: {value:.1f} C after {waited:.0f} s, wanted {gate.target:g} C "
                        f"before the {leg} leg. Time at any temperature with MLXFAST_LOCAL_COOL_GATE=0, "
                        "or raise MLXFAST_LOCAL_COOL_TARGET_C")


def table(rows):
    """Names and values in two columns, a third one for what a figure means."""
    width = max(len(row[0]) for row in rows)
    for name, value, *meaning in rows:
        say(f"  {name:<{width}}  {value}" + (f"   ({meaning[0]})" if meaning else ""))
