"""explain-contract, parity-diff, prefill-decompose, harness-hash in its old form, and the corners of
validate-weights."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile

import pytest

from conftest import ROOT
from judge_kit import Kit

TRACKS = sorted(p.parent for p in (ROOT / "tracks").glob("*/contract.json"))
SHAPES = sorted((ROOT / "tests" / "vectors" / "contracts").glob("*.json"))
NANO = ROOT / "tracks" / "laguna-nano-serial-v1" / "contract.json"
NOBODY = 65534


@pytest.fixture
def benchd(build, run):
    return lambda *arguments, **kwargs: run([build / "benchd", *arguments], **kwargs)


@pytest.fixture
def unprivileged(build, run):
    """(call, folder): benchd as somebody who cannot read everything, also where root runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        folder.chmod(0o755)
        program = folder / "benchd"
        shutil.copy(build / "benchd", program)
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        yield lambda *arguments, **kwargs: run([program, *arguments], **who, **kwargs), folder


# explain-contract


@pytest.mark.parametrize("track", TRACKS, ids=[t.name for t in TRACKS])
def test_contract_page_is_up_to_date(benchd, track):
    page = benchd("explain-contract", track / "contract.json", "--markdown", text=False)
    assert page.returncode == 0 and page.stderr == b""
    assert (track / "CONTRACT.md").read_bytes() == page.stdout, \
        f"write it anew: benchd explain-contract --markdown {track.name}/contract.json"


def test_every_track_has_a_contract():
    assert TRACKS
    others = sorted({p for p in (ROOT / "tracks").iterdir() if p.is_dir()} - set(TRACKS))
    assert [p.name for p in others] == ["deepseek-v4-flash"]  # a checkpoint to fetch
    assert all("no run is scored" in (p / "README.md").read_text() for p in others)


def plain(page):
    """Lines joined, so that a test need not know where they were broken."""
    return re.sub(r"\n +", " ", page)


def test_explanation_has_the_numbers(benchd, tmp_path):
    contract = json.loads(NANO.read_text())
    contract.update(official_scoring_enabled=True, mismatch_logit_gap=0.625, official_pairs=6,
                    official_pair_combine="mean", timed_token_tolerance_per_thousand=24,
                    timed_token_near_tie_relative_gap=0.015, correctness_steps=75,
                    decode_speedup_floor=0.91, allowed_modes=["serial", "dflash"],
                    prefill_band_down_enabled=True, prefill_band_down_tolerance=0.2,
                    scored_batch_size=8, score_prefill_weight=1, score_decode_weight=3,
                    benchmark_decode_steps=128)
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(contract))
    page = plain(benchd("explain-contract", path).stdout)
    for text in ("Runs are scored officially", "modes: serial, dflash.", "token ids from 0 to 4095",
                 "prompts of exactly 512 tokens", "Decode: 128 tokens", "in local-submit 1023",
                 "75 steps", "At most 7 may differ", "within 0.625 of the top one",
                 "At most 24 in a thousand", "That is 3 of 128 tokens", "than 0.015 of its size",
                 "6 pairs", "mean of the pairs' composites", "decode gain below 0.91 fails",
                 "prefill gain^0.25 x decode gain^0.75", "is worth 1.6818", "8 streams run together",
                 "less than 0.8 times its reference", hashlib.sha256(path.read_bytes()).hexdigest(),
                 "68.4103 seconds"):
        assert text in page, text
    assert "`" not in page
    lines = benchd("explain-contract", path).stdout.splitlines()
    assert all(len(line) <= 80 or " " not in line.strip("- ") for line in lines)


@pytest.mark.parametrize("steps, iterate, submit", [(64, 129, 1024), (129, 129, 1024),
                                                    (130, 130, 1024), (1500, 1500, 1500)])
def test_explanation_of_a_base_cases_length(benchd, tmp_path, steps, iterate, submit):
    """iterate asks for the longer of the check and the decode window with its seed."""
    path = tmp_path / "contract.json"
    path.write_text(json.dumps({**json.loads(NANO.read_text()), "correctness_steps": steps,
                                "benchmark_decode_steps": 128}))
    page = plain(benchd("explain-contract", path).stdout)
    assert (f"at least {steps} expected tokens to be checked for correctness, {iterate} in "
            f"local-iterate and {submit} in local-submit") in page


def test_explanation_names_what_is_refused(benchd, tmp_path, root):
    path = tmp_path / "contract.json"
    path.write_text('{"track_id":"bare-v1"}')
    page = plain(benchd("explain-contract", path).stdout)
    rows = dict(re.findall(r"^- (.+?) \(.*?\): (.*)\.$", page.split("What is refused")[1], re.M))
    known = set(re.findall(r"^\| `([^`]+)` \|", (root / "docs" / "refusals.md").read_text(), re.M))
    assert rows == {
        "Window shape": "refused, WINDOW-SHAPE-UNDECLARED-FOR-TRACK",
        "Model shape": "refused, MODEL-IDENTITY-UNDECLARED-FOR-TRACK",
        "Control leg or stored pair": "refused, CONTROL-LEG-UNDECLARED-FOR-TRACK",
        "Official scoring": "refused, OFFICIAL-SCORING-UNDECLARED-FOR-TRACK",
        "Scoring weights": "refused, SCORING-WEIGHTS-UNDECLARED-FOR-TRACK",
        "Speedup floors": "refused, SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK",
        "Batch size": "refused, SCORED-REGIME-PENDING-DECLARATION",
        "Stored pair": "refused, OFFICIAL-BASELINE-PENDING-CAPTURE",
        "Acceptance bands": "refused, ACCEPTANCE-BANDS-UNDECLARED-FOR-TRACK",
        "Batch size with gain exponents": "refused, SCORED-REGIME-PENDING-DECLARATION",
        "Older paired flow": "refused, PAIRED-FLOW-UNDECLARED-FOR-TRACK",
        "Capture of a stored pair": "refused, CONTROL-LEG-UNDECLARED-FOR-TRACK",
    }
    assert {r.split(", ")[1] for r in rows.values()} <= known
    contract = {"track_id": "bare-v1", "official_scoring_enabled": False,
                "paired_flow_retired": True, "scores_against_live_control_leg": True}
    path.write_text(json.dumps(contract))
    page = benchd("explain-contract", path).stdout
    for name in ("OFFICIAL-SCORING-DISABLED-FOR-TRACK", "PAIRED-FLOW-RETIRED-FOR-TRACK",
                 "CAPTURE-RETIRED-FOR-LIVE-CONTROL-LEG", "OFFICIAL-PAIRS-UNDECLARED-FOR-TRACK"):
        assert name in page and name in known
    assert "OFFICIAL-BASELINE-PENDING-CAPTURE" not in page


def test_every_name_of_an_explanation_is_in_the_table(benchd, tmp_path, root):
    known = set(re.findall(r"^\| `([^`]+)` \|", (root / "docs" / "refusals.md").read_text(), re.M))
    full = {**json.loads(NANO.read_text()), "timed_token_tolerance_per_thousand": 24, "scored_batch_size": 4,
            "timed_token_near_tie_relative_gap": 0.015, "official_pairs": 6, "official_scoring_enabled": True}
    stored = {**full, "scores_against_live_control_leg": False, "official_scoring_enabled": False}
    path, seen = tmp_path / "contract.json", set()
    for contract in (full, stored, {"track_id": "bare-v1"},
                     {"track_id": "bare-v1", "scores_against_live_control_leg": True}):
        path.write_text(json.dumps(contract))
        page = benchd("explain-contract", "--markdown", path).stdout
        seen |= set(re.findall(r"`([A-Z]+(?:-[A-Z]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+)`", page))
    assert {"SERIAL-CONTROL-LEG-FAILED", "TIMED-DIVERGENCE-OVER-TOLERANCE"} <= seen <= known, seen - known


@pytest.mark.parametrize("shape", SHAPES, ids=[s.name for s in SHAPES])
def test_published_shapes_are_explained(benchd, shape):
    result = benchd("explain-contract", shape)
    assert result.returncode == 0, result.stderr
    page = plain(result.stdout)
    assert "token ids from 0 to 248319" in page and "prompts of exactly 1024 tokens" in page
    assert "in these modes: serial, mtp." in page and "2 pairs" in page
    assert "live_golden_speculative" in page.split("For other readers")[1]
    weights = "SCORING-WEIGHTS-UNDECLARED-FOR-TRACK" in page
    assert weights == (".older." in shape.name)


def test_published_fixture_is_explained(benchd, shared_data):
    result = benchd("explain-contract", shared_data / "laguna-xs-2.1-dflash-track.json")
    assert result.returncode == 0
    page = plain(result.stdout)
    assert "from 0.8726 to 0.8939" in page and "WINDOW-SHAPE-UNDECLARED-FOR-TRACK" in page


def test_hostile_texts_stay_in_their_quotes(benchd, tmp_path):
    path = tmp_path / "contract.json"
    path.write_text(json.dumps({"track_id": "x-v1", "track_name": "a`b\n# c\x1b[31m <script>"}))
    for flags in ([], ["--markdown"]):
        page = benchd("explain-contract", path, *flags).stdout
        assert "a'b\\x0a# c\\x1b[31m" in plain(page) and "\x1b" not in page


def test_explain_exit_codes(benchd, tmp_path):
    path = tmp_path / "contract.json"
    path.write_text('{"track_id":"x-v1","decode_speedup_flor":0.95}')
    result = benchd("explain-contract", path)
    assert result.returncode == 1 and result.stdout == ""
    assert "CONTRACT-UNKNOWN-KEY" in result.stderr and str(path) in result.stderr
    assert "did you mean decode_speedup_floor?" in result.stderr
    assert benchd("explain-contract", tmp_path / "absent").returncode == 3
    assert benchd("explain-contract", tmp_path).returncode == 3
    assert benchd("explain-contract").returncode == 2
    assert benchd("explain-contract", path, path).returncode == 2
    # A run's environment does not matter to a reader.
    env = {**os.environ, "MLXFAST_TRACK_ID": "other-v1"}
    assert benchd("explain-contract", NANO, env=env).returncode == 0


def test_a_pooled_golden_has_its_declared_length(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    data = kit.golden.read_bytes()
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    kit.write_contract(timed_prompt_pool=[entry])
    assert kit.iterate().returncode == 0
    kit.write_contract(timed_prompt_pool=[{**entry, "bytes": len(data) + 1}])
    result = kit.iterate()
    assert result.returncode == 1 and "GOLDEN-PIN-MISMATCH" in result.stderr
    assert json.loads(kit.score.read_text())["metrics"]["error"].startswith("GOLDEN-PIN-MISMATCH")


# parity-diff


@pytest.fixture
def pair(benchd, tmp_path):
    """pair(change) -> exit code, lines: the sample against the sample with change(document) done."""
    sample = benchd("parity-diff", "--emit-sample")
    assert sample.returncode == 0 and sample.stderr == ""

    def call(change, *flags):
        a, b = tmp_path / "a.json", tmp_path / "b.json"
        a.write_text(sample.stdout)
        document = json.loads(sample.stdout)
        change(document)
        b.write_text(json.dumps(document))
        result = benchd("parity-diff", a, b, *flags)
        assert result.stderr.count("\n") == 1
        return result.returncode, result.stdout.splitlines()

    return call


def test_parity_of_equals(pair):
    assert pair(lambda d: None) == (0, [])
    assert pair(lambda d: d["metrics"].update(commit="other", timestamp="later")) == (0, [])
    assert pair(lambda d: None, "--version", "2") == (0, [])


def test_parity_one_line_each(pair):
    def change(d):
        d["passed"] = "yes"
        d["extra"] = [1]
        del d["metrics"]["num_layers"]
        d["metrics"].update(decode_speedup=9.5, case_count=7, peak_ram_gb=9.5, error="X: y",
                            first_failing_step=3)

    code, lines = pair(change)
    assert code == 1
    assert sorted(lines) == [
        "DET metrics.case_count: 0 | 7",
        "DET-TOL metrics.peak_ram_gb: 0.0 | 9.5",
        'ERROR-CLASS metrics.error: "" | "X: y"',
        "FAILING metrics.first_failing_step: null | 3",
        'PASSED-NOT-BOOL passed: true | "yes"',
        "SCHEMA-DRIFT-MISSING metrics.num_layers: 0 | (absent)",
        "TIMED metrics.decode_speedup: 0.0 | 9.5",
        "UNKNOWN-FIELD extra: (absent) | [1]",
    ]


def test_parity_exit_codes(benchd, tmp_path):
    good = tmp_path / "good.json"
    good.write_text(benchd("parity-diff", "--emit-sample").stdout)
    for bad in ("", "{", "[]", '{"a":1,"a":2}'):
        (tmp_path / "bad.json").write_text(bad)
        for order in ((good, tmp_path / "bad.json"), (tmp_path / "bad.json", good)):
            result = benchd("parity-diff", *order)
            assert result.returncode == 3 and "bad.json" in result.stderr and result.stdout == ""
    assert benchd("parity-diff", good, tmp_path / "absent").returncode == 3
    for usage in ([], [good], [good, good, good], [good, good, "--version", "1"],
                  [good, good, "--what"], [good, "--emit-sample"]):
        assert benchd("parity-diff", *usage).returncode == 2
    help_text = benchd("parity-diff", "--help").stdout
    assert "A B" in help_text and "--emit-sample" in help_text


# prefill-decompose

ENGINE = """#!/usr/bin/python3
import json, os, sys, time
def say(**r):
    print(json.dumps({"nonce": "n", **r}), flush=True)
say(id=0, ok=True, protocol_version=1, backend="test", device="none")
for line in sys.stdin:
    q = json.loads(line)
    if q["kind"] == "prefill":
        with open(os.path.dirname(os.path.abspath(__file__)) + "/asked", "a") as f:
            f.write("%d %d\\n" % (os.getpid(), len(q["prompt_tokens"])))
            assert set(q["prompt_tokens"]) == {1}
        BEHAVE
        say(id=q["id"], ok=True, token=1)
    else:
        say(id=q["id"], ok=True, completed_work=0, cache_memory=0)
"""


@pytest.fixture
def decompose(benchd, tmp_path):
    def call(behave, *flags):
        engine = tmp_path / "engine"
        engine.write_text(ENGINE.replace("BEHAVE", behave))
        engine.chmod(0o755)
        (tmp_path / "asked").unlink(missing_ok=True)
        return benchd("prefill-decompose", "--engine", engine, "--weights", tmp_path, "--quiet",
                      *flags)

    call.asked = lambda: [tuple(map(int, s.split()))
                          for s in (tmp_path / "asked").read_text().splitlines()]
    return call


def test_decompose_asks_each_size_of_a_new_engine(decompose):
    result = decompose("pass", "--sizes", "4,8,16", "--reps", "3")
    assert result.stderr == ""
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][0] == "tokens" and [r[0] for r in rows[1:4]] == ["4", "8", "16"]
    fixed = float(re.search(r"fixed cost (-?[0-9.]+) ms", result.stdout).group(1))
    assert result.returncode == (0 if fixed <= 8.0 else 1)
    assert ("within 8.0 ms" in result.stdout) == (result.returncode == 0)
    asked = decompose.asked()
    assert [n for _, n in asked] == [4] * 4 + [8] * 4 + [16] * 4  # one unmeasured, three measured
    assert len({pid for pid, _ in asked}) == 3


def test_decompose_defaults(decompose):
    decompose("pass")
    assert [n for _, n in decompose.asked()] == [n for n in (128, 256, 512, 1024) for _ in range(9)]


def test_a_fixed_cost_is_found(decompose):
    """An engine that sleeps as long for each prompt has nothing but a fixed cost."""
    result = decompose("time.sleep(0.25)", "--sizes", "4,400", "--reps", "1")
    assert result.returncode == 1 and "verdict: the fixed cost is above 8.0 ms" in result.stdout


def test_decompose_of_an_engine_that_fails(decompose, benchd, tmp_path):
    result = decompose("sys.exit(3)", "--sizes", "4,8")
    assert result.returncode == 1 and "EngineExited" in result.stderr and result.stdout == ""
    result = decompose("say(id=q['id'], ok=False, error='no'); continue", "--sizes", "4,8")
    assert result.returncode == 1 and "Engine" in result.stderr
    result = benchd("prefill-decompose", "--engine", tmp_path / "absent", "--weights", tmp_path)
    assert result.returncode == 1


@pytest.mark.parametrize("flags", [
    ["--sizes", "128"], ["--sizes", "128,128"], ["--sizes", ""], ["--sizes", "1,2,"],
    ["--sizes", ",1,2"], ["--sizes", "0,2"], ["--sizes", "1,x"], ["--sizes", "1,1048577"],
    ["--sizes", ",".join(map(str, range(1, 34)))], ["--sizes", "1, 2"], ["--reps", "0"],
    ["--reps", "1001"], ["--reps", "x"],
])
def test_decompose_usage(benchd, tmp_path, flags):
    result = benchd("prefill-decompose", "--engine", "/bin/false", "--weights", tmp_path, *flags)
    assert result.returncode == 2 and flags[0] in result.stderr and result.stdout == ""


def test_decompose_of_the_engine_that_ships(benchd, build, nano):
    if not (build / "bench-worker").exists() or not nano.is_dir():
        pytest.skip("bench-worker or models/laguna-nano is not here")
    result = benchd("prefill-decompose", "--engine", build / "bench-worker", "--weights", nano,
                    "--sizes", "8,32", "--reps", "1", "--quiet")
    assert result.returncode in (0, 1) and "verdict: " in result.stdout, result.stderr


# harness-hash --legacy-absolute-paths

LEGACY_ROOTS = ["Package.swift", "Sources", "Tests", "benchmark.json", "benchmark.sh", "setup.sh",
                "tools", "README.md", "TASK.md", "harness", "vllm"]


def legacy_hash(folder, unreadable=()):
    """Section 5 of the sealing page, in Python. unreadable: paths that nobody may read."""
    found, absent = [], []
    for root in LEGACY_ROOTS:
        path = os.path.join(folder, root)
        if not os.path.exists(path):
            absent.append(root)
        elif os.path.isfile(path):
            found.append(path)
        elif os.path.isdir(path) and not os.path.islink(path):
            for at, folders, names in os.walk(path):
                folders[:] = [f for f in folders if not f.startswith(".")
                              and not os.path.islink(os.path.join(at, f))]
                found += [os.path.join(at, n) for n in names if not n.startswith(".")
                          and stat.S_ISREG(os.lstat(os.path.join(at, n)).st_mode)]
    digest = hashlib.sha256()
    for path in sorted(found, key=os.fsencode):
        if not any(path == str(u) or path.startswith(f"{u}/") for u in unreadable):
            digest.update(os.fsencode(path))
            with open(path, "rb") as f:
                digest.update(f.read())
    return digest.hexdigest(), absent


def harness_tree(folder):
    files = {"Package.swift": b"p", "Sources/A/a.swift": b"a", "Sources/A-b.swift": b"",
             "Sources/.hidden": b"no", "Sources/.git/x": b"no", "tools/t.sh": b"t",
             "tools/caf\u00e9": b"c", "elsewhere/b.sh": b"link target", "src/judge/x.c": b"not a root",
             "Tests/deep/er/t": b"d" * 70000}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "benchmark.sh").symlink_to("elsewhere/b.sh")  # a root that links to a file counts
    (folder / "harness").symlink_to("elsewhere")            # to a folder: contributes nothing
    (folder / "TASK.md").symlink_to("nowhere")              # dangling: absent
    (folder / "Sources/link.swift").symlink_to("A/a.swift")
    (folder / "Sources/linked").symlink_to("A")
    os.mkfifo(folder / "Sources/pipe")


def test_legacy_harness_hash(benchd, tmp_path):
    folder = tmp_path.resolve() / "one"
    folder.mkdir()
    harness_tree(folder)
    wanted, absent = legacy_hash(str(folder))
    assert absent == ["benchmark.json", "setup.sh", "README.md", "TASK.md", "vllm"]
    result = benchd("harness-hash", "--legacy-absolute-paths", cwd=folder)
    assert result.returncode == 0 and result.stdout == wanted + "\n"
    assert result.stderr.splitlines() == [f"harnessHash root absent, skipped: {r}" for r in absent]
    # It depends on the place; the new form does not.
    other = folder.parent / "two"
    other.mkdir()
    harness_tree(other)
    assert benchd("harness-hash", "--legacy-absolute-paths", cwd=other).stdout != result.stdout
    for at in (folder, other):
        (at / "benchmark.sh").unlink()
        (at / "harness").unlink()
        (at / "TASK.md").unlink()
        for link in ("link.swift", "linked", "pipe"):
            (at / "Sources" / link).unlink()
    assert benchd("harness-hash", cwd=folder).stdout == benchd("harness-hash", cwd=other).stdout != ""


def test_legacy_harness_hash_passes_over_what_it_cannot_read(unprivileged):
    call, folder = unprivileged
    tree = folder / "tree"
    tree.mkdir()
    harness_tree(tree)
    closed = [tree / "tools/t.sh", tree / "Tests/deep"]
    for path in closed:
        path.chmod(0)
    wanted, _ = legacy_hash(str(tree), unreadable=closed)
    assert wanted != legacy_hash(str(tree))[0] or os.geteuid() != 0
    result = call("harness-hash", "--legacy-absolute-paths", cwd=tree)
    assert result.returncode == 0 and result.stdout == wanted + "\n"
    closed[1].chmod(0o755)


def test_legacy_harness_hash_of_nothing(benchd, build, run, tmp_path):
    result = benchd("harness-hash", "--legacy-absolute-paths", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout == hashlib.sha256().hexdigest() + "\n"
    assert len(result.stderr.splitlines()) == len(LEGACY_ROOTS)
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" harness-hash --legacy-absolute-paths'
    result = run(["sh", "-c", script, "sh", gone, build / "benchd"])
    assert result.returncode == 1 and "IO" in result.stderr and result.stdout == ""


# validate-weights


def test_weights_folder_must_not_be_a_link_however_it_is_written(benchd, tmp_path):
    weights = tmp_path / "w"
    weights.mkdir()
    for name in ("config.json", "model.safetensors.index.json"):
        (weights / name).write_text("{}")
    (tmp_path / "link").symlink_to(weights)
    for form in ("w", "w/", "w//", "w/."):
        assert benchd("validate-weights", "--weights", f"{tmp_path}/{form}").returncode == 0, form
    for form in ("link", "link/", "link//", "link/.", "link/./"):
        result = benchd("validate-weights", "--weights", f"{tmp_path}/{form}")
        assert result.returncode == 1 and "WEIGHTS-INVALID" in result.stderr, form


def test_weights_limit_is_on_the_sum(benchd, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with open(tmp_path / "model.safetensors", "wb") as f:
        f.truncate(26843545600 - 4)  # sparse: exactly the default limit with the two small files
    env = {k: v for k, v in os.environ.items() if k != "MLXFAST_MAX_WEIGHTS_BYTES"}
    assert benchd("validate-weights", "--weights", tmp_path, env=env).returncode == 0
    (tmp_path / "one-more").write_bytes(b"x")
    result = benchd("validate-weights", "--weights", tmp_path, env=env)
    assert result.returncode == 1 and "WEIGHTS-TOO-LARGE" in result.stderr


def test_weights_that_cannot_be_read(unprivileged):
    call, folder = unprivileged
    weights = folder / "w"
    (weights / "closed").mkdir(parents=True)
    for name in ("config.json", "model.safetensors.index.json"):
        (weights / name).write_text("{}")
    assert call("validate-weights", "--weights", weights).returncode == 0
    (weights / "closed").chmod(0)
    result = call("validate-weights", "--weights", weights)
    assert result.returncode == 3 and "closed" in result.stderr
    (weights / "closed").chmod(0o755)
