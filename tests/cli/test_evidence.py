"""keygen, sign, log, bundle, verify: from a sealed run to a stranger's verification, and every way in
which it must fail."""

import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile
import time

import pytest

from conftest import BUILD
from judge_kit import Kit


def benchd(*arguments, cwd=None, env=None):
    environment = {k: v for k, v in os.environ.items()
                   if k not in ("MLXFAST_SIGNING_KEY", "MLXFAST_SIGNING_LOG", "RUNNER_NAME")}
    return subprocess.run([str(a) for a in (BUILD / "benchd", *arguments)], capture_output=True, text=True,
                          timeout=60, cwd=cwd, env={**environment, **(env or {})})


@pytest.fixture(scope="module")
def sealed(build, tmp_path_factory):
    """A local run of the scripted engine, sealed."""
    kit = Kit(tmp_path_factory.mktemp("evidence"))
    kit.record()
    result = kit.iterate()
    assert result.returncode == 0, result.stderr
    return kit


class Run:
    """A copy of the sealed run with a key of its own."""

    def __init__(self, kit, folder):
        self.folder = folder
        for name in (kit.score.name, kit.score.name + ".sha256", kit.integrity.name, kit.contract.name,
                     kit.golden.name):
            shutil.copy(kit.folder / name, folder / name)
        self.weights, self.key, self.log = kit.weights, folder / "key", folder / "log"
        assert benchd("keygen", "--out", self.key).returncode == 0
        self.files = ("--score", "score.json", "--contract", "contract.json", "--golden",
                      "public.golden.json")
        self.bundle = folder / "bundle.tar"

    def sign(self, *extra, env=None):
        return benchd("sign", *self.files, "--key", self.key, "--log", self.log, *extra, cwd=self.folder,
                      env=env)

    def pack(self, *extra):
        return benchd("bundle", *self.files, "--key", "key.pub", "--log", self.log, "--out", self.bundle,
                      *extra, cwd=self.folder)

    def verify(self, *extra):
        return benchd("verify", self.bundle, *extra, cwd=self.folder)

    @property
    def statement(self):
        return self.folder / "score.json.statement.json"


@pytest.fixture
def run(sealed, tmp_path):
    return Run(sealed, tmp_path)


@pytest.fixture
def packed(run):
    assert run.sign().returncode == 0
    result = run.pack()
    assert result.returncode == 0, result.stderr
    return run


def test_the_walk_through(packed):
    result = packed.verify("--public-key", "key.pub", "--log", "log", "--weights", packed.weights)
    assert result.returncode == 0, result.stdout
    assert "FAIL" not in result.stdout
    lines = result.stdout.splitlines()
    assert any(line.startswith("ok    statement.sig: key ") and "the key that you gave" in line
               for line in lines)
    assert any(line.startswith("ok    log-inclusion.json: the statement is entry 0 of a log of 1")
               for line in lines)
    assert any(line.startswith("ok    --weights: are the weights") for line in lines)
    assert " 0 failed" in lines[-1]
    strict = packed.verify("--strict")
    assert strict.returncode == 1 and "FAIL" not in strict.stdout  # the engine is not at hand


def test_stock_programs_check_it_too(packed):
    """tar, sha256sum and openssl, without benchd."""
    out = packed.folder / "out"
    out.mkdir()
    subprocess.run(["tar", "xf", packed.bundle], cwd=out, check=True)
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=out, check=True,
                   stdout=subprocess.DEVNULL)
    if shutil.which("openssl"):
        result = subprocess.run(
            ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", packed.folder / "key.pub", "-rawin",
             "-in", "statement.json", "-sigfile", "statement.sig"], cwd=out, capture_output=True)
        assert result.returncode == 0, result.stderr


def test_the_same_files_give_the_same_bundle(packed):
    first = packed.bundle.read_bytes()
    assert packed.pack().returncode == 0
    assert packed.bundle.read_bytes() == first
    with tarfile.open(packed.bundle) as archive:
        members = archive.getmembers()
    assert [m.name for m in members] == sorted(m.name for m in members)
    assert all(m.mtime == 0 and m.uid == 0 and m.mode == 0o644 for m in members)


def test_flipped_bytes_are_caught(packed):
    """Sampled here; tests/unit/test_evidence.c flips every byte of a smaller one."""
    good = packed.bundle.read_bytes()
    for at in range(5, len(good), 509):
        packed.bundle.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1:])
        result = packed.verify("--public-key", "key.pub", "--log", "log")
        assert result.returncode in (1, 3), f"byte {at}"
        if result.returncode == 1:
            assert "FAIL" in result.stdout
        else:
            assert "BUNDLE-INVALID: " in result.stderr
            assert result.stderr.count("\n") == 1


def test_archives_of_other_hands(packed):
    """What Python's tarfile makes of it: times, links, climbing paths."""
    def archive(*members):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, kind in members:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "/etc/passwd"
                tar.addfile(info)
        return data.getvalue()

    for data, words in ((archive(("../../score.json", tarfile.REGTYPE)), "climbs"),
                        (archive(("score.json", tarfile.SYMTYPE)), "symbolic link"),
                        (archive(("score.json", tarfile.LNKTYPE)), "hard link"),
                        (archive(("notes", tarfile.REGTYPE)), "no bundle has"),
                        (b"not a tar file", "cut off"), (b"", "cut off"), (b"x" * 4096, "ustar")):
        packed.bundle.write_bytes(data)
        result = packed.verify()
        assert result.returncode == 3
        assert "BUNDLE-INVALID: " in result.stderr and words in result.stderr
        assert result.stderr.count("\n") == 1 and result.stdout == ""
    assert not (packed.folder / "notes").exists()
    packed.bundle.unlink()
    assert packed.verify().returncode == 3


def test_what_was_given_must_be_proved(run):
    """An unsigned bundle is no failure until a key or a log is given to check it by."""
    result = benchd("bundle", *run.files, "--out", run.bundle, cwd=run.folder)
    assert result.returncode == 0, result.stderr
    assert run.verify().returncode == 0
    assert run.verify("--public-key", "key.pub").returncode == 1
    assert run.verify("--log-root", "1:" + "0" * 64).returncode == 1
    assert run.verify("--engine", run.key).returncode == 1
    assert run.verify("--weights", run.folder).returncode == 1
    assert run.verify("--drafter", run.folder).returncode == 1
    assert run.verify("--baseline-engine", run.key).returncode == 1


def test_what_the_statement_alone_names(run):
    """The drafter and the control legs' engine."""
    drafter = run.folder / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}")
    (run.folder / "control").write_text("a program")
    named = ("--drafter", "drafter", "--baseline-engine", "control")
    assert run.sign(*named).returncode == 0
    assert run.pack().returncode == 0
    result = run.verify(*named)
    assert result.returncode == 0, result.stdout
    assert "ok    --drafter: " in result.stdout and "ok    --baseline-engine: " in result.stdout
    (run.folder / "control").write_text("another program")
    (drafter / "config.json").write_text("[]")
    result = run.verify(*named)
    assert result.returncode == 1
    assert "FAIL  --drafter: " in result.stdout and "FAIL  --baseline-engine: " in result.stdout


def test_another_key(packed):
    assert benchd("keygen", "--out", packed.folder / "mine").returncode == 0
    result = packed.verify("--public-key", "mine.pub")
    assert result.returncode == 1
    assert "FAIL  public-key.pem: is key " in result.stdout


def test_a_later_score_does_not_pass_for_the_signed_one(packed):
    document = json.loads((packed.folder / "score.json").read_text())
    document["metrics"]["decode_seconds_per_token"] /= 2
    text = json.dumps(document, indent=2, sort_keys=True)
    (packed.folder / "score.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (packed.folder / "score.json.sha256").write_text(f"{digest}  score.json\n")
    result = packed.pack()
    assert result.returncode == 1
    assert "EVIDENCE-MISMATCH: " in result.stderr
    assert packed.sign().returncode == 1


def test_the_environment_names_key_and_log(run):
    result = benchd("sign", *run.files, cwd=run.folder,
                    env={"MLXFAST_SIGNING_KEY": "key", "MLXFAST_SIGNING_LOG": "log",
                         "RUNNER_NAME": "box-9"})
    assert result.returncode == 0, result.stderr
    assert json.loads(run.statement.read_text())["box"] == "box-9"
    assert len(run.log.read_text().splitlines()) == 1
    result = benchd("sign", *run.files, cwd=run.folder)
    assert result.returncode == 2 and "MLXFAST_SIGNING_KEY" in result.stderr


def test_keys_are_never_replaced(run):
    before = run.key.read_bytes()
    result = benchd("keygen", "--out", run.key)
    assert result.returncode == 1 and "KEY-EXISTS: " in result.stderr
    assert run.key.read_bytes() == before
    assert run.key.stat().st_mode & 0o777 == 0o600
    run.key.chmod(0o644)
    result = run.sign()
    assert result.returncode == 1 and "KEY-INVALID: " in result.stderr


def test_the_log(run):
    for _ in range(5):
        assert run.sign().returncode == 0
    result = benchd("log", "check", "--log", run.log, "--statement", run.statement, "--proof",
                    run.folder / "proof.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("entry 4 of ")
    root = result.stdout.split("root ")[1].strip()
    assert root.startswith("5:")
    assert json.loads((run.folder / "proof.json").read_text())["size"] == 5
    assert benchd("log", "check", "--log", run.log, "--expect", root).returncode == 0
    assert benchd("log", "show", "--log", run.log).stdout.count("\n") == 6
    lines = run.log.read_text().splitlines(keepends=True)
    for broken in (lines[1:], lines[:2] + lines[3:], [lines[1], lines[0], *lines[2:]],
                   [*lines[:2], lines[2].replace('"index":2', '"index":3'), *lines[3:]]):
        run.log.write_text("".join(broken))
        result = benchd("log", "check", "--log", run.log)
        assert result.returncode == 1 and "LOG-INVALID: line " in result.stderr
        assert run.sign().returncode == 1
    run.log.write_text("".join(lines[:4]))
    assert benchd("log", "check", "--log", run.log).returncode == 0
    result = benchd("log", "check", "--log", run.log, "--expect", root)
    assert result.returncode == 1 and "cut off" in result.stderr


def test_an_earlier_root_is_proved_without_the_log(run):
    """A root that was written down when the log was short, and a bundle of much later."""
    for _ in range(3):
        assert run.sign().returncode == 0
    old = benchd("log", "check", "--log", run.log).stdout.split("root ")[1].strip()
    for _ in range(4):
        assert run.sign().returncode == 0
    assert run.pack().returncode == 0
    assert run.verify("--log-root", old).returncode == 1
    assert run.verify("--log-root", old, "--log", "log").returncode == 0
    assert run.pack("--log-root", old).returncode == 0
    result = run.verify("--log-root", old)
    assert result.returncode == 0 and "goes on behind them" in result.stdout
    other = old[:-1] + ("0" if old[-1] != "0" else "1")
    assert run.verify("--log-root", other).returncode == 1
    result = run.pack("--log-root", other)
    assert result.returncode == 1 and "LOG-INVALID: " in result.stderr
    assert run.pack("--log-root", "3").returncode == 2


def test_a_torn_line_is_mended_by_the_repair_alone(run):
    assert run.sign().returncode == 0
    whole = run.log.read_text()
    run.log.write_text(whole + whole[:40])
    result = run.sign()
    assert result.returncode == 1 and "LOG-TORN: line 2" in result.stderr
    assert run.log.read_text() == whole + whole[:40]
    result = benchd("log", "repair", "--log", run.log)
    assert result.returncode == 0 and "40 bytes" in result.stdout
    assert run.log.read_text() == whole
    run.log.write_text(whole[:-1])
    assert "line feed" in benchd("log", "repair", "--log", run.log).stdout
    assert run.log.read_text() == whole
    assert "nothing is torn" in benchd("log", "repair", "--log", run.log).stdout


def test_an_entry_that_was_not_written_is_appended_later(run):
    assert run.sign().returncode == 0
    line = run.log.read_text()
    for _ in range(2):  # missing; there already
        result = benchd("log", "append", "--log", run.log, "--statement", run.statement)
        assert result.returncode == 0, result.stderr
        assert run.log.read_text() == line
    run.log.unlink()
    result = benchd("log", "append", "--log", run.log, "--statement", run.statement)
    assert result.returncode == 0, result.stderr
    statement = run.statement.read_bytes()
    assert json.loads(run.log.read_text())["statement"] == hashlib.sha256(statement).hexdigest()
    assert run.sign().returncode == 0
    run.statement.write_bytes(statement.replace(b'"index": 0', b'"index": 7'))
    result = benchd("log", "append", "--log", run.log, "--statement", run.statement)
    assert result.returncode == 1 and "EVIDENCE-MISMATCH: " in result.stderr
    run.statement.write_text("{}")
    result = benchd("log", "append", "--log", run.log, "--statement", run.statement)
    assert result.returncode == 1 and "STATEMENT-INVALID: " in result.stderr


def test_killed_signings_leave_a_usable_log(run):
    """Twenty of them, each at another moment of its life."""
    entries = 0
    for k in range(20):
        child = subprocess.Popen([str(BUILD / "benchd"), "sign", *run.files, "--key", str(run.key),
                                  "--log", str(run.log)], cwd=run.folder, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        time.sleep(0.0007 * k)  # not a wait for anything: the moment of the kill
        child.send_signal(signal.SIGKILL)
        child.wait()
        if run.log.exists():
            assert benchd("log", "repair", "--log", run.log).returncode == 0
            assert benchd("log", "check", "--log", run.log).returncode == 0
            now = len(run.log.read_text().splitlines())
            assert entries <= now <= entries + 1
            entries = now
    assert run.sign().returncode == 0
    assert run.pack().returncode == 0
    assert run.verify("--public-key", "key.pub", "--log", "log").returncode == 0


def test_a_released_benchd_knows_its_commit(run):
    """From the manifest beside it, where that is of this program; else from the work tree around it, here none."""
    folder = run.folder / "release"
    folder.mkdir()
    program = shutil.copy2(BUILD / "benchd", folder / "benchd")
    digest = hashlib.sha256((folder / "benchd").read_bytes()).hexdigest()

    def commit():
        result = subprocess.run([program, "sign", *run.files, "--key", run.key, "--log", run.log], cwd=run.folder,
                                capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(run.statement.read_text())["source_commit"]

    for sha256, said, known in [(digest, "c" * 40, "c" * 40), ("0" * 64, "c" * 40, None), (digest, "0" * 40, None),
                                (digest, "main", None)]:
        (folder / "benchd.manifest.json").write_text(json.dumps({"sha256": sha256, "source_commit": said}))
        assert commit() == known
    (folder / "benchd.manifest.json").write_text("no JSON")
    assert commit() is None


def test_usage(run):
    assert benchd("log").returncode == 2
    assert benchd("log", "grow").returncode == 2
    assert benchd("log", "--help").returncode == 0
    assert benchd("log", "check", "--log", run.log).returncode == 3
    assert benchd("log", "check", "--log", run.key, "--proof", "x").returncode == 2
    assert benchd("verify").returncode == 2
    assert benchd("bundle", *run.files, "--out", "score.json", cwd=run.folder).returncode == 2
    assert run.sign("--source-commit", "abc").returncode == 2
    assert run.sign("--source-commit", "a" * 40).returncode == 0
    assert json.loads(run.statement.read_text())["source_commit"] == "a" * 40
    digest = subprocess.run([BUILD / "benchd", "weights-digest", "--weights", run.weights],
                            capture_output=True, text=True).stdout.strip()
    assert run.pack("--weights-digest", digest).returncode == 0
    result = run.pack("--weights-digest", digest.replace(":2:", ":3:"))
    assert result.returncode == 1 and "EVIDENCE-MISMATCH: " in result.stderr
