"""Every name in the judge's table of refusals is produced by a test, and no test is needed for a name
that nothing produces (tests/unit/test_refusals.c holds the table to the sources).

The proof is read from the tests themselves. A name counts as produced where a test asserts it as a
literal: in tests/unit/*.c as "NAME" in code, in tests/cli/*.py as a string that is NAME or begins
with "NAME:". Comments, docstrings and `not in` / `!=` comparisons do not count. A name that is only
reached through a computed string is marked beside its assertion: /* produces: NAME */ or
# produces: NAME."""

import ast
import json
import re
import subprocess

import pytest

from conftest import BUILD, ROOT

MARK = re.compile(r"(?:/\*|#)\s*produces:\s*([^*\n]+)")
C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.S)


def in_c(text):
    """The string literals of C code, and the names that it marks."""
    found = set()
    for token in C_TOKEN.findall(text):
        if token.startswith('"'):
            found.add(token[1:-1])
    for mark in MARK.findall(text):
        found.update(n.strip() for n in mark.split(","))
    return found


def in_python(text):
    tree = ast.parse(text)
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and \
                isinstance(body[0].value, ast.Constant):
            skipped.add(body[0].value)  # a docstring
        if isinstance(node, ast.Compare) and \
                any(isinstance(op, (ast.NotIn, ast.NotEq)) for op in node.ops):
            skipped.update(ast.walk(node))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            found.add(node.value)
            found.add(node.value.split(":")[0])
            found.update(re.findall(r"([A-Za-z][A-Za-z0-9_-]*): ", node.value))
    for mark in MARK.findall(text):
        found.update(n.strip() for n in mark.split(","))
    return found


def rows():
    if not (BUILD / "benchd").exists():
        return []
    result = subprocess.run([BUILD / "benchd", "refusals", "--json"], capture_output=True,
                            text=True, timeout=30)
    return json.loads(result.stdout) if result.returncode == 0 else []


@pytest.fixture(scope="module")
def produced():
    names = set()
    for path in sorted((ROOT / "tests" / "unit").glob("test_*.c")):
        names |= in_c(path.read_text())
    for path in sorted((ROOT / "tests" / "cli").glob("test_*.py")):
        if path.name != "test_failure_names.py":
            names |= in_python(path.read_text())
    return names


def test_the_table_is_there(build):
    table = rows()
    assert len(table) > 50
    assert len({row["name"] for row in table}) == len(table)
    assert all(set(row) == {"group", "name", "meaning"} for row in table)


@pytest.mark.parametrize("name", [row["name"] for row in rows()])
def test_name_is_produced_by_a_test(produced, name):
    assert name in produced, \
        f'{name}: no test asserts it; write one, or remove the row (tests/README.md, "Names")'


def gate_failures():
    """The last column of the table of gates in docs/gates.md."""
    page = (ROOT / "docs" / "gates.md").read_text()
    return re.findall(r"^\| [a-z].*\| `([a-z][^`]+ [^`]+)` \|$", page, re.M)


def test_gate_failures_are_those_of_the_source():
    source = (ROOT / "src" / "judge" / "gates_walk.c").read_text()
    calls = re.findall(r"\b(?:close_case|note_semantic_failure)\(([^;{]*)\);", source)
    in_source = {text for call in calls for text in re.findall(r'"([^"]+)"', call)}
    assert in_source == set(gate_failures()) and len(in_source) == 7


@pytest.mark.parametrize("sentence", gate_failures())
def test_gate_failure_is_produced_by_a_test(produced, sentence):
    assert sentence in produced


def test_the_reader_of_tests_is_not_fooled():
    c = in_c('int x; /* "NO-A" */ // "NO-B"\nassert_string_equal(e.name, "YES-A"); '
             '/* produces: YES-B, YES-C */')
    assert {"YES-A", "YES-B", "YES-C"} <= c and not c & {"NO-A", "NO-B"}
    python = in_python('"""NO-A"""\ndef f():\n    "NO-B"\n    assert "YES-A" in x\n'
                       '    assert "NO-C" not in x and y != "NO-D"\n    assert "YES-B: why" == z\n'
                       '    g()  # produces: YES-C\n    # NO-E\n')
    assert {"YES-A", "YES-B", "YES-C"} <= python
    assert not python & {"NO-A", "NO-B", "NO-C", "NO-D", "NO-E"}
