"""mlxfast fetch against a server that does everything wrong: whatever happens, no wrong file has a right
name, and the message says which file, what was expected and what came."""

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import ROOT
from faulty_http import FaultyServer

LOCK = ".mlxfast-reference-cache.lock"
BIG = "model-00001.safetensors"


def sha(data):
    return hashlib.sha256(data).hexdigest()


def some_bytes(seed, count):
    return random.Random(seed).randbytes(count)


FILES = {"config.json": b'{"a": 1}', BIG: some_bytes(1, 300_000), "empty": b"",
         "sub/of/tokenizer.json": some_bytes(2, 70_001), "copy+of": some_bytes(2, 70_001)}


class Fetcher:
    def __init__(self, build, tmp, files=FILES):
        self.program, self.tmp, self.files = build / "mlxfast", tmp, files
        self.track = tmp / "repo/tracks/toy-v1"
        self.track.mkdir(parents=True)
        self.folder = tmp / "files"
        self.manifest = "# toy\n\n" + "".join(f"{sha(d)} {len(d)} {p}\n" for p, d in files.items())
        (self.track / "target.sha256").write_text(self.manifest)
        self.write_track()

    def write_track(self, **more):
        target = {"manifest": "target.sha256", "repo": "owner/toy", "revision": "abc123", **more}
        (self.track / "fetch.json").write_text(json.dumps({"target": target}))

    def environment(self, variables):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("MLXFAST_", "HF_")) and "proxy" not in k.lower()}
        return {**clean, **{k: str(v) for k, v in variables.items()}}

    def command(self, server, *arguments, fallback=None, folder=None):
        base = ["--base-url", server.url if hasattr(server, "url") else server] if server else []
        other = ["--fallback", getattr(fallback, "url", fallback)] if fallback else []
        return [str(a) for a in (self.program, "fetch", self.track, "--dir", folder or self.folder,
                                 "--retry-delay-ms", 0, *base, *other, *arguments)]

    def __call__(self, server, *arguments, fallback=None, folder=None, preexec_fn=None, **variables):
        result = subprocess.run(self.command(server, *arguments, fallback=fallback, folder=folder),
                                capture_output=True, text=True, timeout=120, preexec_fn=preexec_fn,
                                env=self.environment(variables), cwd=self.tmp)
        self.holds_nothing_wrong()
        return result

    def holds_nothing_wrong(self):
        """Whatever has a pinned name has the pinned bytes."""
        for path, data in self.files.items():
            if (self.folder / path).is_file():
                assert sha((self.folder / path).read_bytes()) == sha(data), path

    def is_complete(self):
        self.holds_nothing_wrong()
        assert all((self.folder / p).is_file() for p in self.files)
        assert not (self.folder / ".mlxfast-fetch").exists()
        assert not (self.folder / ".mlxfast-mutation.lock").exists()

    def part(self, path):
        name = f"{sha(self.files[path])}-{sha(path.encode())[:8]}.part"
        return self.folder / ".mlxfast-fetch" / name

    def put_part(self, path, data):
        self.part(path).parent.mkdir(parents=True, exist_ok=True)
        self.part(path).write_bytes(data)


@pytest.fixture
def fetcher(build, tmp_path):
    return Fetcher(build, tmp_path)


@pytest.fixture
def server():
    with FaultyServer(FILES) as s:
        yield s


def good(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def refused(result, name, *words, code=1):
    assert result.returncode == code, result.stdout + result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"mlxfast fetch: {name}: "), result.stderr
    for word in words:
        assert str(word) in last, last


# ---- what it is told ----

@pytest.mark.parametrize("key, value", [
    ("folder", "/tmp"), ("folder", "../outside"), ("folder", "models/../.."), ("folder", ".git/hooks"), ("folder", ""),
    ("link", "/etc/cron.d/x"), ("link", "a//b"), ("link", "a/"), ("manifest", "/etc/shadow"), ("manifest", "../../x"),
    ("base_url", "file:///etc/passwd"), ("fallback_url", "ftp://a/b")])
def test_a_track_reaches_nothing_outside_its_repository(fetcher, server, key, value):
    fetcher.write_track(**{"base_url": server.url, key: value})
    result = subprocess.run([fetcher.program, "fetch", fetcher.track], env=fetcher.environment({"HOME": fetcher.tmp}),
                            capture_output=True, text=True, timeout=60)
    refused(result, "TRACK-INVALID", "fetch.json", key, value or "expected a path")
    assert server.seen == [] and not (fetcher.tmp / "outside").exists()


def test_a_variable_that_is_nonsense_is_named_with_what_is_expected(fetcher):
    for name, value, expected in (("DOWNLOAD_JOBS", "99", "from 1 to 16"), ("RETRIES", "1e3", "from 0 to 1000"),
                                  ("STALL_BYTES", "99999999999999999999", "from 0 to 2147483647"),
                                  ("HASH_VERIFY", "perhaps", "expected 1 or 0")):
        result = fetcher(None, **{"MLXFAST_REFERENCE_" + name: value})
        assert result.returncode == 2, result.stderr
        assert all(word in result.stderr for word in (name, value, expected)), result.stderr


# ---- what goes well ----

def test_everything_then_nothing(fetcher, server):
    result = good(fetcher(server))
    fetcher.is_complete()
    assert "all hashed and right" in result.stdout and "fetched 5 files" in result.stdout
    count = len(server.seen)
    assert count == 4, "the empty file needs no request"
    again = good(fetcher(server))
    assert "as they were when last hashed" in again.stdout and len(server.seen) == count
    report = json.loads(good(fetcher(server, "--full-verify", "--json")).stdout)
    assert report["hashed"] and not report["unchanged_by_lock"] and report["fetched"] == 0
    assert report["files"] == 5 and report["manifest_sha256"] == sha(fetcher.manifest.encode())


def test_the_lock_has_the_published_form(fetcher, server):
    good(fetcher(server))
    head, files = (fetcher.folder / LOCK).read_text().split("--files--\n")
    keys = dict(line.split("=", 1) for line in head.splitlines())
    assert list(keys) == ["version", "model_repo", "revision", "manifest_sha256", "file_count",
                          "byte_count", "verified_at"]
    assert keys["version"] == "1" and keys["model_repo"] == "owner/toy" and keys["revision"] == "abc123"
    assert keys["manifest_sha256"] == sha(fetcher.manifest.encode())
    assert keys["file_count"] == "5" and keys["byte_count"] == str(sum(map(len, FILES.values())))
    assert keys["verified_at"].endswith("Z")
    assert files == "".join(
        f"{p}\t{len(d)}\t{int((fetcher.folder / p).stat().st_mtime)}\n" for p, d in FILES.items())


@pytest.mark.parametrize("change", ["time", "revision", "manifest", "garbage"])
def test_a_lock_that_differs_means_hashing(fetcher, server, change):
    good(fetcher(server))
    lock = fetcher.folder / LOCK
    if change == "time":
        os.utime(fetcher.folder / BIG, (1, 1))
    elif change == "revision":
        fetcher.write_track(revision="other")
    elif change == "manifest":
        (fetcher.track / "target.sha256").write_text(fetcher.manifest + "# more\n")
    else:
        lock.write_bytes(b"version=1\n\0")
    assert "all hashed and right" in good(fetcher(server)).stdout
    assert "as they were" in good(fetcher(server)).stdout


def test_only_what_is_wrong_is_fetched_again(fetcher, server):
    good(fetcher(server))
    damaged = bytearray(FILES[BIG])
    damaged[1000] ^= 1
    (fetcher.folder / BIG).write_bytes(damaged)
    os.utime(fetcher.folder / BIG, (5, 5))
    (fetcher.folder / "config.json").unlink()
    server.seen.clear()
    check = subprocess.run(fetcher.command(server, "--verify-only"), capture_output=True, text=True)
    refused(check, "FETCH-MISSING", "config.json", "found nothing", sha(FILES["config.json"]))
    assert f"FETCH-SHA256: expected SHA-256 {sha(FILES[BIG])}, found {sha(bytes(damaged))}" in check.stderr
    assert (fetcher.folder / BIG).read_bytes() == damaged and not server.seen
    good(fetcher(server))
    fetcher.is_complete()
    assert {p for p, _ in server.seen} == {BIG, "config.json"}


def test_a_short_file_is_continued(fetcher, server):
    fetcher.folder.mkdir()
    (fetcher.folder / BIG).write_bytes(FILES[BIG][:100_000])
    check = subprocess.run(fetcher.command(server, "--verify-only"), capture_output=True, text=True)
    assert f"FETCH-LENGTH: expected 300000 bytes, found 100000 (file {fetcher.folder / BIG})" in check.stderr
    good(subprocess.run(fetcher.command(server), capture_output=True, text=True))
    fetcher.is_complete()
    assert server.requests(BIG)[0]["Range"] == "bytes=100000-"


def test_the_cache_layout_and_the_link(fetcher, server, tmp_path):
    fetcher.write_track(link="reference_weights/toy", base_url=server.url)
    home, where = tmp_path / "home", "hub/models--owner--toy/snapshots/abc123"
    command = [fetcher.program, "fetch", fetcher.track]
    run = lambda *more, **variables: good(subprocess.run(
        [*command, *more], capture_output=True, text=True,
        env=fetcher.environment({"HOME": home, **variables})))
    assert run("--print-path").stdout == f"{home}/.cache/huggingface/{where}\n"
    assert run("--print-path", MLXFAST_HF_HOME="/x/").stdout == f"/x/{where}\n"
    assert run("--print-path", HF_HOME="/y").stdout == f"/y/{where}\n"
    assert run("--print-path", MLXFAST_REFERENCE_CACHE_DIR="/z/").stdout == "/z\n"
    run()
    link = tmp_path / "repo/reference_weights/toy"
    assert link.is_symlink() and link.resolve() == home / ".cache/huggingface" / where
    assert (link / BIG).read_bytes() == FILES[BIG]
    run(MLXFAST_REFERENCE_DIR=tmp_path / "elsewhere")
    assert link.resolve() == tmp_path / "elsewhere"
    link.unlink()
    run(MLXFAST_REFERENCE_COMPAT_LINK="none")
    assert not link.exists()
    link.write_text("mine")
    result = subprocess.run(command, capture_output=True, text=True, env=fetcher.environment({"HOME": home}))
    refused(result, "LINK-IN-THE-WAY", link)
    assert link.read_text() == "mine"


def test_links_into_a_hub_cache_are_read_and_never_written_through(fetcher, server, tmp_path):
    blob = tmp_path / "blob"
    blob.write_bytes(FILES[BIG])
    fetcher.folder.mkdir()
    (fetcher.folder / BIG).symlink_to(blob)
    good(fetcher(server))
    assert (fetcher.folder / BIG).is_symlink() and not server.requests(BIG)
    wrong = some_bytes(9, len(FILES[BIG]))
    blob.write_bytes(wrong)
    os.utime(blob, (5, 5))
    good(subprocess.run(fetcher.command(server), capture_output=True, text=True))
    fetcher.is_complete()
    assert blob.read_bytes() == wrong and not (fetcher.folder / BIG).is_symlink()


@pytest.mark.parametrize("name", [".mlxfast-fetch", "sub", "sub/of"])
def test_a_link_in_the_folder_leads_nothing_out_of_it(fetcher, server, tmp_path, name):
    """Neither parts nor files are written, nor anything removed, where somebody's link leads."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "film.part").write_text("mine")
    (fetcher.folder / name).parent.mkdir(parents=True)
    (fetcher.folder / name).symlink_to(outside)
    refused(fetcher(server), "NOT-A-FOLDER", name, "expected a folder or nothing, found a link")
    assert [p.name for p in outside.iterdir()] == ["film.part"] and server.seen == []
    (fetcher.folder / name).unlink()
    good(fetcher(server, "--link", f"{tmp_path}/link/"))
    assert (tmp_path / "link").resolve() == fetcher.folder
    fetcher.is_complete()


def test_skipping(fetcher, server):
    for call in (lambda: fetcher(server, "--skip-download"),
                 lambda: fetcher(server, MLXFAST_SKIP_WEIGHTS_DOWNLOAD="1")):
        assert "skipped" in good(call()).stdout
        assert not fetcher.folder.exists() and not server.seen


def test_without_hashes(fetcher, server):
    fetcher.folder.mkdir()
    for path, data in FILES.items():
        (fetcher.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (fetcher.folder / path).write_bytes(data)
    result = good(fetcher(server, MLXFAST_REFERENCE_HASH_VERIFY="0"))
    assert "not all hashed" in result.stdout and not (fetcher.folder / LOCK).exists() and not server.seen


def test_bundled_tracks(build, run):
    for track, *more in (["laguna-nano-serial-v1"], ["laguna-nano-dflash-v1"],
                         ["laguna-nano-dflash-v1", "--drafter"]):
        result = run([build / "mlxfast", "fetch", track, *more], cwd=ROOT)
        assert result.returncode == 0 and "all hashed and right" in result.stdout, result.stderr
    assert not list((ROOT / "models").rglob(".mlxfast-*"))


# ---- one fault each, and the next answer is right ----

HALF = 150_000


@pytest.mark.parametrize("part", [0, HALF], ids=["from nothing", "continued"])
@pytest.mark.parametrize("fault, told", [
    (("status", 503), "FETCH-HTTP: expected status 200"),
    (("status", 429), "the server answers 429"),
    (("close",), "FETCH-TRUNCATED"),
    (("truncate", 10_000), "FETCH-TRUNCATED: expected 300000 bytes"),
    (("truncate", 0), "FETCH-TRUNCATED: expected 300000 bytes"),
    (("unannounced", 10_000), "FETCH-TRUNCATED: expected 300000 bytes, the answer ended after 10000"),
    (("garbage",), f"FETCH-SHA256: expected SHA-256 {sha(FILES[BIG])}"),
    (("200",), None),
    (("redirect", "/moved"), None),
], ids=lambda v: "-".join(map(str, v)) if isinstance(v, tuple) else "")
def test_a_fault_that_passes(fetcher, server, fault, told, part):
    server.files["moved"] = FILES[BIG]
    server.faults[BIG] = [fault]
    if part:
        fetcher.put_part(BIG, FILES[BIG][:part])
    result = good(fetcher(server))
    fetcher.is_complete()
    if told:
        assert told in result.stderr and f"file {BIG}" in result.stderr


@pytest.mark.parametrize("fault, told", [
    (("earlier", 50_000), None),
    (("earlier", HALF), None),
    (("later", 10), "FETCH-RANGE: expected bytes from 150000 on, the server sends them from 150010"),
    (("unranged",), "has none"),
    (("unranged", "bytes nonsense"), "cannot be read"),
    (("416",), "the server says there are none (416)"),
    (("retagged",), "FETCH-CHANGED"),
], ids=lambda v: "-".join(map(str, v)) if isinstance(v, tuple) else "")
def test_faults_of_ranges(fetcher, server, fault, told):
    server.faults[BIG] = [("truncate", HALF), fault]  # the first: half of it, with its ETag
    result = good(fetcher(server))
    fetcher.is_complete()
    second = server.requests(BIG)[1]
    assert second["Range"] == f"bytes={HALF}-" and second["If-Range"] == server.tag(BIG)
    if told:
        assert told in result.stderr
        assert "Range" not in server.requests(BIG)[2], "asked afresh"


def test_a_changed_etag_means_the_whole_file(fetcher, server):
    """The part is of an older version: If-Range brings the new one whole, and only once."""
    server.faults[BIG] = [("truncate", HALF)] + [("close",)] * 5
    refused(fetcher(server), "FETCH-TRUNCATED", BIG)
    part = fetcher.part(BIG)
    part.write_bytes(some_bytes(7, HALF))
    etag = part.with_name(part.name + ".etag")
    assert etag.read_text() == f"{server.url}\n{server.tag(BIG)}\n"
    etag.write_text(f'{server.url}\n"older"\n')
    server.seen.clear()
    good(fetcher(server))
    assert [h.get("If-Range") for h in server.requests(BIG)] == ['"older"']
    fetcher.is_complete()


# cases.md A7
def test_a_complete_part_and_416(fetcher, server):  # A-DL1
    fetcher.put_part(BIG, FILES[BIG])
    server.always[BIG] = ("416",)
    good(fetcher(server))
    fetcher.is_complete()
    assert not server.requests(BIG), "the hash says all there is to say"


def test_a_whole_body_for_a_range(fetcher, server):  # A-DL2
    fetcher.put_part(BIG, FILES[BIG][:516])
    server.always[BIG] = ("200",)
    good(fetcher(server))
    assert (fetcher.folder / BIG).stat().st_size == len(FILES[BIG])
    assert server.requests(BIG)[0]["Range"] == "bytes=516-"


def test_a_part_that_has_grown_too_long(fetcher, server):  # A-DL3
    fetcher.put_part(BIG, FILES[BIG] + b"more")
    good(fetcher(server))
    fetcher.is_complete()
    assert "Range" not in server.requests(BIG)[0]


def test_a_wrong_part_costs_one_restart(fetcher, server):
    fetcher.put_part(BIG, bytes(HALF))
    result = good(fetcher(server))
    assert "FETCH-SHA256" in result.stderr and len(server.requests(BIG)) == 2
    fetcher.is_complete()


# ---- faults that stay ----

@pytest.mark.parametrize("fault, name, words", [
    (("status", 404), "FETCH-HTTP", ["expected status 200", "404"]),
    (("status", 403), "FETCH-HTTP", ["403", "authorization"]),
    (("status", 500), "FETCH-HTTP", ["500"]),
    (("close",), "FETCH-TRUNCATED", ["expected 300000 bytes"]),
    (("truncate200", 10_000), "FETCH-TRUNCATED", ["expected 300000 bytes", "10000"]),
    (("length", 300_001), "FETCH-LENGTH", ["expected 300000 bytes", "300001"]),
    (("length", 299_999), "FETCH-LENGTH", ["expected 300000 bytes", "299999"]),
    (("unannounced", 400_000), "FETCH-LENGTH", ["expected 300000 bytes", "sends more"]),
    (("garbage",), "FETCH-SHA256", [f"expected SHA-256 {sha(FILES[BIG])}", sha(bytes(300_000))]),
    (("encoded",), "FETCH-ENCODING", ["gzip"]),
    (("redirect", f"/{BIG}"), "FETCH-REDIRECT", ["redirect 11"]),
    (("redirect", "file:///etc/passwd"), "FETCH-REDIRECT", ["leaves https, or http altogether"]),
    (("redirect", "ftp://127.0.0.1/x"), "FETCH-REDIRECT", ["leaves"]),
    (("status", 302), "FETCH-REDIRECT", ["leads nowhere"]),
    (("status", 204), "FETCH-HTTP", ["204"]),
    (("416", 5), "FETCH-HTTP", ["416"]),
], ids=lambda v: "-".join(map(str, v)) if isinstance(v, tuple) else "")
def test_a_fault_that_stays(fetcher, server, fault, name, words):
    server.always[BIG] = fault
    refused(fetcher(server, "--retries", 2), name, f"file {BIG}", server.url, *words)
    assert not (fetcher.folder / BIG).exists() and not (fetcher.folder / LOCK).exists()
    assert len(server.requests(BIG)) <= 11
    assert (fetcher.folder / "sub/of/tokenizer.json").exists(), "the others come all the same"
    server.always.clear()
    good(fetcher(server))
    fetcher.is_complete()


def test_a_stall_is_cut_and_continued(fetcher, server):
    server.faults[BIG] = [("drip", 90_000)]
    result = good(fetcher(server, "--stall-seconds", 1))
    assert "FETCH-STALLED: expected at least 1048576 bytes/s, for 1 s there came fewer" in result.stderr
    assert server.requests(BIG)[1]["Range"] == "bytes=90000-"
    fetcher.is_complete()


def test_a_drip_for_ever_ends(fetcher, server):
    server.always[BIG] = ("drip", 100)
    refused(fetcher(server, "--stall-seconds", 1, "--retries", 1), "FETCH-STALLED", BIG, "of 300000 bytes")


def test_nobody_there(fetcher):
    refused(fetcher("http://127.0.0.1:1", "--retries", 1), "FETCH-CONNECTION", "127.0.0.1:1")
    assert [p.name for p in fetcher.folder.iterdir()] == ["empty"], "which needs nobody"


# ---- fallback, redirects and credentials ----

def test_the_fallback_continues_what_the_mirror_began(fetcher, server):
    with FaultyServer(FILES) as hub:
        server.always[BIG] = ("close",)
        server.faults[BIG] = [("truncate", HALF)]
        server.always["config.json"] = ("status", 404)
        result = good(fetcher(server, "--retries", 1, fallback=hub))
        fetcher.is_complete()
        assert f"trying {hub.url}" in result.stderr
        assert {p for p, _ in hub.seen} == {BIG, "config.json"}
        asked = hub.requests(BIG)[0]
        assert asked["Range"] == f"bytes={HALF}-" and "If-Range" not in asked, "another server's ETag"


def test_no_fallback(fetcher, server):
    with FaultyServer(FILES) as hub:
        fetcher.write_track(base_url=server.url, fallback_url=hub.url)
        server.always[BIG] = ("status", 404)
        for flags, variables in ((["--fallback", "none"], {}), ([], {"MLXFAST_REFERENCE_FALLBACK": "0"})):
            refused(fetcher(None, *flags, **variables), "FETCH-HTTP", server.url)
        assert not hub.seen
        good(fetcher(None))
        assert [p for p, _ in hub.seen] == [BIG]


SECRET = "Bearer very-secret"


@pytest.mark.parametrize("name, value", [("Authorization", SECRET), ("X-Api-Key", "very-secret")])
def test_credentials_stay_with_their_host(fetcher, server, name, value):
    with FaultyServer(FILES) as other:
        server.faults[BIG] = [("redirect", f"{other.url}/{BIG}?signature=also-secret")]
        server.faults["config.json"] = [("redirect", "/config.json", 307)]
        server.always["sub/of/tokenizer.json"] = ("status", 404)
        result = good(fetcher(server, fallback=other, MLXFAST_REFERENCE_AUTH_HEADER=f"{name}: {value}"))
        assert all(h.get(name) == value for _, h in server.seen)
        assert len(server.requests("config.json")) == 2
        assert {p for p, _ in other.seen} == {BIG, "sub/of/tokenizer.json"}
        assert all(name not in h for _, h in other.seen)
        assert "secret" not in result.stdout + result.stderr
        back = f"{server.url}/{BIG}"
        (fetcher.folder / BIG).unlink()
        server.faults[BIG] = [("redirect", f"{other.url}/{BIG}")]
        other.faults[BIG] = [("redirect", back.replace("127.0.0.1", "localhost"))]
        server.seen.clear()
        good(fetcher(server, MLXFAST_REFERENCE_AUTH_HEADER=f"{name}: {value}"))
        assert [h.get(name) for h in server.requests(BIG)] == [value, None], "another name, another host"


def test_a_header_from_a_file(fetcher, server, tmp_path):
    secret = tmp_path / "header"
    secret.write_text(f"Authorization: {SECRET}\n")
    good(fetcher(server, "--auth-header-file", secret))
    assert all(h["Authorization"] == SECRET for _, h in server.seen)
    for bad in ("no-hidden-colon", "Hidden:", "A: hidden\nC: d", ""):
        secret.write_text(bad)
        result = fetcher(server, "--auth-header-file", secret)
        assert result.returncode == 2 and "one line" in result.stderr, result.stderr
        assert "hidden" not in result.stderr.lower()


def test_a_password_in_a_url_is_not_shown(fetcher, server):
    server.always[BIG] = ("status", 404)
    result = fetcher(server.url.replace("//", "//me:hidden@"))
    refused(result, "FETCH-HTTP", server.url)
    assert "hidden" not in result.stderr
    server.always[BIG] = ("truncate", HALF)
    fetcher(server.url.replace("//", "//me:hidden@"), "--retries", 0)
    etag = fetcher.part(BIG).with_name(fetcher.part(BIG).name + ".etag")
    assert etag.read_text() == f"{server.url}\n{server.tag(BIG)}\n", "nor kept on the disk"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj",
                    "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem",
                    "-out", folder / "cert.pem"], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both, folder / "cert.pem"


def test_tls(fetcher, certificate):
    both, authority = certificate
    with FaultyServer(FILES, certificate=both) as server, FaultyServer(FILES) as plain:
        refused(fetcher(server), "FETCH-TLS", "certificate", server.url)
        assert not server.seen
        server.faults[BIG] = [("redirect", f"{plain.url}/{BIG}")]
        refused(fetcher(server, "--ca-file", authority), "FETCH-REDIRECT", "leaves https", plain.url)
        assert not plain.seen
        good(fetcher(server, MLXFAST_REFERENCE_CA_FILE=authority))
        fetcher.is_complete()


# ---- disk, signals, two at once ----

def test_a_limit_on_file_sizes(fetcher, server):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    refused(fetcher(server, preexec_fn=limit), "FETCH-DISK-FULL", fetcher.part(BIG), "after 200000 bytes")
    server.seen.clear()
    good(fetcher(server))
    assert server.requests(BIG)[0]["Range"] == "bytes=200000-"
    fetcher.is_complete()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 80 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "none", disk],
                      capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_becomes_full(fetcher, server, small_disk):
    fetcher.folder = small_disk / "files"
    filler, once = small_disk / "filler", threading.Lock()

    def fill(total):
        with once:
            if filler.exists():
                return
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as f:
                while True:
                    f.write(bytes(1 << 16))

    server.on_sent = fill
    refused(fetcher(server), "FETCH-DISK-FULL", ".part", "No space left", "free bytes")
    server.on_sent = None
    refused(fetcher(server), "FETCH-NO-SPACE", "free bytes", fetcher.folder)
    filler.unlink()
    good(fetcher(server))
    fetcher.is_complete()


def test_too_little_space_is_known_before(fetcher, server):
    refused(fetcher(server, "--min-free-gib", 1 << 20), "FETCH-NO-SPACE", "expected", fetcher.folder)
    refused(fetcher(server, MLXFAST_REFERENCE_MIN_FREE_GIB=1 << 20), "FETCH-NO-SPACE")
    assert not server.seen
    huge = fetcher.manifest + f"{'0' * 64} {1 << 49} huge\n"
    (fetcher.track / "target.sha256").write_text(huge)
    refused(fetcher(server), "FETCH-NO-SPACE", f"({(1 << 49) + sum(map(len, FILES.values()))} are still to come)")


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment(fetcher, server, seed):
    """SIGKILL after a random count of served bytes, again and again; then one run to the end."""
    chance, total = random.Random(seed), sum(map(len, FILES.values()))
    for _ in range(8):
        victim, ready = [], threading.Event()
        limit = server.sent + chance.randrange(1, total // 3)

        def kill(sent):
            if sent >= limit:
                ready.wait(30)
                victim[0].kill()

        server.on_sent = kill
        victim.append(subprocess.Popen(fetcher.command(server), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env=fetcher.environment({})))
        ready.set()
        victim[0].wait(60)
        fetcher.holds_nothing_wrong()
    server.on_sent = None
    good(fetcher(server))
    fetcher.is_complete()


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(fetcher, server, which):
    server.always[BIG] = ("drip", 100_000)
    started = threading.Event()
    server.on_sent = lambda total: started.set() if total >= 100_000 else None
    process = subprocess.Popen(fetcher.command(server), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env=fetcher.environment({}))
    assert started.wait(60)
    process.send_signal(which)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "INTERRUPTED" in stderr and "the next run goes on" in stderr
    fetcher.holds_nothing_wrong()
    assert not (fetcher.folder / ".mlxfast-mutation.lock").exists()
    server.always.clear()
    server.on_sent = None
    good(fetcher(server))
    fetcher.is_complete()


def test_two_at_once(fetcher, server):
    """The second waits for the first, and then finds everything done."""
    server.always[BIG] = ("drip", 100_000)
    started = threading.Event()
    server.on_sent = lambda total: started.set() if total >= 100_000 else None
    first = subprocess.Popen(fetcher.command(server, "--stall-seconds", 3600), stderr=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, env=fetcher.environment({}))
    assert started.wait(60)
    lock = fetcher.folder / ".mlxfast-mutation.lock"
    assert f"pid {first.pid} host " in lock.read_text()
    refused(fetcher(server, "--lock-wait-seconds", 0), "FETCH-LOCKED", f"pid {first.pid}", lock)
    second = subprocess.Popen(fetcher.command(server), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=fetcher.environment({}))
    assert "another set-up works in this folder" in second.stderr.readline()
    server.always.clear()
    server.on_sent = None
    first.kill()  # its lock dies with it
    first.communicate(timeout=60)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert "all hashed and right" in out
    fetcher.is_complete()


def test_a_lock_of_another_machine(fetcher, server):
    fetcher.folder.mkdir()
    lock = fetcher.folder / ".mlxfast-mutation.lock"
    lock.write_text("pid 1 host elsewhere\n")
    refused(fetcher(server, "--lock-wait-seconds", 0), "FETCH-LOCKED", "pid 1 host elsewhere")
    os.utime(lock, (1, 1))  # not touched for years
    good(fetcher(server, "--lock-wait-seconds", 0))
    fetcher.is_complete()


# ---- progress, input ----

def test_progress_without_a_terminal(fetcher, server):
    server.faults[BIG] = [("drip", 90_000)]
    result = good(fetcher(server, "--stall-seconds", 1, "--progress-seconds", 0))
    line = next(l for l in result.stderr.splitlines() if l.startswith("fetch: "))
    assert "of 440.0 kB" in line and "/s" in line
    assert any(l.startswith(f"  {BIG}: 90.0 kB of 300.0 kB (30%)") for l in result.stderr.splitlines())
    assert f"{BIG} is right (continued)" not in result.stderr and f"{BIG} is right" in result.stderr
    assert "\x1b" not in result.stderr
    (fetcher.folder / BIG).unlink()
    assert good(fetcher(server, "--quiet")).stderr == ""


@pytest.mark.parametrize("text, words", [
    ("", ["lists no file"]),
    ("# only remarks\n", ["lists no file"]),
    ("zz 1 a\n", ["line 1", "hexadecimal"]),
    (f"{'A' * 64} 1 a\n", ["hexadecimal"]),
    (f"{'a' * 64} -1 a\n", ["bytes", "-1"]),
    (f"{'a' * 64} 01 a\n", ["bytes"]),
    (f"{'a' * 64} 99999999999999999999 a\n", ["bytes"]),
    (f"{'a' * 64} 1\n", ["<path>"]),
    (f"{'a' * 64}  1 a\n", ["bytes"]),
    (f"{'a' * 64} 1 ../a\n", ["relative"]),
    (f"{'a' * 64} 1 /a\n", ["relative"]),
    (f"{'a' * 64} 1 a//b\n", ["relative"]),
    (f"{'a' * 64} 1 a/./b\n", ["relative"]),
    (f"{'a' * 64} 1 a\\b\n", ["ASCII"]),
    (f"{'a' * 64} 1 a b\n", ["without spaces"]),
    (f"{'a' * 64} 1 a\r\n", ["ASCII"]),
    (f"{'a' * 64} 1 .mlxfast-fetch/x\n", ["fetcher's own"]),
    (f"{'a' * 64} 1 {'x' * 256}\n", ["255"]),
    (f"{'a' * 64} 1 a\n{'b' * 64} 1 a\n", ["listed twice"]),
    (f"{'a' * 64} 1 a\n{'b' * 64} 1 a.b\n{'b' * 64} 1 a/b\n", ["lies in another file"]),
    (f"{'a' * 64} 1 a\0b\n", ["NUL"]),
])
def test_bad_manifests(fetcher, server, text, words):
    (fetcher.track / "target.sha256").write_text(text)
    refused(fetcher(server), "MANIFEST-INVALID", fetcher.track / "target.sha256", *words)
    assert not fetcher.folder.exists() and not server.seen


def test_pins_that_are_not_published(fetcher, server, run, build):
    """A list with "-" for a SHA-256 fetches nothing, and says what to do; so does the real track that has none."""
    text = "".join(f"{sha(d)} {len(d)} {p}\n" for p, d in FILES.items())
    first, second = (line.split() for line in text.splitlines()[:2])
    target = fetcher.track / "target.sha256"
    target.write_text(text.replace(f"{first[0]} {first[1]} ", "- - ").replace(f"{second[0]} ", "- "))
    refused(fetcher(server), "PINS-MISSING", target, f"each of {len(text.splitlines())} files, 2 have none",
            first[2], "docs/setup.md", "--manifest")
    target.write_text(text.replace(f" {first[1]} ", " - "))
    refused(fetcher(server), "MANIFEST-INVALID", "number of bytes")
    assert not fetcher.folder.exists() and not server.seen
    real = ROOT / "tracks/deepseek-v4-flash"
    result = run([build / "mlxfast", "fetch", real, "--dir", fetcher.folder])
    assert result.returncode == 1 and "each of 40 files, 40 have none" in result.stderr, result.stderr
    page = (ROOT / "docs/setup.md").read_text().split("### Pins", 1)[1]
    command = "\n".join(line[4:] for line in page.split("\n\n")[2].splitlines())
    for name, data in FILES.items():
        path = fetcher.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    made = run(["bash", "-c", command.replace("FOLDER", str(fetcher.folder)).replace("target.sha256", "/dev/stdout")])
    assert sorted(made.stdout.splitlines()) == sorted(text.splitlines()), made.stderr


def test_bad_input(fetcher, server, tmp_path):
    for flags, variables, word in [
            ([], {"MLXFAST_REFERENCE_DOWNLOAD_JOBS": "many"}, "MLXFAST_REFERENCE_DOWNLOAD_JOBS"),
            ([], {"MLXFAST_REFERENCE_DOWNLOAD_JOBS": "17"}, "MLXFAST_REFERENCE_DOWNLOAD_JOBS"),
            ([], {"MLXFAST_SKIP_WEIGHTS_DOWNLOAD": "perhaps"}, "MLXFAST_SKIP_WEIGHTS_DOWNLOAD"),
            ([], {"MLXFAST_REFERENCE_AUTH_HEADER": "x"}, "MLXFAST_REFERENCE_AUTH_HEADER"),
            ([], {"MLXFAST_REFERENCE_CACHE_DIR": "/other"}, "two folders"),
            (["--fallback", "ftp://x/"], {}, "--fallback"),
            (["--jobs", "0"], {}, "--jobs")]:
        result = fetcher(server, *flags, **variables)
        assert result.returncode == 2 and word in result.stderr, result.stderr
    refused(fetcher(None), "FETCH-NO-SOURCE", "config.json", "--base-url")
    mine = tmp_path / "mine"
    mine.write_text("my own")
    refused(fetcher(server, "--lock-path", mine), "LOCK-IN-THE-WAY", mine)
    assert mine.read_text() == "my own"
    (fetcher.folder / "config.json").mkdir()
    refused(fetcher(server), "NOT-A-REGULAR-FILE", fetcher.folder / "config.json")
    shutil.rmtree(fetcher.folder)
    (fetcher.track / "fetch.json").write_text('{"target": {"manifest": "target.sha256", "repo": "../x/y", '
                                              '"revision": "r"}}')
    refused(fetcher(server), "TRACK-INVALID", "repo", "../x/y")
    (fetcher.track / "fetch.json").write_text('{"target": {"mirror": "x"}}')
    refused(fetcher(server), "JSON-UNKNOWN-KEY", "mirror")
    (fetcher.track / "fetch.json").unlink()
    refused(fetcher(server), "TRACK-UNKNOWN", "fetch.json")
    result = subprocess.run([fetcher.program, "fetch", "no-such-v1"], capture_output=True, text=True)
    refused(result, "TRACK-UNKNOWN", "tracks/no-such-v1")
    assert not server.seen


def test_the_real_track_names_its_sources(build, tmp_path):
    """What the published set-up uses, without asking anybody."""
    track = json.loads((ROOT / "tracks/laguna-xs-2.1-dflash-v1/fetch.json").read_text())["target"]
    contract = json.loads((ROOT / "tracks/laguna-xs-2.1-dflash-v1/contract.json").read_text())["target"]
    assert track["repo"] == contract["runtime_model_id"] and track["revision"] == contract["runtime_revision"]
    assert track["fallback_url"].endswith(f"/{track['repo']}/resolve/{track['revision']}")
    result = subprocess.run([build / "mlxfast", "fetch", "laguna-xs-2.1-dflash-v1", "--verify-only", "--quiet",
                             "--dir", tmp_path], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 1 and result.stderr.count("FETCH-MISSING") == 13


def test_setup_sh(fetcher, server, build):
    """The script around it: what it builds, that flags and variables get through."""
    home = fetcher.tmp / "repo"
    shutil.copy(ROOT / "setup.sh", home / "setup.sh")
    (home / "built").symlink_to(build)
    call = lambda *arguments, **variables: subprocess.run(
        [home / "setup.sh", *arguments], capture_output=True, text=True, cwd=fetcher.tmp,
        env=fetcher.environment({"BUILD": "built", **variables}))
    result = good(call("toy-v1", "--dir", "here", MLXFAST_REFERENCE_BASE_URL=server.url))
    assert "fetched 5 files" in result.stdout and (fetcher.tmp / "here" / BIG).read_bytes() == FILES[BIG]
    for arguments, code, word in ((["../x"], 2, "../x"), (["none-v1"], 1, "tracks/none-v1/fetch.json"),
                                  (["toy-v1", "--nonsense"], 2, "--nonsense")):
        result = call(*arguments)
        assert result.returncode == code and word in result.stderr
    assert "usage: ./setup.sh" in call("--help").stdout
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", ROOT / "setup.sh"]).returncode == 0
