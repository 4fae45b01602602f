"""docs/writing-an-engine.md is enough to write an engine: the one in examples/ was written from it, passes
the kit whole, and answers as the page says."""

import ast
import json
import re
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT
from test_conformance import conformance, named, verdicts
from judge_kit import CONTRACT

FOLDER = ROOT / "examples/python-engine"
ENGINE, WEIGHTS = FOLDER / "engine.py", FOLDER / "weights"
PAGE = (ROOT / "docs/writing-an-engine.md").read_text()
NONCE = "9c1d5a0be7f34c2f8b06d2a4e1f3c785"


def test_short_and_of_the_standard_library_alone():
    text = ENGINE.read_text()
    assert len(text.splitlines()) < 300
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported and imported <= set(sys.stdlib_module_names)


def test_passes_the_kit_whole(build):
    result = conformance(ENGINE, WEIGHTS, "--json", "--manifest", WEIGHTS / "manifest.json")
    found = verdicts(result)
    assert named(found, "fail") == set(), result.stdout
    # Both depend on what an engine advertises; bench-worker has them the other way round.
    assert named(found, "skipped") == {"cohort_not_advertised", "replay"}


# ---- the page's own lines ----


def masked(line):
    return re.sub(r'"(prefill|decode)_ns_by_stream":\[[^]]*\]', r'"\1_ns_by_stream":[]', line)


def session(argv, requests):
    process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    out, _ = process.communicate("".join(line + "\n" for line in requests), timeout=120)
    lines = out.splitlines()
    return [masked(line.replace(json.loads(lines[0])["nonce"], NONCE)) for line in lines]


def recorded():
    """(request or None for a hello, reply) in the order of the page."""
    found, request = [], None
    for mark, line in re.findall(r"^    ([<>]) (\S.*)$", PAGE, re.M):
        if mark == ">":
            assert request is None, f"{request} has no answer"
            request = line
        else:
            found.append((request, masked(line)))
            request = None
    return found


def test_the_lines_of_the_page_are_true(build):
    lines = recorded()
    hellos = [reply for request, reply in lines if request is None]
    replay = [pair for pair in lines if pair[0] and "cohort_reference_replay" in pair[0]]
    asked = [pair for pair in lines if pair[0] and pair not in replay]
    assert len(hellos) == 2 and len(replay) == 1 and len(asked) > 15
    argv = [ENGINE, "runtime-worker", "--weights", WEIGHTS]
    answers = session([*argv, "--speculative-protocol", "v1.1"], [request for request, _ in asked])
    assert answers == [hellos[0], *[reply for _, reply in asked]]
    assert session(argv, []) == [hellos[1]]
    worker = [build / "bench-worker", "runtime-worker", "--weights",
              ROOT / "tests/vectors/laguna/top-8", "--speculative-protocol", "v1.1", "--trusted"]
    assert session(worker, [replay[0][0]])[1:] == [replay[0][1]]


def test_the_manifest_of_the_page_is_the_examples():
    lines = [line[4:] for line in re.search(r"^    \{\n(?:    .*\n)+", PAGE, re.M)[0].splitlines()]
    assert "\n".join(lines) == (WEIGHTS / "manifest.json").read_text().strip()


def test_every_kind_and_key_stands_on_the_page():
    schema = json.loads((ROOT / "docs/schema/engine-protocol-v1.schema.json").read_text())["$defs"]
    request = schema["WorkerRequest"]["properties"]
    left_out = {"depth_clamp_reasons", "resident", "expected_token_logit", "expected_token_rank"}
    for name in [*request["kind"]["enum"], *request, *schema["WorkerResponse"]["properties"]]:
        assert name in PAGE or name in left_out, f"{name} is not on the page"


# ---- a golden of its own ----


@pytest.fixture(scope="module")
def golden(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    contract = {**CONTRACT, "golden_model_type": "toy", "seed_tokens": 32}
    (folder / "contract.json").write_text(json.dumps(contract))
    for i in range(4):
        (folder / f"p{i}.json").write_text(json.dumps([(i * 37 + j * j * 3 + 5) % 509 for j in range(32)]))
    result = subprocess.run(
        [str(a) for a in [BUILD / "record-correctness-golden", "--worker-bin", ENGINE, "--weights",
                          WEIGHTS, "--contract", folder / "contract.json", "--out",
                          folder / "toy.golden.json", "--prompt-tokens", folder / "p0.json",
                          "--case-name", "one", "--prompt-tokens", folder / "p1.json", "--case-name",
                          "two", "--steps", "64", "--anchor", f"a={folder / 'p2.json'}", "--free-run",
                          f"f={folder / 'p3.json'}", "--free-run-steps", "24", "--quiet"]],
        capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return folder


def correctness(folder, weights, *flags):
    return subprocess.run([str(a) for a in [BUILD / "benchd", "correctness", "--engine", ENGINE,
                                            "--weights", weights, "--golden",
                                            folder / "toy.golden.json", "--contract",
                                            folder / "contract.json", "--quiet", *flags]],
                          capture_output=True, text=True, timeout=120)


def test_passes_correctness_against_its_golden(golden):
    result = correctness(golden, WEIGHTS, "--manifest", WEIGHTS / "manifest.json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"passed": True, "case_count": 4, "first_failing_case": None,
                                         "first_failing_step": None, "error": ""}


def test_other_weights_do_not(golden, tmp_path):
    tmp_path.chmod(0o755)  # the sandboxed engine may be another user
    for name in ("config.json", "manifest.json"):
        (tmp_path / name).write_text((WEIGHTS / name).read_text())
    (tmp_path / "rule.json").write_text('{"last": 31, "length": 17, "add": 8}')
    result = correctness(golden, tmp_path)
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert document["first_failing_case"] == "one" and document["first_failing_step"] == 0
    assert document["error"] == "teacher-forced token mismatch"


@pytest.mark.parametrize("config", ['{"model_type":"toy"}', "[]", "{", '{"model_type":"x","vocab_size":9,"context":9}'])
def test_bad_weights_end_the_example_before_its_hello(tmp_path, config):
    for name in ("rule.json", "manifest.json"):
        (tmp_path / name).write_text((WEIGHTS / name).read_text())
    (tmp_path / "config.json").write_text(config)
    result = subprocess.run([str(ENGINE), "runtime-worker", "--weights", str(tmp_path)],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and result.stdout == "" and "weights" in result.stderr
