#!/usr/bin/python3
"""The resident of a leg, for tests: boots a daemon that holds a "model" and answers one connection at a
time with the scripted engine; stops it. How it misbehaves stands in the tree's file `variant`:

  good              (or no such file) as it should be
  fail              --boot ends with 3 after the daemon was started
  hang              --boot does not end
  no-socket         names a socket that is not there
  relative          names a relative path
  stop-fails        --stop ends with 4 and stops nothing
  not-stopped       --stop says that it did
  shared            every load says it is the same one
  nameless          says nothing of itself in the hello

Each call is appended to the file `calls`, the daemon's number stands in `pid`."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

TREE = pathlib.Path.cwd()
VARIANT = (TREE / "variant").read_text().strip() if (TREE / "variant").exists() else "good"


def script_of(load_epoch):
    """The scripted engine's script: the tree's own, with the identity of this load in the hello."""
    path = TREE / "script.json"
    script = json.loads(path.read_text()) if path.exists() else {}
    if VARIANT != "nameless":
        identity = {"pid": os.getpid(), "load_epoch": load_epoch}
        if VARIANT == "shared":
            identity = {"pid": 5, "load_epoch": 1}
        script.setdefault("hello", {})["resident"] = identity
    loaded = TREE / "loaded.json"
    loaded.write_text(json.dumps(script))
    return loaded


def serve(listener, load_epoch):
    script = script_of(load_epoch)
    while True:
        connection, _ = listener.accept()
        (TREE / "attached").write_text("")
        subprocess.run([sys.executable, TREE / "bin" / "scripted_engine.py", "runtime-worker",
                        "--weights", TREE / "weights", "--speculative-protocol", "v1.1",
                        "--resource", f"script={script}"], stdin=connection, stdout=connection)
        connection.close()


def boot(out):
    load_epoch = time.time_ns()
    path = TREE / f"resident-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    os.chmod(path, 0o666)  # a sandboxed worker of root's is nobody
    listener.listen(1)
    if os.fork() == 0:
        os.setsid()
        (TREE / "pid").write_text(str(os.getpid()))
        pathlib.Path(f"{path}.pid").write_text(str(os.getpid()))
        pathlib.Path(f"{path}.ready").write_text("")
        devnull = os.open("/dev/null", os.O_RDWR)
        for stream in range(3):
            os.dup2(devnull, stream)
        serve(listener, load_epoch)
    while not pathlib.Path(f"{path}.ready").exists():
        time.sleep(0.005)
    if VARIANT == "hang":
        time.sleep(1000)
    named = {"no-socket": TREE / "nothing.sock", "relative": path.name}.get(VARIANT, path)
    pathlib.Path(out).write_text(f"{named}\n")
    if VARIANT == "fail":
        sys.stderr.write("no room for the model\n")
        sys.exit(3)


def stop(path):
    if VARIANT == "stop-fails":
        sys.exit(4)
    if VARIANT == "not-stopped":
        return
    try:
        os.kill(int(pathlib.Path(f"{path}.pid").read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        pass  # stopped before
    for leftover in (path, f"{path}.pid", f"{path}.ready"):
        pathlib.Path(leftover).unlink(missing_ok=True)


def main():
    with open(TREE / "calls", "a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    if sys.argv[1] == "--boot":
        assert list(flags) == ["--spec", "--draft-len", "--socket-out"], flags
        boot(flags["--socket-out"])
    else:
        assert list(flags) == ["--socket"], flags
        stop(flags["--socket"])


main()
