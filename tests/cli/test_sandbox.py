"""The engine's sandbox: the probe, whole runs inside, engines that try what they must not, what is left
after a kill. Skipped, saying why, where this machine cannot build one."""

import hashlib
import json
import os
import pathlib
import select
import shutil
import stat
import subprocess
import tempfile

import pytest

from conftest import BUILD
from judge_kit import DEADLINES, ENGINE, Kit

BENCHD = BUILD / "benchd"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def why_not(prefix=(), benchd=BENCHD, cwd=None):
    """Why no sandbox can be built here; "" where it can."""
    result = subprocess.run([*prefix, benchd, "probe-sandbox", "--json"], capture_output=True,
                            text=True, timeout=120, cwd=cwd)
    return result.stderr.strip() if "SANDBOX-UNAVAILABLE" in result.stderr else ""


# Probes look at the whole machine: one at a time, also where tests run on several cores.
pytestmark = pytest.mark.xdist_group("sandbox")


@pytest.fixture(scope="module")
def sandbox():
    reason = why_not()
    if reason:
        pytest.skip(f"no sandbox can be built here: {reason}")


@pytest.fixture(scope="module")
def public_folder():
    """Readable and writable by every user."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mlxfast-test-", dir="/var/tmp"))
    folder.chmod(0o777)
    (folder / "home").mkdir()
    (folder / "home" / "diary").write_text("d")
    (folder / "home").chmod(0o777)
    shutil.copy(BENCHD, folder / "benchd")
    (folder / "benchd").chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["this user", "an unprivileged user"])
def user(request, public_folder):
    """(prefix, benchd, folder) to run as."""
    prefix = []
    if request.param == "an unprivileged user":
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            pytest.skip("this user is unprivileged already, or there is no setpriv")
        prefix = ["env", f"HOME={public_folder / 'home'}", *NOBODY]
    reason = why_not(prefix, public_folder / "benchd", public_folder)
    if reason:
        pytest.skip(f"no sandbox can be built here by {request.param}: {reason}")
    return prefix, public_folder / "benchd", public_folder


def probe(user, *flags, env=None):
    prefix, benchd, folder = user
    result = subprocess.run([*prefix, benchd, "probe-sandbox", "--json", *flags], timeout=120,
                            capture_output=True, text=True, cwd=folder, env={**os.environ, **(env or {})})
    assert result.stderr == ""
    return result.returncode, json.loads(result.stdout)


@pytest.mark.parametrize("flags", [(), ("--gpu",)])
def test_every_row_of_the_probe(user, flags):
    code, seen = probe(user, *flags)
    assert [r for r in seen["rows"] if not r["ok"]] == []
    assert code == 0 and seen["passed"] is True and seen["wrong"] == 0
    assert len(seen["rows"]) == seen["count"] >= 122
    assert {r["expected"] for r in seen["rows"]} == {"allowed", "denied"}
    assert seen["sandbox"] == f"bubblewrap+seccomp sha256:{seen['policy_sha256']}"
    lifted = {r["thing"] for r in seen["rows"]
              if r["group"] == "limits" and r["seen"] == "allowed"}
    assert lifted == ({"shared anonymous memory", "memfd_create"} if flags else set())


PROBE_LEFT = "leave a file beside the weights"
# What anybody may do on a plain machine: without a sandbox the probe must see it done.
OPEN_WITHOUT = {
    "connect to a listener on 127.0.0.1", "connect to a Unix socket by path",
    "connect to an abstract Unix socket", "fork", "vfork", "clone of a process",
    "clone of a process in shared memory", "posix_spawn", "execute /bin/true", "execute /bin/sh",
    "execute a descriptor", "execveat with a path", "execveat with a path and AT_EMPTY_PATH",
    "execveat that a listener of its own lets pass", "the golden beside the weights", "a golden inside the engine's folder", "the contract",
    "the private folder", "/etc/passwd", "see other processes", "signal the judge",
    "write a weights file", "create a file in the weights folder",
    "change the weights folder's mode", "unshare", "process_vm_readv", "pidfd_open",
    "personality without address randomisation", "System V shared memory",
    "System V message queue", "shared anonymous memory", "shared memory of /dev/zero",
    "a mapping counted as stack", "memfd_create", "a file longer than the limit",
    "SSH_AUTH_SOCK", "ask to be traced", "list the home folder", "create a file in the home folder",
    PROBE_LEFT, "the golden's name", "raise the limit of the stack"}


def test_the_probe_can_tell(user):
    code, seen = probe(user, "--no-sandbox")
    assert code == 1 and seen["passed"] is False and seen["sandbox"] == "none (switched off)"
    done = {r["thing"] for r in seen["rows"] if r["seen"] == "allowed"}
    assert OPEN_WITHOUT - done == set()
    assert [r["thing"] for r in seen["rows"] if r["seen"] == "nothing"] == []
    assert [r["thing"] for r in seen["rows"] if r["expected"] == "allowed" and not r["ok"]] == []


def test_nothing_of_the_probe_is_left(user):
    own = user[2] / "scratch"
    own.mkdir(exist_ok=True)
    own.chmod(0o777)
    code, _ = probe(user, env={"TMPDIR": str(own)})
    assert code == 0 and list(own.iterdir()) == []


@pytest.mark.parametrize("flags", [(), ("--gpu",)])
def test_the_hash_is_that_of_the_printed_policy(user, flags):
    prefix, benchd, folder = user
    result = subprocess.run([*prefix, benchd, "probe-sandbox", "--print-policy", *flags],
                            capture_output=True, timeout=60, cwd=folder)
    assert result.returncode == 0 and result.stdout.startswith(b"mlxfast sandbox policy 1\n")
    assert hashlib.sha256(result.stdout).hexdigest() == probe(user, *flags)[1]["policy_sha256"]


def test_the_table_for_people(sandbox):
    result = subprocess.run([BENCHD, "probe-sandbox"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0
    assert "execute /bin/sh" in result.stdout and "WRONG" not in result.stdout
    assert result.stdout.rstrip().endswith("as expected")


def test_the_inner_roles_are_not_for_people():
    for role in ("sandbox-exec", "probe-role"):
        result = subprocess.run([BENCHD, role], capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and "benchd starts it" in result.stderr
    assert "sandbox-exec" not in subprocess.run([BENCHD, "--help"], capture_output=True, text=True,
                                                timeout=60).stdout


# ---- whole runs ----

@pytest.fixture
def kit(tmp_path):
    made = Kit(tmp_path)
    made.record()
    return made


def test_a_run_of_the_reference_engine(sandbox, build, nano, root, tmp_path):
    track = root / "tracks" / "laguna-nano-serial-v1"
    score = tmp_path / "score.json"
    command = [BENCHD, "iterate", "--engine", build / "bench-worker", "--weights", nano, "--golden",
               track / "public.golden.json", "--contract", track / "contract.json",
               "--score-path", score]
    memory = []
    for extra in ([], ["--no-sandbox"]):
        result = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=300,
                                cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        integrity = json.loads((tmp_path / "benchmark-integrity.local-iterate.json").read_text())
        if not extra:
            policy = subprocess.run([BENCHD, "probe-sandbox", "--print-policy"],
                                    capture_output=True, timeout=60).stdout
            assert integrity["sandbox"] == \
                f"bubblewrap+seccomp sha256:{hashlib.sha256(policy).hexdigest()}"
        else:
            assert integrity["sandbox"] == "none (switched off)"
        metrics = json.loads(score.read_text())["metrics"]
        memory.append((metrics["peak_ram_gb"], metrics["process_resident_memory_gb"]))
    # The engine's own figures, not bubblewrap's (some megabytes).
    weights = sum(p.stat().st_size for p in nano.iterdir()) * 1e-9
    for peak, now in memory:
        assert peak > weights and now > weights
    assert memory[0][0] == pytest.approx(memory[1][0], rel=0.25)


def test_scripts(sandbox, kit):
    """Their interpreter is what is executed, also behind env."""
    for first in ("#!/usr/bin/python3\n", "#! /usr/bin/python3 -u\n", "#!/usr/bin/env python3\n",
                  "#!/usr/bin/env -S python3 -u\n"):
        engine = kit.folder / "scripted"
        engine.write_text(first + ENGINE.read_text().split("\n", 1)[1])
        engine.chmod(0o755)
        result = kit.iterate(sandbox=True, engine=engine)
        assert result.returncode == 0, result.stderr
        assert "bubblewrap+seccomp sha256:" in kit.integrity.read_text()


def test_environment_switches_it_off(kit):
    result = kit.iterate(sandbox=True, env={"MLXFAST_NO_SANDBOX": "1"})
    assert result.returncode == 0, result.stderr
    assert json.loads(kit.integrity.read_text())["sandbox"] == "none (switched off)"


def make_engine(kit, body):
    """An engine that tries something, says on stderr what came of it, and ends."""
    path = kit.folder / "engine"
    path.write_text("#!/usr/bin/python3\nimport os, sys\nfolder = %r\n"
                    "def say(what, f):\n"
                    "    try:\n"
                    "        f()\n"
                    "        print(what, 'done', file=sys.stderr)\n"
                    "    except OSError as e:\n"
                    "        print(what, 'refused', e.errno, file=sys.stderr)\n"
                    % str(kit.folder) + body)
    path.chmod(0o755)
    return path


def tried(kit, body, *extra, **keys):
    result = kit.iterate(*extra, sandbox=True, engine=make_engine(kit, body), **keys)
    assert result.returncode == 1 and "EngineExited" in result.stderr, result.stderr
    return result.stderr


def test_an_engine_that_forks(sandbox, kit):
    said = tried(kit, "say('fork', os.fork)\n"
                      "say('exec', lambda: os.execv('/bin/true', ['true']))\n"
                      "import subprocess\n"
                      "say('spawn', lambda: subprocess.run(['/bin/true']))\n")
    assert "fork refused 1" in said and "exec refused 1" in said and "spawn refused 1" in said


def test_an_engine_that_looks_around(sandbox, kit):
    private = kit.folder / "private"
    private.mkdir()
    (private / "secret").write_text("s")
    tree = kit.folder / "tree"
    tree.mkdir()
    (tree / "kernel.bin").write_text("k")
    body = ("for name in ('public.golden.json', 'contract.json', 'private/secret', 'p0.json',\n"
            "             'engine', 'weights/config.json', 'tree/kernel.bin'):\n"
            "    say(name, lambda: open(folder + '/' + name).read(1)[0])\n"
            "say('list', lambda: open('/proc/self/mounts') and print('entries:',\n"
            "    sorted(os.listdir(folder)), file=sys.stderr))\n"
            "print('home', os.environ['HOME'], os.environ['TMPDIR'], os.getcwd(), 'PWD' in\n"
            "      os.environ, file=sys.stderr)\n")
    said = tried(kit, body, "--engine-tree", tree, env={"MLXFAST_PRIVATE_DIR": str(private)})
    for name in ("public.golden.json", "contract.json", "private/secret", "p0.json"):
        assert f"{name} refused 2" in said, said
    for name in ("engine", "weights/config.json", "tree/kernel.bin"):
        assert f"{name} done" in said, said
    assert "entries: ['engine', 'tree', 'weights']" in said
    assert "home /tmp /tmp /tmp False" in said


def test_a_golden_inside_the_engines_folder(sandbox, kit):
    tree = kit.folder / "tree"
    tree.mkdir()
    kit.golden = kit.golden.rename(tree / "public.golden.json")
    said = tried(kit, "say('golden', lambda: open(folder + '/tree/public.golden.json'))\n"
                      "print('names', os.listdir(folder + '/tree'), file=sys.stderr)\n",
                 "--engine-tree", tree)
    assert "golden refused 13" in said
    assert "names ['public.golden.json']" in said


def test_relative_paths(sandbox, kit):
    """The engine gets absolute ones: its working directory is another."""
    engine = make_engine(kit, "print('argv', sys.argv, file=sys.stderr)\n")
    result = subprocess.run(
        [BENCHD, "iterate", "--engine", "./engine", "--weights", "weights/", "--golden",
         kit.golden.name, "--contract", "contract.json", "--score-path", "score.json",
         "--engine-resource", "x=p0.json"],
        cwd=kit.folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, **DEADLINES})
    folder = os.path.realpath(kit.folder)
    assert f"'{os.path.realpath(engine)}', 'runtime-worker', '--weights', '{folder}/weights'" in \
        result.stderr, result.stderr
    assert f"'x={folder}/p0.json'" in result.stderr


def test_what_an_engine_needs_is_not_hidden(sandbox, kit):
    result = kit.iterate("--engine-resource", f"oracle={kit.golden}", sandbox=True)
    assert result.returncode == 1 and "SANDBOX-CONFLICT" in result.stderr
    kit.assert_failed_score("SANDBOX-CONFLICT")
    assert str(kit.folder) not in kit.score.read_text()


def test_invalid_resident_socket(kit):
    result = kit.iterate(sandbox=True, env={"BENCH_WORKER_RESIDENT_SOCKET": "relative"})
    assert result.returncode == 1 and "InvalidResidentSocket" in result.stderr


def test_a_resident_socket_is_reached(sandbox, kit):
    import socket
    import threading
    folder = tempfile.mkdtemp(dir="/tmp")  # a socket's path is at most 107 bytes
    os.chmod(folder, 0o755)
    path = folder + "/s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    os.chmod(path, 0o777)
    server.listen(4)

    def greet():
        peer, _ = server.accept()
        peer.sendall(b"resident says hello\n")
        peer.close()

    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    body = ("import socket\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "s.connect(os.environ['BENCH_WORKER_RESIDENT_SOCKET'])\n"
            "print(s.recv(100).decode(), file=sys.stderr)\n"
            "say('inet', lambda: socket.socket(socket.AF_INET))\n"
            "say('bind', lambda: socket.socket(socket.AF_UNIX).bind('/tmp/mine'))\n")
    said = tried(kit, body, env={"BENCH_WORKER_RESIDENT_SOCKET": path})
    thread.join(timeout=10)
    server.close()
    shutil.rmtree(folder)
    assert "resident says hello" in said and "inet refused 1" in said and "bind refused 1" in said


def inside(folder):
    """Processes whose command line names the folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in line:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [9, 15])
def test_killing_the_judge_leaves_nothing(sandbox, kit, number):
    engine = make_engine(kit, "import signal, threading\n"
                              "for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
                              "threading.Thread(target=signal.pause, daemon=True)\n"
                              "print('now it hangs', file=sys.stderr, flush=True)\n"
                              "while True: signal.pause()\n")
    judge = kit.iterate(sandbox=True, engine=engine, popen=True,
                        env={"MLXFAST_HELLO_TIMEOUT_S": "60"})
    for line in judge.stderr:
        if "now it hangs" in line:
            break
    running = inside(kit.folder)
    assert len(running) == 5, "the judge, its watcher, bubblewrap, the first process, the engine"
    handles = [os.pidfd_open(pid) for pid in running]
    judge.send_signal(number)
    judge.communicate(timeout=30)
    for handle in handles:
        assert select.select([handle], [], [], 20)[0], "it is gone"
        os.close(handle)
    assert inside(kit.folder) == []


def test_a_crash_is_seen(sandbox, kit):
    engine = make_engine(kit, "os.kill(os.getpid(), 11)\n")
    result = kit.iterate(sandbox=True, engine=engine)
    assert "EngineExited" in result.stderr and "exit status 139" in result.stderr


def test_an_engine_that_cannot_be_executed(sandbox, kit):
    engine = kit.folder / "engine"
    engine.write_bytes(b"\x7fELF nothing more")
    engine.chmod(0o755)
    result = kit.iterate(sandbox=True, engine=engine)
    assert result.returncode == 1 and "EngineExited" in result.stderr
    assert "sandbox: cannot execute" in result.stderr
    engine.write_text("#!/usr/bin/env no-such-interpreter\n")
    result = kit.iterate(sandbox=True, engine=engine)
    assert "sandbox: cannot find the interpreter" in result.stderr


def test_local_goes_on_where_there_is_no_bubblewrap(kit):
    """In a mount namespace of its own, bubblewrap is no program."""
    bwrap = next((p for p in ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap")
                  if os.path.exists(p)), None)
    covered = "true" if bwrap is None else f"mount --bind /dev/null {bwrap}"
    if subprocess.run(["unshare", "-m", "sh", "-c", covered], capture_output=True,
                      timeout=30).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    command = [str(BENCHD), "iterate", "--engine", str(ENGINE), "--weights", str(kit.weights),
               "--golden", str(kit.golden), "--contract", str(kit.contract), "--score-path",
               str(kit.score)]
    result = subprocess.run(["unshare", "-m", "sh", "-c", f'{covered} && exec "$@"', "sh", *command],
                            capture_output=True, text=True, timeout=60, cwd=kit.folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("sandbox: none, the engine runs unsandboxed") == 1
    assert json.loads(kit.integrity.read_text())["sandbox"] == "none (unavailable)"
    result = subprocess.run(["unshare", "-m", "sh", "-c", f'{covered} && exec "$@"', "sh",
                             str(BENCHD), "probe-sandbox"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "SANDBOX-UNAVAILABLE" in result.stderr


def test_root_says_what_its_engine_cannot_read(sandbox, kit):
    if os.geteuid() != 0:
        pytest.skip("only root's engine is another user")
    (kit.weights / "config.json").chmod(stat.S_IRUSR | stat.S_IWUSR)
    result = kit.iterate(sandbox=True)
    assert result.returncode == 0, result.stderr
    assert "sandbox: none, the engine runs unsandboxed" in result.stderr
    assert "config.json" in result.stderr and "chmod -R a+rX" in result.stderr
    assert json.loads(kit.integrity.read_text())["sandbox"] == "none (unavailable)"


def test_a_death_at_start_speaks_of_the_sandbox(sandbox, kit, tmp_path):
    engine = tmp_path / "dead.sh"
    engine.write_text("#!/bin/sh\nexit 4\n")
    engine.chmod(0o755)
    for inside in (True, False):
        result = kit.iterate(engine=engine, sandbox=inside)
        assert result.returncode == 1 and "EngineExited" in result.stderr
        assert ("--no-sandbox runs it without" in result.stderr) is inside
