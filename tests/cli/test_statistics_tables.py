"""docs/statistics.md shows what the simulation prints now."""

import re
import subprocess

import pytest


def rows(text):
    """The tables' rows: first cell, then numbers where a cell has them."""
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| `") and re.search(r"\d", line):
            found.append([c.strip() for c in line.strip("|").split("|")])
    return found


def number(cell):
    match = re.fullmatch(r"([\d.]+)( %)?", cell)
    return float(match.group(1)) if match else None


def test_the_page_shows_the_simulation(root, build):
    program = build / "tests" / "test_stats_simulation"
    if not program.exists() or "san" in build.parts:
        pytest.skip("needs `make tests`, without sanitizers: they simulate less")
    made = rows(subprocess.run([program, "--tables"], capture_output=True, text=True, timeout=300,
                               check=True).stdout)
    shown = rows((root / "docs" / "statistics.md").read_text())
    assert len(made) > 30
    for row in made:
        same = [s for s in shown if s[0] == row[0] and len(s) == len(row)]
        close = [s for s in same if all(
            a == b or (number(a) is not None and number(b) is not None and
                       # Another libm may tip single runs.
                       abs(number(a) - number(b)) <= 0.25) for a, b in zip(s, row))]
        assert close, f"not in docs/statistics.md: {row}, there: {same}"
