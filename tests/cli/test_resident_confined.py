"""examples/resident/resident-up.sh: the script of an organiser that keeps a resident in a sandbox of its own.
A resident that tries what it should not be able to; and a calibration whose legs have confined residents."""

import json
import os
import pathlib
import shutil
import socket
import subprocess

from conftest import ROOT
from job_kit import needs_sandbox
from test_baseline import Box

SCRIPT = ROOT / "examples" / "resident" / "resident-up.sh"
pytestmark = needs_sandbox()

# Answers each connection with what it could do; attempts come from the tree.
NOSY = '''#!/usr/bin/python3
import json, os, socket, sys
at = dict(zip(sys.argv[1::2], sys.argv[2::2]))
tries = json.load(open("tries.json"))
def can(action):
    try:
        action()
        return True
    except OSError:
        return False
told = {
    "flags": [at["--spec"], at["--draft-len"]],
    "network": can(lambda: socket.create_connection(("127.0.0.1", tries["port"]), 2)),
    "secret": can(lambda: open(tries["secret"]).read()),
    "tree": can(lambda: open("written", "w").close()),
    "kill": can(lambda: os.kill(tries["pid"], 0)),
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]),
    "environment": sorted(os.environ),
}
listener = socket.socket(socket.AF_UNIX)
listener.bind(at["--socket"])
listener.listen(4)
if os.fork():  # a daemon of the daemon
    os.setsid()
while True:
    connection, _ = listener.accept()
    connection.sendall(json.dumps(told).encode())
    connection.close()
'''

# The scripted engine behind a socket, with the identity of this load.
SERVING = '''#!/usr/bin/python3
import json, os, socket, subprocess, sys, time
at = dict(zip(sys.argv[1::2], sys.argv[2::2]))
script = json.load(open("script.json"))
script["hello"] = {"resident": {"pid": os.getpid(), "load_epoch": time.time_ns()}}
json.dump(script, open("/tmp/script.json", "w"))
listener = socket.socket(socket.AF_UNIX)
listener.bind(at["--socket"])
listener.listen(4)
while True:
    connection, _ = listener.accept()
    subprocess.run([sys.executable, "bin/scripted_engine.py", "runtime-worker", "--weights", "weights",
                    "--speculative-protocol", "v1.1", "--resource", "script=/tmp/script.json"],
                   stdin=connection, stdout=connection)
    connection.close()
'''


def program(tree, text):
    (tree / "bin").mkdir(exist_ok=True)
    (tree / "tools").mkdir(exist_ok=True)
    (tree / "bin" / "resident").write_text(text)
    (tree / "bin" / "resident").chmod(0o755)
    shutil.copy(SCRIPT, tree / "tools" / "resident-up.sh")


def up(tree, *arguments):
    with open(tree / "said", "w") as said:  # no pipe: the resident keeps its end of it
        done = subprocess.run([tree / "tools" / "resident-up.sh", *[str(a) for a in arguments]], cwd=tree,
                              stdout=subprocess.DEVNULL, stderr=said, timeout=60,
                              env={**os.environ, "SECRET_TOKEN": "x"})
    return done.returncode, (tree / "said").read_text()


def boot(tree, out):
    return up(tree, "--boot", "--spec", "serial", "--draft-len", 0, "--socket-out", out)


def test_a_resident_sees_nobody(tmp_path, build):
    tree, secret, out = tmp_path / "tree", tmp_path / "secret.json", tmp_path / "out"
    tree.mkdir()
    secret.write_text("the hidden prompt")
    program(tree, NOSY)
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tree / "tries.json").write_text(json.dumps(
            {"port": server.getsockname()[1], "secret": str(secret), "pid": os.getpid()}))
        code, said = boot(tree, out)
        assert code == 0, said
        path = pathlib.Path(out.read_text().strip())
        assert path.is_socket() and path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o002
        with socket.socket(socket.AF_UNIX) as resident:
            resident.connect(str(path))
            told = json.loads(resident.makefile().read())
    pid = int((path.parent / "pid").read_text())
    assert told.pop("processes") <= 3  # itself, its parent in there
    assert "SECRET_TOKEN" not in told.pop("environment")
    assert told == {"flags": ["serial", "0"], "network": False, "secret": False, "tree": False,
                    "kill": False}
    first = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    assert up(tree, "--stop", "--socket", path)[0] == 0
    assert not path.parent.exists()
    state = [pathlib.Path(f"/proc/{p}/stat") for p in (pid, first)]
    assert all(not s.exists() or s.read_text().rsplit(")", 1)[1].split()[0] in "ZX" for s in state)
    assert up(tree, "--stop", "--socket", path)[0] == 0  # gone before
    assert up(tree, "--stop", "--socket", "/tmp/resident-aaaaaa/../socket")[0] == 1


def test_a_resident_that_does_not_come_up(tmp_path, build):
    tree = tmp_path / "tree"
    tree.mkdir()
    program(tree, "#!/bin/sh\nexit 3\n")
    code, said = boot(tree, tmp_path / "out")
    assert code == 1 and "ended before it had a socket" in said
    assert not (tmp_path / "out").exists()


def test_legs_with_confined_residents(tmp_path, build):
    box = Box(tmp_path)
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1)
    box.with_resident()
    program(box.tree, SERVING)
    result = box.calibrate(sandbox=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(box.conditions.read_text())["residents"] is True
    assert not list(pathlib.Path("/tmp").glob("resident-*/socket"))
