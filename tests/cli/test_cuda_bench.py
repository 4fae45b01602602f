"""bench-worker bench of a device: what it tells, on the processor (BUILD=build/cuda-emulated). No speeds."""

import json
import os
import subprocess

import pytest

from conftest import said

pytestmark = pytest.mark.xdist_group("cuda-bench")  # the runs are made once


@pytest.fixture(scope="module")
def answers(build, nano):
    """The same run as JSON and as tables."""
    flags = ["--weights", nano, "--backend", "cuda", "--prompt-tokens", "2", "--context", "3", "--decode-tokens", "2",
             "--block", "2", "--timeline", "--no-cold", "--quiet"]
    environment = {**os.environ, "CUDA_EMULATOR_MEMORY": str(1 << 30)}
    out = []
    for more in (["--json"], []):
        r = subprocess.run([build / "bench-worker", "bench", *flags, *more], env=environment, capture_output=True,
                           text=True, timeout=600, check=False)
        if "BACKEND-NOT-BUILT" in r.stderr:
            pytest.skip("needs a build with CUDA=emulated")
        assert r.returncode == 0, r.stderr
        assert said(r.stderr) == ""
        out.append(r.stdout)
    return json.loads(out[0]), out[1]


def test_the_device_is_told(answers):
    report, text = answers
    machine = report["machine"]
    device = machine["device"]
    assert device["arithmetic"] == "strict" and device["compute_capability"].count(".") == 1
    for key in ("multiprocessors", "memory_bytes", "cache_bytes", "weight_bytes", "copy_bytes_per_second", "clock_hz"):
        assert device[key] > 0, key
    assert machine["cache_bytes"] == device["cache_bytes"] and "page_bytes" not in machine
    assert 0 < machine["read"]["buffer_bytes"] <= device["memory_bytes"] // 4
    assert machine["read"]["buffer_bytes_per_second"] > 0 and machine["read"]["weights_bytes_per_second"] is None
    for part in ("device: ", "of its memory; copying: ", "weights there", " kernels"):
        assert part in text, part
    assert "huge pages" not in text and "dense parts" not in text


def test_steps_are_counted_and_cut(answers):
    report, _ = answers
    d = report["decode"][0]
    assert d["kernels_per_step"] > 8 and [w["rows"] for w in d["verify"]] == [1, 2]
    assert all(w["kernels"] > 8 for w in d["verify"])
    assert abs(sum(p["seconds"] for p in d["parts"].values()) - d["metered_step_seconds"]) \
        < 0.01 * d["metered_step_seconds"]
    for part in ("attention_projections", "attention_proper", "attention_output", "router", "experts", "shared",
                 "head"):
        assert d["parts"][part]["seconds"] > 0, part
    read = d["weight_bytes_per_token"] + d["kv_bytes_per_token"]
    assert abs(sum(p["bytes"] for p in d["parts"].values()) - read) < 1e-6 * read


def test_prefill_has_no_peak_to_be_set_against(answers):
    report, _ = answers
    assert report["prefill"]["dense"] is None and report["prefill"]["nvfp4"] is None
    assert report["prefill"]["tokens_per_second"] > 0 and report["experts"] is None


def test_a_timeline_of_the_steps(answers):
    """The emulated clock goes on by 1024 ns from mark to mark; the model has 8 layers."""
    report, text = answers
    timeline = report["decode"][0]["timeline"]
    steps = timeline["steps"]
    assert timeline["layers"] > 0 and timeline["layer_seconds"] > 0
    assert [s["into_layer_seconds"] for s in steps] == sorted(s["into_layer_seconds"] for s in steps)
    step = {(s["from"], s["to"]): s for s in steps}
    chain = ["projections are there", "heads normed and rotated", "scores", "values summed",
             "chunks put together"]
    for at, to in zip(chain, chain[1:]):
        s = step[f"attention: {at}", f"attention: {to}"]
        assert s["times"] == 2 * 8
        for key in ("seconds_median", "seconds_tenth", "seconds_nine_tenths"):
            assert abs(s[key] - 1024e-9) < 1e-12, (to, key)
    starts = step[None, "attention: starts"]
    assert starts["times"] == 2 * 8 and starts["seconds_median"] == 0
    assert step["project: ends", "attention: projections are there"]["times"] == 2 * 8
    for part in ("timeline of these steps, block 0", "into the layer", "attention: values summed"):
        assert part in text, part
