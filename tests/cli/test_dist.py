"""tools/fetch-benchd.sh: what is published is installed whole or not at all, what is installed is used
without the network where it agrees, and a token goes to one host only."""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess

import pytest

from conftest import ROOT
from faulty_http import FaultyServer

SCRIPT = ROOT / "tools/fetch-benchd.sh"
PROGRAMS = ("benchd", "record-correctness-golden")
MANIFEST = "benchd.manifest.json"
TRIPLES = {"linux-x86_64": "x86_64-unknown-linux-gnu", "linux-aarch64": "aarch64-unknown-linux-gnu"}
TARGET = "linux-" + platform.machine()
PLACE = f"refs/heads/main/dist/{TARGET}/"
COMMIT = "12ab" * 10
TOKEN = "token-of-the-test"


def digest(data):
    return hashlib.sha256(data).hexdigest()


def manifest_of(programs, target=TARGET, **changed):
    """Written from the specification: one key to a line, one program to a line."""
    entries = ",\n".join(f'    "{n}": {{"sha256": "{digest(d)}", "bytes": {len(d)}}}' for n, d in programs.items())
    fields = {"version": '"0.0.0"', "branch": '"main"', "source_commit": f'"{COMMIT}"',
              "target_triple": f'"{TRIPLES[target]}"', "sha256": f'"{digest(programs["benchd"])}"',
              "bytes": len(programs["benchd"]), **changed}
    lines = "".join(f'  "{k}": {v},\n' for k, v in fields.items() if v is not None)
    return f'{{\n{lines}  "binaries": {{\n{entries}\n  }}\n}}\n'.encode()


def files_of(word, target=TARGET, **changed):
    programs = {n: f"#!/bin/sh\necho {word} {n}\n".encode() for n in PROGRAMS}
    return {**programs, MANIFEST: manifest_of(programs, target, **changed)}


A, B = files_of("first"), files_of("second", source_commit='"' + "34cd" * 10 + '"')


class Kit:
    """Where a pair is installed, and how the script is called for it."""

    def __init__(self, folder):
        self.folder, self.bin = folder, folder / "bin"
        self.fake = folder / "fake"
        self.fake.mkdir()

    def environment(self, **variables):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith("BENCHD_") and k != "GITHUB_TOKEN" and not k.lower().endswith("_proxy")}
        return {**clean, "PATH": f"{self.fake}:{os.environ['PATH']}", "BENCHD_BIN_DIR": str(self.bin),
                "FAKE": str(self.fake), **{k: str(v) for k, v in variables.items()}}

    def call(self, *arguments, **variables):
        return subprocess.run([SCRIPT, *arguments], env=self.environment(**variables), capture_output=True,
                              text=True, timeout=60)

    def channel(self, files, target=TARGET):
        """A folder as tools/build-dist writes it."""
        place = self.folder / f"dist{len(list(self.folder.iterdir()))}"
        (place / target).mkdir(parents=True)
        for name, data in files.items():
            (place / target / name).write_bytes(data)
        return place

    def replace(self, name, text):
        """A program of the system that does something else when the script calls it."""
        (self.fake / name).write_text(text)
        (self.fake / name).chmod(0o755)

    def told(self, what):
        """What the stand-in for curl was told since the last time."""
        files = list(self.fake.glob(f"{what}.*"))
        text = "".join(f.read_text() for f in files)
        for f in files:
            f.unlink()
        return text

    def seen(self):
        """What is there for whoever uses the pair."""
        return {n: (self.bin / n).read_bytes() for n in (*PROGRAMS, MANIFEST) if (self.bin / n).exists()}

    def leftovers(self):
        """Everything in the folder beside the three names, the link, its folder and the lock."""
        hidden = {p.name for p in self.bin.glob(".*")} - {".benchd-pair", ".benchd-pair.lock"}
        current = os.readlink(self.bin / ".benchd-pair") if (self.bin / ".benchd-pair").is_symlink() else None
        return hidden - {current}


@pytest.fixture
def kit(tmp_path):
    return Kit(tmp_path)


def serve(files, place=PLACE):
    return FaultyServer({place + n: d for n, d in files.items()}, etag=False)


def refused(result, status, *words):
    assert result.returncode == status, result.stdout + result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


# ---- the way it goes ----


def test_installs_and_then_needs_no_network(kit):
    with serve(A) as server:
        result = kit.call(BENCHD_DIST_BASE_URL=server.url + "/")
        assert result.returncode == 0 and COMMIT in result.stdout, result.stderr
        assert [p for p, _ in server.seen] == [PLACE + n for n in (MANIFEST, *PROGRAMS)]
    assert kit.seen() == A and kit.leftovers() == set()
    assert subprocess.run([kit.bin / "benchd"], capture_output=True, text=True).stdout == "first benchd\n"
    kit.replace("curl", "#!/bin/sh\nexit 7\n")
    for variables in ({}, {"BENCHD_DIST_BASE_URL": server.url}, {"BENCHD_DIST_LOCAL": "/absent"}):
        again = kit.call(**variables)
        assert again.returncode == 0 and "installed before" in again.stdout, again.stderr
    refused(kit.call(BENCHD_REFRESH=1, BENCHD_DIST_BASE_URL=server.url), 3, "cannot be fetched")
    assert kit.seen() == A and kit.leftovers() == set()


def test_another_branch_and_a_local_folder(kit):
    c = files_of("third", branch='"fix/a-1"')
    with serve(c, f"refs/heads/fix/a-1/dist/{TARGET}/") as server:
        assert kit.call(BENCHD_DIST_BASE_URL=server.url, BENCHD_BRANCH="fix/a-1").returncode == 0
    assert kit.seen() == c
    refused(kit.call(BENCHD_DIST_LOCAL=kit.channel(A)), 1, "INSTALLED-PAIR-REFUSED", "branch is 'fix/a-1'", "main")
    assert kit.seen() == c
    assert kit.call(BENCHD_DIST_LOCAL=kit.channel(A), BENCHD_REFRESH=1).returncode == 0
    assert kit.seen() == A
    # The folder of the target itself will do.
    assert kit.call(BENCHD_DIST_LOCAL=kit.channel(B) / TARGET, BENCHD_REFRESH=1).returncode == 0
    assert kit.seen() == B and kit.leftovers() == set()


def test_the_machine_decides_the_target(kit):
    arm = files_of("arm", "linux-aarch64")
    kit.replace("uname", '#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo aarch64\n')
    with serve(arm, "refs/heads/main/dist/linux-aarch64/") as server:
        assert kit.call(BENCHD_DIST_BASE_URL=server.url).returncode == 0
    assert kit.seen() == arm
    kit.replace("uname", '#!/bin/sh\n[ "$1" = -s ] && echo Darwin || echo arm64\n')
    refused(kit.call(), 1, "Darwin arm64")


@pytest.mark.parametrize("variables, status, text", [
    ({}, 2, "BENCHD_DIST_BASE_URL"), ({"BENCHD_REFRESH": "yes"}, 2, "BENCHD_REFRESH is 'yes'"),
    ({"BENCHD_BRANCH": "../x"}, 2, "BENCHD_BRANCH"), ({"BENCHD_BRANCH": "a b"}, 2, "BENCHD_BRANCH"),
    ({"BENCHD_DIST_BASE_URL": "ftp://127.0.0.1/x"}, 1, "no http or https URL"),
    ({"BENCHD_DIST_BASE_URL": "http://example.invalid"}, 1, "plain http"),
    ({"BENCHD_DIST_BASE_URL": "https://me:secret@127.0.0.1"}, 1, "user's name"),
    ({"BENCHD_DIST_BASE_URL": "https://127.0.0.1:1", "BENCHD_DIST_TOKEN": 'a"b'}, 2, "character"),
    ({"BENCHD_DIST_PUBLIC_KEY": "/absent"}, 3, "/absent"), ({"BENCHD_DIST_LOCAL": "/absent"}, 3, "/absent"),
])
def test_usage(kit, variables, status, text):
    refused(kit.call(**variables), status, text)
    assert kit.seen() == {}


def test_an_unknown_argument(kit):
    refused(kit.call("--refresh"), 2, "--refresh")


# ---- what is published and wrong ----


def changed(name, change):
    return {**A, name: change(A[name])}


WRONG_MANIFESTS = [
    ("branch", files_of("x", branch='"other"'), "branch is 'other', expected main"),
    ("triple", files_of("x", target_triple='"aarch64-apple-darwin"'), "target_triple is 'aarch64-apple-darwin'"),
    ("commit", files_of("x", source_commit='"' + "0" * 40 + '"'), "40 zeros"),
    ("short", files_of("x", source_commit='"12ab"'), "source_commit is '12ab'"),
    ("absent", files_of("x", branch=None), "branch is ''"),
    ("twice", changed(MANIFEST, lambda m: m.replace(b"{\n", b'{\n  "branch": "main",\n', 1)), "branch is 'main and main'"),
    ("roster", changed(MANIFEST, lambda m: m.replace(b'"record-', b'"other-')), "record-correctness-golden.sha256"),
    ("size", changed(MANIFEST, lambda m: re.sub(rb'"bytes": \d+\}', b'"bytes": -1}', m)), "benchd.bytes is '-1'"),
    ("outer", files_of("x", sha256='"' + "0" * 64 + '"'), "sha256 is '000"),
    ("pretty", changed(MANIFEST, lambda m: json.dumps(json.loads(m), indent=2).encode()), "sha256 is '"),
    ("zero", changed(MANIFEST, lambda m: m + b"\0"), "no printable ASCII"),
    ("escape", files_of("x", branch='"\x1b[2Jmain"'), "no printable ASCII"),
    ("long", changed(MANIFEST, lambda m: m + b" " * 70000), "bytes"),
]


@pytest.mark.parametrize("files, text", [w[1:] for w in WRONG_MANIFESTS], ids=[w[0] for w in WRONG_MANIFESTS])
def test_a_wrong_manifest_stops_before_any_program(kit, files, text):
    with serve(files) as server:
        refused(kit.call(BENCHD_DIST_BASE_URL=server.url), 1, text)
        assert [p for p, _ in server.seen] == [PLACE + MANIFEST]
    assert kit.seen() == {} and kit.leftovers() == set()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_leaves_nothing(kit, name):
    last = A[name][:-2] + b"X\n"
    with serve(A) as server:
        for fault, status, words in [
                (last, 1, ("PUBLISHED-PAIR-REFUSED", "SHA-256", digest(last), digest(A[name]))),
                (A[name][:-1], 1, (f"is {len(A[name]) - 1} bytes", f"expected {len(A[name])}")),
                (A[name] * 200, 1, ("bytes",)), (None, 3, ("404",))]:
            server.files[PLACE + name] = fault
            if fault is None:
                del server.files[PLACE + name]
            refused(kit.call(BENCHD_DIST_BASE_URL=server.url), status, name, *words)
            assert kit.seen() == {} and kit.leftovers() == set()
        server.files[PLACE + name] = A[name]
        for fault in (("truncate", 5), ("close",), ("status", 500), ("redirect", server.url + "/" + PLACE + name)):
            server.always[PLACE + name] = fault
            refused(kit.call(BENCHD_DIST_BASE_URL=server.url), 3, name)
            assert kit.seen() == {} and kit.leftovers() == set()


# ---- what is installed and wrong ----


def test_an_installed_pair_that_disagrees_is_left_alone(kit):
    good, other = kit.channel(A), kit.channel(B)
    assert kit.call(BENCHD_DIST_LOCAL=good).returncode == 0
    home = kit.bin / os.readlink(kit.bin / ".benchd-pair")
    for name in (*PROGRAMS, MANIFEST):
        for wrong in (B[name], A[name] + b" ", None):
            if wrong is None:
                (home / name).unlink()
            else:
                (home / name).write_bytes(wrong)
            before = kit.seen()
            result = kit.call(BENCHD_DIST_LOCAL=good)
            if name == MANIFEST and wrong == A[name] + b" ":
                assert result.returncode == 0  # a space more says the same of the same programs
            else:
                refused(result, 1, "INSTALLED-PAIR-REFUSED", "BENCHD_REFRESH=1", ".benchd-pair/")
            assert kit.seen() == before
        (home / name).write_bytes(A[name])
        (home / name).chmod(0o755)
    (home / "benchd").chmod(0o644)
    refused(kit.call(), 1, "mode")
    assert kit.call(BENCHD_DIST_LOCAL=other, BENCHD_REFRESH=1).returncode == 0
    assert kit.seen() == B and kit.leftovers() == set() and not home.exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_stands_where_the_lock_belongs_is_left_alone(kit, kind):
    kit.bin.mkdir()
    lock, other = kit.bin / ".benchd-pair.lock", kit.folder / "other"
    other.write_text("precious")
    {"link": lambda: lock.symlink_to(other), "pipe": lambda: os.mkfifo(lock), "folder": lock.mkdir}[kind]()
    refused(kit.call(BENCHD_DIST_LOCAL=kit.channel(A)), 3, str(lock), "found another thing")
    assert other.read_text() == "precious" and kit.seen() == {}


def test_a_folder_where_the_pairs_link_belongs_changes_nothing(kit):
    (kit.bin / ".benchd-pair").mkdir(parents=True)
    refused(kit.call(BENCHD_DIST_LOCAL=kit.channel(A)), 1, ".benchd-pair: expected a link or nothing")
    assert kit.seen() == {} and not (kit.bin / "benchd").is_symlink()


def test_a_full_disk_is_named(kit):
    kit.replace("curl", "#!/bin/sh\nexit 23\n")
    refused(kit.call(BENCHD_DIST_BASE_URL="http://127.0.0.1:9"), 3, MANIFEST, "cannot be written", "disk is full")


def test_a_pair_that_others_put_there(kit):
    kit.bin.mkdir()
    (kit.bin / "benchd").write_bytes(A["benchd"])
    refused(kit.call(BENCHD_DIST_LOCAL=kit.channel(A)), 1, "INSTALLED-PAIR-REFUSED", MANIFEST, "missing")
    for name, data in A.items():
        (kit.bin / name).write_bytes(data)
        (kit.bin / name).chmod(0o755)
    assert "installed before" in kit.call().stdout
    assert kit.call(BENCHD_DIST_LOCAL=kit.channel(B), BENCHD_REFRESH=1).returncode == 0
    assert kit.seen() == B and kit.leftovers() == set()


# ---- the token ----

CURL = """#!/bin/bash
settings=$(cat)
printf '%s\\n' "$*" >"$FAKE/arguments.$$"
printf '%s\\n' "$settings" >"$FAKE/settings.$$"
"""


def test_the_token_stays_with_its_host_and_off_the_command_line(kit):
    with serve(A) as other, serve(A) as base:
        kit.replace("curl", CURL + f'printf "%s\\n" "$settings" | {shutil.which("curl")} "$@"\n')
        for name in PROGRAMS:
            base.always[PLACE + name] = ("redirect", f"{other.url}/{PLACE}{name}", 307)
        for variables in ({"BENCHD_DIST_TOKEN": TOKEN}, {"GITHUB_TOKEN": TOKEN}, {}):
            base.seen.clear()
            other.seen.clear()
            result = kit.call(BENCHD_DIST_BASE_URL=base.url, BENCHD_REFRESH=1, **variables)
            assert result.returncode == 0, result.stderr
            expected = f"Bearer {TOKEN}" if "BENCHD_DIST_TOKEN" in variables else None
            assert [h.get("Authorization") for _, h in base.seen] == [expected] * 3
            assert [h.get("Authorization") for _, h in other.seen] == [None] * 2
            assert TOKEN not in result.stdout + result.stderr
    assert TOKEN not in kit.told("arguments")
    assert TOKEN in kit.told("settings")
    assert kit.seen() == A
    assert all(TOKEN not in p.read_text() for p in kit.bin.rglob("*") if p.is_file())


def test_where_a_github_token_goes_and_what_a_redirect_may_not(kit):
    kit.replace("curl", CURL + 'printf "302 http://example.org/x"\n')
    for base, sent in (("https://raw.githubusercontent.com/a/b", True), ("https://github.com/a", True),
                       ("https://notgithub.com", False), ("https://github.com.example.org", False)):
        kit.told("settings")
        refused(kit.call(BENCHD_DIST_BASE_URL=base, GITHUB_TOKEN=TOKEN), 1, "redirect from https to 'http://example")
        assert (TOKEN in kit.told("settings")) == sent, base
    refused(kit.call(BENCHD_DIST_BASE_URL="http://example.org", BENCHD_DIST_TOKEN=TOKEN), 1, "plain http")


# ---- the signature ----


def key_pair(folder, name):
    private, public = folder / name, folder / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


def signed(folder, files, private):
    text = "".join(f"{digest(d)}  {n}\n" for n, d in sorted(files.items()))
    (folder / "to-sign").write_text(text)
    subprocess.run(["openssl", "pkeyutl", "-sign", "-inkey", private, "-rawin", "-in", folder / "to-sign",
                    "-out", folder / "signature"], check=True)
    return {**files, "SHA256SUMS": text.encode(), "SHA256SUMS.sig": (folder / "signature").read_bytes()}


def test_a_public_key_asks_for_its_signature(kit, tmp_path):
    private, public = key_pair(tmp_path, "one")
    _, stranger = key_pair(tmp_path, "two")
    good = signed(tmp_path, A, private)
    for files, words in ((A, ("SHA256SUMS", "404")), ({**good, MANIFEST: B[MANIFEST]}, ("SHA-256", MANIFEST)),
                         ({**good, "SHA256SUMS.sig": bytes(64)}, ("no signature",)),
                         ({**good, "SHA256SUMS": good["SHA256SUMS"] + b"\n"}, ("no signature",))):
        with serve(files) as server:
            refused(kit.call(BENCHD_DIST_BASE_URL=server.url, BENCHD_DIST_PUBLIC_KEY=public),
                    3 if "404" in words else 1, *words)
            assert not any(p.endswith("/benchd") for p, _ in server.seen)
        assert kit.seen() == {} and kit.leftovers() == set()
    with serve(good) as server:
        refused(kit.call(BENCHD_DIST_BASE_URL=server.url, BENCHD_DIST_PUBLIC_KEY=stranger), 1, "no signature")
        assert kit.call(BENCHD_DIST_BASE_URL=server.url, BENCHD_DIST_PUBLIC_KEY=public).returncode == 0
    assert kit.seen() == A
    assert kit.call(BENCHD_DIST_PUBLIC_KEY=public).returncode == 0
    refused(kit.call(BENCHD_DIST_PUBLIC_KEY=stranger), 1, "INSTALLED-PAIR-REFUSED", "no signature")
    assert kit.call(BENCHD_REFRESH=1, BENCHD_DIST_LOCAL=kit.channel(A)).returncode == 0
    refused(kit.call(BENCHD_DIST_PUBLIC_KEY=public), 1, "INSTALLED-PAIR-REFUSED", "SHA256SUMS: is missing")


# ---- killed ----

STEP = """#!/bin/sh
read -r count <"$FAKE/count"
echo $((count - 1)) >"$FAKE/count"
[ $count -ne 1 ] || { kill -9 $PPID; exit; }
exec /bin/NAME "$@"
"""


@pytest.mark.parametrize("before, steps", [("nothing", 15), ("installed", 9), ("files", 20)])
def test_killed_at_any_step_the_pair_is_the_old_or_the_new(kit, before, steps):
    """Before each command that changes anything: what was there stays, then all of the new one is there."""
    start = kit.folder / "start"
    start.mkdir()
    if before == "installed":
        assert kit.call(BENCHD_DIST_LOCAL=kit.channel(A), BENCHD_BIN_DIR=start).returncode == 0
    elif before == "files":
        for name, data in A.items():
            (start / name).write_bytes(data)
            (start / name).chmod(0o755)
    for name in ("mv", "ln", "cp", "chmod", "sync"):
        kit.replace(name, STEP.replace("NAME", name))
    variables = {"BENCHD_DIST_LOCAL": kit.channel(B), "BENCHD_REFRESH": 1}
    old = {} if before == "nothing" else A
    # The first seven, up to the new pair being whole on the disk, are the same for all.
    for step in range(1 if before == "installed" else 7, 40):
        shutil.rmtree(kit.bin, ignore_errors=True)
        shutil.copytree(start, kit.bin, symlinks=True)
        (kit.fake / "count").write_text(f"{step}\n")
        result = kit.call(**variables)
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL
        assert kit.seen() == old, f"step {step}"
        if step in (steps - 3, steps):
            (kit.fake / "count").write_text("0\n")
            if old:
                assert kit.call().returncode == 0  # it still agrees
            assert kit.call(**variables).returncode == 0
            assert kit.seen() == B and kit.leftovers() == set(), f"step {step}"
    assert step == steps + 1 and kit.seen() == B and kit.leftovers() == set()


@pytest.mark.parametrize("how, status", [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)])
def test_stopped_while_it_downloads(kit, how, status):
    large = {n: os.urandom(300000) for n in PROGRAMS}
    files = {**large, MANIFEST: manifest_of(large)}
    assert kit.call(BENCHD_DIST_LOCAL=kit.channel(A)).returncode == 0
    with serve(files) as server:
        process = []

        def stop(total):
            if total > 400000 and process:
                os.killpg(process.pop().pid, how)
        server.on_sent = stop
        started = subprocess.Popen([SCRIPT], env=kit.environment(BENCHD_DIST_BASE_URL=server.url, BENCHD_REFRESH=1),
                                   start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process.append(started)
        assert started.wait(60) == status
        assert kit.seen() == A
        assert kit.call(BENCHD_DIST_BASE_URL=server.url, BENCHD_REFRESH=1).returncode == 0
    assert kit.seen() == files and kit.leftovers() == set()


# ---- the page ----


def test_the_page_the_help_and_the_script_name_the_same_variables(kit):
    result = kit.call("--help")
    assert result.returncode == 0
    told = set(re.findall(r"^  ([A-Z][A-Z_]+)  ", result.stdout, re.M))
    page = (ROOT / "docs/dist.md").read_text().split("## `tools/fetch-benchd.sh`")[1].split("\n## ")[0]
    assert told == set(re.findall(r"^\| `([A-Z][A-Z_]+)` \|", page, re.M))
    used = set(re.findall(r"\b(BENCHD_[A-Z_]+|GITHUB_TOKEN)\b", SCRIPT.read_text()))
    assert told == used and len(told) == 8
