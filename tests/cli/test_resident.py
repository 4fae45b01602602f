"""bench-worker resident, and workers that attach to it: the same answers as without, one session at a time, nothing of
one session in the next, and every way in which it can go wrong."""

import json
import os
import signal
import socket
import subprocess
import threading

import pytest

from conftest import ROOT
from test_bench_worker import TOKENS, VECTOR, Worker, ranked, ROWS

SEVERAL = ("--speculative-protocol", "v1.1")


class Resident:
    """One that listens in the test's folder."""

    def __init__(self, build, folder, *flags, weights=VECTOR):
        self.path = folder / "s"
        self.errors = open(folder / "errors", "w+")
        # Known to listen when it has said so: its stderr is a pipe until then.
        self.process = subprocess.Popen([build / "bench-worker", "resident", "--weights", weights, "--socket",
                                         self.path, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if "listens at" in line:
                break
        else:
            pytest.fail(self.said)
        self.reader = threading.Thread(target=self.keep, daemon=True)
        self.reader.start()

    def keep(self):
        for line in self.process.stderr:
            self.said += line

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.reader.join(timeout=10)
        return code


@pytest.fixture
def boot(build, tmp_path_factory):
    """boot(*flags) -> Resident; a short path, as sockets need."""
    started = []

    def call(*flags, **kwargs):
        started.append(Resident(build, tmp_path_factory.mktemp("r"), *flags, **kwargs))
        return started[-1]

    yield call
    for resident in started:
        resident.stop(signal.SIGKILL)


@pytest.fixture
def attach(build):
    """attach(resident, *flags) -> Worker"""
    workers = []

    def call(resident, *flags, weights=VECTOR, told=True):
        env = {"BENCH_WORKER_RESIDENT_SOCKET": str(resident.path)}
        if told:
            env["BENCH_WORKER_RESIDENT_HELLO"] = "1"
        workers.append(Worker(build, *flags, weights=weights, env=env))
        return workers[-1]

    yield call
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


def refusal(build, path, *flags, weights=VECTOR):
    """What a worker says that cannot attach: (exit code, the one line)."""
    done = subprocess.run([build / "bench-worker", "--weights", weights, *flags], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60,
                          env={**os.environ, "BENCH_WORKER_RESIDENT_SOCKET": str(path)})
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    return done.returncode, done.stderr


def knock(resident):
    """A connection of our own."""
    s = socket.socket(socket.AF_UNIX)
    s.connect(str(resident.path))
    return s


def everything(worker):
    """One session with every kind of sequence."""
    answers = [worker.ok("prefill", prompt_tokens=TOKENS), worker.ok("phase_diagnostics"),
               worker.ok("correctness_begin", prompt_tokens=TOKENS[:-1]), worker.ok("correctness_step", token=TOKENS[-1]),
               worker.ok("free_decode_begin", seed_tokens=TOKENS), worker.ok("free_decode_run", count=5)]
    for answer in answers:
        for key in [k for k in answer if k == "nonce" or k.endswith(("_bytes", "_gb"))]:
            del answer[key]
    return answers


# --- as it should be -----------------------------------------------------------------------------


def test_attached_is_as_in_process(boot, attach, build):
    resident = boot(*SEVERAL)
    own = Worker(build, *SEVERAL)
    worker = attach(resident, *SEVERAL)
    loaded = worker.hello.pop("resident")
    assert loaded["pid"] == resident.process.pid and loaded["load_epoch"] > 0
    assert {**worker.hello, "nonce": 0} == {**own.hello, "nonce": 0}
    assert everything(worker) == everything(own)
    assert worker.ok("prefill", prompt_tokens=TOKENS)["token"] == ranked(ROWS[-1])[0]
    assert worker.close()[0] == own.close()[0] == 0

    again = attach(resident, *SEVERAL)
    assert again.hello["resident"] == loaded  # one load
    assert again.hello["nonce"] != worker.hello["nonce"]
    assert "OUT-OF-ORDER" in again.refused("free_decode_run", count=1)  # nothing of the last session
    again.close()
    assert "resident" not in attach(resident, *SEVERAL, told=False).hello
    assert "arithmetic" not in worker.hello
    assert resident.stop() == 0


def test_plain_v1_claims_nothing_of_a_resident_with_v11(boot, attach):
    resident = boot(*SEVERAL, "--trusted")
    hello = attach(resident).hello
    assert not {"capabilities", "spec_modes", "max_batch_size", "resident"} & set(hello)
    resident.stop()
    resident = boot(*SEVERAL, "--trusted")
    assert attach(resident, *SEVERAL).hello["capabilities"] == ["free_run_decode"]
    resident.stop()
    resident = boot(*SEVERAL, "--trusted")
    assert "cohort_reference_replay" in attach(resident, *SEVERAL, "--trusted").hello["capabilities"]


def test_a_drafter_is_the_residents(boot, attach, root):
    nano = root / "models/laguna-nano"
    resident = boot(*SEVERAL, "--drafter", root / "models/laguna-nano-dflash", weights=nano)
    worker = attach(resident, *SEVERAL, weights=nano)
    assert worker.hello["spec_modes"] == ["serial", "dflash"] and "head_provenance" in worker.hello
    assert "OUT-OF-ORDER" in worker.refused("dflash_decode_block", token=1, max_block_size=2)
    assert "SESSION-POISONED" in worker.refused("prefill", prompt_tokens=[1])
    worker.close()
    worker = attach(resident, weights=nano)  # the poison went with its session; blocks are no part of v1.1
    assert worker.hello["capabilities"] == ["dflash_block_decode"] and "spec_modes" not in worker.hello
    assert worker.ok("prefill", prompt_tokens=[1, 2])["ok"]


def test_lines_are_handed_on_as_they_are(boot, attach):
    worker = attach(boot(*SEVERAL), *SEVERAL)
    both = [json.dumps({"id": i, "kind": "prefill", "prompt_tokens": TOKENS}) for i in (7, 8)]
    worker.write("\n".join(both) + "\n")
    assert [worker.read()["id"], worker.read()["id"]] == [7, 8]
    assert "WIRE-INVALID" in worker.raw_refused("no JSON\n")
    assert "REQUEST-TOO-LONG" in worker.raw_refused(b"x" * ((64 << 20) + 1) + b"\n")
    worker.write('{"id":9,"kind":"prefill"')  # and the input ends
    code, err, rest = worker.close()
    assert code == 1 and "REQUEST-CUT" in err
    assert json.loads(rest)["id"] == -1 and "REQUEST-CUT" in json.loads(rest)["error"]


# --- one at a time -------------------------------------------------------------------------------


def test_one_session_at_a_time(boot, attach, build):
    resident = boot()
    first = attach(resident)
    with knock(resident) as second, second.makefile() as lines:
        assert json.loads(lines.readline()) == {"id": -1, "ok": False,
                                                "error": "RESIDENT-BUSY: another session is being served"}
        assert lines.readline() == ""
    code, said = refusal(build, resident.path)
    assert code == 1 and "refused(RESIDENT-BUSY" in said
    assert first.ok("prefill", prompt_tokens=TOKENS)["ok"]  # it has noticed nothing
    first.close()
    assert attach(resident).hello["ok"]


def test_who_waits_is_served_when_the_session_ends(boot):
    """Half a second is enough for a session that is ending; a machine that is too busy for that may be asked again."""
    resident = boot()
    for _ in range(8):
        first, second = knock(resident), None
        first.makefile().readline()  # served
        second = knock(resident)
        first.close()
        hello = json.loads(second.makefile().readline())
        second.close()
        if hello["ok"]:
            break
    assert hello["id"] == 0 and hello["resident"]["pid"] == resident.process.pid


def test_more_than_can_wait(boot):
    resident = boot()
    with knock(resident) as first:
        first.makefile().readline()
        others = [knock(resident) for _ in range(20)]
        for other in others:
            assert json.loads(other.makefile().readline())["id"] == -1
            other.close()


# --- clients that misbehave ----------------------------------------------------------------------


def test_a_client_that_vanishes(boot, attach):
    resident = boot()
    for last in (b"", b'{"id":1,"kind":"pre', b'{"id":1,"kind":"prefill","prompt_tokens":[1,2,3]}\n'):
        s = knock(resident)
        s.makefile().readline()
        s.sendall(last)
        s.close()
    worker = attach(resident)
    assert worker.ok("prefill", prompt_tokens=TOKENS)["token"] == ranked(ROWS[-1])[0]
    worker.close()
    assert resident.stop() == 0
    assert "a session ended: " in resident.said and "listens at" in resident.said


def test_a_silent_client_is_let_go(boot, attach):
    resident = boot("--idle-timeout", "1")
    worker = attach(resident)
    assert worker.process.wait(timeout=60) == 1  # it did not have to be asked
    assert "RESIDENT-LOST" in worker.close()[1]
    assert attach(resident).hello["ok"]
    assert resident.stop() == 0 and "IDLE-TIMEOUT: no request within 1 s" in resident.said


# --- residents that are not there, or not ours ---------------------------------------------------


def test_no_resident(build, tmp_path):
    code, said = refusal(build, tmp_path / "none")
    assert code == 1 and f"unreachable({tmp_path}/none, connecting: No such file or directory)" in said
    (tmp_path / "file").write_text("")
    assert "unreachable(" in refusal(build, tmp_path / "file")[1]
    for wrong in ("/" + "x" * 107, "/tmp/a\nb"):
        code, said = refusal(build, wrong)
        assert code == 2 and "badValue(BENCH_WORKER_RESIDENT_SOCKET)" in said


@pytest.mark.parametrize("first, name", [
    (b"", "noHello("), (b"hello\n", "noHello("), (b"[1]\n", "noHello("), (b'{"id":0', "noHello("),
    (b'{"id":0,"nonce":"n","ok":true,"protocol_version":1}\n', "no resident's hello"),
    (b'{"id":0,"nonce":"n","ok":true,"resident":{"pid":1,"load_epoch":2}}\n', "does not say which weights"),
    (b'{"id":0,"nonce":"n","ok":true,"x":1,"resident":{"pid":1,"load_epoch":2},"resident_weights":"W","resident_weights_folder":""}\n',
     "noHello("),
    (b'{"id":0,"nonce":"n","ok":true,"resident":{"pid":-1,"load_epoch":2},"resident_weights":"W","resident_weights_folder":""}\n',
     "noHello("),
    (b'{"id":0,"nonce":"n","ok":true,"resident":{"pid":1,"load_epoch":2},"resident_weights":"W","resident_weights_folder":""}\n{',
     "more than a hello"),
    (b'{"id":-1,"ok":false,"error":"no room"}\n', "refused(no room)"),
    (b'{"id":-1,"ok":false}\n', "refused("),
    (b"x" * (2 << 20) + b"\n", "noHello("),
    (b'{"id":0,"nonce":"n","ok":true,"resident":{"pid":1,"load_epoch":2},"resident_weights":"/else","resident_weights_folder":"1:1"}\n',
     "weightsMismatch(/else, "),
], ids=range(13))
def test_what_is_no_hello_of_ours(build, tmp_path, first, name):
    path = tmp_path / "s"
    first = first.replace(b'"W"', json.dumps(str(VECTOR.resolve())).encode())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def speak():
            connection, _ = listener.accept()
            try:
                connection.sendall(first)
            except OSError:
                pass  # it has heard enough
            connection.shutdown(socket.SHUT_WR)
            connection.close()

        speaker = threading.Thread(target=speak)
        speaker.start()
        code, said = refusal(build, path)
        speaker.join()
    assert code == 1 and name in said


def test_the_weights_must_be_its_own(boot, attach, build, tmp_path, root):
    resident = boot()
    code, said = refusal(build, resident.path, weights=root / "models/laguna-nano")
    assert code == 1 and f"weightsMismatch({VECTOR.resolve()}, {(root / 'models/laguna-nano').resolve()})" in said
    code, said = refusal(build, resident.path, weights="/nonexistent")
    assert code == 1 and "/nonexistent" in said
    (tmp_path / "link").symlink_to(VECTOR)
    assert attach(resident, weights=tmp_path / "link").hello["ok"]


def test_a_resident_that_dies(boot, attach):
    resident = boot()
    worker = attach(resident)
    resident.stop(signal.SIGKILL)
    assert worker.process.wait(timeout=60) == 1
    assert "RESIDENT-LOST" in worker.close()[1]


def test_arguments_are_checked_first(build):
    for flags, name in ((("--speculative-protocol", "v2"), "badValue(--speculative-protocol)"),
                        (("--threads", "x"), "badValue(--threads)"), (("--arithmetic", "x"), "badValue(--arithmetic)")):
        code, said = refusal(build, "/nonexistent", *flags)
        assert code == 2 and name in said


# --- the socket ----------------------------------------------------------------------------------


def start_refused(build, *flags, env=None):
    done = subprocess.run([build / "bench-worker", "resident", "--weights", VECTOR, *flags], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, **(env or {})})
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    return done.returncode, done.stderr


def test_the_socket_and_its_files(boot, attach, build):
    resident = boot()
    folder = resident.path.parent
    assert resident.path.stat().st_mode & 0o777 == 0o600
    assert (folder / "s.pid").read_text() == f"{resident.process.pid}\n"
    worker = attach(resident)  # is told of the end, too
    code, said = start_refused(build, "--socket", resident.path)
    assert code == 1 and "RESIDENT-SOCKET-TAKEN" in said and "somebody listens" in said
    assert worker.ok("prefill", prompt_tokens=TOKENS)["ok"]
    assert resident.stop() == 0
    assert sorted(p.name for p in folder.iterdir()) == ["errors"]
    assert worker.process.wait(timeout=60) == 1


def test_a_stale_socket_is_replaced(boot, attach, build):
    resident = boot()
    resident.stop(signal.SIGKILL)
    assert resident.path.is_socket()
    process = subprocess.Popen([build / "bench-worker", "resident", "--weights", VECTOR, "--socket", resident.path],
                               stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "listens at" in line:
            break
    assert attach(resident).hello["ok"]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0 and not resident.path.exists()


@pytest.mark.parametrize("path, code, name", [
    ("file", 1, "RESIDENT-SOCKET-TAKEN"), ("none/s", 1, "IO: a socket cannot be made in its folder"),
    ("x" * 110, 2, "badValue(--socket)"), ("", 2, "badValue(--socket)"), ("a\tb", 2, "badValue(--socket)")])
def test_places_where_no_socket_can_be(build, tmp_path, path, code, name):
    (tmp_path / "file").write_text("kept")
    got, said = start_refused(build, "--socket", tmp_path / path if path else "", "--backend", "cpu")
    assert got == code and name in said
    assert (tmp_path / "file").read_text() == "kept" and sorted(os.listdir(tmp_path)) == ["file"]


def test_arguments_of_the_resident(build, tmp_path):
    assert start_refused(build)[0] == 2  # no --socket
    assert "badValue(--idle-timeout)" in start_refused(build, "--socket", tmp_path / "s", "--idle-timeout", "0")[1]
    code, said = start_refused(build, "--socket", tmp_path / "s", env={"BENCH_WORKER_RESIDENT_SOCKET": "/tmp/x"})
    assert code == 2 and "LEG-SERVE-INHERITED-SOCKET" in said
    code, said = start_refused(build, "--socket", tmp_path / "s", "--drafter", "/nonexistent")
    assert code == 1 and "/nonexistent" in said and not list(tmp_path.iterdir())
