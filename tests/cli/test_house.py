"""The house keeps its shape: layers by includes and by symbols, banned calls, folder READMEs."""

import re
import subprocess

import pytest

# A layer may include itself and those listed (design: programs > judge | engine | arena > wire > base).
ALLOWED = {
    "base": set(),
    "wire": {"base"},
    "judge": {"wire", "base"},
    "engine": {"wire", "base"},
    "arena": {"judge", "wire", "base"},
    "programs": {"judge", "engine", "arena", "wire", "base"},
}
BANNED = re.compile(r"\b(sprintf|vsprintf|strcpy|strcat|gets|atoi|atol|atof|strtok|system|popen)\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def sources(root):
    return sorted(p for p in (root / "src").rglob("*") if p.suffix in (".c", ".h", ".cu"))


def layer_violations(root):
    found = []
    for path in sources(root):
        own = path.relative_to(root / "src").parts[0]
        for target in INCLUDE.findall(path.read_text()):
            layer = target.split("/")[0] if "/" in target else None
            if layer is None:
                found.append(f"{path.relative_to(root)}: \"{target}\" is not a path from src/")
            elif layer != own and layer not in ALLOWED[own]:
                found.append(f"{path.relative_to(root)}: {own} may not include {layer} ({target})")
            elif not (root / "src" / target).exists():
                found.append(f"{path.relative_to(root)}: {target} does not exist")
    return found


def test_includes_run_downwards(root):
    assert len(sources(root)) > 20
    assert layer_violations(root) == []


def test_include_rule_sees_a_violation(tmp_path):
    """The check itself can fail: a judge file that includes the engine is found."""
    (tmp_path / "src/judge").mkdir(parents=True)
    (tmp_path / "src/engine").mkdir()
    (tmp_path / "src/engine/x.h").write_text("")
    (tmp_path / "src/judge/a.c").write_text('#include "engine/x.h"\n')
    assert len(layer_violations(tmp_path)) == 1


def symbols(path):
    """Names that the file defines for others. Functions and data, not debug or local ones."""
    out = subprocess.run(["nm", "--defined-only", "--extern-only", str(path)], capture_output=True,
                         text=True, check=True).stdout
    return {line.split()[2] for line in out.splitlines() if len(line.split()) == 3}


@pytest.mark.parametrize("program, forbidden", [
    ("benchd", "engine"),
    ("record-correctness-golden", "engine"),
    ("bench-worker", "judge"),
    ("mlxfast", "judge"),
])
def test_binaries_hold_no_foreign_layer(build, program, forbidden):
    foreign = symbols(build / "lib" / f"{forbidden}.a")
    assert foreign, f"{forbidden}.a defines nothing: the check would be empty"
    inside = symbols(build / program)
    assert inside
    own = "judge" if forbidden == "engine" else "engine"
    assert inside & symbols(build / "lib" / f"{own}.a"), "the binary lost its own layer's symbols"
    assert sorted((foreign & inside) - {"main"}) == []


def test_no_banned_calls(root):
    found = []
    for path in sources(root):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = re.sub(r"/\*.*?\*/|//.*|\"(\\.|[^\"])*\"", "", line)
            if BANNED.search(code) and not line.lstrip().startswith("*"):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert found == []


def test_every_source_folder_says_what_it_is(root):
    folders = {p.parent for p in sources(root)} | {p.parent.parent for p in sources(root)}
    missing = [str(f.relative_to(root)) for f in sorted(folders)
               if not (f / "README.md").exists()]
    assert missing == []


def test_no_file_holds_two_ideas(root):
    long = [f"{p.relative_to(root)}: {n} lines" for p in sources(root)
            if (n := len(p.read_text().splitlines())) > 900]
    assert long == []
