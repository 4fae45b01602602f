"""bench-worker bench, traces and profiles: the keys, sums that must agree, refusals. No speeds."""

import json
import os
import signal
import subprocess

import pytest

from conftest import said

PARTS = ["embed", "attention_projections", "attention_proper", "attention_output", "router", "experts",
         "shared", "dense", "head", "rest"]


def near(a, b, tolerance=1e-6):
    return abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-12)


@pytest.fixture(scope="module")
def report(build, root):
    result = subprocess.run(
        [str(build / "bench-worker"), "bench", "--weights", str(root / "models/laguna-nano"),
         "--prompt-tokens", "200", "--decode-tokens", "12", "--block", "4", "--json", "--quiet"],
        capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert said(result.stderr) == ""
    return json.loads(result.stdout)


def test_keys(report):
    assert list(report) == ["bench", "model", "machine", "load", "prefill", "experts", "decode", "memory"]
    assert report["machine"]["device"] is None and report["decode"][0]["kernels_per_step"] is None
    assert report["bench"] == 1 and report["model"]["model_type"] == "laguna"
    assert [d["context"] for d in report["decode"]][0] == 512 and len(report["decode"]) == 2
    assert report["decode"][1]["context"] + 12 * 2 < 2048, "nano holds 2048 positions"
    for load in ("cold", "warm"):
        assert report["load"][load]["open_seconds"] > 0 and report["load"][load]["first_token_seconds"] > 0
    assert report["load"]["warm"]["resident_before"] == 1.0
    assert report["machine"]["read"]["buffer_bytes_per_second"] > 0
    memory = report["memory"]
    assert memory["kv_bytes"] > 0
    assert memory["anonymous_bytes"] + memory["file_bytes"] <= memory["resident_bytes"]


def test_decode_adds_up(report):
    for d in report["decode"]:
        assert list(d["parts"]) == PARTS
        assert near(d["tokens_per_second"] * d["seconds"], d["tokens"])
        assert d["step_seconds_least"] <= d["step_seconds_median"]
        assert near(sum(p["seconds"] for p in d["parts"].values()), d["metered_step_seconds"], 1e-3)
        assert near(sum(p["share"] for p in d["parts"].values()), 1, 1e-3)
        read = d["weight_bytes_per_token"] + d["kv_bytes_per_token"]
        assert near(sum(p["bytes"] for p in d["parts"].values()), read)
        assert near(d["roofline_tokens_per_second"], d["read_bytes_per_second"] / read)
        assert near(d["share_of_roofline"],
                    read / d["read_bytes_per_second"] / d["step_seconds_median"])
        assert d["sentence"].startswith(f"At context {d['context']} ") and d["sentence"].endswith(".")
        assert d["bound"] in ["memory", "cache", *PARTS]


def test_bytes_are_those_of_the_weights_touched(report, build, root):
    """Against the engine's formula, less the norms and biases, which are not counted."""
    tokens = root / "models/laguna-nano"
    out = subprocess.run([str(build / "bench-worker"), "generate", "--weights", str(tokens), "--prompt",
                          "a", "-n", "1", "--json"], capture_output=True, text=True, timeout=60)
    formula = json.loads(out.stdout)["bytes_per_token"]
    for d in report["decode"]:
        assert 0 <= formula - d["weight_bytes_per_token"] < 0.005 * formula
    config = json.loads((tokens / "config.json").read_text())
    full = sum(t == "full_attention" for t in config["layer_types"])
    sliding = config["num_hidden_layers"] - full
    first, second = report["decode"]
    # The full layers' keys and values grow with the context, the sliding ones' do not.
    row = config["num_key_value_heads"] * config["head_dim"] * 2 * 2
    assert near(second["kv_bytes_per_token"] - first["kv_bytes_per_token"],
                full * row * (second["context"] - first["context"]))
    assert first["kv_bytes_per_token"] > row * (sliding * min(config["sliding_window"], 512) + full * 512)


def test_widths(report):
    for d in report["decode"]:
        widths = d["verify"]
        assert [w["rows"] for w in widths] == [1, 2, 4] and widths[0]["relative"] == 1.0
        for w in widths:
            assert near(w["relative"], w["seconds_median"] / widths[0]["seconds_median"])
            assert w["seconds_least"] <= w["seconds_median"]
        # More rows choose more experts, and everything else is read once for all of them.
        assert widths[0]["weight_bytes"] < widths[1]["weight_bytes"] < widths[2]["weight_bytes"]
        assert widths[2]["weight_bytes"] < 2 * widths[0]["weight_bytes"]


def test_prefill_and_experts(report):
    p = report["prefill"]
    assert p["tokens"] == 200 and near(p["tokens_per_second"] * p["seconds"], 200)
    assert near(sum(part["flops"] for part in p["parts"].values()), p["flops"])
    for span, parts in (("dense", ["attention_projections", "attention_output", "router", "dense"]),
                        ("nvfp4", ["experts", "shared"])):
        s = p[span]
        assert near(s["flops"], sum(p["parts"][k]["flops"] for k in parts))
        assert near(s["share_of_peak"] * s["peak_flops_per_second"], s["flops"] / s["seconds"])
    e = report["experts"]
    assert (e["layers"], e["experts"], e["least_chosen_of_a_layer"]) == (7, 16, 16)
    assert 1 <= e["busiest_over_mean"] <= 16


@pytest.fixture(scope="module")
def wide(build, root, tmp_path_factory):
    """Made-up weights with the true model's 256 experts of which 8 are chosen, and its depth, narrow."""
    folder = tmp_path_factory.mktemp("wide")
    config = json.loads((root / "tracks/laguna-xs-2.1-dflash-v1/config.json").read_text())
    config.update(hidden_size=128, intermediate_size=256, moe_intermediate_size=16, head_dim=32,
                  shared_expert_intermediate_size=16, num_key_value_heads=2, vocab_size=2048,
                  num_attention_heads=4)
    config["num_attention_heads_per_layer"] = [4 if i % 4 == 0 else 8 for i in range(40)]
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([str(build / "synth-checkpoint"), "--config", str(folder / "config.json"), "--out",
                    str(folder / "m"), "--quiet"], check=True, timeout=120)
    return folder / "m"


def test_made_up_weights_spread_the_routing(build, run, wide):
    result = run([build / "bench-worker", "bench", "--weights", wide, "--prompt-tokens", "1024",
                  "--decode-tokens", "4", "--context", "600", "--block", "1", "--no-cold", "--json", "--quiet"])
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    e = report["experts"]
    assert (e["layers"], e["experts"]) == (39, 256)
    assert e["least_chosen_of_a_layer"] == 256, "an expert is never chosen"
    assert e["busiest_over_mean"] < 5
    assert report["load"]["cold"] is None
    assert [d["context"] for d in report["decode"]] == [600]


def test_made_up_weights_stay_in_range(build, run, wide, tmp_path):
    """40 layers deep: logits finite, of an RMS near 3."""
    numpy = pytest.importorskip("numpy")
    (tmp_path / "ids.json").write_text(json.dumps([(i * 977) % 2048 for i in range(300)]))
    result = run([build / "bench-worker", "logits", "--weights", wide, "--tokens-file",
                  tmp_path / "ids.json", "--out", tmp_path / "l.f32"])
    assert result.returncode == 0, result.stderr
    logits = numpy.fromfile(tmp_path / "l.f32", "<f4").reshape(300, 2048)
    assert numpy.isfinite(logits).all()
    assert 2 < float(numpy.sqrt((logits.astype("f8") ** 2).mean())) < 4
    assert len(set(logits.argmax(axis=1).tolist())) > 100, "every row says the same"


def test_simulated_acceptance(build, run, root):
    """Every kept row gave the serial token, or the run would have failed; and it is said that nothing was judged."""
    flags = ["--weights", root / "models/laguna-nano", "--drafter", root / "models/laguna-nano-dflash",
             "--simulate-acceptance", "0.75", "--prompt-tokens", "32", "--decode-tokens", "40", "--context", "64",
             "--no-cold", "--quiet"]
    result = run([build / "bench-worker", "bench", *flags, "--json"])
    assert result.returncode == 0, result.stderr
    s = json.loads(result.stdout)["simulated"]
    assert s["label"] == "simulated acceptance: timing only, nothing was judged" and s["acceptance"] == 0.75
    assert s["context"] == 64 and s["serial_tokens"] > 100
    assert [r["rows"] for r in s["rounds"]] == [2, 4, 8]
    for r in s["rounds"]:
        assert near(r["times_serial"], r["tokens_per_second"] / s["serial_tokens_per_second"])
        assert near(r["tokens_per_round"], r["tokens"] / r["rounds"])
        mean = sum(0.75 ** i for i in range(r["rows"]))
        assert abs(r["tokens_per_round"] - mean) < 0.1 * mean
        assert r["draft_seconds"] > 0 and r["verify_seconds"] > 0 and r["seconds"] > 0
    text = run([build / "bench-worker", "bench", *flags, "--block", "2"])
    assert "simulated acceptance of 75%" in text.stdout and "nothing was judged" in text.stdout


def test_nothing_but_bench_simulates(build, run, root):
    for command in ("runtime-worker", "generate", "logits"):
        result = run([build / "bench-worker", command, "--weights", root / "models/laguna-nano",
                      "--simulate-acceptance", "0.5"])
        assert result.returncode == 2 and "unknownArgument(--simulate-acceptance)" in result.stderr


def test_tables_and_sentence(build, run, root):
    result = run([build / "bench-worker", "bench", "--weights", root / "models/laguna-nano",
                  "--prompt-tokens", "32", "--decode-tokens", "4", "--block", "2", "--no-cold", "--context", "64"])
    assert result.returncode == 0, result.stderr
    for text in ("warm: opened", "reading:", "prefill: 32 tokens", "decode at context 64",
                 "attention: q, k, v, gate", "times one row", "At context 64 ", "memory:"):
        assert text in result.stdout, text
    assert "cold:" not in result.stdout


def test_refusals(build, run, root, tmp_path):
    nano = root / "models/laguna-nano"
    for arguments, code, text in (
            ([], 2, "missingWeights"),
            (["--weights", tmp_path / "absent"], 1, "CHECKPOINT-MISSING-FILE"),
            (["--weights", nano, "--block", "17"], 2, "badValue(--block)"),
            (["--weights", nano, "--drafter", nano], 2, "--drafter needs --simulate-acceptance"),
            (["--weights", nano, "--simulate-acceptance", "0.5"], 2, "needs --drafter"),
            (["--weights", nano, "--simulate-acceptance", "1.5"], 2, "badValue(--simulate-acceptance)"),
            (["--weights", nano, "--drafter", tmp_path / "absent", "--simulate-acceptance", "0.5", "--decode-tokens",
              "2", "--context", "32", "--no-cold"], 1, "CHECKPOINT-MISSING-FILE"),
            (["--weights", nano, "--timeline"], 2, "TIMELINE-NOT-BUILT"),
            (["--weights", nano, "--context", "2048"], 1, "CONTEXT-EXCEEDED"),
            (["--weights", nano, "--decode-tokens", "2000"], 1, "CONTEXT-EXCEEDED"),
            (["--weights", nano, "--cpu", "abacus"], 1, "CPU-UNSUPPORTED")):
        result = run([build / "bench-worker", "bench", *arguments, "--quiet"])
        assert result.returncode == code and text in result.stderr, (arguments, result.stderr)
        assert result.stdout == ""


def test_interrupt(build, root):
    p = subprocess.Popen([str(build / "bench-worker"), "bench", "--weights",
                          str(root / "models/laguna-nano"), "--decode-tokens", "700", "--json"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stderr.readline(), "the first progress line says that it has begun"
    p.send_signal(signal.SIGINT)
    out, errors = p.communicate(timeout=60)
    assert p.returncode == 130 and "INTERRUPTED" in errors and out == ""


def generate(build, run, root, *more, **environment):
    return run([build / "bench-worker", "generate", "--weights", root / "models/laguna-nano", "--prompt",
                "Once upon a time there was", "-n", "12", *more], env={**os.environ, **environment})


@pytest.mark.parametrize("variable", ["MLXFAST_TRACE_KERNELS", "DARKBLOOM_TRACE_FUSION"])
def test_trace_says_each_path_once(build, run, root, variable):
    result = generate(build, run, root, **{variable: "1"})
    lines = [l for l in result.stderr.splitlines() if l.startswith("mlxfast: fusion ")]
    assert len(lines) == len(set(lines)) > 5
    names = [l.split(": ", 2)[1:] for l in lines]
    assert ["fusion active", "head-top2-in-pass"] in names
    assert ["fusion active", "experts-grouped-over-rows"] in names
    for line in lines:
        kind, rest = line.removeprefix("mlxfast: fusion ").split(": ", 1)
        assert kind in ("active", "inactive")
        assert (": " in rest) == (kind == "inactive"), "a path that did not run says why"


def test_trace_names_what_did_not_run(build, run, root):
    plain = generate(build, run, root, "--cpu", "portable", MLXFAST_TRACE_KERNELS="1").stderr
    assert "mlxfast: fusion inactive: bf16-dot-instruction: " in plain
    quiet = generate(build, run, root, MLXFAST_TRACE_KERNELS="0").stderr
    assert "fusion" not in quiet


def test_trace_does_not_change_the_output(build, run, root, tmp_path):
    plain = generate(build, run, root)
    traced = generate(build, run, root, MLXFAST_TRACE_KERNELS="1",
                      MLXFAST_PROFILE=str(tmp_path / "p.json"))
    assert plain.returncode == traced.returncode == 0 and plain.stdout == traced.stdout


def test_profile_is_a_chrome_trace(build, run, root, tmp_path):
    path = tmp_path / "profile.json"
    result = generate(build, run, root, MLXFAST_PROFILE=str(path))
    assert result.returncode == 0, result.stderr
    trace = json.loads(path.read_text())
    assert trace["otherData"]["dropped_events"] == 0
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names[1].startswith("prefill chunk: ") and names[2].startswith("decode step: 1 row at ")
    for thread in (1, 2):
        events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == thread]
        assert events[0]["ts"] == 0
        assert {e["args"].get("layer") for e in events} >= set(range(8))
        assert {"experts", "attention_proper", "head"} <= {e["cat"] for e in events}
        for a, b in zip(events, events[1:]):
            assert a["dur"] > 0 and abs(a["ts"] + a["dur"] - b["ts"]) < 0.01, "a gap or an overlap"


def test_profile_that_cannot_be_written_is_said_first(build, run, root, tmp_path):
    result = generate(build, run, root, MLXFAST_PROFILE=str(tmp_path / "no/such/p.json"))
    assert result.returncode == 1 and "MLXFAST_PROFILE" in result.stderr and result.stdout == ""
