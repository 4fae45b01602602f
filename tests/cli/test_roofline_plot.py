"""tools/roofline-plot: points of a made-up measurement where a hand puts them, and what it refuses."""

import copy
import json
import math
import xml.etree.ElementTree as ElementTree

import pytest


def part(seconds, size):
    return {"seconds": seconds, "share": 0.1, "bytes": size, "bytes_per_second": size / seconds}


@pytest.fixture
def made_up():
    """100 GB/s; 1000 GFLOP/s of bf16, 400 of NVFP4; two of eight experts chosen; 64 tokens of prefill."""
    return {
        "bench": 1,
        "model": {"weights": "/somewhere/<made up>", "model_type": "laguna", "layers": 3, "hidden": 10,
                  "vocab": 10000, "weight_bytes": 7800000},
        "machine": {"engine": "cpu none, 2 threads", "cache_bytes": 1000,
                    "read": {"buffer_bytes_per_second": 1e11, "weights_bytes_per_second": None}},
        "prefill": {
            "tokens": 64,
            "dense": {"instruction": "DOT", "peak_flops_per_second": 1e12, "flops": 64 * 3e6,
                      "seconds": 64 * 3e6 / 5e11},
            "nvfp4": {"instruction": "FMA", "peak_flops_per_second": 4e11, "flops": 64 * 4e6,
                      "seconds": 64 * 4e6 / 2e11},
            "parts": {"attention_projections": {"seconds": 1, "flops": 64 * 2e6},
                      "attention_proper": {"seconds": 1, "flops": 1e9},
                      "attention_output": {"seconds": 1, "flops": 64 * 1e6},
                      "experts": {"seconds": 1, "flops": 64 * 4e6},
                      "head": {"seconds": 1, "flops": 2e5}}},
        "experts": {"layers": 2, "experts": 8, "least_chosen_of_a_layer": 8},
        "decode": [{
            "context": 512, "read_bytes_per_second": 9e10, "weight_bytes_per_token": 4.2e6,
            "kv_bytes_per_token": 1e5,
            "parts": {"attention_projections": part(2.5e-5, 2e6), "attention_proper": part(1e-5, 1e5),
                      "attention_output": part(1e-5, 1e6), "experts": part(2e-5, 1e6),
                      "head": part(4e-6, 2e5), "rest": {"seconds": 1e-6, "bytes": 0.0}},
            "verify": [{"rows": 1, "seconds_median": 1e-4, "weight_bytes": 4.2e6},
                       {"rows": 2, "seconds_median": 1.2e-4, "weight_bytes": 5.2e6},
                       {"rows": 4, "seconds_median": 2e-4, "weight_bytes": 7.1e6},
                       {"rows": 8, "seconds_median": 4e-4, "weight_bytes": 9e6}]}],
    }


@pytest.fixture
def plot(run, root, tmp_path):
    """plot(data, ...) -> (result, the SVG's root, or None)"""

    def call(*data, more=()):
        files = []
        for i, d in enumerate(data):
            files.append(tmp_path / f"{i}.json")
            files[-1].write_text(d if isinstance(d, str) else json.dumps(d))
        out = tmp_path / "out.svg"
        result = run([root / "tools/roofline-plot", "--out", out, *more, *files])
        return result, ElementTree.parse(out).getroot() if out.exists() else None

    return call


def points(svg):
    return {e.get("data-point"): e for e in svg.iter() if e.get("data-point")}


def values(svg):
    return {k: (float(e.get("data-x")), float(e.get("data-y"))) for k, e in points(svg).items()}


def words(svg):
    return [e.text for e in svg.iter() if e.tag.endswith("}text")]


def near(a, b):
    return all(math.isclose(x, y, rel_tol=1e-4) for x, y in zip(a, b))


def test_points_by_hand(plot, made_up):
    result, svg = plot(made_up)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    got = values(svg)
    rows = 2e6 + 1e6 + 4e6 + 2e5  # operations of a row
    expected = {
        "attention_projections": (1, 80),         # 2e6 of 2e6 bytes in 25 us
        "attention_output": (1, 100),
        "experts": (4, 200),
        "head": (1, 50),
        "verify-1": (rows / 4.3e6, 72),           # keys and values are bytes of a step
        "verify-2": (2 * rows / 5.3e6, 120),
        "verify-4": (4 * rows / 7.2e6, 144),
        "prefill-dense": (64, 500),               # every weight once for 64 rows
        # 7.8 MB less 3.2 of other parts and 0.2 of the table: 4.4 MB of experts
        "prefill-nvfp4": (64 * 4e6 / 4.4e6, 200)}
    assert set(got) == set(expected)
    for key in expected:
        assert near(got[key], expected[key]), (key, got[key], expected[key])
    labels = words(svg)
    assert "q, k, v, gate: 80 GFLOP/s, 80% of its roof" in labels
    assert "experts: 200 GFLOP/s, 50% of its roof" in labels
    assert "prefill of 64: NVFP4 parts: 200 GFLOP/s, 50% of its roof" in labels
    assert "reading memory: 100.0 GB/s" in labels and "bf16: DOT, 1e+03 GFLOP/s" not in labels
    assert "bf16: DOT, 1000 GFLOP/s" in labels and "NVFP4: FMA, 400 GFLOP/s" in labels
    assert any("keys and values: not drawn" in w for w in labels)


def test_points_lie_where_the_axes_say(plot, made_up):
    """Positions on the page, from two ticks of each axis; the roofs meet where peak = rate x intensity."""
    _, svg = plot(made_up)
    tick = {}
    for e in svg.iter():
        for axis in ("x", "y"):
            if e.get(f"data-tick-{axis}"):
                tick[axis, float(e.get(f"data-tick-{axis}"))] = float(e.get(f"{axis}1"))

    def place(axis, value):
        a, b = (1, 64) if axis == "x" else (20, 200)
        return tick[axis, a] + (tick[axis, b] - tick[axis, a]) * math.log(value / a) / math.log(b / a)

    for key, e in points(svg).items():
        x, y = values(svg)[key]
        assert abs(float(e.get("cx")) - place("x", x)) < 0.1, key
        assert abs(float(e.get("cy")) - place("y", y)) < 0.1, key
    roofs = {e.get("data-roof"): e for e in svg.iter() if e.get("data-roof")}
    assert set(roofs) == {"memory", "dense", "nvfp4"}
    assert abs(float(roofs["memory"].get("x2")) - place("x", 10)) < 0.1
    assert abs(float(roofs["memory"].get("y2")) - place("y", 1000)) < 0.1
    assert abs(float(roofs["nvfp4"].get("x1")) - place("x", 4)) < 0.1
    assert abs(float(roofs["nvfp4"].get("y1")) - place("y", 400)) < 0.1
    background = next(e for e in svg.iter() if e.tag.endswith("}rect"))
    assert background.get("fill") == "#ffffff" and background.get("width") == svg.get("width")


def test_counts_of_the_file_win(plot, made_up):
    parts = made_up["decode"][0]["parts"]
    parts["attention_proper"]["flops"] = 6e5
    parts["head"]["flops"] = 4e5
    made_up["prefill"]["parts"]["experts"]["bytes"] = 8e6
    made_up["machine"]["read"]["weights_bytes_per_second"] = 2e11
    _, svg = plot(made_up)
    got = values(svg)
    assert near(got["attention_proper"], (6, 60)) and near(got["head"], (2, 100))
    assert near(got["verify-1"], ((7e6 + 6e5 + 4e5) / 4.3e6, 80))
    assert near(got["prefill-nvfp4"], (32, 200))
    assert "reading memory: 200.0 GB/s" in words(svg) and not any("not drawn" in w for w in words(svg))


def test_a_panel_for_each_file_and_the_context_asked_for(plot, made_up):
    second = copy.deepcopy(made_up["decode"][0])
    second["context"] = 8192
    second["parts"]["head"]["seconds"] = 2e-6
    made_up["decode"].append(second)
    made_up["machine"]["cache_bytes"] = 5e6
    _, svg = plot(made_up, made_up, more=["--context", "8192"])
    heads = [e for e in svg.iter() if e.get("data-point") == "head"]
    assert len(heads) == 2 and [float(e.get("data-y")) for e in heads] == [100, 100]
    assert float(heads[0].get("cy")) + 600 == pytest.approx(float(heads[1].get("cy")))
    assert sum("<made up>: laguna, 3 layers, context 8192" in w for w in words(svg)) == 2
    assert sum("fit into the cache" in w for w in words(svg)) == 2
    result, _ = plot(made_up, more=["--context", "7"])
    assert result.returncode == 2 and "no context 7, only 512, 8192" in result.stderr


def test_experts_that_were_not_all_chosen_have_no_point(plot, made_up):
    made_up["experts"]["least_chosen_of_a_layer"] = 7
    _, svg = plot(made_up)
    assert "prefill-nvfp4" not in points(svg) and "prefill-dense" in points(svg)
    assert any(w.startswith("prefill of 64: NVFP4 parts: not drawn") for w in words(svg))


def remove(*path):
    def change(o):
        for key in path[:-1]:
            o = o[key]
        del o[path[-1]]
    return change


def put(value, *path):
    def change(o):
        for key in path[:-1]:
            o = o[key]
        o[path[-1]] = value
    return change


@pytest.mark.parametrize("change, text", [
    (put(2, "bench"), "field bench: must be 1"),
    (put({"name": "NVIDIA H200"}, "machine", "device"), "field machine.device: the peaks of a device's"),
    (remove("decode"), "field decode: missing"),
    (put([], "decode"), "field decode: must be a list"),
    (put({}, "decode"), "field decode: must be a list"),
    (put([3], "decode"), "field decode.0.context: missing"),
    (remove("prefill", "dense", "peak_flops_per_second"), "field prefill.dense.peak_flops_per_second: missing"),
    (put("fast", "prefill", "nvfp4", "peak_flops_per_second"),
     'field prefill.nvfp4.peak_flops_per_second: not a number: "fast"'),
    (put(0, "machine", "read", "buffer_bytes_per_second"),
     "field machine.read.buffer_bytes_per_second: must be more than 0"),
    (put(-1.5, "decode", 0, "verify", 1, "seconds_median"),
     "field decode.0.verify.1.seconds_median: must be more than 0: -1.5"),
    (put(True, "decode", 0, "verify", 0, "rows"), "field decode.0.verify.0.rows: not a number: true"),
    (put(float("nan"), "decode", 0, "kv_bytes_per_token"), "field decode.0.kv_bytes_per_token: not a number"),
    (put(7, "decode", 0, "verify"), "field decode.0.verify: must be a list"),
    (put({"head": 3}, "decode", 0, "parts"), "field decode.0.parts.head: must be an object"),
    (put("many", "decode", 0, "parts", "head", "bytes"), "field decode.0.parts.head.bytes: not a number"),
    (put([], "prefill", "parts"), "field prefill.parts: must be an object"),
    (put({}, "prefill", "parts"), "field prefill.parts: no part has operations"),
    (put([1], "decode", 0, "weight_bytes_per_token"), "field decode.0.weight_bytes_per_token: not a number"),
    (remove("model", "layers"), "field model.layers: missing"),
    (remove("prefill", "dense", "instruction"), "field prefill.dense.instruction: missing"),
    (put(1e-300, "decode", 0, "parts", "head", "seconds"), "the numbers of 'head' cannot be true"),
    (put({}, "model", "weight_bytes"), "field model.weight_bytes: not a number")])
def test_malformed(plot, made_up, change, text):
    change(made_up)
    result, svg = plot(made_up)
    assert result.returncode == 2 and svg is None
    assert result.stderr.count("\n") == 1 and result.stdout == ""
    assert result.stderr.startswith("roofline-plot: ") and "0.json: " + text in result.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "[" * 100000, "\ufeff{}"])
def test_not_a_measurement(plot, text):
    result, svg = plot(text)
    assert result.returncode == 2 and svg is None and result.stderr.count("\n") == 1


def test_files(plot, made_up, run, root, tmp_path):
    result = run([root / "tools/roofline-plot", "--out", tmp_path / "o.svg", tmp_path / "absent"])
    assert result.returncode == 2 and "absent: No such file" in result.stderr
    (tmp_path / "latin").write_bytes(b'{"bench": "\xff"}')
    result = run([root / "tools/roofline-plot", "--out", tmp_path / "o.svg", tmp_path / "latin"])
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    result, svg = plot(made_up, more=["--out", tmp_path / "no/such/o.svg"])
    assert result.returncode == 1 and svg is None and result.stderr.count("\n") == 1
    (tmp_path / "folder.svg").mkdir()
    result, _ = plot(made_up, more=["--out", tmp_path / "folder.svg"])
    assert result.returncode == 1 and not (tmp_path / "folder.svg.part").exists()


def test_help_and_usage(run, root):
    result = run([root / "tools/roofline-plot", "--help"])
    assert result.returncode == 0 and "--context" in result.stdout and "docs/roofline.svg" in result.stdout
    result = run([root / "tools/roofline-plot"])
    assert result.returncode == 2 and result.stdout == ""


def test_a_true_measurement(build, plot, run, root):
    result = run([build / "bench-worker", "bench", "--weights", root / "models/laguna-nano", "--prompt-tokens",
                  "32", "--decode-tokens", "4", "--block", "4", "--no-cold", "--context", "64", "--json", "--quiet"])
    assert result.returncode == 0, result.stderr
    result, svg = plot(result.stdout)
    assert result.returncode == 0, result.stderr
    assert {"attention_projections", "attention_output", "experts", "shared", "router", "dense", "head", "verify-1",
            "verify-2", "verify-4", "prefill-dense"} <= set(points(svg))
    got = values(svg)
    assert near(got["head"][:1], (1,)) and near(got["dense"][:1], (1,)), "bf16: two operations for two bytes"
    assert near(got["experts"][:1], (2 / (0.5 + 1 / 16),)), "NVFP4: a scale of one byte for sixteen weights"
