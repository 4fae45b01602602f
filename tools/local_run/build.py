"""The programs are those of the sources, or the run says that they are not."""

import os
import pathlib
import shutil
import subprocess

import stop
from settings import ROOT
from stop import FAILED, USAGE, Stop, say


def folder():
    """Where the Makefile puts things; BUILD as for make."""
    named = os.environ.get("BUILD", "")
    return pathlib.Path(os.path.abspath(named)) if named else ROOT / "build"


def program(name):
    path = folder() / name
    if not os.access(path, os.X_OK):
        raise Stop(USAGE, f"{path} is not there: run make first")
    return path


def make(arguments, **keys):
    return subprocess.run(["make", f"BUILD={os.environ.get('BUILD') or 'build'}", *arguments], cwd=ROOT,
                          stdin=subprocess.DEVNULL, check=False, **keys)


def newest_source():
    newest, when = None, 0.0
    for path in (ROOT / "src" / "engine").rglob("*"):
        if path.suffix in (".c", ".h", ".cu") and path.stat().st_mtime > when:
            newest, when = path, path.stat().st_mtime
    return newest, when


def refresh(engine, may_build):
    """Builds what is older than its sources. An engine from elsewhere is only looked at."""
    own = engine.resolve() == (folder() / "bench-worker").resolve()
    if own and may_build and shutil.which("make"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if make(["-q", "all"], **quiet).returncode == 0:
            return say("build: up to date")
        say("build: the sources are newer than the programs, building")
        log = folder() / "local-build.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        code, out = stop.run(["make", f"BUILD={os.environ.get('BUILD') or 'build'}",
                              f"-j{os.cpu_count() or 1}", "all"], cwd=ROOT, stderr=subprocess.STDOUT)
        log.write_text(out)
        if code != 0:
            say("\n".join(out.splitlines()[-30:]))
            raise Stop(FAILED, f"the build failed; {log} has it whole")
        return None
    if not engine.is_file():
        raise Stop(USAGE, f"the engine {engine} is not there (MLXFAST_ENGINE_PATH)")
    source, when = newest_source()
    if source is not None and engine.stat().st_mtime < when:
        say(f"build: {engine} is older than {source.relative_to(ROOT)}: it may be timed without your "
            "last change")
    return None
