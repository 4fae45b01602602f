"""Nothing else measures at the same time: one lock for both scripts, and a look for engines that an
earlier run left behind."""

import fcntl
import os
import pathlib
import stat
import time

from stop import NOT_RUN, USAGE, Stop

LOCK = "mlxfast-local-run.lock"
JUDGES = {"benchd"}
HELPERS = {"bwrap"}  # what stands between a judge and its engine


def lock_folder(named):
    """The same place for every session of a user, so not one that a variable of the session names."""
    return named or pathlib.Path(f"/tmp/mlxfast-local-run-{os.geteuid()}")


def take_lock(named, script):
    """The open file that holds the lock; the kernel gives it back however this process ends, so that
    a lock cannot be left behind. The file stays: taking it away would let two runs hold two files."""
    folder = lock_folder(named)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = os.stat(folder, follow_symlinks=False)
        if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.geteuid():
            raise Stop(USAGE, f"the lock's folder {folder} is not a folder of this user "
                              "(MLXFAST_LOCAL_RUN_LOCK_DIR)")
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Stop(USAGE, f"the lock cannot be made in {folder}: {error.strerror} "
                          "(MLXFAST_LOCAL_RUN_LOCK_DIR)") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(held, 200, 0).decode(errors="replace").strip() or "another run"
        os.close(held)
        raise Stop(NOT_RUN, f"another local run is measuring: {holder}; two at once would spoil both. "
                            f"Lock: {folder / LOCK}") from None
    os.ftruncate(held, 0)
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    os.pwrite(held, f"{script}, pid {os.getpid()}, since {now}\n".encode(), 0)
    return held


# ---- Leftover engines ----


class Process:
    """One row of /proc."""

    def __init__(self, folder):
        fields = (folder / "stat").read_text()
        self.pid = int(folder.name)
        self.name = fields[fields.index("(") + 1:fields.rindex(")")]
        rest = fields[fields.rindex(")") + 2:].split()
        self.state, self.parent, self.session = rest[0], int(rest[1]), int(rest[3])
        self.age = seconds_up() - int(rest[19]) / os.sysconf("SC_CLK_TCK")
        self.user = os.stat(folder).st_uid
        raw = (folder / "cmdline").read_bytes().split(b"\0")
        self.program = os.path.basename(raw[0].decode(errors="replace")) if raw[0] else self.name


def seconds_up():
    with open("/proc/uptime", encoding="ascii") as f:
        return float(f.read().split()[0])


def processes():
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                p = Process(folder)
            except (OSError, ValueError):
                continue  # it ended while we looked
            found[p.pid] = p
    return found


def is_left_behind(process, table):
    """Its parent is gone: it was handed to another one, which stands in another session."""
    while process.parent in table and table[process.parent].name in HELPERS:
        process = table[process.parent]
    parent = table.get(process.parent)
    if parent is None or parent.pid == 1:
        return True
    return process.session not in (process.pid, parent.session)


def engines(names):
    """(left behind, at work) engines of this user; root sees everybody's, since its engines run as
    nobody in their sandbox."""
    table = processes()
    me = os.geteuid()
    mine = [p for p in table.values() if (p.program in names or p.name in names) and p.state != "Z"
            and (me == 0 or p.user == me)]
    left = [p for p in mine if is_left_behind(p, table)]
    return left, [p for p in mine if p not in left]


def age_text(seconds):
    seconds = max(0, int(seconds))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def look_for_engines(names):
    """Refuses leftovers; a line for each engine that somebody is using."""
    left, busy = engines(names)
    if left:
        rows = "\n".join(f"  {p.name}, pid {p.pid}, running for {age_text(p.age)}" for p in left)
        kill = " ".join(str(p.pid) for p in left)
        raise Stop(NOT_RUN, "an earlier run left engines behind, and they would take part of the "
                            f"machine:\n{rows}\nEnd them with: kill {kill}    "
                            "(or go on in spite of them: MLXFAST_LOCAL_RUN_GUARD=0)")
    return [f"{p.name}, pid {p.pid}, is at work on this machine ({age_text(p.age)}): figures will be "
            "noisy" for p in busy]
