"""tools/build-dist and tools/hooks/pre-commit, in small repositories of their own with the real Makefile: the
same bytes from two folders, a folder of binaries that is held to its sources, commits that would part them."""

import os
import re
import shutil
import subprocess

from conftest import ROOT
from test_dist import PROGRAMS, TARGET, Kit, digest, key_pair, manifest_of

MANIFEST = f"dist/{TARGET}/benchd.manifest.json"
MAIN = """#include <jansson.h>
#include <openssl/sha.h>
#include <stdio.h>
int main(void)
{
    unsigned char digest[32];
    SHA256((const unsigned char *)"", 0, digest);
    return printf("NAME %s %s %s %02x %s\\n", __FILE__, __DATE__, __TIME__, digest[0], jansson_version_str()) < 0;
}
"""


def git(folder, *arguments):
    return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder,
                          capture_output=True, text=True)


def commit(folder, *arguments):
    return git(folder, "commit", "-q", "-m", "a commit", *arguments)


def tool(folder, *arguments, **variables):
    return subprocess.run([folder / "tools/build-dist", *arguments], cwd="/", capture_output=True, text=True,
                          timeout=120, env={**os.environ, **variables})


def make(folder, *arguments, **variables):
    """A folder this small has nothing that a self-test could ask it."""
    return tool(folder, "--target", TARGET, "--no-self-test", *arguments, **variables)


def repository(folder):
    """The tools, the Makefile and two programs."""
    for name in ("Makefile", ".gitignore", "tools/build-dist", "tools/hooks/pre-commit"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for layer in ("base", "wire", "judge"):
        (folder / "src" / layer).mkdir(parents=True)
        (folder / "src" / layer / "one.c").write_text(f"extern const int {layer}_one;\nconst int {layer}_one = 1;\n")
    (folder / "src/programs").mkdir()
    for name in PROGRAMS:
        (folder / f"src/programs/{name}.c").write_text(MAIN.replace("NAME", name))
    (folder / "notes.md").write_text("a\n")
    assert git(folder, "init", "-q", "-b", "main").returncode == 0
    git(folder, "add", ".")
    assert commit(folder).returncode == 0
    git(folder, "config", "core.hooksPath", "tools/hooks")
    return folder


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def field(folder, key):
    return re.search(rf'^  "{key}": "(.*)",$', (folder / MANIFEST).read_text(), re.M).group(1)


def refused(result, *words):
    assert result.returncode == 1, result.stdout + result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def test_two_folders_give_the_same_bytes_which_the_fetcher_takes(tmp_path):
    a, b = repository(tmp_path / "a"), repository(tmp_path / "another folder/of/a longer name")
    private, public = key_pair(tmp_path, "key")
    result = make(a, "--key", str(private), "--jobs", "1", SOURCE_DATE_EPOCH="12345", CFLAGS="-DHOST")
    assert result.returncode == 0, result.stderr
    result = make(b, TZ="Asia/Tokyo", LANG="de_DE.UTF-8", LDFLAGS="-Wl,-Map=x", CPATH="/absent")
    assert result.returncode == 0, result.stderr
    one, two = contents(a / f"dist/{TARGET}"), contents(b / f"dist/{TARGET}")
    assert set(one) == {*PROGRAMS, "benchd.manifest.json", "built-with.txt", "SHA256SUMS", "SHA256SUMS.sig"}
    for name in (*PROGRAMS, "built-with.txt"):
        assert one[name] == two[name]
    for name in PROGRAMS:
        said = subprocess.run([a / f"dist/{TARGET}" / name], capture_output=True, text=True).stdout
        assert said.startswith(f"{name} src/programs/{name}.c Jan  1 1970 00:00:00 e3 ")
        for folder in (a, b):
            assert str(folder).encode() not in one[name]
    # The manifest's form is the specification's, and one key more; the digest is what sha256sum makes.
    pair = {n: one[n] for n in PROGRAMS}
    head = git(a, "rev-parse", "HEAD").stdout.strip()
    lines = subprocess.run("find Makefile src -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-64",
                           shell=True, cwd=a, capture_output=True, text=True).stdout.strip()
    assert one["benchd.manifest.json"] == manifest_of(pair, source_commit=f'"{head}"', source_sha256=f'"{lines}"')
    assert tool(a, "digest").stdout == lines + "\n"
    assert subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=a / f"dist/{TARGET}").returncode == 0
    assert tool(a, "check", "--target", TARGET, "--public-key", str(public)).returncode == 0
    kit = Kit(tmp_path)
    assert kit.call(BENCHD_DIST_LOCAL=a / "dist", BENCHD_DIST_PUBLIC_KEY=public).returncode == 0
    assert (kit.bin / "benchd").read_bytes() == one["benchd"]


def test_what_check_sees(tmp_path):
    a = repository(tmp_path / "a")
    made_up(a)
    check = lambda *more: tool(a, "check", "--target", TARGET, *more)
    assert check().returncode == 0 and tool(a, "check", "--target", "linux-aarch64").returncode == 1
    place = a / f"dist/{TARGET}"
    good = contents(place)
    for name, told in (("benchd", place / "benchd"), ("built-with.txt", place / "SHA256SUMS")):
        (place / name).write_bytes(good[name] + b"x")
        refused(check(), f"{told}: ")
        (place / name).write_bytes(good[name])
    (a / "src/base/one.c").write_text("/* another */\n")
    refused(check(), "source_sha256", tool(a, "digest").stdout.strip())
    _, public = key_pair(tmp_path, "key")
    refused(check("--public-key", str(public)), "SHA256SUMS.sig")


def made_up(folder):
    """A dist/ of these sources, with programs that nothing has compiled."""
    programs = {n: f"{n}, made up".encode() for n in PROGRAMS}
    text = manifest_of(programs, source_sha256=f'"{tool(folder, "digest").stdout.strip()}"')
    files = {**programs, "benchd.manifest.json": text, "built-with.txt": b"nothing\n"}
    files["SHA256SUMS"] = "".join(f"{digest(d)}  {n}\n" for n, d in sorted(files.items())).encode()
    (folder / f"dist/{TARGET}").mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"dist/{TARGET}" / name).write_bytes(data)


def test_a_build_that_is_not_reproducible_is_seen(tmp_path):
    a = repository(tmp_path / "a")
    makefile = (a / "Makefile").read_text()
    (a / "Makefile").write_text(makefile + "CFLAGS += -DCHANCE=0x$(shell cut -c1-8 /proc/sys/kernel/random/uuid)\n")
    (a / "src/programs/benchd.c").write_text(MAIN.replace("digest[0]", "digest[CHANCE % 32]"))
    refused(tool(a, "prove", "--target", TARGET), "benchd", "the two builds differ from byte")
    (a / "src/programs/benchd.c").write_text(MAIN)
    (a / "Makefile").write_text(makefile + "CFLAGS += -D__FILE__='\"$(CURDIR)\"' -Wno-builtin-macro-redefined\n")
    refused(make(a), "holds the name of the folder")
    assert not (a / "dist").exists()


def test_commits_and_their_dist(tmp_path):
    """The hook, and what source_commit says before and after the commit."""
    a = repository(tmp_path / "a")
    source = a / "src/base/one.c"
    source.write_text(source.read_text() + "/* 1 */\n")
    assert commit(a, "-a").returncode == 0  # nothing is built: nothing to hold it to

    source.write_text(source.read_text() + "/* 2 */\n")
    key, _ = key_pair(tmp_path, "key")
    refused(make(a, "--key", str(key)), "commit them first")
    result = make(a)
    assert result.returncode == 0 and field(a, "source_commit") == "0" * 40, result.stderr
    assert "40 zeros" in result.stdout
    (a / "notes.md").write_text("b\n")
    assert commit(a, "notes.md").returncode == 0  # no judge source is in it
    assert commit(a, "-a").returncode == 0  # dist/ is of exactly this
    before = (a / f"dist/{TARGET}/benchd").stat().st_ino, contents(a / f"dist/{TARGET}")
    result = make(a, "--key", str(key))
    assert result.returncode == 0 and "not built again" in result.stdout, result.stderr
    assert field(a, "source_commit") == git(a, "rev-parse", "HEAD").stdout.strip()
    assert contents(a / f"dist/{TARGET}")["benchd"] == before[1]["benchd"]

    head = git(a, "rev-parse", "HEAD").stdout
    git(a, "mv", "src/wire/one.c", "elsewhere.c")
    refused(commit(a), MANIFEST)
    git(a, "mv", "elsewhere.c", "src/wire/one.c")
    for path, text in ((source, "/* 3 */\n"), (a / "src/judge/new.h", "/* new */\n"), (a / "Makefile", "# 3\n")):
        old = path.read_text() if path.exists() else None
        path.write_text((old or "") + text)
        git(a, "add", ".")
        refused(commit(a), MANIFEST, field(a, "source_sha256")[:16], "run tools/build-dist")
        path.unlink()
        if old is not None:
            path.write_text(old)
        git(a, "add", "-A")
    # Half of what was built is not what was built.
    source.write_text(source.read_text() + "/* 4 */\n")
    git(a, "add", ".")
    (a / "src/wire/one.c").write_text("/* 4 */\n")
    made_up(a)
    refused(commit(a), MANIFEST)
    assert git(a, "rev-parse", "HEAD").stdout == head
    git(a, "add", ".")
    (a / f"dist/{TARGET}/benchd").write_bytes(b"another")
    refused(commit(a), f"dist/{TARGET}/benchd: is not what the manifest says")
    (a / f"dist/{TARGET}/benchd").unlink()
    refused(commit(a), f"dist/{TARGET}/benchd: is missing")
    made_up(a)
    assert commit(a).returncode == 0
    assert git(a, "rev-parse", "HEAD").stdout != head


def test_a_dist_that_is_kept_in_git(tmp_path):
    """What counts is what the commit would hold, not what lies in the work tree."""
    a = repository(tmp_path / "a")
    made_up(a)
    git(a, "add", "-f", "dist")
    assert commit(a).returncode == 0
    (a / f"dist/{TARGET}/benchd").write_bytes(b"another")
    git(a, "add", "-f", "dist")
    (a / f"dist/{TARGET}/benchd").write_bytes(b"benchd, made up")
    refused(commit(a), f"dist/{TARGET}/benchd: is not what the manifest says")
    git(a, "add", "-f", "dist")
    (a / "src/base/one.c").write_text("/* another */\n")
    git(a, "add", "src")
    made_up(a)
    refused(commit(a), MANIFEST)
    git(a, "add", "-f", "dist")
    assert commit(a).returncode == 0


def test_the_self_test_runs_what_is_there(build, tmp_path):
    """With the programs of this build, and with one that is another."""
    place = tmp_path / TARGET
    place.mkdir()
    for name in PROGRAMS:
        (place / name).symlink_to(build / name)
    run = lambda: subprocess.run([ROOT / "tools/build-dist", "self-test", "--out", tmp_path, "--target", TARGET],
                                 capture_output=True, text=True, timeout=300)
    result = run()
    assert result.returncode == 0 and f"{TARGET}: self-test passed" in result.stdout, result.stderr
    assert "73 passed, 0 failed" in result.stdout
    (place / "benchd").unlink()
    (place / "benchd").symlink_to("/bin/false")
    refused(run(), "benchd --help")


def test_what_is_told_wrongly_is_named(tmp_path):
    absent = tmp_path / "absent"
    for arguments, status, text in ((["--jobs", "0"], 2, "expected 1 or more, not 0"), (["--key", absent], 2, f"no file {absent}"),
                                    (["check", "--public-key", absent], 2, f"no file {absent}"),
                                    (["self-test", "--out", absent], 1, f"{absent}/linux-x86_64/benchd: there is no such file")):
        result = tool(ROOT, *arguments)
        assert result.returncode == status and text in result.stderr, result.stderr


def test_the_page_names_every_flag():
    page = (ROOT / "docs/dist.md").read_text().split("## `tools/build-dist`")[1].split("\n## ")[0]
    result = tool(ROOT, "--help")
    told = set(re.findall(r"^  (--[a-z-]+)", result.stdout, re.M))
    assert told and told == set(re.findall(r"^\| `(--[a-z-]+)", page, re.M))
    for command in re.findall(r"^  tools/build-dist \[?([a-z-]+)\]? ", result.stdout, re.M):
        assert f"`{command}`" in page, command
