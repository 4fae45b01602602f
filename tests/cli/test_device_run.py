"""tests/device/run, the one command for a GPU, tried on the processor and small weights: what it reports,
and that what could not run, or came out otherwise, is never told as passed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT


def device_run(out, *flags, build=BUILD, path=None):
    result = subprocess.run([sys.executable, str(ROOT / "tests/device/run"), "--out", str(out), "--backend", "cpu",
                             "--small", "--build", str(build), *map(str, flags)],
                            capture_output=True, text=True, timeout=300,
                            env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None)
    reports = sorted(out.glob("cpu-*.json"))
    return result, json.loads(reports[-1].read_text()) if reports else None


def states(report):
    return {c["name"]: c["state"] for p in report["parts"] for c in p["checks"]}


@pytest.fixture(scope="module")
def measured(build, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    result, report = device_run(out, "--only", "weights,bench", "--decode-tokens", 4)
    assert result.returncode == 0, result.stdout + result.stderr
    return out, report


def test_made_up_weights_are_measured(measured):
    out, report = measured
    assert [p["state"] for p in report["parts"]] == ["passed", "passed"]
    bench = {c["name"]: c["figures"]["bench"] for c in report["parts"][1]["checks"]}
    assert list(bench) == ["shipped strict", "int8 strict", "shipped strict, 8192", "int8 strict, 8192"]
    for name, b in bench.items():
        assert [d["context"] for d in b["decode"]] == [8192 if name.endswith("8192") else 512]
    assert all(bench[n]["simulated"]["acceptance"] == 0.75 for n in ("shipped strict", "int8 strict"))
    less = bench["int8 strict"]["decode"][0]["weight_bytes_per_token"]
    assert less < bench["shipped strict"]["decode"][0]["weight_bytes_per_token"]
    for part in report["parts"]:
        assert all(c["command"] and "$BUILD" in c["command"] for c in part["checks"])
    assert not list(out.glob("scratch"))


def test_a_trial_meets_nothing(measured):
    _, report = measured
    assert report["small"] and all(t["met"] is None for t in report["targets"])
    assert len(report["targets"]) == 8


def test_page_says_what_it_is(measured):
    out, report = measured
    page = next(out.glob("cpu-*.md")).read_text()
    for text in ("A trial of the script, not a measurement", "**simulated** acceptance of 75%", "times one row",
                 "## weights: passed", "## bench: passed", "synth-checkpoint", "the bound, tokens/s", "kernels a step",
                 "What bounds it:", "- shipped strict: At context 512 ", "routed experts", "not measured",
                 "| weights | passed |"):
        assert text in page, text
    assert report["commit"] is None or report["commit"][:40] in page


def test_bits_of_the_processor(build, tmp_path):
    if not (build / "tests/test_blocks").exists():
        pytest.skip("the unit tests are not built")
    result, report = device_run(tmp_path, "--only", "bits")
    assert result.returncode == 0, result.stdout
    found = states(report)
    assert sum("are the committed ones" in n for n in found) == 10
    assert sum("are the processor's" in n for n in found) >= 18
    assert sum("are serial decoding" in n for n in found) == 16
    assert "K rows give what one row gives (rounds of 2 to 16 rows)" in found


def test_what_is_not_there_is_missing_not_passed(tmp_path):
    result, report = device_run(tmp_path, "--only", "bits,bench,drift", build=tmp_path / "nothing")
    assert result.returncode == 1
    assert {p["part"]: p["state"] for p in report["parts"]} == {"bits": "missing", "drift": "missing",
                                                                "bench": "missing"}
    assert "missing" in result.stdout


def test_another_bit_fails(build, tmp_path):
    """A worker that answers, and wrongly."""
    fake = tmp_path / "fake"
    fake.mkdir()
    real = build / "bench-worker"
    (fake / "bench-worker").write_text(f"#!/bin/sh\n[ \"$1\" = logits ] && set -- \"$@\" --yarn-magnitude derived\n"
                                       f"exec {real} \"$@\"\n")
    (fake / "bench-worker").chmod(0o755)
    result, report = device_run(tmp_path / "out", "--only", "bits", build=fake)
    assert result.returncode == 1
    wrong = [n for n, s in states(report).items() if s == "failed" and "attention_factor" in n]
    assert len(wrong) == 9 and "not" in result.stdout


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def sanitized(build, tmp_path, blind):
    """The sanitizer part with a tool of our own, which finds the faults made for it but those that `blind` is of."""
    program(tmp_path / "tools/compute-sanitizer", f"""tool=$2 log=$8
shift 8
case "$tool $*" in
{blind}) found=0 ;;
*--fault*) found=1 ;;
*) found=0; "$@" || exit ;;
esac
echo "========= ERROR SUMMARY: $found errors" > "$log"
[ $found = 0 ] || exit 86
""")
    program(tmp_path / "build/tests/device/test_cuda_sanitizer", "exit 0\n")
    (tmp_path / "build/bench-worker").symlink_to(build / "bench-worker")
    return device_run(tmp_path / "out", "--only", "sanitizer", build=tmp_path / "build", path=tmp_path / "tools")


def test_sanitizer_finds_what_was_made_for_it(build, tmp_path):
    result, report = sanitized(build, tmp_path, "nothing")
    assert result.returncode == 0, result.stdout
    found = states(report)
    assert len(found) == 12 and sum("finds the fault made in a graph" in n for n in found) == 3
    clean = [c for c in report["parts"][0]["checks"] if "with its drafter" in c["name"]]
    assert all(c["figures"]["tokens_per_second"] > 0 and c["figures"]["without_the_tool"] > 0 for c in clean)


def test_sanitizer_that_sees_no_graphs_fails(build, tmp_path):
    result, report = sanitized(build, tmp_path, "*--graph")
    assert result.returncode == 1 and "memcheck does not see what runs in a graph" in result.stdout
    found = states(report)
    assert sum(s == "failed" for s in found.values()) == 3
    plain = [c for c in report["parts"][0]["checks"] if "launched plainly" in c["name"]]
    assert len(plain) == 6 and all("MLXFAST_CUDA_PLAIN=graphs,overlap" in c["command"] for c in plain)


@pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed")
@pytest.mark.parametrize("confined", [True, False])
def test_resident_is_booted_and_leaves_nothing(build, tmp_path, confined):
    if not confined:
        program(tmp_path / "tools/bwrap", "echo no namespaces here >&2; exit 1\n")
    elif not shutil.which("bwrap") or subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"],
                                                     capture_output=True).returncode != 0:
        pytest.skip("bubblewrap does not work here")
    result, report = device_run(tmp_path / "out", "--only", "resident", build=build, path=tmp_path / "tools")
    assert result.returncode == 0, result.stdout
    checks = {c["name"]: c for c in report["parts"][0]["checks"]}
    assert len(checks) == 6 and sum("the tokens of a run without the resident" in n for n in checks) == 2
    said = checks["serve-up.sh --boot: the resident answers"]["figures"]["confined"]
    assert said == "yes" if confined else "no namespaces here" in said


def test_resident_that_does_not_boot_fails(build, tmp_path):
    """Another's tokens would be no proof: an engine that serves sessions, and no resident."""
    program(tmp_path / "build/bench-worker", f"[ \"$1\" = resident ] && exit 1\nexec {build}/bench-worker \"$@\"\n")
    result, report = device_run(tmp_path / "out", "--only", "resident", build=tmp_path / "build")
    assert result.returncode == 1
    assert states(report) == {"serve-up.sh --boot: the resident answers": "failed"}


@pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed")
def test_resident_that_boots_only_unconfined_fails_and_is_tried(build, tmp_path):
    program(tmp_path / "tools/bwrap", '[ "$#" -lt 12 ] || exit 1\n')
    result, report = device_run(tmp_path / "out", "--only", "resident", build=build, path=tmp_path / "tools")
    boots = [c for c in report["parts"][0]["checks"] if "--boot" in c["name"]]
    assert result.returncode == 1 and [c["state"] for c in boots] == ["failed", "passed"]
    assert boots[1]["figures"]["confined"] == "no, since that failed"
    assert len(report["parts"][0]["checks"]) == 7


def test_time_that_is_up_is_missing(build, tmp_path):
    result, report = device_run(tmp_path, "--only", "weights,bench", "--limit", 4)
    assert result.returncode == 1
    assert [p["state"] for p in report["parts"]] == ["missing", "missing"]


def test_command_line(tmp_path):
    result, _ = device_run(tmp_path, "--only", "bits,everything")
    assert result.returncode == 2 and "everything" in result.stderr


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tests/device/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_targets_are_met_or_not():
    report = load("device_report")

    def bench(name, tokens, share, verify):
        return {"name": name, "state": "measured", "figures": {"bench": {
            "decode": [{"context": 512, "tokens_per_second": tokens, "share_of_roofline": share,
                        "verify": [{"rows": r, "relative": v} for r, v in verify.items()]}],
            "prefill": {"tokens_per_second": 16000.0},
            "simulated": {"rounds": [{"rows": 4, "times_serial": 1.6}]}}}}

    parts = [{"part": "bench", "checks": [bench("shipped strict", 820.0, 0.78, {1: 1.0, 2: 1.14, 4: 1.4}),
                                          bench("shipped fast", 820.0, 0.78, {1: 1.0}),
                                          bench("int8 strict", 1000.0, 0.7, {1: 1.0})]},
             {"part": "judge", "checks": [{"name": "laguna-nano, judged by benchd", "state": "passed", "figures": {}}]}]
    assert [t["met"] for t in report.targets(parts)] == [True, True, True, False, True, True, False, True]
    assert all(t["met"] is None for t in report.targets([]))


def test_clocks_are_those_of_work():
    found = load("device_checks").under_load("0, 345, 70.1\n98, 1980, 610.5\n99, 1965, 690\n[N/A], 1, 2\n97, 1935, 700.0\n")
    assert found == {"samples": 3, "sm_mhz": [1935, 1965, 1980], "watts": 690.0}
    assert load("device_checks").under_load("") is None


def test_drift_is_counted():
    checks = load("device_checks")
    import array
    strict, fast = array.array("f", [1, 2, 3, 4, 5, 6]).tobytes(), array.array("f", [1, 2, 3.5, 7, 5, 6]).tobytes()
    worst, rows, same, mean = checks.compare(strict, fast, 3)
    assert (worst, rows, same) == (3.0, 2, 1) and abs(mean - 3.5 / 6) < 1e-9
